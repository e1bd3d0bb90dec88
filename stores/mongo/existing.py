"""What MongoDB holds of the things that a commit touches, read in its transaction."""

from collections.abc import Iterable

from stores.histories import MessageLog, positions_in
from stores.mongo.documents import (
    DEPARTS,
    Document,
    effect_row,
    event_row,
    position_row,
    run_row,
    snapshot_row,
)
from stores.mongo.recent import RecentExecution
from stores.mongo.transactions import Transaction
from stores.operations import (
    AnnotateToolEffect,
    AppendEvent,
    FinishToolEffect,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
)
from stores.planning import Existing, RunKey
from stores.preparing import PreparedCommit
from stores.rows import RUN_STATES, holds_continuation

OLDEST_FIRST = [("sequence", 1), ("_id", 1)]
NEWEST_FIRST = [("sequence", -1), ("_id", -1)]

_OfEffect = type[StartToolEffect] | type[FinishToolEffect] | type[AnnotateToolEffect]
_OF_EFFECTS: tuple[_OfEffect, ...] = (StartToolEffect, FinishToolEffect, AnnotateToolEffect)


class ExistingReader:
    """Loads `Existing` for one commit, by as few queries as its operations allow."""

    def __init__(
        self, transaction: Transaction, prepared: PreparedCommit, *, is_pruned: bool = False
    ) -> None:
        """Read for one commit; `is_pruned` where runs lose snapshots, whose keys still count."""
        self._transaction = transaction
        self._prepared = prepared
        self._operations = prepared.commit.operations
        # No unique index holds their keys. A workflow's keys come again only with its commits.
        self._expects_pruned = is_pruned or prepared.commit.position is None
        self._of_runs: Document = {
            "workspace_id": transaction.workspace_id,
            "run_id": {"$in": prepared.run_ids},
        }

    async def expected(self, recent: RecentExecution | None) -> Existing:
        """All that a commit needs which nobody wrote before.

        Left out are the rows that hold its keys already: unique indexes tell when there are any.
        What is remembered is not read.
        """
        existing = recent.existing() if recent else Existing()
        log_ends = recent.log_ends if recent else {}
        if self._may_change_runs() or not set(self._prepared.run_ids) <= set(existing.runs):
            await self._load_runs(existing)
        changed = self._effect_keys(FinishToolEffect, AnnotateToolEffect)
        expected_effects = changed - self._effect_keys(StartToolEffect)
        await self._load_effects(existing, expected_effects - set(existing.effects))
        expected = {
            (run_id, position)
            for run_id, position in self._positions()
            if position < log_ends.get(run_id, position + 1)
        }
        await self._load_positions(existing, expected - set(existing.positions))
        await self._load_sequences(existing)
        if self._expects_pruned:
            await self._load_pruned(existing)
        return existing

    async def everything(self) -> Existing:
        """All that a commit can meet."""
        existing = Existing()
        await self._load_runs(existing)
        await self._load_events(existing)
        await self._load_snapshots(existing)
        await self._load_pruned(existing)
        await self._load_effects(existing, self._effect_keys(*_OF_EFFECTS))
        await self._load_superseded_effects(existing)
        await self._load_positions(existing, self._positions())
        await self._load_sequences(existing)
        return existing

    def _may_change_runs(self) -> bool:
        return any(
            isinstance(each, RegisterRun)
            or (isinstance(each, AppendEvent) and (each.run_state or each.event in RUN_STATES))
            for each in self._operations
        )

    def _effect_keys(self, *kinds: _OfEffect) -> set[RunKey]:
        effects = (each for each in self._operations if isinstance(each, kinds))
        return {(each.run_id, each.effect_key) for each in effects}

    def _positions(self) -> set[tuple[str, int]]:
        return {
            (each.run_id, entry.position)
            for each in self._operations
            if isinstance(each, SaveSnapshot)
            for entry in each.entries
        }

    async def _load_runs(self, existing: Existing) -> None:
        query: Document = {"_id": {"$in": self._prepared.run_ids}}
        for document in await self._transaction.find("runs", query):
            run = run_row(document)
            existing.runs[run.record.run_id] = run
        await self._load_continuations(existing)
        await self._load_departed(existing)

    async def _load_departed(self, existing: Existing) -> None:
        """A workflow has read the run that it names a snapshot of: if it is not there, it went."""
        registrations = [each for each in self._operations if isinstance(each, RegisterRun)]
        origins = sorted({origin for each in registrations for origin in each.origins})
        if not origins:
            return
        query: Document = {"_id": {"$in": origins}}
        query["workspace_id"] = self._transaction.workspace_id
        found = {each["_id"]: each for each in await self._transaction.find("runs", query)}
        existing.departed = {name for name, each in found.items() if DEPARTS in each}
        if self._prepared.commit.position is not None:
            read = (each for each in registrations if each.from_snapshot is not None)
            existing.departed |= {o for each in read for o in each.origins if o not in found}

    async def _load_continuations(self, existing: Existing) -> None:
        for source in self._prepared.continued_run_ids:
            query = {
                "workspace_id": self._transaction.workspace_id,
                "continued_from": source,
                "live": True,
            }
            sort = [("started_at", 1), ("_id", 1)]
            for document in await self._transaction.find("runs", query, sort=sort):
                run = run_row(document).record
                saved = await self._transaction.find(
                    "snapshots", {"run_id": run.run_id, "live": True}, limit=1
                )
                if holds_continuation(run, has_snapshots=bool(saved)):
                    existing.continuations.setdefault(source, run.run_id)

    async def _load_effects(self, existing: Existing, wanted: set[RunKey]) -> None:
        if not wanted:
            return
        keys = sorted({key for _, key in wanted})
        query = {**self._of_runs, "effect_key": {"$in": keys}, "live": True}
        for document in await self._transaction.find("tool_effects", query, sort=OLDEST_FIRST):
            row = effect_row(document)
            held = existing.effects.get((row.run_id, row.effect_key))
            # The newest; but a row of this commit's own branch would be in the way of another one.
            if held is None or held.branch != self._prepared.branch:
                existing.effects[row.run_id, row.effect_key] = row

    async def _load_positions(self, existing: Existing, wanted: set[tuple[str, int]]) -> None:
        if not wanted:
            return
        positions = sorted({position for _, position in wanted})
        query = {**self._of_runs, "position": {"$in": positions}, "live": True}
        for document in await self._transaction.find("positions", query):
            row = position_row(document)
            existing.positions[row.run_id, row.position] = row

    async def _load_superseded_effects(self, existing: Existing) -> None:
        keys = sorted({key for _, key in self._effect_keys(StartToolEffect)})
        if not keys:
            return
        query = {**self._of_runs, "effect_key": {"$in": keys}, "branch": self._prepared.branch}
        query["mark"] = "superseded"
        documents = await self._transaction.find("tool_effects", query, sort=[("_id", 1)])
        existing.superseded_effects = [effect_row(each) for each in documents]

    async def _load_events(self, existing: Existing) -> None:
        keys = [each.key for each in self._operations if isinstance(each, AppendEvent)]
        live, superseded = await self._find_keyed("events", keys)
        existing.events = {(each["run_id"], each["key"]): event_row(each) for each in live}
        existing.superseded_events = [event_row(each) for each in superseded]

    async def _load_snapshots(self, existing: Existing) -> None:
        keys = [each.key for each in self._operations if isinstance(each, SaveSnapshot)]
        live, superseded = await self._find_keyed("snapshots", keys)
        existing.snapshots = {(each["run_id"], each["key"]): snapshot_row(each) for each in live}
        existing.superseded_snapshots = [snapshot_row(each) for each in superseded]

    async def _load_pruned(self, existing: Existing) -> None:
        """Snapshots that retention took out: a key is not saved a second time."""
        saves = (each for each in self._operations if isinstance(each, SaveSnapshot))
        keys = sorted({each.key for each in saves if each.key is not None})
        if not keys:
            return
        query = {**self._of_runs, "branch": self._prepared.branch, "key": {"$in": keys}}
        query["mark"] = "pruned"
        for document in await self._transaction.find("snapshots", query):
            row = snapshot_row(document)
            existing.snapshots.setdefault((row.run_id, str(row.key)), row)

    async def _find_keyed(
        self, collection: str, keys: Iterable[str | None]
    ) -> tuple[list[Document], list[Document]]:
        """Live and superseded rows of the commit's branch that hold one of these keys."""
        wanted = sorted({each for each in keys if each is not None})
        if not wanted:
            return [], []
        query = {**self._of_runs, "branch": self._prepared.branch, "key": {"$in": wanted}}
        live = await self._transaction.find(collection, {**query, "live": True})
        superseded = await self._transaction.find(
            collection, {**query, "mark": "superseded"}, sort=[("_id", 1)]
        )
        return live, superseded

    async def _load_sequences(self, existing: Existing) -> None:
        """The highest sequence of each run that has an operation without one."""
        for run_id in sorted({each.run_id for each in self._operations if each.sequence is None}):
            query: Document = {
                "workspace_id": self._transaction.workspace_id,
                "run_id": run_id,
                "live": True,
            }
            for collection in ("events", "snapshots", "tool_effects"):
                for document in await self._transaction.find(
                    collection, query, sort=NEWEST_FIRST, limit=1
                ):
                    highest = existing.sequences.get(run_id, document["sequence"])
                    existing.sequences[run_id] = max(highest, document["sequence"])


async def message_log(transaction: Transaction, run_id: str) -> MessageLog:
    """The newest history of a run and the end of its log, as the transaction sees them."""
    query: Document = {"workspace_id": transaction.workspace_id, "run_id": run_id, "live": True}
    newest = await transaction.find("snapshots", query, sort=NEWEST_FIRST, limit=1)
    last = await transaction.find("positions", query, sort=[("position", -1)], limit=1)
    history = [each for row in newest for each in positions_in(snapshot_row(row).ranges)]
    rows = await transaction.find("positions", {**query, "position": {"$in": history}})
    digests = {each["position"]: each["message"] for each in rows}
    return MessageLog(
        history=tuple((each, digests[each]) for each in history if each in digests),
        next_position=last[0]["position"] + 1 if last else 0,
    )
