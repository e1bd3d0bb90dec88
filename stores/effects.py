"""A tool effect as the fold of its transitions.

Each start and finish of a call is a transition of its own, with the commit that wrote it. What the
effect is now follows from the transitions that are live; so when a commit is superseded or
abandoned the effect is folded again, which is the only way for its status to go back.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from typing import get_args

from stores.commits import Disposition
from stores.digests import ARGUMENTS_SUMMARY_LENGTH, DIGEST_SCHEME, arguments_digest
from stores.operations import (
    AnnotateToolEffect,
    EffectOperation,
    FinishToolEffect,
    MaskedStartToolEffect,
    StartToolEffect,
)
from stores.preparing import PreparedCommit
from stores.records import (
    UNRESOLVED,
    ApprovalState,
    EffectPolicy,
    ToolApproval,
    ToolEffectRecord,
    ToolEffectResolution,
    ToolEffectStatus,
)
from stores.rows import Mark, Row, same_content, storable, utc

START = -1
"""The ordinal of a start; finishes count from 0."""

_RANK: dict[ToolEffectStatus, int] = {
    "started": 0,
    "unknown": 1,
    "completed": 2,
    "failed": 2,
    "resolved": 3,
}
"""A status yields only to one of higher rank."""

_APPROVAL_STATES: tuple[ApprovalState, ...] = get_args(ApprovalState)


@dataclass(frozen=True, kw_only=True)
class Transition:
    """One start or finish of an effect."""

    status: ToolEffectStatus
    ordinal: int
    at: datetime
    digest: str
    branch: str
    number: int | None
    mark: Mark | None = None
    error: str | None = None
    idempotency_key: str | None = None
    effect_summary: str | None = None
    resolution: ToolEffectResolution | None = None
    scheme: int = DIGEST_SCHEME


@dataclass(frozen=True, kw_only=True)
class EffectRow(Row):
    """One tool call's effect in one branch."""

    sequence: int
    effect_key: str
    tool_call_id: str
    tool_name: str
    step_index: int | None = None
    call_index: int | None = None
    effect: EffectPolicy | None = None
    arguments_digest: str | None = None
    arguments_summary: str | None = None
    transitions: tuple[Transition, ...] = ()
    revision: int = 0
    """Counts the replacements of the stored row, for stores that compare before they write."""

    @property
    def live(self) -> tuple[Transition, ...]:
        """The transitions that count, in the order in which they came.

        One that was written outside a workflow is never marked; it was said of a call, and counts
        as long as that call's start does.
        """
        unmarked = tuple(each for each in self.transitions if each.mark is None)
        starts = [each.mark for each in self.transitions if each.ordinal == START]
        if starts and None not in starts:
            return tuple(each for each in unmarked if each.number is not None)
        return unmarked

    @property
    def mark(self) -> Mark | None:
        """`None` while any transition counts."""
        marks: list[Mark] = [each.mark for each in self.transitions if each.mark is not None]
        return None if self.live else marks[-1]

    @property
    def current(self) -> Transition:
        """The transition that says what the effect is now."""
        return max(self.live, key=lambda each: _RANK[each.status])

    @property
    def moves(self) -> tuple[Transition, ...]:
        """The transitions that count and changed something when they came."""
        moves: list[Transition] = []
        for each in self.live:
            is_forward = all(_RANK[each.status] > _RANK[former.status] for former in moves)
            if is_forward or each.ordinal == START:
                moves.append(each)
        return tuple(moves)

    @property
    def started_at(self) -> datetime:
        """When the call began, or what is known of it."""
        return min(self.live, key=lambda each: each.ordinal).at

    @property
    def resolution(self) -> ToolEffectResolution | None:
        """What was decided last about an unknown outcome."""
        said = [each.resolution for each in self.live if each.resolution is not None]
        return next((e for e in reversed(said) if e.decision not in _APPROVAL_STATES), None)

    @property
    def approval(self) -> ToolApproval | None:
        """How the newest approval stands."""
        for each in reversed(self.live):
            for state in _APPROVAL_STATES:
                said = each.resolution
                if said is not None and said.decision == state:
                    return ToolApproval(state=state, at=each.at, by=said.by, why=said.why)
        return None

    @property
    def is_unresolved(self) -> bool:
        """Whether it counts and leaves open what happened."""
        return bool(self.live) and self.current.status in UNRESOLVED


def transition_of(
    operation: StartToolEffect | FinishToolEffect, *, digest: str, prepared: PreparedCommit
) -> Transition:
    """The transition that an operation asks for."""
    finish = operation if isinstance(operation, FinishToolEffect) else None
    return Transition(
        status=finish.status if finish else "started",
        ordinal=finish.ordinal if finish else START,
        at=utc(operation.at or prepared.commit.now),
        digest=digest,
        branch=prepared.branch,
        number=prepared.number,
        error=storable(finish.error) if finish else None,
        idempotency_key=storable(operation.idempotency_key),
        effect_summary=storable(operation.effect_summary),
        resolution=finish.resolution if finish else None,
    )


