"""The rows that a store keeps, and the records that are read from them.

A row knows who wrote it (branch, commit number) and whether it still counts: `mark` is `None` while
it is live. Stores change rows only by way of `stores.planning`, so that all of them decide alike.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from pydantic_ai.messages import ModelMessage

from stores.digests import DIGEST_SCHEME
from stores.operations import EventContext
from stores.records import (
    ContinuableSnapshot,
    EventKind,
    RunBranch,
    RunRecord,
    RunState,
    SnapshotState,
    SnapshotSummary,
    StepEvent,
)

Mark = Literal["superseded", "abandoned", "pruned"]
"""Why a row no longer counts: its workflow task was lost, it lies behind a reset, or retention has
taken it out (see `stores.retention`)."""

RUN_STATES: Mapping[EventKind, RunState] = {
    "run_started": "running",
    "run_completed": "completed",
    "run_failed": "failed",
}
"""The state that each event of kind `run_*` puts its run in."""

ENDED: frozenset[RunState] = frozenset({"completed", "failed", "cancelled"})
"""States that a run does not leave."""

CANCELLED = "cancelled"
"""The error of the `run_failed` event that a cancelled run ends with."""


MAX_TEXT_LENGTH = 20_000
"""Characters of an error or a summary: enough for a traceback, too little to swell a row."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What every row tells. `row_id` is the store's own handle; `None` while it is not stored."""

    workspace_id: str
    run_id: str
    branch: str
    number: int | None
    row_id: object = None


@dataclass(frozen=True, kw_only=True)
class MarkedRow(Row):
    """A row that counts, or not, as a whole."""

    mark: Mark | None = None


@dataclass(frozen=True, kw_only=True)
class KeyedRow(MarkedRow):
    """A row that a key protects from being written twice; `None` protects from nothing."""

    sequence: int
    key: str | None
    digest: str
    at: datetime
    context: EventContext | None = None
    scheme: int = DIGEST_SCHEME


@dataclass(frozen=True, kw_only=True)
class EventRow(KeyedRow):
    """One event. `usage` is kept so that a run's state can be folded again."""

    event: EventKind
    step_index: int
    call_index: int | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    error: str | None = None
    error_type: str | None = None
    usage: dict[str, Any] | None = None
    run_state: RunState | None = None

    @property
    def sets_state(self) -> RunState | None:
        """The state that the event puts its run in, `None` when it leaves it alone."""
        return self.run_state or RUN_STATES.get(self.event)


@dataclass(frozen=True, kw_only=True)
class SnapshotRow(KeyedRow):
    """One snapshot: ranges of positions, no messages."""

    step_index: int
    state: SnapshotState = "complete"
    ranges: tuple[tuple[int, int], ...]

    @property
    def message_count(self) -> int:
        """Length of the history."""
        return sum(end - start for start, end in self.ranges)

    @property
    def names_positions(self) -> bool:
        """Whether its writer said which messages are the same; else the store compared their texts.

        Whoever names positions has a branch: a workflow's, or outside one the registration's.
        """
        return bool(self.branch)


@dataclass(frozen=True, kw_only=True)
class PositionRow(MarkedRow):
    """A position in a run's message log and the digest of the message that it holds.

    `revision` counts the replacements of the stored row, for stores that compare before they write.
    """

    position: int
    message: str
    revision: int = 0

    @property
    def owner(self) -> str:
        """Who may delete the message when this position gets a newer version of it."""
        return f"{self.run_id}|{self.position}"


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run with the commit that registered it, and where its state comes from."""

    record: RunRecord
    branch: str
    number: int | None
    mark: Mark | None = None
    state_sequence: int = -1


AnyKeyedRow = TypeVar("AnyKeyedRow", bound=KeyedRow)


def same_content(row_digest: str, row_scheme: int, digest: str) -> bool:
    """Whether a stored row has this content; rows of another scheme are compared by key only."""
    return row_scheme != DIGEST_SCHEME or row_digest == digest


def utc(value: datetime) -> datetime:
    """The same instant in UTC.

    Raises:
        ValueError: the time has no zone. Not retryable.
    """
    if value.tzinfo is None:
        msg = f"time {value!r} has no zone; pass an aware one, for example in UTC"
        raise ValueError(msg)
    return value.astimezone(UTC)


def storable(text: str | None) -> str | None:
    """The text, cut to `MAX_TEXT_LENGTH`, with U+FFFD for lone surrogates, which UTF-8 lacks."""
    if text is None:
        return None
    cut = text[:MAX_TEXT_LENGTH]
    return cut.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def json_copy(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """An independent copy, as it comes back from JSON text."""
    return json.loads(json.dumps(value))


def with_state_of(run: RunRow, event: EventRow) -> RunRow:
    """The run after this event, when that sets a state and is not older than the run's."""
    state = event.sets_state
    if state is None or event.sequence < run.state_sequence:
        return run
    if state == "failed" and event.error == CANCELLED:
        state = "cancelled"
    record = replace(
        run.record,
        state=state,
        ended_at=event.at if state in ENDED else None,
        error=None if state == "running" else event.error,
        usage=event.usage or run.record.usage,
    )
    return replace(run, record=record, state_sequence=event.sequence)


