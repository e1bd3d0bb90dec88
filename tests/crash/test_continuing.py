"""A worker dies beside a finished tool call, its run is given up, and another run goes on."""

import asyncio
import signal
from datetime import timedelta
from pathlib import Path
from typing import Literal
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from settings import Settings
from stores.faulty import Fault, FaultPlan
from stores.protocols import StepStore
from tests.helpers.eventually import eventually
from tests.helpers.script import Call, script
from tests.helpers.subprocess_worker import WorkerProcess
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

WITHIN = timedelta(seconds=60)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The user's own table: a line for each time that the tool's body ran."""
    return tmp_path / "table"


async def given_up(
    client: Client, settings: Settings, table: Path, when: Literal["before", "after"]
) -> str:
    """A run that was terminated after its worker had died beside the write of a finished call."""
    calls: list[list[Call]] = [
        [("echo", {"text": "hello"})],
        [("mark", {"path": str(table), "text": "paid"})],
        [("echo", {"text": "thanks"})],
    ]
    # The first finished call is the echo's, which nothing happens to.
    faults = (
        Fault(name="nothing", action="delay", holds="finish_tool_effect"),
        Fault(name="death", action="kill", when=when, holds="finish_tool_effect"),
    )
    plan = FaultPlan(directory=table.parent, faults=faults)
    with WorkerProcess(settings, log_path=table.parent / "worker.log", plan=plan) as worker:
        handle = await client.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent="script", prompt=script(calls)),
            id=f"given-up-{uuid4().hex}",
            task_queue=settings.task_queue,
        )
        await eventually(lambda: worker.exit_code == -signal.SIGKILL, within=WITHIN)
    await handle.terminate()
    return handle.id


@pytest.mark.spec("SP-1", "SP-28", "SP-31")
async def test_a_tool_that_completed_before_its_worker_died_is_not_run_by_a_continuation(
    temporal: Client, store: StepStore, settings: Settings, table: Path
) -> None:
    source = await given_up(temporal, settings, table, "after")
    assert len(table.read_text().splitlines()) == 1
    with WorkerProcess(settings, log_path=table.parent / "worker.log"):
        output = await temporal.execute_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent="script", continue_from=source),
            id=f"continued-{uuid4().hex}",
            task_queue=settings.task_queue,
        )
    assert output.output == "done"
    assert len(table.read_text().splitlines()) == 1
    effects = await store.list_tool_effects(run_id=output.run_id)
    assert [each.tool_name for each in effects] == ["echo"]


async def test_a_tool_whose_end_was_never_written_is_not_crossed_unasked(
    temporal: Client, store: StepStore, settings: Settings, table: Path
) -> None:
    source = await given_up(temporal, settings, table, "before")
    with WorkerProcess(settings, log_path=table.parent / "worker.log"):
        refused = await temporal.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent="script", continue_from=source),
            id=f"refused-{uuid4().hex}",
            task_queue=settings.task_queue,
        )
        with pytest.raises(WorkflowFailureError) as caught:
            await asyncio.wait_for(refused.result(), WITHIN.total_seconds())
    error = caught.value.cause
    assert isinstance(error, ApplicationError)
    assert error.type == "UnresolvedEffectsError"
    assert "mark (call 'call-2-0') of step 2, started, since 20" in error.message
    assert len(table.read_text().splitlines()) == 1
    assert await store.get_run(run_id=refused.id) is None
