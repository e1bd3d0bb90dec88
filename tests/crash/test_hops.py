"""A worker that dies around a hop: the run is left once, gone on with once, and nothing is lost."""

import asyncio
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from settings import Settings
from stores.faulty import Fault, FaultPlan
from stores.protocols import StepStore
from tests.helpers.eventually import eventually
from tests.helpers.evidence import trail_of
from tests.helpers.script import echo_steps
from tests.helpers.subprocess_worker import WorkerProcess
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

WITHIN = timedelta(seconds=40)

TASK_TIMEOUT = timedelta(seconds=3)
"""After which the server gives a lost workflow task to another worker."""

LEAVING = Fault(name="leaving", action="kill", when="after", holds="save_snapshot")
"""The save is the last commit of the task that leaves: it is stored, and the command is lost."""
ARRIVING = Fault(name="arriving", action="kill", when="before", method="find_snapshot")
GOING_ON = Fault(name="going-on", action="kill", when="after", holds="model_request_completed")
FAULTS = (LEAVING, ARRIVING, GOING_ON)


async def test_worker_that_dies_around_a_hop_doubles_and_loses_nothing(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path
) -> None:
    hopping = settings.model_copy(update={"hop_after_requests": 1})
    run_ids = [f"hop-{uuid4().hex}" for _ in range(2)]
    plan = FaultPlan(
        directory=tmp_path,
        faults=tuple(
            each.model_copy(update={"run_id": each.holds and run_ids[1]}) for each in FAULTS
        ),
    )
    with WorkerProcess(hopping, log_path=tmp_path / "undisturbed.log"):
        await run(temporal, settings, run_ids[0])
    with WorkerProcess(hopping, log_path=tmp_path / "worker.log", plan=plan) as worker:
        ended = asyncio.create_task(run(temporal, settings, run_ids[1]))
        for fault in FAULTS:
            await eventually(lambda: worker.exit_code is not None or ended.done(), within=WITHIN)
            assert plan.has_fired(fault.name) or not ended.done(), fault.name
            worker.restart()
        await ended
    assert all(plan.has_fired(fault.name) for fault in FAULTS)
    trails = [await trail_of(store, run_id) for run_id in run_ids]
    assert trails[0] == trails[1]
    runs = [await store.get_run(run_id=run_id) for run_id in run_ids]
    assert [len(each.branches) for each in runs if each] == [4, 4]


async def run(client: Client, settings: Settings, run_id: str) -> None:
    await asyncio.wait_for(
        client.execute_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent="script", prompt=echo_steps(3)),
            id=run_id,
            task_queue=settings.task_queue,
            task_timeout=TASK_TIMEOUT,
        ),
        2 * WITHIN.total_seconds(),
    )
