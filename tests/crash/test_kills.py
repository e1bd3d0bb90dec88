"""Workers that are killed with SIGKILL: every run ends as if nothing had happened."""

import asyncio
import os
import random
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHandle

from settings import Settings
from stores.faulty import Fault, FaultPlan
from stores.protocols import StepStore
from tests.crash.test_gate import resolve
from tests.helpers.eventually import eventually
from tests.helpers.evidence import stored_and_replayed, trail_of
from tests.helpers.script import Call, script
from tests.helpers.subprocess_worker import WorkerProcess
from tests.helpers.user_agents import AGENTS
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

KILLS = int(os.environ.get("PERDURE_TEST_KILLS", "20"))
SEED = int(os.environ.get("PERDURE_TEST_SEED", "0")) or random.getrandbits(32)

TASK_TIMEOUT = timedelta(seconds=3)
"""After which the server gives a lost workflow task to another worker."""

BETWEEN_KILLS = (0.2, 2.0)
"""Seconds. A worker polls after half a second; a run takes about two."""

WITHIN = timedelta(seconds=150)


def scripts() -> list[str]:
    """Four scripts: steps of one to four parallel calls, quick and slow."""

    def call(step: int, index: int) -> Call:
        return "echo", {"text": f"{step}-{index}", "delay": 0.1 * ((step + index) % 4)}

    return [
        script([[call(step, index) for index in range(parallel)] for step in range(6)])
        for parallel in range(1, 5)
    ]


async def start(client: Client, task_queue: str, prompt: str) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="script", prompt=prompt),
        id=f"killed-{uuid4().hex}",
        task_queue=task_queue,
        task_timeout=TASK_TIMEOUT,
    )


@pytest.mark.spec("SP-1", "SP-111", "SP-113", "SP-114", "SP-115")
async def test_runs_end_as_if_no_worker_had_been_killed(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path
) -> None:
    print(f"PERDURE_TEST_SEED={SEED}")  # noqa: T201 - shown when the test fails
    moments = random.Random(SEED)  # noqa: S311 - no secret
    prompts = [scripts()[number % 4] for number in range(KILLS)]
    handles: list[WorkflowHandle[Any, Any]] = []
    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        for prompt in prompts:
            handles.append(await start(temporal, settings.task_queue, prompt))
            await asyncio.sleep(moments.uniform(*BETWEEN_KILLS))  # the random moment
            worker.restart()
        undisturbed = [await start(temporal, settings.task_queue, prompt) for prompt in scripts()]
        await asyncio.wait_for(
            asyncio.gather(*(handle.result() for handle in (*handles, *undisturbed))),
            WITHIN.total_seconds(),
        )
    expected = [await trail_of(store, handle.id) for handle in undisturbed]
    for number, handle in enumerate(handles):
        trail = await trail_of(store, handle.id)
        assert trail == expected[number % 4]
        stored, path = await stored_and_replayed(store, await handle.fetch_history(), AGENTS)
        assert stored == path
        kinds = Counter(kind for _, kind, _, _ in trail.events)
        assert (kinds["run_started"], kinds["run_completed"]) == (1, 1)
    assert len(await store.list_runs()) == KILLS + 4


@pytest.mark.spec("SP-20", "SP-113")
async def test_run_goes_on_when_its_worker_dies_beside_a_write(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path
) -> None:
    """`after` is: written and not reported."""
    deaths = [
        Fault(name=f"{when}-{holds}", action="kill", when=when, holds=holds)
        for when in ("before", "after")
        for holds in ("register_run", "start_tool_effect", "save_snapshot", "run_completed")
    ]
    prompt = scripts()[1]
    handles = await asyncio.gather(
        *(die_once(temporal, settings, tmp_path, prompt, death) for death in deaths)
    )
    with WorkerProcess(settings, log_path=tmp_path / "worker.log"):
        undisturbed = await start(temporal, settings.task_queue, prompt)
        await asyncio.wait_for(undisturbed.result(), WITHIN.total_seconds())
    expected = await trail_of(store, undisturbed.id)
    for death, handle in zip(deaths, handles, strict=True):
        assert await trail_of(store, handle.id) == expected, death
        stored, path = await stored_and_replayed(store, await handle.fetch_history(), AGENTS)
        assert stored == path, death


async def die_once(
    client: Client, settings: Settings, directory: Path, prompt: str, death: Fault
) -> WorkflowHandle[Any, Any]:
    """A run that has ended, whose worker died of `death`."""
    task_queue = f"{settings.task_queue}-{death.name}"
    own = settings.model_copy(update={"task_queue": task_queue})
    plan = FaultPlan(directory=directory, faults=(death,))
    with WorkerProcess(own, log_path=directory / f"{death.name}.log", plan=plan) as worker:
        handle = await start(client, task_queue, prompt)
        await eventually(lambda: worker.exit_code == -signal.SIGKILL, within=WITHIN)
        worker.restart()
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
    return handle


UNDECLARED_KILLS = int(os.environ.get("PERDURE_TEST_KILLS", "4"))
"""Each run whose tool is hit waits out a pause of the server, so there are fewer by default."""

PAYMENTS = 6


async def test_runs_whose_tools_declare_nothing_pay_once_and_end_after_one_decision_a_call(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path
) -> None:
    print(f"PERDURE_TEST_SEED={SEED}")  # noqa: T201 - shown when the test fails
    moments = random.Random(SEED)  # noqa: S311 - no secret
    handles: list[WorkflowHandle[Any, Any]] = []
    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        for number in range(UNDECLARED_KILLS):
            arguments = {"path": str(tmp_path / f"paid-{number}"), "delay": 0.3}
            prompt = script([[("pay", arguments)] for _ in range(PAYMENTS)])
            handles.append(await start(temporal, settings.task_queue, prompt))
            await asyncio.sleep(moments.uniform(*BETWEEN_KILLS))  # the random moment
            worker.restart()
        decided = await asyncio.wait_for(
            asyncio.gather(*(decide(store, handle) for handle in handles)), WITHIN.total_seconds()
        )
    for number, handle in enumerate(handles):
        path = tmp_path / f"paid-{number}"
        paid = len(path.read_text().splitlines()) if path.exists() else 0
        assert PAYMENTS - decided[number] <= paid <= PAYMENTS
        effects = Counter(each.status for each in await store.list_tool_effects(run_id=handle.id))
        assert effects["completed"] == PAYMENTS - decided[number]
        assert effects["resolved"] == decided[number]
        stored, path_of_history = await stored_and_replayed(
            store, await handle.fetch_history(), AGENTS
        )
        assert stored == path_of_history


async def decide(store: StepStore, handle: WorkflowHandle[Any, Any]) -> int:
    """See a run to its end, and decide once on each call that waits; how many there were."""
    ending = asyncio.create_task(handle.result())
    decided: set[str] = set()
    while not ending.done():
        await asyncio.wait([ending], timeout=0.2)
        for effect in await store.list_unresolved_tool_effects(run_id=handle.id):
            call = f"{effect.step_index}/{effect.call_index}"
            if effect.status == "unknown" and call not in decided:
                decided.add(call)
                await resolve(handle, "completed", call, result="paid")
    await ending
    return len(decided)
