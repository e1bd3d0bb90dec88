"""A workflow that is reset: the new branch is live, what it left behind is not."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle

from stores.commits import Commit, CommitPosition, counted_stale
from stores.faulty import Fault, FaultPlan, with_faults
from stores.operations import AppendEvent
from stores.protocols import StepStore
from tests.helpers.eventually import eventually
from tests.helpers.evidence import Trail, stored_and_replayed, trail_of
from tests.helpers.script import echo_steps
from tests.helpers.user_agents import AGENTS
from tests.helpers.user_workflows import (
    USER_WORKFLOWS,
    ScriptedRun,
    ScriptedRunsInput,
    ScriptedRunsWorkflow,
)
from tests.helpers.workers import running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = pytest.mark.integration

WITHIN_SECONDS = 30


STEPS = 6


async def start(client: Client, task_queue: str, *, steps: int = 2) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="script", prompt=echo_steps(steps)),
        id=f"reset-{uuid4().hex}",
        task_queue=task_queue,
    )


async def start_user_workflow(
    client: Client, task_queue: str, *, names_runs: bool = True
) -> WorkflowHandle[Any, Any]:
    runs = [ScriptedRun(prompt=echo_steps(steps)) for steps in (1, 2)]
    return await client.start_workflow(
        ScriptedRunsWorkflow.run,
        ScriptedRunsInput(runs=runs, names_runs=names_runs),
        id=f"reset-{uuid4().hex}",
        task_queue=task_queue,
    )


async def end(handle: WorkflowHandle[Any, Any]) -> None:
    await asyncio.wait_for(handle.result(), WITHIN_SECONDS)


async def ends_of_tasks(handle: WorkflowHandle[Any, Any]) -> list[int]:
    return [
        event.event_id
        for event in (await handle.fetch_history()).events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]


async def reset(
    client: Client, handle: WorkflowHandle[Any, Any], *, task: int
) -> WorkflowHandle[Any, Any]:
    """Reset to the end of the `task`-th workflow task, which is done again; the new execution."""
    execution = WorkflowExecution(workflow_id=handle.id, run_id=branch_of(handle))
    base = client.get_workflow_handle(handle.id, run_id=execution.run_id)
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=execution,
            workflow_task_finish_event_id=(await ends_of_tasks(base))[task],
            request_id=uuid4().hex,
        )
    )
    return client.get_workflow_handle(handle.id, run_id=answer.run_id)


def branch_of(handle: WorkflowHandle[Any, Any]) -> str:
    branch = handle.run_id or handle.first_execution_run_id
    assert branch is not None
    return branch


async def reset_and_end(
    client: Client, handle: WorkflowHandle[Any, Any], *tasks: int
) -> WorkflowHandle[Any, Any]:
    """Reset to each of these tasks of the execution before; the last execution, ended."""
    for task in tasks:
        handle = await reset(client, handle, task=task)
        await end(handle)
    return handle


@pytest.fixture
def abandoned(mongodb_uri: str, mongodb_database: str) -> Iterator[Callable[[str], list[str]]]:
    """The events of a run that are kept and not read, as branches."""

    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        events = client[mongodb_database]["events"]

        def find(run_id: str) -> list[str]:
            found = events.find({"run_id": run_id, "live": False, "mark": "abandoned"})
            return [each["branch"] for each in found]

        yield find


async def assert_late_write_is_stale(store: StepStore, handle: WorkflowHandle[Any, Any]) -> None:
    """Whatever a worker of the first branch may still want to write, it is refused and counted."""
    branch = handle.first_execution_run_id or ""
    before = await store.find_commit_head(execution_id=branch)
    late = AppendEvent(
        run_id=handle.id, sequence=10**6, key="late", event="run_failed", step_index=99
    )
    position = CommitPosition(
        execution_id=branch,
        branch=branch,
        branch_time=datetime.now(UTC),
        number=1000,
        history_length=10**6,
        queued_at=datetime.now(UTC),
    )
    commit = Commit(operations=(late,), now=datetime.now(UTC), position=position)
    assert (await store.commit(commit)).verdict == "stale"
    after = await store.find_commit_head(execution_id=branch)
    assert before is not None
    assert after == counted_stale(before)


@pytest.mark.timeout(180)
@pytest.mark.spec("SP-19", "SP-20", "SP-22")
async def test_a_reset_to_any_task_ends_as_if_undisturbed(
    temporal: Client,
    mongo: StepStore,
    task_queue: str,
    abandoned: Callable[[str], list[str]],
) -> None:
    """The first is to before the registration; all are of runs that had ended."""
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        undisturbed = await start(temporal, task_queue, steps=STEPS)
        await end(undisturbed)
        tasks = range(len(await ends_of_tasks(undisturbed)))
        handles = [await start(temporal, task_queue, steps=STEPS) for _ in tasks]
        await asyncio.gather(*(end(handle) for handle in handles))
        started = [await mongo.get_run(run_id=handle.id) for handle in handles]
        resets = (
            reset_and_end(temporal, handle, task)
            for handle, task in zip(handles, tasks, strict=True)
        )
        again = await asyncio.gather(*resets)
    expected = await trail_of(mongo, undisturbed.id)
    assert len(expected.snapshots) == STEPS + 1
    for task, handle, live, first in zip(tasks, handles, again, started, strict=True):
        await assert_late_write_is_stale(mongo, handle)
        assert await trail_of(mongo, handle.id) == expected, task
        latest = await mongo.latest_snapshot(run_id=handle.id)
        assert latest is not None
        assert latest.branch == live.run_id
        run = await mongo.get_run(run_id=handle.id)
        assert run is not None
        assert first is not None
        assert run.started_at == first.started_at
        assert run.branches[-1].branch == live.run_id
        assert set(abandoned(handle.id)) == {handle.first_execution_run_id}, task
        events = await mongo.list_events(run_id=handle.id)
        branches = [each.branch for each in events]
        parting = branches.index(branch_of(live))
        assert set(branches[:parting]) == ({handle.first_execution_run_id} if task else set())
        assert set(branches[parting:]) == {live.run_id}


LAST = -1


@pytest.mark.timeout(180)
async def test_resets_of_resets_end_as_if_undisturbed(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    """To before the parting of the first, to behind it, twice to one place, and to the start."""
    tables = [(4, 2), (2, 4), (3, 3), (LAST, 0), (0, LAST), (4, 3, 1)]
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        undisturbed = await start(temporal, task_queue, steps=3)
        handles = [await start(temporal, task_queue, steps=3) for _ in tables]
        await asyncio.gather(*(end(handle) for handle in (undisturbed, *handles)))
        again = await asyncio.gather(
            *(
                reset_and_end(temporal, handle, *tasks)
                for handle, tasks in zip(handles, tables, strict=True)
            )
        )
    expected = await trail_of(mongo, undisturbed.id)
    for tasks, handle, live in zip(tables, handles, again, strict=True):
        assert await trail_of(mongo, handle.id) == expected, tasks
        run = await mongo.get_run(run_id=handle.id)
        assert run is not None
        assert run.branches[-1].branch == live.run_id, tasks
        await assert_late_write_is_stale(mongo, handle)


async def test_a_reset_to_a_branch_that_was_abandoned_reads_as_if_undisturbed(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    """What lies between the two partings is read of the branch between: a known limit.

    A commit does not say which branch it goes on from. Where both did the same, it is the same.
    """
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        undisturbed = await start(temporal, task_queue, steps=3)
        handle = await start(temporal, task_queue, steps=3)
        await asyncio.gather(end(undisturbed), end(handle))
        between = await reset_and_end(temporal, handle, 2)
        live = await reset_and_end(temporal, handle, 5)
    assert await trail_of(mongo, handle.id) == await trail_of(mongo, undisturbed.id)
    run = await mongo.get_run(run_id=handle.id)
    assert run is not None
    assert [each.branch for each in run.branches] == [
        handle.first_execution_run_id,
        between.run_id,
        live.run_id,
    ]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("names_runs", [True, False])
async def test_a_reset_of_a_users_own_workflow_ends_as_if_undisturbed(
    temporal: Client, mongo: StepStore, task_queue: str, *, names_runs: bool
) -> None:
    """To each of its tasks: in the first of its runs, between them, and in the second."""

    async def start_one() -> WorkflowHandle[Any, Any]:
        return await start_user_workflow(temporal, task_queue, names_runs=names_runs)

    async with running_worker(temporal, mongo, AGENTS, task_queue, workflows=USER_WORKFLOWS):
        undisturbed = await start_one()
        await end(undisturbed)
        tasks = range(len(await ends_of_tasks(undisturbed)))
        handles = [await start_one() for _ in tasks]
        await asyncio.gather(*(end(handle) for handle in handles))
        resets = (
            reset_and_end(temporal, handle, task)
            for handle, task in zip(handles, tasks, strict=True)
        )
        await asyncio.gather(*resets)
    expected = await trails_of_workflow(mongo, undisturbed)
    assert len(expected) == 2
    for task, handle in zip(tasks, handles, strict=True):
        assert await trails_of_workflow(mongo, handle) == expected, task


async def trails_of_workflow(store: StepStore, handle: WorkflowHandle[Any, Any]) -> list[Trail]:
    """Of its live runs, in the order of their starts."""
    origins = (handle.id, handle.first_execution_run_id or "")
    runs = [each for each in await store.list_runs() if each.run_id.startswith(origins)]
    return [await trail_of(store, each.run_id) for each in runs]


async def has_ended_tasks(handle: WorkflowHandle[Any, Any], count: int) -> bool:
    return len(await ends_of_tasks(handle)) >= count


async def test_commit_that_was_pending_at_a_reset_is_made_once(
    temporal: Client, mongo: StepStore, task_queue: str, tmp_path: Path
) -> None:
    """The server runs the pending activity for the new execution, with the old one's input."""
    go = tmp_path / "go"
    slow = [
        Fault(name=attempt, action="wait", until=go, holds="start_tool_effect")
        for attempt in ("local", "regular", "again")
    ]
    store = with_faults(mongo, plan := FaultPlan(directory=tmp_path, faults=tuple(slow)))
    async with running_worker(temporal, store, AGENTS, task_queue):
        handle = await start(temporal, task_queue)
        await eventually(lambda: plan.has_fired("regular"))
        await handle.signal("nothing")  # for one more task, to which the run can be reset
        await eventually(partial(has_ended_tasks, handle, 3))
        again = await reset(temporal, handle, task=2)
        await eventually(lambda: plan.has_fired("again"))
        go.touch()
        await asyncio.wait_for(again.result(), WITHIN_SECONDS)
    stored, path = await stored_and_replayed(mongo, await again.fetch_history(), AGENTS)
    assert stored == path
