"""What can be told of a run without the code that made it: its rows against recorded digests.

The result of a commit, which its history holds, has one digest over kind, run, key and digest of
each of its operations in their order. Rows keep their key and digest, so the commit's can be
computed from them again, and a row's own from what the row says.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from stores.comparison import Comparison, Difference, Kind, Scope
from stores.digests import DIGEST_SCHEME, lines_digest, operation_digest, start_digest
from stores.effects import START
from stores.histories import positions_in
from stores.operations import AppendEvent, RegisterRun
from stores.rows import EventRow, KeyedRow
from stores.run_rows import RunRows

MAX_UNPLACED = 6
"""Operations of a commit whose order its rows do not tell: ends of tool calls. So many can be tried
in every order (720); tools that end beside each other are fewer."""

Line = tuple[str, str, str | None, str]


@dataclass(frozen=True, kw_only=True)
class CommitDigest:
    """What a history holds of a commit.

    Attributes:
        first, last: sequences of the run in it.
        is_plain: all of it is of one run, and each operation was applied.
    """

    branch: str
    number: int
    digest: str
    first: int
    last: int
    is_plain: bool


def compare_digests(
    run_id: str, stored: RunRows, commits: Sequence[CommitDigest], scope: Scope
) -> Comparison:
    """Compare the rows of a run with the digests of its commits, and with their own.

    Args:
        run_id: of the run.
        stored: what the store holds.
        commits: of this run; none where no history is left.
        scope: what those histories can tell of.
    """
    result = Comparison()
    _check_rows(run_id, stored, result)
    for commit in commits:
        _check_commit(run_id, stored, commit, result)
    for row in (*stored.events, *stored.snapshots):
        if row.mark is not None:
            continue
        match scope.place_of(row.branch, row.number):
            case "ahead":
                result.ahead += 1
            case "outside":
                result.outside += 1
            case "untold":
                result.untold += 1
            case "told":
                pass
    result.differences.sort(key=lambda each: (each.sequence is None, each.sequence or 0, each.key))
    return result


def _check_rows(run_id: str, stored: RunRows, result: Comparison) -> None:
    """Each row against its own digest, each snapshot against the messages that it names."""
    for row in stored.events:
        result.compared += 1
        if row.scheme == DIGEST_SCHEME and operation_digest(_event(row)) != row.digest:
            what = "says something else than its digest"
            result.differences.append(_difference("diverged", run_id, "append_event", row, what))
    for effect in stored.effects:
        for each in effect.live:
            result.compared += 1
            digest = start_digest(
                effect.tool_call_id, effect.tool_name, effect.effect, effect.arguments_digest
            )
            if each.ordinal == START and each.scheme == DIGEST_SCHEME and each.digest != digest:
                difference = Difference(
                    kind="diverged",
                    run_id=run_id,
                    boundary="start_tool_effect",
                    key=effect.effect_key,
                    what="says something else than its digest",
                    sequence=effect.sequence,
                    number=each.number,
                )
                result.differences.append(difference)
    held = {row.position: row.message for row in stored.positions}
    for snapshot in stored.snapshots:
        if snapshot.mark == "pruned":
            result.pruned += 1
            continue
        result.compared += 1
        digests = [held.get(each) for each in positions_in(snapshot.ranges)]
        boundary = "save_snapshot"
        if any(each is not None and each in stored.damaged for each in digests):
            what = "names a message that is not what its digest says"
            result.differences.append(_difference("diverged", run_id, boundary, snapshot, what))
        elif any(each not in stored.texts for each in digests):
            what = "names a message that is missing"
            result.differences.append(_difference("gap", run_id, boundary, snapshot, what))


def _check_commit(run_id: str, stored: RunRows, commit: CommitDigest, result: Comparison) -> None:
    placed, unplaced = _lines(run_id, stored, commit)
    holes = [each for each in range(commit.first, commit.last + 1) if each not in placed]
    if not commit.is_plain or len(unplaced) > MAX_UNPLACED:
        result.untold += 1
        return
    result.compared += 1
    missing = len(holes) - len(unplaced)
    if missing > 0 and stored.are_details_pruned:
        result.pruned += missing
    elif missing:
        words = f"{missing} operations are missing" if missing > 0 else "holds too many operations"
        result.differences.append(
            Difference(
                kind="gap" if missing > 0 else "diverged",
                run_id=run_id,
                boundary="commit_boundaries",
                key=f"commit {commit.number}",
                what=f"{words} between sequence {commit.first} and {commit.last}",
                sequence=holes[0] if holes else commit.first,
                number=commit.number,
            )
        )
    elif not _is_made_of(commit, placed, unplaced, holes):
        result.differences.append(
            Difference(
                kind="diverged",
                run_id=run_id,
                boundary="commit_boundaries",
                key=f"commit {commit.number}",
                what="its rows have other digests than its result in the history",
                sequence=commit.first,
                number=commit.number,
            )
        )


def _is_made_of(
    commit: CommitDigest, placed: dict[int, Line], unplaced: list[Line], holes: list[int]
) -> bool:
    for order in permutations(unplaced):
        lines = {**placed, **dict(zip(holes, order, strict=True))}
        if lines_digest([lines[each] for each in sorted(lines)]) == commit.digest:
            return True
    return False


def _lines(
    run_id: str, stored: RunRows, commit: CommitDigest
) -> tuple[dict[int, Line], list[Line]]:
    """What the rows tell of a commit's operations: by sequence, and those that keep none."""
    place = (commit.branch, commit.number)
    placed: dict[int, Line] = {
        row.sequence: (boundary, run_id, row.key, row.digest)
        for boundary, row in _keyed(stored)
        if (row.branch, row.number) == place
    }
    unplaced: list[Line] = []
    run = stored.run
    if run is not None and (run.branch, run.number) == place:
        registration = RegisterRun(run_id=run_id, registration_id=run.record.registration_id)
        line = ("register_run", run_id, run_id, operation_digest(registration))
        placed.setdefault(commit.first, line)
    for effect in stored.effects:
        for each in effect.live:
            if (each.branch, each.number) != place:
                continue
            if each.ordinal == START:
                line = ("start_tool_effect", run_id, effect.effect_key, each.digest)
                placed[effect.sequence] = line
            else:
                key = f"{effect.effect_key}#{each.ordinal}"
                unplaced.append(("finish_tool_effect", run_id, key, each.digest))
    return placed, unplaced


def _keyed(stored: RunRows) -> Iterator[tuple[str, KeyedRow]]:
    for event in stored.events:
        yield "append_event", event
    for snapshot in stored.snapshots:
        yield "save_snapshot", snapshot


def _event(row: EventRow) -> AppendEvent:
    return AppendEvent(
        run_id=row.run_id,
        key=row.key,
        event=row.event,
        step_index=row.step_index,
        call_index=row.call_index,
        tool_call_id=row.tool_call_id,
        tool_name=row.tool_name,
        error=row.error,
        error_type=row.error_type,
    )


def _difference(kind: Kind, run_id: str, boundary: str, row: KeyedRow, what: str) -> Difference:
    return Difference(
        kind=kind,
        run_id=run_id,
        boundary=boundary,
        key=str(row.key),
        what=what,
        sequence=row.sequence,
        number=row.number,
    )
