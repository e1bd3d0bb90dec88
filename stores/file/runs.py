"""The files of one run.

A commit adds its rows to the files, each after what it refers to, and its own line last: that line
says how much of each file counts. What stands behind it belongs to a commit that was not finished,
and the next writer removes it. So readers need no lock.
"""

import json
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from stores.effects import EffectRow
from stores.errors import DamagedSnapshotError, StoreConfigurationError
from stores.file.layout import sync_directory, write_whole
from stores.file.logs import JsonLog, Place
from stores.json_rows import JsonForm
from stores.planning import CommitPlan
from stores.preparing import PreparedCommit
from stores.records import RunRecord
from stores.rows import EventRow, PositionRow, RunRow, SnapshotRow
from stores.tables import Tables, live

_LOGGER = logging.getLogger(__name__)

_TAIL_BYTES = 8192
"""Of the file of commits: mostly enough for its last line, which is all that is needed of it."""


@dataclass(frozen=True, kw_only=True)
class CommitLine:
    """What a commit writes last.

    `sizes` has the bytes of each file that count from then on, `snapshot_count` the snapshots that
    were ever saved, `count` the rows of this commit. `run` is the run as the commit left it.
    """

    branch: str = ""
    number: int | None = None
    history_length: int | None = None
    queued_at: datetime | None = None
    digest: str = ""
    count: int = 0
    snapshot_count: int = 0
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    run: RunRow | None = None


@dataclass(frozen=True, kw_only=True)
class _PrunedSnapshot:
    """A snapshot whose file is gone, without its ranges."""

    number: int
    row: SnapshotRow


@dataclass(frozen=True, kw_only=True)
class _MessageText:
    text: str


_COMMIT = JsonForm(CommitLine)
_EFFECT = JsonForm(EffectRow)
_EVENT = JsonForm(EventRow)
_MESSAGE = JsonForm(_MessageText)
_POSITION = JsonForm(PositionRow)
_PRUNED = JsonForm(_PrunedSnapshot)
_RUN = JsonForm(RunRecord)
_SNAPSHOT = JsonForm(SnapshotRow)


