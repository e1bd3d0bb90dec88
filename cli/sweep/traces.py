"""What a run left behind, in a form that can be compared: with another run's, or with a history."""

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import patch

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from temporalio.client import Client, WorkflowHistory

from cli.histories import chain_of
from stores.operations import (
    AppendEvent,
    FinishToolEffect,
    Operation,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
)
from stores.protocols import StepStore
from stores.records import EventKind
from worker import build_replayer
from workflows.journal import Journal

STAMPS = {"timestamp", "run_id", "conversation_id"}
"""What differs in each message when the same script runs again."""


def content_of(messages: Sequence[ModelMessage]) -> list[Any]:
    """The messages as JSON without times and ids."""
    return [
        _without_stamps(each)
        for each in json.loads(ModelMessagesTypeAdapter.dump_json([*messages]))
    ]


def _without_stamps(value: object) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return {key: _without_stamps(each) for key, each in fields.items() if key not in STAMPS}
    if isinstance(value, list):
        return [_without_stamps(each) for each in cast("list[object]", value)]
    return value


@dataclass(frozen=True)
class Trail:
    """All that is live of a run, without times, ids and order of parallel ends.

    Each list is sorted and holds what is doubled twice.
    """

    run: tuple[object, ...]
    events: list[tuple[object, ...]]
    effects: list[tuple[object, ...]]
    snapshots: list[tuple[object, ...]]
    history: list[Any]


async def trail_of(store: StepStore, run_id: str) -> Trail:
    """The trail that a store holds."""
    run = await store.get_run(run_id=run_id)
    snapshots = await store.list_snapshots(run_id=run_id)
    return Trail(
        run=() if run is None else (run.agent_name, run.state),
        events=sorted(
            (str(each.idempotency_key), each.kind, each.step_index, str(each.call_index))
            for each in await store.list_events(run_id=run_id)
        ),
        effects=sorted(
            (f"{each.step_index}/{each.call_index}", each.tool_name, each.status)
            for each in await store.list_tool_effects(run_id=run_id)
        ),
        snapshots=[
            (each.idempotency_key, each.state, json.dumps(content_of(each.messages)))
            for each in snapshots
        ],
        history=content_of(snapshots[-1].messages) if snapshots else [],
    )


@contextmanager
def _recorded_operations() -> Generator[list[Operation]]:
    recorded: list[Operation] = []
    original = Journal.record

    async def record(self: Journal, operation: Operation, **options: Any) -> None:  # noqa: ANN401 - the journal's own
        recorded.append(operation)
        await original(self, operation, **options)

    with patch.object(Journal, "record", record):
        yield recorded


async def histories_of(client: Client, workflow_id: str) -> Sequence[WorkflowHistory]:
    """Of each execution that was continued as new up to the latest one, oldest first.

    Raises:
        LookupError: Temporal keeps one of them no more.
    """
    chain = await chain_of(client, workflow_id)
    if not chain.is_whole:
        message = f"Temporal has not every history of {workflow_id!r}"
        raise LookupError(message)
    return chain.histories


async def operations_of(
    histories: Sequence[WorkflowHistory],
    agents: Sequence[Agent[Any, Any]],
    workflows: Sequence[type] = (),
) -> list[Operation]:
    """The operations that the path of these histories consists of, by replaying them."""
    with _recorded_operations() as recorded:
        for history in histories:
            await build_replayer(agents, workflows=workflows).replay_workflow(history)
    return recorded


def path_of(operations: Sequence[Operation]) -> dict[str, Trail]:
    """For each run the trail that a store must hold when these operations are what happened."""
    run_ids = dict.fromkeys(each.run_id for each in operations)
    return {run_id: _path([o for o in operations if o.run_id == run_id]) for run_id in run_ids}


def _path(operations: Sequence[Operation]) -> Trail:
    snapshots = [*_snapshots(operations)]
    events = [each for each in operations if isinstance(each, AppendEvent)]
    registrations = [each for each in operations if isinstance(each, RegisterRun)]
    ends = [each for each in events if each.event in _STATES]
    return Trail(
        run=(registrations[0].agent_name, _state(ends[-1])),
        events=sorted(
            (str(each.key), each.event, each.step_index, str(each.call_index)) for each in events
        ),
        effects=sorted(_effects(operations)),
        snapshots=[(key, state, json.dumps(content_of(each))) for key, state, each in snapshots],
        history=content_of(snapshots[-1][-1]) if snapshots else [],
    )


_STATES: dict[EventKind, str] = {
    "run_started": "running",
    "run_completed": "completed",
    "run_failed": "failed",
}


def _state(event: AppendEvent) -> str:
    return "cancelled" if event.error == "cancelled" else _STATES[event.event]


def _effects(operations: Sequence[Operation]) -> Iterator[tuple[object, ...]]:
    effects: dict[str, tuple[object, ...]] = {}
    for each in operations:
        if isinstance(each, StartToolEffect):
            effects[each.effect_key] = (each.effect_key, each.tool_name, "started")
        elif isinstance(each, FinishToolEffect):
            effects[each.effect_key] = (each.effect_key, each.tool_name, each.status)
    yield from effects.values()


def _snapshots(
    operations: Sequence[Operation],
) -> Iterator[tuple[str | None, str, list[ModelMessage]]]:
    log: dict[int, ModelMessage] = {}
    for each in operations:
        if isinstance(each, SaveSnapshot):
            log |= {entry.position: entry.message for entry in each.entries}
            positions = [position for first, end in each.ranges for position in range(first, end)]
            yield each.key, each.state, [log[position] for position in positions]


async def stored_and_replayed(
    store: StepStore,
    histories: Sequence[WorkflowHistory],
    agents: Sequence[Agent[Any, Any]],
    workflows: Sequence[type] = (),
) -> tuple[dict[str, Trail], dict[str, Trail]]:
    """For each run of these histories the trail that is live, and what their replay would write."""
    paths = path_of(await operations_of(histories, agents, workflows))
    return {run_id: await trail_of(store, run_id) for run_id in paths}, paths
