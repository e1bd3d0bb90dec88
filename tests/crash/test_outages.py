"""Servers that go away in mid-run: runs pause, and go on soon after the server is back."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHandle

from cli.servers import LocalServers
from settings import Settings
from stores.protocols import StepStore
from tests.helpers.eventually import eventually
from tests.helpers.evidence import stored_and_replayed, trail_of
from tests.helpers.script import echo_steps
from tests.helpers.subprocess_worker import WorkerProcess
from tests.helpers.user_agents import AGENTS
from tests.helpers.user_workflows import (
    USER_WORKFLOWS,
    ScriptedRun,
    ScriptedRunsInput,
    ScriptedRunsWorkflow,
    TrivialWorkflow,
)

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

OUTAGE = timedelta(seconds=30)
GOES_ON_WITHIN = timedelta(seconds=5)
ANSWERED_WITHIN = timedelta(seconds=1)
WITHIN = timedelta(seconds=60)
ALL_WAIT_AFTER = timedelta(seconds=4)
"""Then each run has met the outage: a step and a local attempt take less than a second each."""

RUNS = 4
STEPS = 12
PROMPT = echo_steps(STEPS, parallel=2, delay=0.2)


@pytest.fixture
def settings(own_servers: LocalServers, task_queue: str) -> Settings:
    addresses = own_servers.addresses
    return Settings(
        temporal_address=addresses.temporal_address,
        mongodb_uri=addresses.mongodb_uri,
        task_queue=task_queue,
        agents="tests.helpers.user_agents:AGENTS",
        max_concurrent_workflow_tasks=5,
    )


async def start_runs(
    client: Client, task_queue: str, *, count: int = RUNS
) -> list[WorkflowHandle[Any, Any]]:
    request = ScriptedRunsInput(runs=[ScriptedRun(prompt=PROMPT)])
    return [
        await client.start_workflow(
            ScriptedRunsWorkflow.run, request, id=f"outage-{uuid4().hex}", task_queue=task_queue
        )
        for _ in range(count)
    ]


class Progress:
    """How far runs have come, by the events that are stored of them."""

    def __init__(self, store: StepStore, handles: Sequence[WorkflowHandle[Any, Any]]) -> None:
        self._store = store
        self._run_ids = [f"{handle.id}-0-return" for handle in handles]
        self._passed = [0 for _ in handles]

    async def counts(self) -> list[int]:
        return [len(await self._store.list_events(run_id=each)) for each in self._run_ids]

    async def note(self) -> None:
        self._passed = await self.counts()

    async def has_grown(self) -> bool:
        """Whether each run has more events than when it was noted."""
        pairs = zip(await self.counts(), self._passed, strict=True)
        return all(now > passed for now, passed in pairs)


async def check_ends(
    store: StepStore,
    handles: Sequence[WorkflowHandle[Any, Any]],
    undisturbed: WorkflowHandle[Any, Any],
) -> None:
    """Wait for all; what they leave is what the undisturbed one leaves."""
    results = asyncio.gather(*(each.result() for each in (*handles, undisturbed)))
    await asyncio.wait_for(results, WITHIN.total_seconds())
    expected = await trail_of(store, f"{undisturbed.id}-0-return")
    for handle in handles:
        assert await trail_of(store, f"{handle.id}-0-return") == expected
        history = await handle.fetch_history()
        stored, path = await stored_and_replayed(store, history, AGENTS, USER_WORKFLOWS)
        assert stored == path


async def check_answer(handle: WorkflowHandle[Any, Any]) -> None:
    asked = monotonic()
    await handle.execute_update(ScriptedRunsWorkflow.ping)  # pyright: ignore[reportUnknownMemberType] - the SDK's overloads
    assert monotonic() - asked < ANSWERED_WITHIN.total_seconds()


async def test_runs_wait_for_mongodb_and_nothing_waits_for_them(
    own_servers: LocalServers,
    settings: Settings,
    store: StepStore,
    temporal: Client,
    tmp_path: Path,
) -> None:
    with WorkerProcess(settings, log_path=tmp_path / "worker.log"):
        handles = await start_runs(temporal, settings.task_queue)
        progress = Progress(store, handles)
        await eventually(progress.has_grown, within=WITHIN)
        await own_servers.mongodb.kill()
        stopped = monotonic()
        while monotonic() - stopped < ALL_WAIT_AFTER.total_seconds():
            await check_answer(handles[1])
            await asyncio.sleep(0.2)  # between two questions
        length = len((await handles[0].fetch_history()).events)
        while monotonic() - stopped < OUTAGE.total_seconds():
            await check_answer(handles[1])
            answered = monotonic()
            await temporal.execute_workflow(
                TrivialWorkflow.run, id=f"trivial-{uuid4().hex}", task_queue=settings.task_queue
            )
            assert monotonic() - answered < ANSWERED_WITHIN.total_seconds()
            await asyncio.sleep(1)  # between two questions
        assert len((await handles[0].fetch_history()).events) == length
        await own_servers.mongodb.start()
        await progress.note()
        await eventually(progress.has_grown, within=GOES_ON_WITHIN)
        undisturbed, *_ = await start_runs(temporal, settings.task_queue, count=1)
        await check_ends(store, handles, undisturbed)


async def test_runs_survive_a_restart_of_temporal(
    own_servers: LocalServers,
    settings: Settings,
    store: StepStore,
    temporal: Client,
    tmp_path: Path,
) -> None:
    with WorkerProcess(settings, log_path=tmp_path / "worker.log"):
        handles = await start_runs(temporal, settings.task_queue)
        progress = Progress(store, handles)
        await eventually(progress.has_grown, within=WITHIN)
        await own_servers.temporal.kill()
        await asyncio.sleep(ALL_WAIT_AFTER.total_seconds())
        await progress.note()
        await own_servers.temporal.start()
        # What was in flight has to time out first, and is tried again after a pause.
        await eventually(progress.has_grown, within=WITHIN)
        undisturbed, *_ = await start_runs(temporal, settings.task_queue, count=1)
        await check_ends(store, handles, undisturbed)
