"""The rows that commits leave in an empty store, by the rules of every store."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from stores.commits import Commit, CommitResult
from stores.memory import InMemoryStepStore
from stores.preparing import prepare
from stores.rows import MarkedRow
from stores.run_rows import RunRows
from stores.tables import live

AnyMarked = TypeVar("AnyMarked", bound=MarkedRow)


class ExpectedRows(InMemoryStepStore):
    """Takes the commits of one execution after the other, as their histories hold them."""

    async def take(self, commit: Commit, *, digest: str, left_out: Iterable[int]) -> CommitResult:
        """Commit what the store took of a commit, or raise.

        Args:
            commit: as it was made.
            digest: that its result tells.
            left_out: indices of operations that were refused, or that changed nothing.

        Raises:
            UnlikeCommitError: its digest is another one.
        """
        made = prepare(commit)
        if made.digest != digest:
            raise UnlikeCommitError(made.number, made.run_ids)
        skipped = frozenset(left_out)
        taken = tuple(each for index, each in enumerate(commit.operations) if index not in skipped)
        return await self.commit(replace(commit, operations=taken))

    def rows_of(self, run_id: str) -> RunRows:
        """What counts of a run."""
        tables, workspace_id = self._tables, self.workspace_id
        run = tables.runs.get(run_id)
        positions = [
            row for row in tables.positions.of_run(workspace_id, run_id) if row.mark is None
        ]
        return RunRows(
            run=run if run is not None and run.mark is None else None,
            events=tuple(live(tables.events.of_run(workspace_id, run_id))),
            snapshots=tuple(live(tables.snapshots.of_run(workspace_id, run_id))),
            effects=tuple(live(tables.effects.of_run(workspace_id, run_id))),
            positions=tuple(positions),
            texts={row.message: tables.messages[row.message].text for row in positions},
        )


class UnlikeCommitError(Exception):
    """What was made is not what its result tells."""

    def __init__(self, number: int | None, run_ids: Iterable[str]) -> None:
        super().__init__(number, tuple(run_ids))
        self.number = number

    def __str__(self) -> str:
        """Which commit."""
        number, run_ids = self.args
        runs = ", ".join(map(repr, run_ids)) or "none"
        return f"commit {number} (runs: {runs}) has another digest than its result in the history"
