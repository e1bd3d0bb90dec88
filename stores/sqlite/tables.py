"""Rows as rows of SQLite tables.

A table has a column for each field of its rows, made without a type: SQLite then keeps values as
they are given. What is nested (metadata, ranges, transitions, ...) is JSON text, so that no user's
string becomes a name. Columns that only queries need are computed on the way in.
"""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from stores.commits import CommitHead
from stores.effects import EffectRow
from stores.errors import StoreConfigurationError
from stores.json_rows import JsonForm
from stores.records import RunRecord
from stores.rows import EventRow, PositionRow, RunRow, SnapshotRow

Record = TypeVar("Record")

Values = dict[str, Any]

_UNUSED = frozenset({"mark", "record", "revision", "row_id"})
"""Fields of rows that need no column of this store: nothing is marked, nobody compares revisions,
and SQLite names rows itself."""

_NESTED = frozenset(
    {
        "branches",
        "context",
        "former_branches",
        "metadata",
        "ranges",
        "refusals",
        "transitions",
        "usage",
    }
)


def sortable(time: datetime) -> str:
    """A time as text of one length, so that texts are in the order of times."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


class Form(Protocol[Record]):
    """How rows are turned into values and back; see `JsonForm`."""

    names: tuple[str, ...]
    required: tuple[str, ...]

    def dump(self, record: Record) -> Values:
        """The row's fields."""
        ...

    def load(self, values: Mapping[str, Any]) -> Record:
        """The row of these fields."""
        ...


class _RunForm:
    """A run's record and the commit that registered it, side by side."""

    def __init__(self) -> None:
        self._record = JsonForm(RunRecord)
        self._row = JsonForm(RunRow)
        self.names = (*self._record.names, *self._row.names)
        self.required = self._record.required

    def dump(self, record: RunRow) -> Values:
        values = self._row.dump(record)
        started_at = sortable(record.record.started_at)
        return values | self._record.dump(record.record) | {"started_at": started_at}

    def load(self, values: Mapping[str, Any]) -> RunRow:
        return self._row.load({**values, "record": self._record.load(values)})


def _nothing(_: object) -> Values:
    return {}


@dataclass(frozen=True, kw_only=True)
class RowTable(Generic[Record]):
    """One table: `identity` is its primary key, `indexes` are lists of columns.

    `added` says what rows from before a column hold in it.
    """

    name: str
    form: Form[Record]
    identity: tuple[str, ...] = ("row_id",)
    indexes: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    compute: Callable[[Record], Values] = _nothing
    added: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def columns(self) -> list[str]:
        """All columns but `row_id`."""
        return [each for each in (*self.form.names, *self.computed) if each not in _UNUSED]

    def put(self, cursor: sqlite3.Cursor, rows: Iterable[Record]) -> None:
        """Insert rows, or put them in place of those that have their identity."""
        columns = list(dict.fromkeys((*self.identity, *self.columns)))
        values = ", ".join(f":{each}" for each in columns)
        changes = ", ".join(f"{each} = excluded.{each}" for each in self.columns)
        statement = (
            f"INSERT INTO {self.name} ({', '.join(columns)}) VALUES ({values}) "  # noqa: S608 - names of ours
            f"ON CONFLICT ({', '.join(self.identity)}) DO UPDATE SET {changes}"
        )
        nothing = dict.fromkeys(columns)
        cursor.executemany(statement, [nothing | self._values(row) for row in rows])

    def _values(self, row: Record) -> Values:
        values = self.form.dump(row) | self.compute(row) | {"row_id": getattr(row, "row_id", None)}
        return {
            name: json.dumps(value) if name in _NESTED else value for name, value in values.items()
        }

    def load(self, found: sqlite3.Row) -> Record:
        """The row that was found.

        Raises:
            ValueError: its columns make no such row.
        """
        values = {name: found[name] for name in found.keys() if found[name] is not None}  # noqa: SIM118 - iterating a Row gives values
        return self.form.load(
            {name: json.loads(each) if name in _NESTED else each for name, each in values.items()}
        )

    def statements(self, present: Collection[str], where: str) -> list[str]:
        """What makes the table as it should be, given the columns that it has (none: no table).

        Raises:
            StoreConfigurationError: it is another table of the same name.
        """
        if not present:
            return [self._creation, *self._index_creations()]
        missing = [each for each in self.columns if each not in present]
        foreign = sorted({*missing, *self.identity}.difference(present) & self._essential)
        if foreign:
            msg = (
                f"table {self.name} of {where} has no {', '.join(foreign)}: something else made "
                "it; name another file"
            )
            raise StoreConfigurationError(msg)
        wanted = (f"{each}{self.added.get(each, '')}" for each in missing)
        added = [f"ALTER TABLE {self.name} ADD COLUMN {each}" for each in wanted]
        return [*added, *self._index_creations("IF NOT EXISTS ")] if added else []

    @property
    def _essential(self) -> set[str]:
        return {*self.identity, *self.form.required, *self.computed}

    @property
    def _creation(self) -> str:
        if self.identity == ("row_id",):
            identity = "row_id INTEGER PRIMARY KEY AUTOINCREMENT, "
            return f"CREATE TABLE {self.name} ({identity}{', '.join(self.columns)})"
        identity = f", PRIMARY KEY ({', '.join(self.identity)})"
        return f"CREATE TABLE {self.name} ({', '.join(self.columns)}{identity})"

    def _index_creations(self, unless: str = "") -> list[str]:
        return [
            f"CREATE INDEX {unless}{self.name}_{number} ON {self.name} ({columns})"
            for number, columns in enumerate(self.indexes, start=1)
        ]


