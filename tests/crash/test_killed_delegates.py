"""Workers that are killed while a delegate works: it runs once, and its parent gets its result."""

import asyncio
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHandle

from settings import Settings
from stores.faulty import Fault, FaultPlan
from stores.protocols import StepStore
from tests.helpers.delegating import AGENTS, asking, waiting
from tests.helpers.eventually import eventually
from tests.helpers.evidence import stored_and_replayed
from tests.helpers.script import echo_steps
from tests.helpers.subprocess_worker import WorkerProcess
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

WITHIN = timedelta(seconds=60)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"agents": "tests.helpers.delegating:AGENTS"})


async def start(
    client: Client, settings: Settings, prompt: str, run_id: str
) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="lead", prompt=prompt),
        id=run_id,
        task_queue=settings.task_queue,
        task_timeout=timedelta(seconds=3),
    )


async def ran_once(client: Client, store: StepStore, handle: WorkflowHandle[Any, Any]) -> None:
    """One delegate, with the parent's result of it, and a store that agrees with both histories."""
    output = await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
    assert output.output == "led"
    assert output.usage.requests == 2 + 2
    (child,) = await store.list_runs(parent_run_id=handle.id)
    assert child.state == "completed"
    for run_id in (handle.id, child.run_id):
        history = await client.get_workflow_handle(run_id).fetch_history()
        stored, path = await stored_and_replayed(store, history, AGENTS)
        assert stored == path


async def test_worker_killed_in_the_tool_of_a_delegate(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path
) -> None:
    run_id = f"killed-{uuid4().hex}"
    go, marker = tmp_path / "go", tmp_path / "marker"
    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        handle = await start(temporal, settings, asking(waiting(go, marker)), run_id)
        await eventually(marker.exists, within=WITHIN)
        worker.restart()
        go.touch()
        await ran_once(temporal, store, handle)


@pytest.mark.parametrize("holds", ["start_tool_effect", "finish_tool_effect"])
async def test_worker_killed_beside_a_write_about_a_delegate(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path, holds: str
) -> None:
    """Of the parent's ledger: the write is made, and its report is lost."""
    run_id = f"killed-{uuid4().hex}"
    death = Fault(name="death", action="kill", when="after", holds=holds, run_id=run_id)
    plan = FaultPlan(directory=tmp_path, faults=(death,))
    with WorkerProcess(settings, log_path=tmp_path / "worker.log", plan=plan) as worker:
        handle = await start(temporal, settings, asking(echo_steps(1)), run_id)
        await eventually(lambda: worker.exit_code == -signal.SIGKILL, within=WITHIN)
        worker.restart()
        await ran_once(temporal, store, handle)
