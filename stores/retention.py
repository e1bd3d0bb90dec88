"""How many snapshots of a run are kept, where that is bounded.

A pruned snapshot leaves its key behind, so that it is not saved a second time. The messages that
it named stay in the run's log: a reset may go back to before they left the history.
"""

from collections.abc import Sequence

from stores.commits import CommitHead
from stores.preparing import PreparedCommit
from stores.rows import SnapshotRow


def check_bound(max_snapshots_per_run: int | None) -> int | None:
    """Return the bound when it is one; `None` keeps all.

    Raises:
        ValueError: it is below 1. Not retryable.
    """
    if max_snapshots_per_run is not None and max_snapshots_per_run < 1:
        msg = (
            f"max_snapshots_per_run is {max_snapshots_per_run!r}; pass 1 or more, or None to keep "
            "every snapshot"
        )
        raise ValueError(msg)
    return max_snapshots_per_run


def prunable(
    stored: Sequence[SnapshotRow],
    added: Sequence[SnapshotRow],
    *,
    bound: int,
    prepared: PreparedCommit,
    head: CommitHead | None,
) -> list[SnapshotRow]:
    """The stored snapshots of one run that may go when a commit adds to them.

    Kept are the newest `bound`, which include the newest of all, and the newest complete one; and
    whatever a later attempt of the commit's workflow task could still take back.

    Args:
        stored: the live ones.
        added: those of the commit's plan.
        bound: 1 or more.
        prepared: the commit.
        head: the commit head before it.
    """
    by_age = sorted([*stored, *added], key=lambda row: row.sequence)
    complete = [row for row in by_age if row.state == "complete"]
    kept = {row.row_id for row in (*by_age[-bound:], *complete[-1:])}
    first = _first_unsettled(prepared, head)
    return [row for row in stored if row.row_id not in kept and _is_settled(row, prepared, first)]


def _first_unsettled(prepared: PreparedCommit, head: CommitHead | None) -> int:
    """The lowest number of this branch that another attempt of its task may commit again.

    A longer history than the head's holds all that was committed before; with an equal one this
    commit belongs to the same task as others before it, and how many is not known.
    """
    position = prepared.commit.position
    if position is None:
        return 0
    is_same_task = (
        head is not None
        and head.branch == position.branch
        and head.history_length >= position.history_length
    )
    return 0 if is_same_task else position.number


def _is_settled(row: SnapshotRow, prepared: PreparedCommit, first_unsettled: int) -> bool:
    if row.number is None or row.branch != prepared.branch:
        return True
    return row.number < first_unsettled
