"""`SnapshotSaved` in a plain `agent.run`."""

import asyncio
import logging
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import Hooks
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import RunContext

from stores.memory import InMemoryStepStore
from workflows.notices import SnapshotSaved
from workflows.persistence import StepPersistence


@pytest.fixture
def store() -> InMemoryStepStore:
    return InMemoryStepStore()


def agent_with(store: InMemoryStepStore, hooks: Hooks[Any], **options: Any) -> Agent[None, str]:
    persistence = StepPersistence[Any](store=store, run_id="run", **options)
    agent = Agent(TestModel(), capabilities=[persistence, hooks])

    @agent.tool_plain
    async def work() -> str:
        return "done"

    return agent


@pytest.mark.spec("SP-110")
@pytest.mark.parametrize("capture_frontier", [False, True])
async def test_each_snapshot_is_told_of_once_when_it_is_stored(
    store: InMemoryStepStore,
    capture_frontier: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    hooks = Hooks[Any]()
    told: list[SnapshotSaved] = []

    @hooks.on.event(SnapshotSaved)
    async def hear(_: RunContext[Any], event: SnapshotSaved) -> None:
        told.append(event)
        stored = await store.list_snapshot_summaries(run_id=event.persistence_run_id)
        assert [(each.step_index, each.state) for each in stored] == [
            (each.step_index, each.state) for each in told
        ]

    agent = agent_with(store, hooks, capture_frontier=capture_frontier)
    await agent.run("go", conversation_id="talk")
    assert {(event.persistence_run_id, event.conversation_id) for event in told} == {
        ("run", "talk")
    }
    assert {event.capability_id for event in told} == {"step_persistence"}
    steps = [(event.step_index, event.state) for event in told]
    if capture_frontier:
        assert steps == [
            (1, "complete"),
            (1, "interrupted"),
            (1, "complete"),
            (2, "complete"),
            (2, "complete"),
            (2, "complete"),
        ]
    else:
        assert steps == [(1, "complete"), (2, "complete")]


@pytest.mark.spec("SP-110")
async def test_an_observer_that_fails_changes_nothing_but_the_log(
    store: InMemoryStepStore, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = Hooks[Any]()

    @hooks.on.event(SnapshotSaved)
    async def fail(_: RunContext[Any], event: SnapshotSaved) -> None:
        message = f"no place for {event.state}"
        raise OSError(message)

    with caplog.at_level(logging.ERROR):
        await agent_with(store, hooks).run("go")
    assert "An observer of run 'run' failed" in caplog.text
    assert "no place for complete" in caplog.text
    assert len(await store.list_snapshots(run_id="run")) == 2
    record = await store.get_run(run_id="run")
    assert record is not None
    assert record.state == "completed"


@pytest.mark.spec("SP-110")
async def test_readers_of_the_stream_see_it(store: InMemoryStepStore) -> None:
    seen: list[AgentStreamEvent] = []
    async with agent_with(store, Hooks[Any]()).run_stream_events("go") as events:
        seen.extend([event async for event in events if isinstance(event, SnapshotSaved)])
    assert len(seen) >= 1
    assert len(await store.list_snapshots(run_id="run")) == 2


async def test_a_run_that_is_cancelled_in_an_observer_still_records_its_end(
    store: InMemoryStepStore,
) -> None:
    hooks = Hooks[Any]()
    waiting = asyncio.Event()

    @hooks.on.event(SnapshotSaved)
    async def wait(_: RunContext[Any], event: SnapshotSaved) -> None:  # noqa: ARG001 - the hook's signature
        waiting.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(agent_with(store, hooks).run("go"))
    await waiting.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=0.1)
    task.cancel()  # the observer waits again for the snapshot that the cancelled run saved
    with pytest.raises(asyncio.CancelledError):
        await task
    events = await store.list_events(run_id="run")
    assert (events[-1].kind, events[-1].error) == ("run_failed", "cancelled")
