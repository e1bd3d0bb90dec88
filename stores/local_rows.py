"""The rows that a store on one machine keeps: what file and SQLite do each in their way."""

from collections.abc import Collection
from typing import Protocol

from stores.commits import CommitHead
from stores.effects import EffectRow
from stores.histories import Range
from stores.paging import RunCursor
from stores.planning import CommitPlan, Existing
from stores.preparing import PreparedCommit
from stores.records import RunRecord
from stores.rows import EventRow, SnapshotRow


class LocalRows(Protocol):
    """The rows of one workspace, for the length of one call, in which nobody else changes them.

    Lists are in the order of the run. What is damaged is left out of them and logged.
    """

    def find_head(self, execution_id: str) -> CommitHead | None:
        """The commit head of an execution."""
        ...

    def put_head(self, head: CommitHead) -> None:
        """Put a commit head in place of the one before."""
        ...

    def existing(self, prepared: PreparedCommit) -> Existing:
        """What is there of the things that a commit touches; no row of these stores is marked."""
        ...

    def write(
        self, prepared: PreparedCommit, plan: CommitPlan, pruned: Collection[SnapshotRow]
    ) -> None:
        """Write a plan, and keep no more than the keys of the pruned snapshots."""
        ...

    def find_run(self, run_id: str) -> RunRecord | None:
        """The run of that id in this workspace."""
        ...

    def newest_runs(
        self, filters: dict[str, str], *, after: RunCursor | None, limit: int | None
    ) -> list[RunRecord]:
        """Up to `limit` runs that match, by start and id, descending, beginning behind `after`."""
        ...

    def events(self, run_id: str) -> list[EventRow]:
        """The run's events."""
        ...

    def snapshots(self, run_id: str) -> list[SnapshotRow]:
        """The run's snapshots."""
        ...

    def newest_snapshot(self, run_id: str, *, only_complete: bool) -> SnapshotRow | None:
        """The last of the run's snapshots.

        Raises:
            DamagedSnapshotError: it, or one that may be newer, cannot be read.
        """
        ...

    def effects(self, run_id: str) -> list[EffectRow]:
        """The run's effects."""
        ...

    def unresolved_effects(self) -> list[EffectRow]:
        """The unresolved effects of all runs, oldest first."""
        ...

    def log_end(self, run_id: str) -> int:
        """The first position behind all that the run's message log has ever held."""
        ...

    def log(self, run_id: str, ranges: Collection[Range]) -> dict[int, str]:
        """The digests at these positions of the run's message log."""
        ...

    def texts(self, run_id: str, log: dict[int, str]) -> dict[str, str]:
        """The texts of these messages, by digest."""
        ...