def without_state(run: RunRow) -> RunRow:
    """The run as it was registered, before any event of kind `run_*`."""
    record = replace(run.record, state="running", ended_at=None, error=None, usage=None)
    return replace(run, record=record, state_sequence=-1)


def holds_continuation(run: RunRecord, *, has_snapshots: bool) -> bool:
    """Whether the run that this one continues is taken.

    One that failed or was cancelled before it saved anything leaves nothing to go on from, so it
    stands in nobody's way.
    """
    return has_snapshots or run.state not in {"failed", "cancelled"}


def joined(
    chain: tuple[RunBranch, ...], *, execution_id: str, branch: str, first_sequence: int
) -> tuple[RunBranch, ...]:
    """The chain with this branch at its end; what it overtakes is left out."""
    if any(each.branch == branch for each in chain):
        return chain
    kept = tuple(each for each in chain if each.first_sequence < first_sequence)
    added = RunBranch(execution_id=execution_id, branch=branch, first_sequence=first_sequence)
    return (*kept, added)


def split_after(
    chain: tuple[RunBranch, ...], execution_id: str
) -> tuple[tuple[RunBranch, ...], tuple[RunBranch, ...]]:
    """The chain up to an execution, and the executions that went on from it."""
    last = max(
        (index for index, each in enumerate(chain) if each.execution_id == execution_id),
        default=len(chain) - 1,
    )
    return chain[: last + 1], chain[last + 1 :]


def _context_of(row: KeyedRow, run: RunRecord | None) -> EventContext:
    if row.context is not None:
        return row.context
    if run is None:
        return EventContext()
    return EventContext(
        conversation_id=run.conversation_id,
        parent_run_id=run.parent_run_id,
        agent_name=run.agent_name,
        metadata=run.metadata,
    )


def event_record(row: EventRow, run: RunRecord | None) -> StepEvent:
    """The event as it is read; lineage that the row leaves out is the run's."""
    context = _context_of(row, run)
    return StepEvent(
        run_id=row.run_id,
        kind=row.event,
        step_index=row.step_index,
        timestamp=row.at,
        conversation_id=context.conversation_id,
        parent_run_id=context.parent_run_id,
        agent_name=context.agent_name,
        tool_call_id=row.tool_call_id,
        tool_name=row.tool_name,
        error=row.error,
        metadata=dict(context.metadata),
        idempotency_key=row.key,
        sequence=row.sequence,
        call_index=row.call_index,
        branch=row.branch,
        commit_number=row.number,
    )


def snapshot_record(
    row: SnapshotRow, run: RunRecord | None, messages: list[ModelMessage]
) -> ContinuableSnapshot:
    """The snapshot as it is read, with its messages."""
    context = _context_of(row, run)
    return ContinuableSnapshot(
        run_id=row.run_id,
        step_index=row.step_index,
        messages=messages,
        conversation_id=context.conversation_id,
        parent_run_id=context.parent_run_id,
        agent_name=context.agent_name,
        timestamp=row.at,
        state=row.state,
        idempotency_key=row.key,
        sequence=row.sequence,
        branch=row.branch,
        commit_number=row.number,
        ranges=row.ranges if row.names_positions else (),
    )


def snapshot_summary(row: SnapshotRow) -> SnapshotSummary:
    """The snapshot as listings show it."""
    return SnapshotSummary(
        run_id=row.run_id,
        sequence=row.sequence,
        step_index=row.step_index,
        state=row.state,
        timestamp=row.at,
        message_count=row.message_count,
        idempotency_key=row.key,
        branch=row.branch,
    )
