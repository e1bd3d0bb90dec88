"""Tables of rows in memory: what `stores.memory` keeps its rows in."""

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from stores.commits import CommitHead
from stores.effects import EffectRow
from stores.histories import Body
from stores.planning import RunKey
from stores.rows import AnyKeyedRow, EventRow, MarkedRow, PositionRow, Row, RunRow, SnapshotRow

AnyRow = TypeVar("AnyRow", bound=Row)
AnyMarkedRow = TypeVar("AnyMarkedRow", bound=MarkedRow)
AnyOrderedRow = TypeVar("AnyOrderedRow", EventRow, SnapshotRow, EffectRow)


class Table(Generic[AnyRow]):
    """Rows in order of insertion, found by workspace and run."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._rows: dict[tuple[str, str], dict[object, AnyRow]] = {}

    def put(self, rows: Iterable[AnyRow]) -> None:
        """Replace the rows that have a `row_id`, add the others."""
        for row in rows:
            row_id = next(self._ids) if row.row_id is None else row.row_id
            run = self._rows.setdefault((row.workspace_id, row.run_id), {})
            run[row_id] = replace(row, row_id=row_id)

    def of_run(self, workspace_id: str, run_id: str) -> list[AnyRow]:
        """All rows of a run, marked ones too."""
        return list(self._rows.get((workspace_id, run_id), {}).values())

    def of_workspace(self, workspace_id: str) -> list[AnyRow]:
        """All rows of a workspace, marked ones too."""
        tables = [rows for key, rows in self._rows.items() if key[0] == workspace_id]
        return [row for rows in tables for row in rows.values()]


@dataclass(kw_only=True)
class Tables:
    """What the store objects of all workspaces share."""

    heads: dict[tuple[str, str], CommitHead] = field(
        default_factory=dict[tuple[str, str], CommitHead]
    )
    runs: dict[str, RunRow] = field(default_factory=dict[str, RunRow])
    events: Table[EventRow] = field(default_factory=Table[EventRow])
    snapshots: Table[SnapshotRow] = field(default_factory=Table[SnapshotRow])
    effects: Table[EffectRow] = field(default_factory=Table[EffectRow])
    positions: Table[PositionRow] = field(default_factory=Table[PositionRow])
    messages: dict[str, Body] = field(default_factory=dict[str, Body])


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
