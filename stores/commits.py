"""The commit protocol as pure functions: what a store does with a commit, given its commit head.

A workflow task can be lost after its commits were written and before Temporal recorded them; the
next attempt of that task may decide something else and commit other content under the same numbers.
The head of an execution and the fence of a commit tell such attempts apart. Stores read the head
inside the transaction that writes the rows and act on `judge`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from stores.identifiers import DEFAULT_WORKSPACE
from stores.operations import AnnotateToolEffect, Write

Verdict = Literal["apply", "suppress", "supersede", "adopt", "stale", "conflict"]
"""What becomes of a commit: written; the same again; written in place of a lost task's rows;
written as the first of a new branch (after a reset); refused as too late; refused as
contradicting."""

Disposition = Literal["applied", "suppressed", "superseding", "refused"]
"""What became of one operation."""


@dataclass(frozen=True, kw_only=True)
class CommitPosition:
    """Where a commit stands in its execution.

    `number` counts the commits of one execution from 1. The fence is `history_length` (events),
    then `queued_at` (workflow time). `branch` and `branch_time` come from the server's own
    description of the activity, never from its input: after a reset the server runs a pending
    activity for the new execution with the old input.
    """

    execution_id: str
    branch: str
    branch_time: datetime
    number: int
    history_length: int
    queued_at: datetime

    @property
    def fence(self) -> tuple[int, datetime]:
        """Compared in this order; equal lengths occur (repeated tasks), then the time decides."""
        return (self.history_length, self.queued_at)


@dataclass(frozen=True, kw_only=True)
class Commit:
    """Operations to be written together.

    `position=None` is a write from outside a workflow: nothing is superseded or stale there and
    each key decides alone; `branch` is then whatever tells this writer's rows from another's.
    `now` is the time that rows get which bring none.
    """

    operations: tuple[Write, ...]
    now: datetime
    branch: str = ""
    position: CommitPosition | None = None


@dataclass(frozen=True, kw_only=True)
class CommitHead:
    """The newest commit of one execution (kept by `original_execution_run_id`)."""

    execution_id: str
    branch: str
    branch_time: datetime
    number: int
    history_length: int
    queued_at: datetime
    digest: str
    former_branches: tuple[str, ...] = ()
    gap_count: int = 0
    stale_count: int = 0
    workspace_id: str = DEFAULT_WORKSPACE
    has_superseded: bool = False
    """Rows of a lost task of this branch lie about, for equal operations to take back."""
    is_abandoned: bool = False
    """A reset of an execution before this one left it behind; it takes no more commits."""
    refusals: tuple[str, ...] = ()
    """Refused operations of the newest commit, each as JSON `[index, error type, error]`: a repeat
    of the commit is answered as the first time."""

    @property
    def fence(self) -> tuple[int, datetime]:
        """The fence under which the newest commit was written."""
        return (self.history_length, self.queued_at)


@dataclass(frozen=True, kw_only=True)
class OperationOutcome:
    """What became of the operation at `index` of a commit; `error` says why it was refused.

    `continued_by` is the run that was faster, where a registration may not continue another run.
    """

    index: int
    disposition: Disposition
    error_type: str | None = None
    error: str | None = None
    continued_by: str | None = None


@dataclass(frozen=True, kw_only=True)
class SequenceSpan:
    """First and last sequence that a commit holds of one run."""

    run_id: str
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class CommitResult:
    """What a store did. `outcomes` lists only operations that were not simply applied."""

    verdict: Verdict
    number: int | None = None
    digest: str = ""
    spans: tuple[SequenceSpan, ...] = ()
    outcomes: tuple[OperationOutcome, ...] = field(default=())

    def refused(self) -> tuple[OperationOutcome, ...]:
        """The operations that were not applied because they may not be."""
        return tuple(each for each in self.outcomes if each.disposition == "refused")


def judge(head: CommitHead | None, position: CommitPosition, digest: str) -> Verdict:
    """Decide what becomes of a commit at `position`.

    Within a branch the fence decides: a lower one is too late whatever it holds; an equal one with
    the head's number is the same commit again or a contradiction; a number above the head's is the
    next commit (or, beyond the next, one after a restored database: a gap); a higher fence with a
    number that the head has reached says that those commits belong to a lost task. Across branches
    only time is compared: a branch that is unknown and later takes over, any other is too late. An
    execution that a reset of an earlier one has left behind is always too late.
    """
    if head is None:
        return "apply"
    if position.branch != head.branch and not head.is_abandoned:
        later = position.branch_time > head.branch_time
        return "adopt" if later and position.branch not in head.former_branches else "stale"
    if head.is_abandoned or position.fence < head.fence:
        return "stale"
    if position.number > head.number:
        return "apply"
    if position.fence > head.fence:
        return "supersede"
    return _judge_equal_fence(head, position, digest)


def _judge_equal_fence(head: CommitHead, position: CommitPosition, digest: str) -> Verdict:
    if position.number < head.number:
        return "stale"
    return "suppress" if digest == head.digest else "conflict"


def advance(
    head: CommitHead | None,
    position: CommitPosition,
    digest: str,
    *,
    workspace_id: str,
    outcomes: Iterable[OperationOutcome] = (),
) -> CommitHead:
    """The head after the commit at `position` has been written, with these outcomes."""
    former = head.former_branches if head else ()
    if head and head.branch != position.branch:
        former = (*former, head.branch)
    skipped = position.number > (head.number if head else 0) + 1
    return CommitHead(
        execution_id=position.execution_id,
        branch=position.branch,
        branch_time=max(position.branch_time, head.branch_time) if head else position.branch_time,
        number=position.number,
        history_length=position.history_length,
        queued_at=position.queued_at,
        digest=digest,
        former_branches=former,
        gap_count=(head.gap_count if head else 0) + int(skipped),
        stale_count=head.stale_count if head else 0,
        workspace_id=workspace_id,
        has_superseded=bool(
            head
            and head.branch == position.branch
            and (head.has_superseded or position.number <= head.number)
        ),
        refusals=tuple(
            json.dumps([each.index, each.error_type, each.error])
            for each in outcomes
            if each.disposition == "refused"
        ),
    )


def repeated(head: CommitHead, count: int) -> list[OperationOutcome]:
    """Outcomes of the head's commit of `count` operations when it comes again."""
    outcomes = [OperationOutcome(index=each, disposition="suppressed") for each in range(count)]
    for text in head.refusals:
        index, error_type, error = json.loads(text)
        outcomes[index] = OperationOutcome(
            index=index, disposition="refused", error_type=error_type, error=error
        )
    return outcomes


def counted_stale(head: CommitHead) -> CommitHead:
    """The head after one more commit was refused as too late."""
    return replace(head, stale_count=head.stale_count + 1)


def is_left_behind(position: CommitPosition, predecessors: Iterable[CommitHead]) -> bool:
    """Whether an execution without a head was cut off before its first commit.

    `predecessors` are the heads of the executions that its runs went through last. One of them that
    has a later branch was reset since: the new branch has taken this execution's place.
    """
    return any(each.branch_time > position.branch_time for each in predecessors)


def spans_of(operations: tuple[Write, ...]) -> tuple[SequenceSpan, ...]:
    """First and last sequence of each run in a commit, in order of first appearance."""
    spans: dict[str, tuple[int, int]] = {}
    for operation in operations:
        if operation.sequence is None or isinstance(operation, AnnotateToolEffect):
            continue
        first, last = spans.get(operation.run_id, (operation.sequence, operation.sequence))
        spans[operation.run_id] = (min(first, operation.sequence), max(last, operation.sequence))
    return tuple(
        SequenceSpan(run_id=r, first=first, last=last) for r, (first, last) in spans.items()
    )
