"""The rows of one workspace in one open transaction."""

import json
import logging
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from stores.commits import CommitHead
from stores.effects import EffectRow
from stores.errors import DamagedSnapshotError, StoreConfigurationError
from stores.histories import MessageChanges, Range
from stores.operations import (
    AnnotateToolEffect,
    AppendEvent,
    FinishToolEffect,
    SaveSnapshot,
    StartToolEffect,
    Write,
)
from stores.paging import RunCursor
from stores.planning import CommitPlan, Existing
from stores.preparing import PreparedCommit
from stores.records import RunRecord
from stores.rows import EventRow, SnapshotRow
from stores.sqlite.tables import (
    EFFECTS,
    EVENTS,
    HEADS,
    POSITIONS,
    RUNS,
    SNAPSHOT_KEYS,
    SNAPSHOTS,
    Record,
    RowTable,
    Values,
    sortable,
)

_LOGGER = logging.getLogger(__name__)

_OF_RUN = "WHERE workspace_id = :workspace_id AND run_id = :run_id"
_OLDEST_FIRST = "ORDER BY sequence, row_id"
_NEWEST_FIRST = "ORDER BY sequence DESC, row_id DESC"


class SqliteRows:
    """`LocalRows` in SQLite."""

    def __init__(self, cursor: sqlite3.Cursor, *, workspace_id: str, where: str) -> None:
        self._cursor = cursor
        self._workspace_id = workspace_id
        self._where = where

    # Queries

    def _of_run(self, run_id: str, **more: object) -> Values:
        return {"workspace_id": self._workspace_id, "run_id": run_id, **more}

    def _found(self, columns: str, rest: str, values: Mapping[str, Any]) -> list[sqlite3.Row]:
        return self._cursor.execute(f"SELECT {columns} FROM {rest}", values).fetchall()  # noqa: S608 - no value in it

    def _needed(
        self, table: RowTable[Record], rest: str, values: Mapping[str, Any]
    ) -> list[Record]:
        """The rows, for a caller that cannot do without any of them."""
        found = self._found("*", f"{table.name} {rest}", values)
        try:
            return [table.load(each) for each in found]
        except ValueError as error:
            msg = f"a row of table {table.name} in {self._where} is damaged: {error}; repair it"
            raise StoreConfigurationError(msg) from error

    def _listed(
        self, table: RowTable[Record], rest: str, values: Mapping[str, Any]
    ) -> list[Record]:
        """The rows that can be read."""
        rows: list[Record] = []
        for found in self._found("*", f"{table.name} {rest}", values):
            try:
                rows.append(table.load(found))
            except ValueError as error:
                identity = ", ".join(f"{each} {found[each]!r}" for each in table.identity)
                _LOGGER.warning(
                    "left out: %s of table %s in %s is damaged: %s",
                    identity,
                    table.name,
                    self._where,
                    error,
                )
        return rows

    # Heads and runs

    def find_head(self, execution_id: str) -> CommitHead | None:
        """See `LocalRows.find_head`."""
        rest = "WHERE workspace_id = :workspace_id AND execution_id = :execution_id"
        values = {"workspace_id": self._workspace_id, "execution_id": execution_id}
        found = self._needed(HEADS, rest, values)
        return found[0] if found else None

    def put_head(self, head: CommitHead) -> None:
        """See `LocalRows.put_head`."""
        HEADS.put(self._cursor, [head])

    def find_run(self, run_id: str) -> RunRecord | None:
        """See `LocalRows.find_run`."""
        found = self._needed(RUNS, _OF_RUN, self._of_run(run_id))
        return found[0].record if found else None

    def newest_runs(
        self, filters: dict[str, str], *, after: RunCursor | None, limit: int | None
    ) -> list[RunRecord]:
        """See `LocalRows.newest_runs`."""
        wanted = {"workspace_id": self._workspace_id, **filters}
        conditions = [f"{each} = :{each}" for each in wanted]
        values: Values = {**wanted, "limit": -1 if limit is None else limit}
        if after is not None:
            conditions.append("(started_at, run_id) < (:started_at, :last_run_id)")
            values |= {"started_at": sortable(after.started_at), "last_run_id": after.run_id}
        rest = f"WHERE {' AND '.join(conditions)} ORDER BY started_at DESC, run_id DESC"
        return [row.record for row in self._listed(RUNS, f"{rest} LIMIT :limit", values)]

    # Events, snapshots, effects

    def events(self, run_id: str) -> list[EventRow]:
        """See `LocalRows.events`."""
        return self._listed(EVENTS, f"{_OF_RUN} {_OLDEST_FIRST}", self._of_run(run_id))

    def snapshots(self, run_id: str) -> list[SnapshotRow]:
        """See `LocalRows.snapshots`."""
        return self._listed(SNAPSHOTS, f"{_OF_RUN} {_OLDEST_FIRST}", self._of_run(run_id))

    def newest_snapshot(self, run_id: str, *, only_complete: bool) -> SnapshotRow | None:
        """See `LocalRows.newest_snapshot`."""
        state = "AND state = 'complete' " if only_complete else ""
        rest = f"snapshots {_OF_RUN} {state}{_NEWEST_FIRST} LIMIT 1"
        for found in self._found("*", rest, self._of_run(run_id)):
            try:
                return SNAPSHOTS.load(found)
            except ValueError as error:
                problem = f"its row in {self._where} cannot be read: {error}"
                raise DamagedSnapshotError(run_id, found["sequence"], problem) from error
        return None

    def effects(self, run_id: str) -> list[EffectRow]:
        """See `LocalRows.effects`."""
        return self._listed(EFFECTS, f"{_OF_RUN} {_OLDEST_FIRST}", self._of_run(run_id))

    def unresolved_effects(self) -> list[EffectRow]:
        """See `LocalRows.unresolved_effects`."""
        rest = "WHERE workspace_id = :workspace_id AND is_unresolved = 1"
        values = {"workspace_id": self._workspace_id}
        return self._listed(EFFECTS, f"{rest} ORDER BY started_at, row_id", values)

    # Messages

    def log_end(self, run_id: str) -> int:
        """See `LocalRows.log_end`."""
        found = self._found("max(position)", f"positions {_OF_RUN}", self._of_run(run_id))
        return 0 if found[0][0] is None else found[0][0] + 1

    def log(self, run_id: str, ranges: Collection[Range]) -> dict[int, str]:
        """See `LocalRows.log`."""
        log: dict[int, str] = {}
        for start, end in ranges:
            rest = f"positions {_OF_RUN} AND position >= :start AND position < :end"
            values = self._of_run(run_id, start=start, end=end)
            log |= {each[0]: each[1] for each in self._found("position, message", rest, values)}
        return log

    def texts(self, run_id: str, log: dict[int, str]) -> dict[str, str]:  # noqa: ARG002 - of any run
        """See `LocalRows.texts`."""
        rest = "messages WHERE digest IN (SELECT value FROM json_each(:digests))"
        digests = {"digests": json.dumps(sorted(set(log.values())))}
        return {each[0]: each[1] for each in self._found("digest, text", rest, digests)}

    # Commits

    def existing(self, prepared: PreparedCommit) -> Existing:
        """See `LocalRows.existing`."""
        existing = Existing()
        runs = {"run_ids": json.dumps(prepared.run_ids)}
        rest = "WHERE run_id IN (SELECT value FROM json_each(:run_ids))"
        existing.runs = {row.record.run_id: row for row in self._needed(RUNS, rest, runs)}
        for operation in prepared.commit.operations:
            self._add_rows(existing, operation, prepared.branch)
            if operation.sequence is None:
                self._add_sequence(existing, operation.run_id)
        return existing

    def _add_rows(self, existing: Existing, operation: Write, branch: str) -> None:
        run_id = operation.run_id
        match operation:
            case AppendEvent():
                rest = f"{_OF_RUN} AND branch = :branch AND key = :key"
                values = self._of_run(run_id, branch=branch, key=operation.key)
                for event in self._needed(EVENTS, rest, values):
                    existing.events[run_id, str(event.key)] = event
            case SaveSnapshot():
                rest = f"{_OF_RUN} AND branch = :branch AND key = :key"
                values = self._of_run(run_id, branch=branch, key=operation.key)
                for table in (SNAPSHOT_KEYS, SNAPSHOTS):
                    for snapshot in self._needed(table, rest, values):
                        existing.snapshots[run_id, str(snapshot.key)] = snapshot
                self._add_positions(existing, operation)
            case StartToolEffect() | FinishToolEffect() | AnnotateToolEffect():
                rest = f"{_OF_RUN} AND effect_key = :effect_key {_OLDEST_FIRST}"
                values = self._of_run(run_id, effect_key=operation.effect_key)
                effects = self._needed(EFFECTS, rest, values)
                # Last, and so the one that counts, is that of the commit's own branch.
                for effect in sorted(effects, key=lambda row: row.branch == branch):
                    existing.effects[run_id, effect.effect_key] = effect
            case _:
                pass

    def _add_positions(self, existing: Existing, operation: SaveSnapshot) -> None:
        rest = f"{_OF_RUN} AND position IN (SELECT value FROM json_each(:positions))"  # noqa: S608 - no value in it
        positions = json.dumps([entry.position for entry in operation.entries])
        values = self._of_run(operation.run_id, positions=positions)
        for row in self._needed(POSITIONS, rest, values):
            existing.positions[row.run_id, row.position] = row

    def _add_sequence(self, existing: Existing, run_id: str) -> None:
        for table in (EVENTS, SNAPSHOTS, EFFECTS):
            rest = f"{table.name} {_OF_RUN}"
            highest = self._found("max(sequence)", rest, self._of_run(run_id))[0][0]
            if highest is not None:
                known = existing.sequences.get(run_id, highest)
                existing.sequences[run_id] = max(known, highest)

    def write(
        self,
        prepared: PreparedCommit,  # noqa: ARG002 - the rows tell all of it
        plan: CommitPlan,
        pruned: Collection[SnapshotRow],
    ) -> None:
        """See `LocalRows.write`."""
        RUNS.put(self._cursor, [*plan.new_runs, *plan.changed_runs])
        EVENTS.put(self._cursor, plan.events)
        SNAPSHOTS.put(self._cursor, plan.snapshots)
        EFFECTS.put(self._cursor, plan.effects)
        POSITIONS.put(self._cursor, plan.messages.positions)
        self._put_messages(plan.messages)
        self._prune(pruned)

    def _put_messages(self, changes: MessageChanges) -> None:
        self._cursor.executemany(
            "INSERT INTO messages (digest, text, owner) VALUES (?, ?, ?) ON CONFLICT (digest) "
            # A message that somebody else brings too has no owner from then on.
            "DO UPDATE SET owner = NULL WHERE owner IS NOT excluded.owner",
            [(digest, body.text, body.owner) for digest, body in changes.bodies.items()],
        )
        self._cursor.executemany(
            "DELETE FROM messages WHERE digest = ? AND owner = ?", changes.dropped
        )

    def _prune(self, pruned: Collection[SnapshotRow]) -> None:
        identities = [(row.row_id,) for row in pruned]
        self._cursor.executemany("DELETE FROM snapshots WHERE row_id = ?", identities)
        # With their `row_id`, which no other snapshot will ever have.
        keys = (replace(row, ranges=()) for row in pruned if row.key is not None)
        SNAPSHOT_KEYS.put(self._cursor, keys)