class RunFiles:
    """One run's directory, and the rows of it that were read. Used by one thread at a time.

    `problems` are those that were met while reading; each was logged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self.last = CommitLine()
        self.problems: list[str] = []
        self._tables = Tables()
        self._commits = JsonLog(self.path / "commits.jsonl")
        self._effects = JsonLog(self.path / "tool_effects.jsonl")
        self._events = JsonLog(self.path / "events.jsonl")
        self._keys = JsonLog(self.path / "snapshot-keys.jsonl")
        self._messages = JsonLog(self.path / "messages.jsonl")
        self._last_line = b""
        self._damaged_commit: str | None = None
        self._places: dict[tuple[str, int], Place] = {}
        self._pruned: set[int] = set()
        self._removed: set[int] = set()
        self._run_in_file: RunRow | None = None
        self._snapshots_read = 0
        self._damaged_snapshots: dict[int, str] = {}

    def _note(self, problem: str) -> None:
        self.problems.append(problem)
        _LOGGER.warning("left out: %s", problem)

    # Commits

    def refresh(self) -> None:
        """Take note of commits that were written since, here or by another process."""
        log = self._commits
        if log.read(log.offset - len(self._last_line), log.offset) != self._last_line:
            self._forget()  # somebody has put another run in its place
            log = self._commits
        size = log.size
        if not self._take_commits(log.offset or max(size - _TAIL_BYTES, 0), size):
            self._take_commits(0, size)

    def _take_commits(self, begin: int, end: int) -> bool:
        """Go to the last line between; `False` when one before `begin` may be needed for it."""
        # What follows the last line feed is a commit that was not finished.
        whole = self._commits.read(begin, end).rpartition(b"\n")[0]
        if not whole:
            return begin == self._commits.offset
        lines = whole.split(b"\n")
        damage: str | None = None
        for line in reversed(lines):
            try:
                self.last = _COMMIT.load_text(line)
            except ValueError as error:
                damage = damage or f"the last line of {self._commits.path} is damaged: {error}"
            else:
                break
        else:
            if begin != self._commits.offset:
                return False
        self._commits.offset = begin + len(whole) + 1
        self._last_line = lines[-1] + b"\n"
        self._damaged_commit = damage
        if damage:
            self._note(damage)
        return True

    # Reading

    def events(self, workspace_id: str, run_id: str) -> list[EventRow]:
        """The run's events in order."""
        self._load_events()
        return live(self._tables.events.of_run(workspace_id, run_id))

    def effects(self, workspace_id: str, run_id: str) -> list[EffectRow]:
        """The run's effects in order."""
        self._load_effects()
        return live(self._tables.effects.of_run(workspace_id, run_id))

    def snapshots(self, workspace_id: str, run_id: str) -> list[SnapshotRow]:
        """The run's snapshots in order; `row_id` is the number of the file."""
        self._load_snapshots()
        return live(self._tables.snapshots.of_run(workspace_id, run_id))

    def newest_snapshot(
        self, workspace_id: str, run_id: str, *, only_complete: bool
    ) -> SnapshotRow | None:
        """See `LocalRows.newest_snapshot`."""
        rows = [
            row
            for row in self.snapshots(workspace_id, run_id)
            if row.state == "complete" or not only_complete
        ]
        newest = max(map(_number_of, rows), default=0)
        for number, problem in self._damaged_snapshots.items():
            if number > newest:
                raise DamagedSnapshotError(run_id, number, problem)
        return rows[-1] if rows else None

    def positions(self, workspace_id: str, run_id: str) -> dict[int, str]:
        """The run's message log: digests by position."""
        self._load_messages()
        rows = self._tables.positions.of_run(workspace_id, run_id)
        return {row.position: row.message for row in rows}

    def texts(self, workspace_id: str, log: dict[int, str]) -> dict[str, str]:
        """The texts of the messages at these positions, by digest, as far as they can be read."""
        if not log:
            return {}
        texts: dict[str, str] = {}
        places = [self._places[workspace_id, position] for position in log]
        for (position, digest), line in zip(
            log.items(), self._messages.lines_at(places), strict=True
        ):
            try:
                texts[digest] = _MESSAGE.load_text(line).text
            except ValueError as error:
                self._note(f"message {position} in {self._messages.path} is damaged: {error}")
        return texts

    def everything(self) -> Tables:
        """All that the run's files hold."""
        self._load_events()
        self._load_effects()
        self._load_snapshots()
        self._load_messages()
        if self.last.run is not None:
            self._tables.runs[self.last.run.record.run_id] = self.last.run
        return self._tables

    def _new_rows(self, log: JsonLog, form: JsonForm[Any]) -> Iterable[tuple[Place, Any]]:
        for place, line in log.new_lines(self.last.sizes.get(log.path.name, 0)):
            try:
                yield place, form.load_text(line)
            except ValueError as error:
                self._note(f"the line at byte {place.offset} of {log.path} is damaged: {error}")

    def _load_events(self) -> None:
        self._tables.events.put(row for _, row in self._new_rows(self._events, _EVENT))

    def _load_effects(self) -> None:
        for _, row in self._new_rows(self._effects, _EFFECT):
            identity = (row.branch, row.effect_key)
            self._tables.effects.put([replace(row, row_id=identity)])

    def _load_messages(self) -> None:
        for place, row in self._new_rows(self._messages, _POSITION):
            self._tables.positions.put([replace(row, row_id=row.position)])
            self._places[row.workspace_id, row.position] = place

    def _load_snapshots(self) -> None:
        self._load_keys()
        first, self._snapshots_read = self._snapshots_read + 1, self.last.snapshot_count
        for number in range(first, self._snapshots_read + 1):
            if number not in self._pruned:
                self._load_snapshot(number)

    def _load_keys(self) -> None:
        for _, pruned in self._new_rows(self._keys, _PRUNED):
            number, row = pruned.number, pruned.row
            self._tables.pruned.put([replace(row, row_id=number)])
            self._pruned.add(number)
            of_key = self._tables.snapshots.with_key(row.workspace_id, row.run_id, row.key)
            self._tables.snapshots.remove([each for each in of_key if each.row_id == number])

    def _load_snapshot(self, number: int) -> None:
        path = self._snapshot_path(number)
        try:
            row = _SNAPSHOT.load_text(path.read_bytes())
        except FileNotFoundError:
            # Perhaps another process has pruned it since the last refresh.
            self.refresh()
            self._load_keys()
            problem = None if number in self._pruned else f"{path} is missing"
        except ValueError as error:
            problem = f"{path} is damaged: {error}"
        else:
            self._tables.snapshots.put([replace(row, row_id=number)])
            return
        if problem is not None:
            self._damaged_snapshots[number] = problem
            self._note(problem)

    def _snapshot_path(self, number: int) -> Path:
        return self.path / "snapshots" / f"{number}.json"

    # Writing, under the run's lock

    def remove_unfinished(self) -> None:
        """Remove what a commit has left that was not finished.

        Raises:
            StoreConfigurationError: it cannot be told what counts. Not retryable.
        """
        if self._damaged_commit is not None:
            msg = (
                f"cannot write run {self.path.name!r}: {self._damaged_commit}. It is the newest "
                "commit; put it right, or remove it to go back to the one before"
            )
            raise StoreConfigurationError(msg)
        for log in (self._messages, self._keys, self._effects, self._events):
            log.cut(self.last.sizes.get(log.path.name, 0))
        self._commits.cut(self._commits.offset)
        number = self.last.snapshot_count + 1
        while (leftover := self._snapshot_path(number)).exists():
            leftover.unlink()
            number += 1
        self._tidy()

    def write(
        self, prepared: PreparedCommit, plan: CommitPlan, pruned: Collection[SnapshotRow]
    ) -> None:
        """Write what a plan has for this run: rows after what they refer to, the line last."""
        run_id, last, position = self.path.name, self.last, prepared.commit.position
        pruned = [row for row in pruned if row.run_id == run_id]
        changed = (*plan.new_runs, *plan.changed_runs)
        run = next((each for each in changed if each.record.run_id == run_id), last.run)
        snapshots = [row for row in plan.snapshots if row.run_id == run_id]
        added = self._added_to_logs(plan, pruned)
        count = len(snapshots) + sum(map(len, added.values()))
        if not count and run == last.run:
            return
        sizes = {log.path.name: log.add(rows) for log, rows in added.items() if rows}
        for number, row in enumerate(snapshots, start=last.snapshot_count + 1):
            write_whole(self._snapshot_path(number), _text_of(_SNAPSHOT.dump(row)))
        line = CommitLine(
            branch=prepared.branch,
            number=prepared.number,
            history_length=position.history_length if position else None,
            queued_at=position.queued_at if position else None,
            digest=prepared.digest,
            count=count,
            snapshot_count=last.snapshot_count + len(snapshots),
            sizes={**last.sizes, **sizes},
            run=run,
        )
        is_first = not self._commits.offset
        if is_first or not sizes.keys() <= last.sizes.keys() or not last.snapshot_count:
            sync_directory(self.path)
        self._commits.add([_COMMIT.dump(line)])
        if is_first:
            sync_directory(self.path)
            sync_directory(self.path.parent)
        self.refresh()
        self._tidy()

    def _added_to_logs(
        self, plan: CommitPlan, pruned: Collection[SnapshotRow]
    ) -> dict[JsonLog, list[dict[str, Any]]]:
        run_id, bodies = self.path.name, plan.messages.bodies
        return {
            self._messages: [
                {**_POSITION.dump(row), "text": bodies[row.message].text}
                for row in plan.messages.positions
                if row.run_id == run_id
            ],
            self._effects: [_EFFECT.dump(row) for row in plan.effects if row.run_id == run_id],
            self._events: [_EVENT.dump(row) for row in plan.events if row.run_id == run_id],
            self._keys: [
                _PRUNED.dump(_PrunedSnapshot(number=_number_of(row), row=replace(row, ranges=())))
                for row in pruned
            ],
        }

    def _tidy(self) -> None:
        """Do what follows from what is committed; what fails is left to the next writer."""
        self._load_keys()
        try:
            for number in self._pruned - self._removed:
                self._snapshot_path(number).unlink(missing_ok=True)
                self._removed.add(number)
            if self.last.run != self._run_in_file and self.last.run is not None:
                write_whole(self.path / "run.json", _text_of(_RUN.dump(self.last.run.record)))
                self._run_in_file = self.last.run
        except OSError as error:
            _LOGGER.warning("run.json or a pruned snapshot is left as it was: %s", error)


def _number_of(row: SnapshotRow) -> int:
    """The number of a stored snapshot's file."""
    return int(str(row.row_id))


def _text_of(values: dict[str, Any]) -> str:
    return f"{json.dumps(values, ensure_ascii=False, indent=2)}\n"
