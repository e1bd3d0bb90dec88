"""The records that a store keeps and gives back.

The names and the meaning of the seed's fields are the seed's; fields below a `# Perdure` line are
additions, each with a default, so that a record built with the seed's fields alone is whole.
Times are aware and UTC.
"""

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from pydantic_ai.messages import ModelMessage

from stores.identifiers import DEFAULT_WORKSPACE

EventKind = Literal[
    "run_started",
    "run_completed",
    "run_failed",
    "model_request_started",
    "model_request_completed",
    "model_request_failed",
    "tool_call_started",
    "tool_call_completed",
    "tool_call_failed",
]
"""What happened at a boundary: run, model request, tool call, each started, completed, failed."""

RunState = Literal["running", "needs_attention", "completed", "failed", "cancelled"]
"""What the run's live branch last said of itself; `terminated` and `timed_out` are Temporal's."""

SnapshotState = Literal["complete", "interrupted"]
"""`complete`: every tool call of the history has its result; otherwise `interrupted`."""

ToolEffectStatus = Literal["started", "completed", "failed", "unknown", "resolved"]
"""`unknown`: the call's outcome was lost; `resolved`: somebody decided what it was."""

EffectPolicy = Literal["read", "idempotent", "once"]
"""What a tool declared of its effect on the world: none, safe to repeat, or at most once."""

ResolutionDecision = Literal["completed", "failed", "run_again"]
"""What somebody decided about a call whose outcome is unknown."""

ApprovalState = Literal["asked", "approved", "denied"]
"""How a call stands that may only run when somebody says so."""

UNRESOLVED: frozenset[ToolEffectStatus] = frozenset({"started", "unknown"})
"""Statuses that leave open whether the effect happened."""

Record = TypeVar("Record")


def as_record(kind: type[Record], given: object) -> Record:
    """`given` when it is of that kind, else a record of that kind with the fields that it has.

    So a store takes the records of the seed's own package, which have the seed's fields alone.
    """
    if isinstance(given, kind):
        return given
    names = [each.name for each in fields(kind) if hasattr(given, each.name)]  # type: ignore[arg-type]
    return kind(**{name: getattr(given, name) for name in names})


def _utc_now() -> datetime:
    """Default of records built by a caller; durable runs pass the activity's clock instead."""
    return datetime.now(UTC)  # noqa: TID251 - outside workflows, and only when the caller names no time


@dataclass(frozen=True, kw_only=True)
class RunBranch:
    """One Temporal execution's part of a run; `first_sequence` is where its rows begin."""

    execution_id: str
    branch: str
    first_sequence: int


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One `Agent.run`: who started it, what it belongs to, how it stands."""

    run_id: str
    conversation_id: str | None = None
    parent_run_id: str | None = None
    agent_name: str | None = None
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    started_at: datetime = field(default_factory=_utc_now)
    registration_id: str | None = None
    # Perdure
    workspace_id: str = DEFAULT_WORKSPACE
    principal: str | None = None
    state: RunState = "running"
    ended_at: datetime | None = None
    error: str | None = None
    usage: dict[str, Any] | None = None
    branches: tuple[RunBranch, ...] = ()
    continued_from: str | None = None
    forked_from: str | None = None
    from_snapshot: int | None = None
    """Sequence of the snapshot of that run which this one began with."""
    details_pruned_at: datetime | None = None
    """When its events and effects were removed; what it said, and how it ended, stays."""
    public_id: str | None = field(default=None, compare=False)
    """A UUIDv7 that the store makes when it first keeps the run, and never changes; `None` for runs
    that were kept before there were any. Read only; registering ignores it."""


@dataclass(frozen=True, kw_only=True)
class StepEvent:
    """One append-only line of a run's trail. `sequence` orders it within the run."""

    run_id: str
    kind: EventKind
    step_index: int
    timestamp: datetime = field(default_factory=_utc_now)
    conversation_id: str | None = None
    parent_run_id: str | None = None
    agent_name: str | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    error: str | None = None
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    idempotency_key: str | None = None
    # Perdure
    sequence: int = 0
    call_index: int | None = None
    branch: str = ""
    commit_number: int | None = None


@dataclass(frozen=True, kw_only=True)
class ContinuableSnapshot:
    """A message history that a run can be continued or forked from."""

    run_id: str
    step_index: int
    messages: list[ModelMessage]
    conversation_id: str | None = None
    parent_run_id: str | None = None
    agent_name: str | None = None
    timestamp: datetime = field(default_factory=_utc_now)
    state: SnapshotState = "complete"
    idempotency_key: str | None = None
    # Perdure
    sequence: int = 0
    branch: str = ""
    commit_number: int | None = None
    ranges: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    """Half-open ranges of the messages' places in the run's log, where their writer named them: a
    message that was rewritten or said again has another place. Read only; saving ignores it."""


@dataclass(frozen=True, kw_only=True)
class SnapshotSummary:
    """A snapshot without its messages; `message_count` is the history's length."""

    run_id: str
    sequence: int
    step_index: int
    state: SnapshotState
    timestamp: datetime
    message_count: int
    idempotency_key: str | None = None
    branch: str = ""


@dataclass(frozen=True, kw_only=True)
class ToolEffectResolution:
    """Who settled an unknown outcome, how and why; `by` is `reconcile` for the tool's own check.

    Or how an approval stands: that it was asked for, or who gave or denied it. `result` is kept of
    a decision that no run heard: what the call returned, as JSON text.
    """

    decision: ResolutionDecision | ApprovalState
    by: str | None = None
    why: str | None = None
    result: str | None = None


@dataclass(frozen=True, kw_only=True)
class ToolApproval:
    """How the newest approval of a call stands, and since when."""

    state: ApprovalState
    at: datetime
    by: str | None = None
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class ToolEffectRecord:
    """What one tool call did to the world, as far as is known.

    A row is identified by run, branch, step and call index (the position of the call in the model's
    response); `tool_call_id` is an attribute, since providers reuse ids.
    """

    tool_call_id: str
    tool_name: str
    run_id: str
    status: ToolEffectStatus
    started_at: datetime = field(default_factory=_utc_now)
    ended_at: datetime | None = None
    idempotency_key: str | None = None
    effect_summary: str | None = None
    # Perdure
    sequence: int = 0
    step_index: int | None = None
    call_index: int | None = None
    effect: EffectPolicy | None = None
    arguments_digest: str | None = None
    arguments_summary: str | None = None
    error: str | None = None
    resolution: ToolEffectResolution | None = None
    branch: str = ""
    commit_number: int | None = None
    workspace_id: str = DEFAULT_WORKSPACE
    approval: ToolApproval | None = None

    @property
    def awaits_approval(self) -> bool:
        """Whether the call has not run, and does not before somebody approves it."""
        approval = self.approval
        return self.status == "started" and approval is not None and approval.state == "asked"


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """Up to `limit` runs, newest first; `after` opens the next page, `None` is the last."""

    runs: list[RunRecord]
    after: str | None = None
