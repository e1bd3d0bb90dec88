"""Many parallel tool calls of an agent whose deps are large: what each activity is given."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHistory,
)

from activities.boundaries import CommitBoundariesRequest
from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.noting import (
    CALLS,
    DEPS_BYTES,
    NOTING,
    Customer,
    make_noting_agent,
)
from benchmarks.noting_workflow import NotingRunWorkflow
from benchmarks.reference import Reference
from benchmarks.side import LONGEST_RUN
from client import connect
from settings import Settings
from stores.mongo.steps import MongoStepStore
from stores.operations import SaveSnapshot
from worker import build_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.durable import durable

BUDGET_BYTES = 4096
"""Of the input of a store activity, for each operation of a group, snapshots left out."""

REFERENCE_TIMEOUT = timedelta(minutes=2)
"""Of its run, which takes a few where nothing else runs."""


async def _as_submitted(customer: Customer) -> Customer:
    """The factory of the deps."""
    return customer


async def measure_parallel(bench: Bench) -> Sequence[Figure]:
    """A run whose 20 calls run at once, with 200 KB of deps; commits as regular activities."""
    settings = Settings(
        temporal_address=bench.client.service_client.config.target_host,
        mongodb_uri=bench.mongodb_uri,
        mongodb_database=f"parallel_{uuid4().hex}",
        task_queue=f"parallel-{uuid4().hex}",
        boundary_mode="regular",
        graceful_shutdown_seconds=1,
    )
    store = MongoStepStore(db_url=bench.mongodb_uri, database=settings.mongodb_database)
    agent = make_noting_agent([*durable(deps_factory=_as_submitted)])
    try:
        await store.initialise()
        client = await connect(settings, chunks=store.chunks)
        async with build_worker(client, store, [agent], settings):
            handle = await client.start_workflow(
                AgentRunWorkflow.run,
                AgentRunInput(agent=NOTING, prompt="go", deps=Customer().model_dump()),
                id=f"parallel-{uuid4().hex}",
                task_queue=settings.task_queue,
                execution_timeout=LONGEST_RUN,
            )
            await handle.result()
        history = await handle.fetch_history()
        inputs = await _inputs(client, history)
        effects = await store.list_tool_effects(run_id=handle.id)
    finally:
        await store.aclose()
    theirs = await _of_reference(bench.reference) if bench.reference else None
    name = f"{CALLS} parallel calls with {DEPS_BYTES // 1000} KB of deps"
    return [
        Figure(
            name=f"calls that did not complete, {name}",
            unit="",
            measured=CALLS - sum(each.status == "completed" for each in effects),
            budget=0,
            reference=theirs.lost if theirs else None,
            detail=f"the reference's run: {theirs.end}" if theirs else "",
        ),
        Figure(
            name=f"largest input of a store activity, an operation, snapshots left out, {name}",
            unit="bytes",
            measured=max(size for is_store, size in inputs if is_store),
            budget=BUDGET_BYTES,
            reference=max(theirs.of_store) if theirs else None,
            detail=f"{sum(is_store for is_store, _ in inputs)} store activities",
        ),
        Figure(
            name=f"largest input of another activity, {name}",
            unit="bytes",
            measured=max(size for is_store, size in inputs if not is_store),
            reference=max(theirs.of_others) if theirs else None,
        ),
        Figure(
            name=f"input of all activities, {name}",
            unit="KB",
            measured=sum(map(_input_bytes, history.events)) / 1000,
            reference=theirs.total_bytes / 1000 if theirs else None,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class _Reference:
    """What the reference's run came to. Sizes are of inputs, in bytes, snapshots left out."""

    end: str
    lost: int
    of_store: Sequence[int]
    of_others: Sequence[int]
    total_bytes: int


async def _of_reference(reference: Reference) -> _Reference:
    side = await reference.side()
    handle = await reference.client.start_workflow(
        NotingRunWorkflow.run,
        Customer(),
        id=f"parallel-{uuid4().hex}",
        task_queue=side.task_queue,
        execution_timeout=REFERENCE_TIMEOUT,
    )
    with suppress(WorkflowFailureError):
        await handle.result()
    end = (await handle.describe()).status or WorkflowExecutionStatus.RUNNING
    events = (await handle.fetch_history()).events
    names = {
        each.event_id: each.activity_task_scheduled_event_attributes.activity_type.name
        for each in events
    }
    ended = [
        names.get(each.activity_task_completed_event_attributes.scheduled_event_id, "")
        for each in events
    ]
    sizes = [(names[each.event_id], _input_bytes(each)) for each in events if names[each.event_id]]
    stores = [(name, size) for name, size in sizes if "__capability__" in name]
    return _Reference(
        end=end.name.lower(),
        lost=CALLS - sum(each.endswith("call_tool") for each in ended),
        of_store=[size for name, size in stores if not name.endswith("save_snapshot")],
        of_others=[size for name, size in sizes if "__capability__" not in name],
        total_bytes=sum(size for _, size in sizes),
    )


def _input_bytes(event: HistoryEvent) -> int:
    """Of the activity that it schedules, if it does."""
    payloads = event.activity_task_scheduled_event_attributes.input.payloads
    return sum(len(each.data) for each in payloads)


async def _inputs(client: Client, history: WorkflowHistory) -> list[tuple[bool, int]]:
    """Of each activity: whether it is the store's, and the bytes that it was given."""
    found: list[tuple[bool, int]] = []
    for event in history.events:
        scheduled = event.activity_task_scheduled_event_attributes
        if not scheduled.activity_type.name:
            continue
        if scheduled.activity_type.name != "commit_boundaries":
            found.append((False, _input_bytes(event)))
            continue
        (group,) = await client.data_converter.decode(
            scheduled.input.payloads, [CommitBoundariesRequest]
        )
        kept = tuple(each for each in group.operations if not isinstance(each, SaveSnapshot))
        text = group.model_copy(update={"operations": kept}).model_dump_json()
        found.append((True, len(text) // max(len(kept), 1)))
    return found