def new_effect(
    operation: EffectOperation, transition: Transition, *, workspace_id: str, sequence: int
) -> EffectRow:
    """The row of an effect that was not there before."""
    row = EffectRow(
        workspace_id=workspace_id,
        run_id=operation.run_id,
        branch=transition.branch,
        number=transition.number,
        sequence=sequence,
        effect_key=operation.effect_key,
        tool_call_id=operation.tool_call_id,
        tool_name=operation.tool_name,
        step_index=operation.step_index,
        call_index=operation.call_index,
        transitions=(transition,),
    )
    return described(row, operation)


def described(row: EffectRow, operation: EffectOperation) -> EffectRow:
    """The row with what only a start tells of the call."""
    if not isinstance(operation, StartToolEffect):
        return row
    arguments = operation.arguments
    digest = None if arguments is None else arguments_digest(arguments)
    if isinstance(operation, MaskedStartToolEffect):
        digest = operation.given_digest
    return replace(
        row,
        effect=operation.effect,
        arguments_digest=digest,
        arguments_summary=storable(arguments and arguments[:ARGUMENTS_SUMMARY_LENGTH]),
    )


def move(row: EffectRow, transition: Transition) -> tuple[EffectRow, Disposition]:
    """The row after a transition, and what became of it.

    An ordinal that is recorded is suppressed or, with other content, refused. One that is new and
    would not move the effect on is suppressed too: it changes nothing, unless it says who decided
    something. What was said outside a workflow is kept then beside what a commit says, for that may
    yet be taken back.
    """
    for each in row.live:
        if each.ordinal == transition.ordinal:
            equal = same_content(each.digest, each.scheme, transition.digest)
            return row, "suppressed" if equal else "refused"
    is_forward = not row.live or _RANK[transition.status] > _RANK[row.current.status]
    says_nothing = transition.ordinal != START and transition.resolution is None
    if not is_forward and says_nothing:
        may_count_yet = transition.number is None and row.current.number is not None
        if not may_count_yet:
            return row, "suppressed"
    former = [
        each
        for each in row.transitions
        if each.ordinal == transition.ordinal
        and each.mark == "superseded"
        and each.branch == transition.branch
    ]
    back = next((e for e in former if same_content(e.digest, e.scheme, transition.digest)), None)
    if back is not None:
        revived = replace(back, mark=None, number=transition.number)
        rest = tuple(each for each in row.transitions if each is not back)
        return replace(row, transitions=(*rest, revived)), "superseding"
    moved = replace(row, transitions=(*row.transitions, transition))
    return moved, "superseding" if former else "applied"


def annotated(row: EffectRow, operation: AnnotateToolEffect) -> EffectRow:
    """The row with what the tool says of its effect; of a call that has ended it comes too late.

    It is kept with the first transition, so it counts as long as that does, and a finish that says
    something else itself has the last word.
    """
    if not row.is_unresolved:
        return row
    first = min(row.live, key=lambda each: each.ordinal)
    key, summary = storable(operation.idempotency_key), storable(operation.effect_summary)
    changed = replace(
        first,
        idempotency_key=first.idempotency_key if key is None else key,
        effect_summary=first.effect_summary if summary is None else summary,
    )
    transitions = (changed if each is first else each for each in row.transitions)
    return replace(row, transitions=tuple(transitions))


def holds_start(row: EffectRow, digest: str) -> bool:
    """Whether the row, live or not, has a start of this content."""
    return any(
        each.ordinal == START and same_content(each.digest, each.scheme, digest)
        for each in row.transitions
    )


def marked(row: EffectRow, *, branches: Collection[str], number: int, mark: Mark) -> EffectRow:
    """The row after the commits from `number` on of these branches no longer count."""
    return replace(
        row,
        transitions=tuple(
            replace(each, mark=mark) if is_reached(each, branches, number) else each
            for each in row.transitions
        ),
    )


def is_reached(transition: Transition, branches: Collection[str], number: int) -> bool:
    """Whether a live transition was written by these branches at this number or later."""
    return (
        transition.mark is None
        and transition.branch in branches
        and transition.number is not None
        and transition.number >= number
    )


def effect_record(row: EffectRow) -> ToolEffectRecord:
    """The effect as it is read: a live row folded."""
    current = row.current
    moves = row.moves
    keys = [each.idempotency_key for each in moves if each.idempotency_key is not None]
    summaries = [each.effect_summary for each in moves if each.effect_summary is not None]
    return ToolEffectRecord(
        tool_call_id=row.tool_call_id,
        tool_name=row.tool_name,
        run_id=row.run_id,
        status=current.status,
        started_at=row.started_at,
        ended_at=None if current.ordinal == START else current.at,
        idempotency_key=keys[-1] if keys else None,
        effect_summary=summaries[-1] if summaries else current.error,
        sequence=row.sequence,
        step_index=row.step_index,
        call_index=row.call_index,
        effect=row.effect,
        arguments_digest=row.arguments_digest,
        arguments_summary=row.arguments_summary,
        error=current.error,
        resolution=row.resolution,
        branch=row.branch,
        commit_number=current.number,
        workspace_id=row.workspace_id,
        approval=row.approval,
    )
