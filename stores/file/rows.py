"""The rows of one workspace in the directories of its runs."""

import copy
import json
from collections.abc import Collection
from contextlib import ExitStack

from stores.commits import CommitHead
from stores.effects import EffectRow
from stores.errors import StoreConfigurationError
from stores.file.directory import StoreDirectory
from stores.file.layout import HEADS, check_run_id, head_file, is_safe, locked, write_whole
from stores.file.runs import RunFiles
from stores.histories import Range, positions_in
from stores.json_rows import JsonForm
from stores.paging import RunCursor
from stores.planning import CommitPlan, Existing
from stores.preparing import PreparedCommit
from stores.records import RunRecord
from stores.rows import EventRow, RunRow, SnapshotRow

_HEAD = JsonForm(CommitHead)

_NO_RUN = "@no-run"
"""Where a run would be whose id cannot name a directory; nothing is ever there."""


class FileRows:
    """`LocalRows` in files. Of each run this call sees what was there when it first asked."""

    def __init__(self, directory: StoreDirectory, *, workspace_id: str) -> None:
        self._directory = directory
        self._workspace_id = workspace_id
        self._runs: dict[str, RunFiles] = {}
        self._locks: ExitStack | None = None

    def lock(self, run_ids: Collection[str], locks: ExitStack) -> None:
        """Take the locks of the runs that are going to be written, always in one order.

        Raises:
            InvalidIdentifierError: an id cannot name a directory. Not retryable.
            StoreUnavailableError: another writer has a run for long. Retryable.
        """
        self._locks = locks
        for run_id in sorted({check_run_id(each) for each in run_ids}):
            locks.enter_context(locked(self._directory.path / run_id))
            self._run(run_id).remove_unfinished()

    def _run(self, run_id: str) -> RunFiles:
        name = run_id if is_safe(run_id) else _NO_RUN
        if name not in self._runs:
            self._runs[name] = self._directory.run(name)
        return self._runs[name]

    # Heads and runs

    def find_head(self, execution_id: str) -> CommitHead | None:
        """See `LocalRows.find_head`."""
        if self._locks is not None:
            self._locks.enter_context(locked(self._directory.path / HEADS))
        path = head_file(self._directory.path, self._workspace_id, execution_id)
        try:
            return _HEAD.load_text(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            msg = f"the commit head of execution {execution_id!r}, {path}, is damaged: {error}"
            raise StoreConfigurationError(msg) from error

    def put_head(self, head: CommitHead) -> None:
        """See `LocalRows.put_head`."""
        path = head_file(self._directory.path, self._workspace_id, head.execution_id)
        write_whole(path, json.dumps(_HEAD.dump(head)))

    def find_run(self, run_id: str) -> RunRecord | None:
        """See `LocalRows.find_run`."""
        return self._own(self._run(run_id).last.run)

    def _own(self, run: RunRow | None) -> RunRecord | None:
        if run is None or run.record.workspace_id != self._workspace_id:
            return None
        return copy.deepcopy(run.record)

    def newest_runs(
        self, filters: dict[str, str], *, after: RunCursor | None, limit: int | None
    ) -> list[RunRecord]:
        """See `LocalRows.newest_runs`. Reads the last commit of every run."""
        runs = (
            self._own(self._directory.glance(run_id).last.run)
            for run_id in self._directory.run_ids()
        )
        matching = [
            run
            for run in runs
            if run is not None and all(getattr(run, name) == filters[name] for name in filters)
        ]
        if after is not None:
            last = (after.started_at, after.run_id)
            matching = [run for run in matching if (run.started_at, run.run_id) < last]
        matching.sort(key=lambda run: (run.started_at, run.run_id), reverse=True)
        return matching[:limit]

    # Events, snapshots, effects

    def events(self, run_id: str) -> list[EventRow]:
        """See `LocalRows.events`."""
        return self._run(run_id).events(self._workspace_id, run_id)

    def snapshots(self, run_id: str) -> list[SnapshotRow]:
        """See `LocalRows.snapshots`."""
        return self._run(run_id).snapshots(self._workspace_id, run_id)

    def newest_snapshot(self, run_id: str, *, only_complete: bool) -> SnapshotRow | None:
        """See `LocalRows.newest_snapshot`."""
        files = self._run(run_id)
        return files.newest_snapshot(self._workspace_id, run_id, only_complete=only_complete)

    def effects(self, run_id: str) -> list[EffectRow]:
        """See `LocalRows.effects`."""
        return self._run(run_id).effects(self._workspace_id, run_id)

    def unresolved_effects(self) -> list[EffectRow]:
        """See `LocalRows.unresolved_effects`. Reads the effects of every run."""
        effects = (
            effect
            for run_id in self._directory.run_ids()
            for effect in self._directory.glance(run_id).effects(self._workspace_id, run_id)
        )
        unresolved = [effect for effect in effects if effect.is_unresolved]
        return sorted(unresolved, key=lambda effect: effect.started_at)

    # Messages

    def log_end(self, run_id: str) -> int:
        """See `LocalRows.log_end`. A position whose line is damaged is not used again."""
        positions = self._run(run_id).positions(self._workspace_id, run_id)
        ends = [end for row in self.snapshots(run_id) for _, end in row.ranges]
        return max([*ends, *(each + 1 for each in positions)], default=0)

    def log(self, run_id: str, ranges: Collection[Range]) -> dict[int, str]:
        """See `LocalRows.log`."""
        positions = self._run(run_id).positions(self._workspace_id, run_id)
        return {each: positions[each] for each in positions_in(ranges) if each in positions}

    def texts(self, run_id: str, log: dict[int, str]) -> dict[str, str]:
        """See `LocalRows.texts`."""
        return self._run(run_id).texts(self._workspace_id, log)

    # Commits

    def existing(self, prepared: PreparedCommit) -> Existing:
        """See `LocalRows.existing`."""
        self._lock_continued(prepared)
        existing = Existing()
        for run_id in prepared.run_ids:
            tables = self._run(run_id).everything()
            tables.add_existing(existing, prepared, workspace_id=self._workspace_id)
        return existing

    def _lock_continued(self, prepared: PreparedCommit) -> None:
        """Let two registrations that continue one run come one after the other."""
        for run_id in prepared.continued_run_ids:
            path = self._directory.path / run_id
            is_new = run_id not in prepared.run_ids
            if self._locks is not None and is_new and is_safe(run_id) and path.is_dir():
                self._locks.enter_context(locked(path))

    def write(
        self, prepared: PreparedCommit, plan: CommitPlan, pruned: Collection[SnapshotRow]
    ) -> None:
        """See `LocalRows.write`. Run by run: after a crash some runs of a commit may have it."""
        for run_id in prepared.run_ids:
            self._run(run_id).write(prepared, plan, pruned)
