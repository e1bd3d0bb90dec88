"""Rows in tables in memory: what `stores.memory` keeps, and `stores.file` loads of a run."""

import itertools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from stores.commits import CommitHead
from stores.effects import EffectRow
from stores.histories import Body
from stores.operations import (
    AnnotateToolEffect,
    AppendEvent,
    FinishToolEffect,
    SaveSnapshot,
    StartToolEffect,
    Write,
)
from stores.planning import Existing, RunKey
from stores.preparing import PreparedCommit
from stores.rows import (
    AnyKeyedRow,
    EventRow,
    KeyedRow,
    MarkedRow,
    PositionRow,
    Row,
    RunRow,
    SnapshotRow,
)

AnyRow = TypeVar("AnyRow", bound=Row)
AnyMarkedRow = TypeVar("AnyMarkedRow", bound=MarkedRow)
AnyOrderedRow = TypeVar("AnyOrderedRow", EventRow, SnapshotRow, EffectRow)


class Table(Generic[AnyRow]):
    """Rows in order of insertion, found by workspace and run, or also by their key."""

    def __init__(self, key_of: Callable[[AnyRow], object]) -> None:
        """Make an empty table; `key_of` tells the key of a row, which never changes."""
        self._key_of = key_of
        self._ids = itertools.count()
        self._rows: dict[tuple[str, str], dict[object, AnyRow]] = {}
        self._row_ids: dict[tuple[str, str, object], dict[object, None]] = {}

    def put(self, rows: Iterable[AnyRow]) -> None:
        """Replace the rows that have a `row_id`, add the others."""
        for row in rows:
            row_id = next(self._ids) if row.row_id is None else row.row_id
            run = self._rows.setdefault((row.workspace_id, row.run_id), {})
            run[row_id] = replace(row, row_id=row_id)
            self._row_ids.setdefault(self._place(row), {})[row_id] = None

    def remove(self, rows: Iterable[AnyRow]) -> None:
        """Remove stored rows."""
        for row in rows:
            del self._rows[row.workspace_id, row.run_id][row.row_id]
            del self._row_ids[self._place(row)][row.row_id]

    def _place(self, row: AnyRow) -> tuple[str, str, object]:
        return (row.workspace_id, row.run_id, self._key_of(row))

    def with_key(self, workspace_id: str, run_id: str, key: object) -> list[AnyRow]:
        """The rows of a run that have this key, marked ones too."""
        rows = self._rows.get((workspace_id, run_id), {})
        return [rows[row_id] for row_id in self._row_ids.get((workspace_id, run_id, key), {})]

    def of_run(self, workspace_id: str, run_id: str) -> list[AnyRow]:
        """All rows of a run, marked ones too."""
        return list(self._rows.get((workspace_id, run_id), {}).values())

    def of_workspace(self, workspace_id: str) -> list[AnyRow]:
        """All rows of a workspace, marked ones too."""
        tables = [rows for key, rows in self._rows.items() if key[0] == workspace_id]
        return [row for rows in tables for row in rows.values()]


def _key_of(row: KeyedRow) -> str | None:
    return row.key


def _effect_key_of(row: EffectRow) -> str:
    return row.effect_key


def _position_of(row: PositionRow) -> int:
    return row.position


@dataclass(kw_only=True)
class Tables:
    """The rows of all workspaces.

    `pruned` holds the snapshots that retention took out of `snapshots`, for their keys.
    """

    heads: dict[tuple[str, str], CommitHead] = field(
        default_factory=dict[tuple[str, str], CommitHead]
    )
    runs: dict[str, RunRow] = field(default_factory=dict[str, RunRow])
    events: Table[EventRow] = field(default_factory=lambda: Table[EventRow](_key_of))
    snapshots: Table[SnapshotRow] = field(default_factory=lambda: Table[SnapshotRow](_key_of))
    pruned: Table[SnapshotRow] = field(default_factory=lambda: Table[SnapshotRow](_key_of))
    effects: Table[EffectRow] = field(default_factory=lambda: Table[EffectRow](_effect_key_of))
    positions: Table[PositionRow] = field(default_factory=lambda: Table[PositionRow](_position_of))
    messages: dict[str, Body] = field(default_factory=dict[str, Body])

    def add_existing(
        self, existing: Existing, prepared: PreparedCommit, *, workspace_id: str
    ) -> None:
        """Add to `existing` what the tables hold of the things that a commit touches."""
        for run_id in prepared.run_ids:
            if run_id in self.runs:
                existing.runs[run_id] = self.runs[run_id]
        for operation in prepared.commit.operations:
            self._add_rows(existing, operation, workspace_id, prepared.branch)
            if operation.sequence is None:
                self._add_sequence(existing, workspace_id, operation.run_id)

    def _add_rows(
        self, existing: Existing, operation: Write, workspace_id: str, branch: str
    ) -> None:
        run_id = operation.run_id
        match operation:
            case AppendEvent():
                events = self.events.with_key(workspace_id, run_id, operation.key)
                existing.events |= live_by_key(events, branch)
                existing.superseded_events += superseded(events, branch)
            case SaveSnapshot():
                snapshots = self.snapshots.with_key(workspace_id, run_id, operation.key)
                pruned = self.pruned.with_key(workspace_id, run_id, operation.key)
                existing.snapshots |= live_by_key([*pruned, *snapshots], branch)
                existing.superseded_snapshots += superseded(snapshots, branch)
                for entry in operation.entries:
                    positions = self.positions.with_key(workspace_id, run_id, entry.position)
                    existing.positions |= {
                        (run_id, row.position): row for row in positions if row.mark is None
                    }
            case StartToolEffect() | FinishToolEffect() | AnnotateToolEffect():
                effects = self.effects.with_key(workspace_id, run_id, operation.effect_key)
                # The newest; but a row of the commit's own branch would be in the way of another.
                found = sorted(live(effects), key=lambda row: row.branch == branch)
                existing.effects |= {(run_id, row.effect_key): row for row in found}
                existing.superseded_effects += superseded(effects, branch)
            case _:
                pass

    def _add_sequence(self, existing: Existing, workspace_id: str, run_id: str) -> None:
        if run_id in existing.sequences:
            return
        tables = (self.events, self.snapshots, self.effects)
        sequences = [
            row.sequence
            for table in tables
            for row in table.of_run(workspace_id, run_id)
            if row.mark is None
        ]
        if sequences:
            existing.sequences[run_id] = max(sequences)


def is_row_reached(row: RunRow | MarkedRow, branches: Collection[str], number: int) -> bool:
    """Whether a live row was written by these branches at this number or later."""
    return (
        row.mark is None
        and row.branch in branches
        and row.number is not None
        and row.number >= number
    )


def live(rows: Iterable[AnyOrderedRow]) -> list[AnyOrderedRow]:
    """The rows that count, in the order of their run."""
    return sorted((row for row in rows if row.mark is None), key=lambda row: row.sequence)


def live_by_key(rows: Iterable[AnyKeyedRow], branch: str) -> dict[RunKey, AnyKeyedRow]:
    """The live rows of a branch that have a key."""
    return {
        (row.run_id, row.key): row
        for row in rows
        if row.mark is None and row.branch == branch and row.key is not None
    }


def superseded(rows: Iterable[AnyOrderedRow], branch: str) -> list[AnyOrderedRow]:
    """The rows that a lost task of this branch has left behind."""
    return [row for row in rows if row.mark == "superseded" and row.branch == branch]
