"""`perdure show`: everything about one run on one page."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cli.connections import (
    current_settings,
    describing_client,
    not_found_message,
    opened_store,
)
from cli.failures import NotFoundError, UnreachableError
from cli.ledger import (
    LedgerEntry,
    attention_lines,
    entries_of,
    joined_entries,
    print_effects,
    read_calls,
)
from cli.lineage import GONE, Delegated, list_delegates, parent_states, print_delegates
from cli.options import AsJson, RunId, Workspace
from cli.output import age, moment, note, offset, print_facts, print_json, print_table
from cli.standings import unasked

if TYPE_CHECKING:
    from cli.executions import Execution
    from settings import Settings
    from stores.protocols import StepStore
    from stores.records import RunRecord, SnapshotSummary, StepEvent, ToolEffectRecord

PAGE_LINES = 40
"""Most lines of a table on the page: a run of thousands of events stays readable."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """A run as the store and Temporal know it.

    `ledger` are its tool calls, in order, `parent_state` is how the run that delegated this one
    stands. `temporal_problem` is why Temporal did not answer; `execution` is `None` then, and also
    when it knows no workflow of that id.
    """

    run_id: str
    state: str
    record: "RunRecord | None"
    execution: "Execution | None"
    temporal_problem: str | None
    events: Sequence["StepEvent"]
    ledger: Sequence[LedgerEntry]
    snapshots: Sequence["SnapshotSummary"]
    parent_state: str | None
    delegates: Sequence[Delegated]

    @property
    def effects(self) -> "list[ToolEffectRecord]":
        """What its tool calls did, in order."""
        return [each.effect for each in self.ledger]

    def as_document(self) -> dict[str, Any]:
        """What `--json` prints."""
        execution = self.execution
        return {
            "run_id": self.run_id,
            "state": self.state,
            "run": self.record,
            "temporal": {**asdict(execution), "doing": execution.doing} if execution else None,
            "temporal_problem": self.temporal_problem,
            "events": self.events,
            "effects": [each.as_document() for each in self.ledger],
            "snapshots": self.snapshots,
            "parent_state": self.parent_state,
            "delegates": [each.as_document() for each in self.delegates],
        }


def show_command(
    *, run_id: RunId, workspace: Workspace = "default", as_json: AsJson = False
) -> None:
    """Show one run on one page.

    State, what it is doing, usage, timeline, tool effects, delegates, snapshots. Needs no worker.
    What Temporal knows is joined in: a run or its parent that was terminated, the attempt number of
    the activity that it waits for, the last failure.
    """
    inspection = asyncio.run(_inspect(current_settings(), run_id, workspace))
    if as_json:
        print_json(inspection.as_document())
    else:
        print_inspection(inspection)


async def _inspect(settings: "Settings", run_id: str, workspace: str) -> Inspection:
    async with opened_store(settings, workspace) as store:
        return await inspect(settings, store, run_id)


async def inspect(settings: "Settings", store: "StepStore", run_id: str) -> Inspection:
    """All that the store and Temporal know of a run.

    Raises:
        NotFoundError: neither knows it.
    """
    (execution, problem), record, events, calls, snapshots, delegates = await asyncio.gather(
        ask_temporal(settings, run_id),
        store.get_run(run_id=run_id),
        store.list_events(run_id=run_id),
        read_calls(store, run_id),
        store.list_snapshot_summaries(run_id=run_id),
        list_delegates(settings, store, run_id),
    )
    if record is None and execution is None:
        raise NotFoundError(not_found_message(settings, store, run_id, problem))
    from cli.executions import joined_state  # noqa: PLC0415 - slow to load

    parent = record.parent_run_id if record else None
    parents = await parent_states(settings, store, [parent] if parent else [])
    if problem:
        ledger = entries_of(calls, [unasked(each) for each in calls.effects])
    else:
        ledger = await joined_entries(settings, store, calls)
    return Inspection(
        run_id=run_id,
        state=joined_state(record, execution),
        record=record,
        execution=execution,
        temporal_problem=problem,
        events=events,
        ledger=ledger,
        snapshots=snapshots,
        parent_state=parents.get(parent) if parent else None,
        delegates=delegates,
    )


async def ask_temporal(settings: "Settings", run_id: str) -> "tuple[Execution | None, str | None]":
    """The run's execution, and why it is not known when Temporal does not answer."""
    from cli.executions import find_execution  # noqa: PLC0415 - slow to load

    try:
        return await find_execution(await describing_client(settings), run_id), None
    except UnreachableError as error:
        return None, str(error)


def print_inspection(inspection: Inspection) -> None:
    """Print the page."""
    if inspection.temporal_problem:
        note(f"Only what the store knows: {inspection.temporal_problem}.")
    if inspection.record is None:
        note("The store has no such run in this workspace; this is what Temporal knows.")
    print_facts(_facts(inspection))
    _print_timeline(inspection)
    if inspection.ledger:
        _print_newest_effects(inspection)
    if inspection.delegates:
        title = _title("Delegates", "runs --parent", inspection.delegates, inspection.run_id)
        print_delegates(inspection.delegates[-PAGE_LINES:], title=title)
    if inspection.snapshots:
        title = _title("Snapshots", "snapshots", inspection.snapshots, inspection.run_id)
        print_snapshots(inspection.snapshots[-PAGE_LINES:], title=title)