@dataclass(frozen=True, kw_only=True)
class MessageRow:
    """A message's exact JSON text; see `histories.Body`."""

    digest: str
    text: str
    owner: str | None = None


def _computed_of_effect(row: EffectRow) -> Values:
    return {
        "status": row.current.status,
        "started_at": sortable(row.started_at),
        "is_unresolved": row.is_unresolved,
    }


_OF_RUN = "workspace_id, run_id, "
_STATE = {"state": " DEFAULT 'complete'"}

RUNS = RowTable(
    name="runs",
    form=_RunForm(),
    identity=("run_id",),
    indexes=(
        "workspace_id, started_at, run_id",
        "workspace_id, conversation_id, started_at, run_id",
        "workspace_id, parent_run_id, started_at, run_id",
        "workspace_id, agent_name, started_at, run_id",
        "workspace_id, state, started_at, run_id",
    ),
)
EVENTS = RowTable(
    name="events",
    form=JsonForm(EventRow),
    indexes=(f"{_OF_RUN}sequence", f"{_OF_RUN}key"),
)
SNAPSHOTS = RowTable(
    name="snapshots",
    form=JsonForm(SnapshotRow),
    indexes=(f"{_OF_RUN}sequence", f"{_OF_RUN}state, sequence", f"{_OF_RUN}key"),
    added=_STATE,
)
SNAPSHOT_KEYS = RowTable(
    name="snapshot_idempotency_keys",
    form=JsonForm(SnapshotRow),
    indexes=(f"{_OF_RUN}key",),
    added=_STATE,
)
EFFECTS = RowTable(
    name="tool_effects",
    form=JsonForm(EffectRow),
    indexes=(
        f"{_OF_RUN}sequence",
        f"{_OF_RUN}effect_key",
        "workspace_id, is_unresolved, started_at",
    ),
    computed=("status", "started_at", "is_unresolved"),
    compute=_computed_of_effect,
)
POSITIONS = RowTable(name="positions", form=JsonForm(PositionRow), indexes=(f"{_OF_RUN}position",))
MESSAGES = RowTable(name="messages", form=JsonForm(MessageRow), identity=("digest",))
HEADS = RowTable(
    name="commit_heads", form=JsonForm(CommitHead), identity=("workspace_id", "execution_id")
)

TABLES: tuple[RowTable[Any], ...] = (
    RUNS,
    EVENTS,
    SNAPSHOTS,
    SNAPSHOT_KEYS,
    EFFECTS,
    POSITIONS,
    MESSAGES,
    HEADS,
)


def create_tables(connection: sqlite3.Connection, where: str) -> list[str]:
    """Make missing tables, and columns that this version has added; the names of what was made.

    Raises:
        StoreConfigurationError: the file has other tables of these names. Not retryable.
    """
    if not any(_statements(connection, where).values()):
        return []
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Again: another process may have been faster.
        wanted = {name: each for name, each in _statements(connection, where).items() if each}
        for statements in wanted.values():
            for statement in statements:
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return [f"table {name}" for name in wanted]


def _statements(connection: sqlite3.Connection, where: str) -> dict[str, list[str]]:
    return {
        table.name: table.statements(_columns_of(connection, table.name), where) for table in TABLES
    }


def _columns_of(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
