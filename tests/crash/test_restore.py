"""Copies of both servers' data, brought back in the order of the operators' guide and otherwise."""

import shutil
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pymongo import AsyncMongoClient
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle

from cli.servers import LocalServer, LocalServers
from settings import Settings
from stores.protocols import StepStore
from tests.helpers.eventually import eventually
from tests.helpers.script import Call, script
from tests.helpers.subprocess_worker import WorkerProcess
from tests.helpers.user_workflows import ScriptedRun, ScriptedRunsInput, ScriptedRunsWorkflow

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

WITHIN = timedelta(seconds=60)

STEPS_BEFORE, STEPS_AFTER = 3, 10


@pytest.fixture
def settings(own_servers: LocalServers, task_queue: str) -> Settings:
    addresses = own_servers.addresses
    return Settings(
        temporal_address=addresses.temporal_address,
        mongodb_uri=addresses.mongodb_uri,
        task_queue=task_queue,
        agents="tests.helpers.user_agents:AGENTS",
    )


@pytest.fixture
def charges(tmp_path: Path) -> Path:
    return tmp_path / "charges"


async def start(
    temporal: Client, task_queue: str, charges: Path
) -> WorkflowHandle[ScriptedRunsWorkflow, Any]:
    """A run that looks around, charges somebody once, and looks around again."""
    look: list[list[Call]] = [
        [("echo", {"text": str(number), "delay": 0.3})] for number in range(STEPS_AFTER)
    ]
    charge: list[Call] = [("pay", {"path": str(charges)})]
    steps = [*look[:STEPS_BEFORE], charge, *look]
    request = ScriptedRunsInput(runs=[ScriptedRun(prompt=script(steps))])
    return await temporal.start_workflow(
        ScriptedRunsWorkflow.run, request, id=f"restored-{uuid4().hex}", task_queue=task_queue
    )


def has_events(store: StepStore, run_id: str, count: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return len(await store.list_events(run_id=run_id)) >= count

    return look


class Copy:
    """The files of a server that is stopped for it, as they were."""

    def __init__(self, server: LocalServer, path: Path, kept: Path) -> None:
        self._server, self._path, self._kept = server, path, kept

    async def take(self) -> None:
        await self._server.stop()
        self._move(self._path, self._kept)
        await self._server.start()

    async def bring_back(self) -> None:
        await self._server.stop()
        self._move(self._kept, self._path)
        await self._server.start()

    def _move(self, source: Path, target: Path) -> None:
        if target.is_dir():
            shutil.rmtree(target)
        for path in target.parent.glob(f"{target.name}-*"):  # SQLite's log beside the file
            path.unlink()
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)


@pytest.fixture
def temporals(own_servers: LocalServers, tmp_path: Path) -> Copy:
    path = own_servers.mongodb.db_path.parent / "temporal.db"
    return Copy(own_servers.temporal, path, tmp_path / "temporal.db")


@pytest.fixture
def mongodbs(own_servers: LocalServers, tmp_path: Path) -> Copy:
    return Copy(own_servers.mongodb, own_servers.mongodb.db_path, tmp_path / "mongodb")


async def keys_of(store: StepStore, run_id: str) -> list[str | None]:
    return [each.idempotency_key for each in await store.list_events(run_id=run_id)]


async def gaps_of(settings: Settings) -> int:
    async with AsyncMongoClient[dict[str, Any]](settings.mongodb_uri) as client:
        heads = await client[settings.mongodb_database]["commit_heads"].find().to_list()
    return sum(each.get("gap_count", 0) for each in heads)


async def test_mongodb_copied_before_temporal_goes_on_and_charges_nobody_twice(
    settings: Settings,
    store: StepStore,
    temporal: Client,
    temporals: Copy,
    mongodbs: Copy,
    charges: Path,
    tmp_path: Path,
) -> None:
    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        handle = await start(temporal, settings.task_queue, charges)
        run_id = await charged_between(mongodbs, temporals, worker, store, handle, charges)
        await mongodbs.bring_back()
        await temporals.bring_back()
        worker.start()
        await handle.result()
    assert len(charges.read_text().splitlines()) == 1
    assert await gaps_of(settings) > 0
    run = await store.get_run(run_id=run_id)
    assert run is not None
    assert run.state == "completed"


async def test_temporal_copied_before_mongodb_overwrites_nothing_and_goes_on_after_a_reset(
    settings: Settings,
    store: StepStore,
    temporal: Client,
    temporals: Copy,
    mongodbs: Copy,
    charges: Path,
    tmp_path: Path,
) -> None:
    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        handle = await start(temporal, settings.task_queue, charges)
        run_id = await charged_between(temporals, mongodbs, worker, store, handle, charges)
        await temporals.bring_back()
        await mongodbs.bring_back()
        before = await keys_of(store, run_id)
        worker.start()

        async def is_refused() -> bool:
            return "StaleCommit" in (tmp_path / "worker.log").read_text()

        await eventually(is_refused, within=WITHIN)
        assert await keys_of(store, run_id) == before
        again = await reset_to_last_task(temporal, handle)
        await again.result()
    run = await store.get_run(run_id=run_id)
    assert run is not None
    assert run.state == "completed"


async def charged_between(
    first: Copy,
    second: Copy,
    worker: WorkerProcess,
    store: StepStore,
    handle: WorkflowHandle[ScriptedRunsWorkflow, Any],
    charges: Path,
) -> str:
    """Copy the one, let the run charge somebody and go on, copy the other; the run's id."""
    run_id = f"{handle.id}-0-return"
    await eventually(has_events(store, run_id, 8), within=WITHIN)
    worker.kill()
    assert not charges.exists()
    await first.take()
    worker.start()
    await eventually(charges.exists, within=WITHIN)
    seen = len(await store.list_events(run_id=run_id))
    await eventually(has_events(store, run_id, seen + 8), within=WITHIN)
    worker.kill()
    await second.take()
    return run_id


async def reset_to_last_task(
    client: Client, handle: WorkflowHandle[Any, Any]
) -> WorkflowHandle[Any, Any]:
    """As `temporal workflow reset --type LastWorkflowTask`."""
    history = await handle.fetch_history()
    tasks = [
        event.event_id
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id),
            workflow_task_finish_event_id=tasks[-1],
            request_id=uuid4().hex,
            reason="restored",
        )
    )
    return client.get_workflow_handle(handle.id, run_id=answer.run_id)


async def test_an_older_mongodb_loses_what_it_lacks_and_open_runs_go_on(
    settings: Settings,
    store: StepStore,
    temporal: Client,
    mongodbs: Copy,
    charges: Path,
    tmp_path: Path,
) -> None:
    worker = WorkerProcess(settings, log_path=tmp_path / "worker.log")
    with worker:
        handle = await start(temporal, settings.task_queue, charges)
        run_id = f"{handle.id}-0-return"
        await eventually(has_events(store, run_id, 6), within=WITHIN)
        worker.kill()
        await mongodbs.take()
        before = len(await store.list_events(run_id=run_id))
        worker.start()
        await eventually(has_events(store, run_id, before + 16), within=WITHIN)
        worker.kill()
        await mongodbs.bring_back()
        assert len(await store.list_events(run_id=run_id)) == before
        worker.start()
        await handle.result()
    run = await store.get_run(run_id=run_id)
    assert run is not None
    assert run.state == "completed"
    assert await gaps_of(settings) > 0