def _print_timeline(inspection: Inspection) -> None:
    start = _start(inspection)
    if start is None or not inspection.events:
        return
    print_table(
        ("seq", "at", "step", "event", "tool", "call", "error"),
        [
            (
                *(e.sequence, offset(e.timestamp, start), e.step_index, e.kind),
                *(e.tool_name, e.tool_call_id, e.error),
            )
            for e in inspection.events[-PAGE_LINES:]
        ],
        title=_title("Timeline", "events", inspection.events, inspection.run_id),
    )


def _print_newest_effects(inspection: Inspection) -> None:
    """Print the newest effects, and every older one that is still open."""
    older, newest = inspection.ledger[:-PAGE_LINES], inspection.ledger[-PAGE_LINES:]
    title = _title("Tool effects", "effects", inspection.ledger, inspection.run_id)
    print_effects([*(each for each in older if each.is_open), *newest], title=title)


def _title(name: str, command: str, rows: Sequence[object], run_id: str) -> str:
    if len(rows) <= PAGE_LINES:
        return name
    return f"{name} (the newest {PAGE_LINES} of {len(rows)}; `perdure {command} {run_id}` has all)"


def print_snapshots(snapshots: Sequence["SnapshotSummary"], *, title: str | None = None) -> None:
    """Print what a run can be continued from."""
    print_table(
        ("seq", "step", "state", "messages", "saved"),
        [
            (each.sequence, each.step_index, each.state, each.message_count, moment(each.timestamp))
            for each in snapshots
        ],
        title=title,
    )


def _start(inspection: Inspection) -> datetime | None:
    if inspection.record:
        return inspection.record.started_at
    return inspection.events[0].timestamp if inspection.events else None


def _facts(inspection: Inspection) -> list[tuple[str, str | None]]:
    record, execution = inspection.record, inspection.execution
    facts: list[tuple[str, str | None]] = [
        ("Run", inspection.run_id),
        ("State", _state_words(inspection)),
        ("Attention", "\n".join(attention_lines(inspection.ledger))),
    ]
    if execution:
        facts.append(("Doing", "\n".join(execution.doing)))
    if record:
        facts += _record_facts(record, inspection.parent_state)
    if execution:
        facts += [
            ("Failure", execution.failure if not (record and record.error) else None),
            ("Temporal", _execution_words(execution)),
        ]
    elif record and not inspection.temporal_problem:
        words = "no workflow of this id: the run is part of another one, or its history is gone"
        facts.append(("Temporal", words))
    return facts


def _state_words(inspection: Inspection) -> str:
    record, execution = inspection.record, inspection.execution
    sources = [f"Temporal: {execution.status}"] if execution else []
    if record and record.state != inspection.state:
        sources.append(f"the run's own last word: {record.state}")
    return f"{inspection.state} ({'; '.join(sources)})" if sources else inspection.state


def _record_facts(record: "RunRecord", parent_state: str | None) -> list[tuple[str, str | None]]:
    state = (
        "gone: neither the store nor Temporal knows it" if parent_state == GONE else parent_state
    )
    parent = f"{record.parent_run_id} ({state})" if record.parent_run_id else None
    return [
        ("Agent", record.agent_name),
        ("Workspace", record.workspace_id),
        ("Conversation", record.conversation_id),
        ("Parent run", parent),
        ("Continues", _origin_words(record.continued_from, record.from_snapshot)),
        ("Forked from", _origin_words(record.forked_from, record.from_snapshot)),
        ("Principal", record.principal),
        ("Metadata", ", ".join(f"{k}={v}" for k, v in record.metadata.items())),
        ("Started", f"{moment(record.started_at)} ({age(record.started_at)})"),
        ("Ended", moment(record.ended_at)),
        ("Details removed", moment(record.details_pruned_at)),
        ("Error", record.error),
        ("Usage", ", ".join(f"{k} {v}" for k, v in (record.usage or {}).items() if v)),
        ("Executions", _executions_words(record)),
    ]


def _origin_words(run_id: str | None, snapshot: int | None) -> str | None:
    if run_id is None or snapshot is None:
        return run_id
    return f"{run_id}, from its snapshot {snapshot}"


def _executions_words(record: "RunRecord") -> str | None:
    """How many executions the run has gone through; `None` when it is where it began."""
    count = len({each.execution_id for each in record.branches})
    return None if count < 2 else f"{count}; it went on in the newest one"  # noqa: PLR2004


def _execution_words(execution: "Execution") -> str:
    ended = f", closed {moment(execution.closed_at)}" if execution.closed_at else ""
    return (
        f"workflow {execution.workflow_type}, task queue {execution.task_queue}, execution "
        f"{execution.execution_id}, {execution.history_length} events, started "
        f"{moment(execution.started_at)}{ended}"
    )
