from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from stores.commits import (
    Commit,
    CommitHead,
    CommitPosition,
    OperationOutcome,
    Verdict,
    advance,
    counted_stale,
    is_left_behind,
    judge,
    spans_of,
)
from stores.errors import IdempotencyConflictError
from stores.operations import RegisterRun
from stores.preparing import prepare

TIME = datetime(2026, 1, 1, tzinfo=UTC)


def seconds(count: int) -> datetime:
    return TIME + timedelta(seconds=count)


HEAD = CommitHead(
    execution_id="execution",
    branch="b",
    branch_time=seconds(100),
    number=5,
    history_length=20,
    queued_at=seconds(110),
    digest="digest",
    former_branches=("a",),
)


def position(
    number: int = 5,
    length: int = 20,
    queued: int = 110,
    branch: str = "b",
    branch_time: int = 100,
) -> CommitPosition:
    return CommitPosition(
        execution_id="execution",
        branch=branch,
        branch_time=seconds(branch_time),
        number=number,
        history_length=length,
        queued_at=seconds(queued),
    )


@pytest.mark.parametrize(
    ("given", "digest", "verdict"),
    [
        # The same commit again, or a contradiction.
        (position(), "digest", "suppress"),
        (position(), "other", "conflict"),
        # The next one, of the same task or a later one; a number that skips some is applied.
        (position(6), "other", "apply"),
        (position(6), "digest", "apply"),
        (position(6, length=25, queued=120), "other", "apply"),
        (position(9, length=25, queued=120), "other", "apply"),
        # A lost task's numbers come again under a higher fence, whatever they hold.
        (position(5, length=25, queued=120), "digest", "supersede"),
        (position(5, length=25, queued=120), "other", "supersede"),
        (position(1, length=25, queued=120), "other", "supersede"),
        (position(5, queued=111), "digest", "supersede"),
        # Too late, whatever it holds: lower fences, and lower numbers under the same one.
        (position(5, length=19), "digest", "stale"),
        (position(6, length=19, queued=999), "other", "stale"),
        (position(5, queued=109), "digest", "stale"),
        (position(99, queued=109), "other", "stale"),
        (position(4), "other", "stale"),
        # Across branches only time is compared; a branch that was live before stays stale.
        (position(3, length=1, queued=0, branch="c", branch_time=101), "other", "adopt"),
        (position(9, length=99, queued=999, branch="c", branch_time=101), "other", "adopt"),
        (position(6, length=99, queued=999, branch="c", branch_time=100), "other", "stale"),
        (position(6, length=99, queued=999, branch="c", branch_time=99), "other", "stale"),
        (position(6, length=99, queued=999, branch="a", branch_time=999), "other", "stale"),
    ],
)
def test_what_becomes_of_a_commit(given: CommitPosition, digest: str, verdict: Verdict) -> None:
    assert judge(HEAD, given, digest) == verdict


def test_the_first_commit_is_applied_whatever_its_number() -> None:
    assert judge(None, position(1), "digest") == "apply"
    assert judge(None, position(7), "digest") == "apply"


@pytest.mark.parametrize(
    "given", [position(6), position(), position(6, branch="c", branch_time=999)]
)
def test_an_abandoned_execution_takes_nothing(given: CommitPosition) -> None:
    assert judge(replace(HEAD, is_abandoned=True), given, "digest") == "stale"


def test_the_head_moves_to_the_commit() -> None:
    moved = advance(HEAD, position(6, 30, 130), "new", workspace_id="w")
    assert moved == replace(
        HEAD,
        number=6,
        history_length=30,
        queued_at=seconds(130),
        digest="new",
        workspace_id="w",
    )
    assert moved.fence == (30, seconds(130))


def test_the_first_head_counts_a_gap_when_its_number_is_not_one() -> None:
    first = advance(None, position(1), "d", workspace_id="w")
    assert (first.number, first.gap_count, first.former_branches) == (1, 0, ())
    assert advance(None, position(3), "d", workspace_id="w").gap_count == 1


def test_a_gap_is_counted_and_the_count_is_kept() -> None:
    moved = advance(HEAD, position(8, 30), "d", workspace_id="w")
    assert moved.gap_count == 1
    assert advance(moved, position(9, 30), "d", workspace_id="w").gap_count == 1


def test_superseded_rows_are_remembered_in_their_branch() -> None:
    moved = advance(HEAD, position(4, 30), "d", workspace_id="w")
    assert moved.has_superseded
    assert advance(moved, position(5, 30), "d", workspace_id="w").has_superseded
    reset = position(2, branch="c", branch_time=200)
    assert not advance(moved, reset, "d", workspace_id="w").has_superseded


def test_a_new_branch_puts_the_old_one_among_the_former() -> None:
    moved = advance(HEAD, position(2, branch="c", branch_time=200), "d", workspace_id="w")
    assert (moved.branch, moved.former_branches) == ("c", ("a", "b"))
    assert (moved.number, moved.branch_time, moved.gap_count) == (2, seconds(200), 0)


def test_stale_commits_are_counted() -> None:
    counted = counted_stale(counted_stale(HEAD))
    assert counted == replace(HEAD, stale_count=2)
    assert advance(counted, position(6), "d", workspace_id="w").stale_count == 2


def test_an_execution_is_left_behind_by_a_later_branch_of_one_before_it() -> None:
    assert not is_left_behind(position(branch_time=100), [])
    assert not is_left_behind(position(branch_time=100), [HEAD])
    assert is_left_behind(position(branch_time=99), [HEAD])


def test_spans_give_first_and_last_sequence_of_each_run() -> None:
    def operation(run_id: str, sequence: int | None) -> RegisterRun:
        return RegisterRun(run_id=run_id, sequence=sequence, registration_id="r")

    operations = (
        operation("b", 7),
        operation("a", 3),
        operation("b", 5),
        operation("c", None),
        operation("b", 6),
    )
    spans = [(each.run_id, each.first, each.last) for each in spans_of(operations)]
    assert spans == [("b", 5, 7), ("a", 3, 3)]


def test_a_result_names_what_was_refused() -> None:
    operations = (RegisterRun(run_id="r", registration_id="g"),)
    prepared = prepare(Commit(operations=operations, now=TIME, position=position()))
    refused = OperationOutcome(index=0, disposition="refused", error_type="E", error="text")
    result = prepared.result("apply", [refused])
    assert result.refused() == (refused,)
    head = advance(None, position(), prepared.digest, workspace_id="w", outcomes=[refused])
    assert prepared.suppressed(head).outcomes == (refused,)
    conflict = prepared.conflict()
    assert isinstance(conflict, IdempotencyConflictError)
    assert str(conflict).startswith("commit of run 'r': key '5' was applied before with other")
