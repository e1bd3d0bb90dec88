"""The boundaries' activities: where the clock is read."""

from datetime import UTC, datetime, timedelta

import pytest
from pydantic_ai.messages import ModelRequest
from temporalio.testing import ActivityEnvironment

from activities.boundaries import (
    BoundaryActivities,
    CommitBoundariesRequest,
    CommitHeader,
    FinishToolEffectRequest,
    RegisterRunRequest,
)
from stores.memory import InMemoryStepStore
from stores.operations import (
    AppendEvent,
    FinishToolEffect,
    PositionedMessage,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
)

WORKFLOW_TIME = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = datetime(2026, 1, 1, 0, 0, 7, 123456, tzinfo=UTC)

EVENT = AppendEvent(run_id="run", sequence=1, key="e", event="run_started", step_index=0)
SNAPSHOT = SaveSnapshot(
    run_id="run",
    sequence=2,
    key="s",
    step_index=1,
    state="complete",
    ranges=((0, 1),),
    entries=(PositionedMessage(position=0, message=ModelRequest(parts=[])),),
)
START = StartToolEffect(
    run_id="run", sequence=3, tool_call_id="c", tool_name="t", step_index=1, call_index=0
)
FINISH = FinishToolEffect(
    run_id="run",
    sequence=4,
    tool_call_id="c",
    tool_name="t",
    step_index=1,
    call_index=0,
    status="completed",
)


def header(number: int) -> CommitHeader:
    return CommitHeader(
        execution_id="execution", number=number, history_length=3, queued_at=WORKFLOW_TIME
    )


@pytest.mark.spec("SP-18")
async def test_stored_times_are_those_of_the_activity_that_came_first() -> None:
    store = InMemoryStepStore()
    times = iter(FIRST + timedelta(minutes=minutes) for minutes in range(9))
    boundaries = BoundaryActivities(store, now=lambda: next(times))
    environment = ActivityEnvironment()
    registration = RegisterRunRequest(
        **dict(header(1)),
        operation=RegisterRun(run_id="run", sequence=0, registration_id="r"),
    )
    group = CommitBoundariesRequest(**dict(header(2)), operations=(EVENT, SNAPSHOT, START))
    finish = FinishToolEffectRequest(**dict(header(3)), operation=FINISH)
    for _ in range(2):  # as a retry does
        await environment.run(boundaries.register_run, registration)
    for _ in range(2):
        await environment.run(boundaries.commit_boundaries, group)
    for _ in range(2):
        await environment.run(boundaries.finish_tool_effect, finish)
    run = await store.get_run(run_id="run")
    assert run is not None
    (event,) = await store.list_events(run_id="run")
    (snapshot,) = await store.list_snapshots(run_id="run")
    (effect,) = await store.list_tool_effects(run_id="run")
    assert run.started_at == FIRST
    assert event.timestamp == snapshot.timestamp == effect.started_at
    assert effect.started_at == FIRST + timedelta(minutes=2)
    assert effect.ended_at == FIRST + timedelta(minutes=4)
