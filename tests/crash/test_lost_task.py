"""A workflow task that is lost after its commits were written, whose second attempt decides else.

The store holds the path that the history holds, and nothing of the other one is live.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowHistory

from settings import Settings
from stores.faulty import Fault, FaultPlan
from stores.protocols import StepStore
from tests.helpers.eventually import eventually
from tests.helpers.evidence import stored_and_replayed
from tests.helpers.script import script
from tests.helpers.subprocess_worker import WorkerProcess
from tests.helpers.user_agents import AGENTS
from tests.helpers.user_workflows import (
    USER_WORKFLOWS,
    ScriptedRun,
    ScriptedRunsInput,
    ScriptedRunsWorkflow,
)
from tests.helpers.workers import count_events

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

TASK_TIMEOUT = timedelta(seconds=4)
"""After which the server gives a lost workflow task to another worker."""

LONGEST_TELLING = timedelta(milliseconds=300)
"""An update is answered by the second attempt alone; until then nothing tells that the server has
it. Far less than the 2 s after which a slow commit gives up."""

WITHIN = timedelta(seconds=60)

FIRST = ScriptedRun(
    agent="listener",
    prompt=script([[("listen", {"text": "a"}), ("listen", {"text": "b"})]], "first"),
)
NEXT = ScriptedRun(agent="script", prompt=script([[("echo", {"text": "c"})]], "next"))
INSTEAD = ScriptedRun(agent="listener", prompt=script([], "instead"))

Message = Literal["signal", "update", "cancel"]


@dataclass(frozen=True)
class SlowCommit:
    """The commit during which the message arrives: the first of run `run` that holds `holds`."""

    when: Literal["before", "after"]
    run: int
    holds: str


ONLY_COMMIT = "start_tool_effect"
"""Of the task that the first model answer opens. The calls have not begun."""
THIRD_COMMIT = "save_snapshot"
"""Of that task: by then both calls have been made, inside the workflow."""
NEXT_RUN = "register_run"
"""Of the second run, in the second commit of the task that ended the first one."""

SLOW_COMMITS = [
    SlowCommit(when, run, holds)
    for when in ("before", "after")
    for run, holds in ((0, ONLY_COMMIT), (0, THIRD_COMMIT), (1, NEXT_RUN))
]


@pytest.mark.parametrize("message", ["signal", "update", "cancel"])
async def test_store_holds_the_path_of_the_attempt_that_was_reported(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path, message: Message
) -> None:
    losses: list[Awaitable[tuple[str, WorkflowHistory]]] = []
    for number, slow in enumerate(SLOW_COMMITS):
        own = settings.model_copy(update={"task_queue": f"{settings.task_queue}-{number}"})
        directory = tmp_path / str(number)
        directory.mkdir()
        losses.append(lose_a_task(temporal, own, directory, slow, message))
    for slow, (end, history) in zip(SLOW_COMMITS, await asyncio.gather(*losses), strict=True):
        assert end == ("cancelled" if message == "cancel" else "instead"), slow
        assert count_events(history)["EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT"], slow
        stored, path = await stored_and_replayed(store, history, AGENTS, USER_WORKFLOWS)
        assert stored == path, slow


async def lose_a_task(
    client: Client, settings: Settings, directory: Path, slow: SlowCommit, message: Message
) -> tuple[str, WorkflowHistory]:
    """How the workflow ends, and its history."""
    workflow_id = f"lost-{uuid4().hex}"
    fault = Fault(
        name="slow",
        action="wait",
        when=slow.when,
        run_id=f"{workflow_id}-{slow.run}-return",
        holds=slow.holds,
    )
    plan = FaultPlan(directory=directory, faults=(fault,))
    with WorkerProcess(settings, log_path=directory / "worker.log", plan=plan) as worker:
        handle = await client.start_workflow(
            ScriptedRunsWorkflow.run,
            ScriptedRunsInput(runs=[FIRST, NEXT], when_told=[INSTEAD]),
            id=workflow_id,
            task_queue=settings.task_queue,
            task_timeout=TASK_TIMEOUT,
        )
        await eventually(lambda: plan.has_fired("slow"), within=WITHIN)
        told = asyncio.create_task(tell(handle, message))
        await asyncio.wait([told], timeout=LONGEST_TELLING.total_seconds())
        worker.restart()
        end = await end_of(handle)
    await told
    return end, await handle.fetch_history()


async def tell(handle: WorkflowHandle[Any, Any], message: Message) -> None:
    match message:
        case "signal":
            await handle.signal(ScriptedRunsWorkflow.tell, "a word")
        case "update":
            await handle.execute_update(ScriptedRunsWorkflow.ask, "a word")  # pyright: ignore[reportUnknownMemberType] - the SDK's overloads
        case "cancel":
            await handle.cancel()


async def end_of(handle: WorkflowHandle[Any, Any]) -> str:
    try:
        outputs: list[str] = await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
        return outputs[-1]
    except WorkflowFailureError as error:
        return "cancelled" if "ancelled" in repr(error.cause) else repr(error.cause)
