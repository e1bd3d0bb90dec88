"""Taking out of a workspace what its policy does not keep: page by page, beside running workers.

May be stopped at any page and begun again: what was done needs no second look. Runs that have not
ended, or that Temporal may still reset or replay, are not looked at.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pymongo.asynchronous.client_session import AsyncClientSession

from stores.errors import StoreUnavailableError
from stores.mongo.claiming import Claimer
from stores.mongo.client import Database, MongoConnection
from stores.mongo.departing import Departing, Unit
from stores.mongo.documents import DEPARTS, SERVER_TIME, Document, snapshot_row
from stores.mongo.failures import store_errors
from stores.mongo.reindexing import reindex_conversation
from stores.mongo.removing import Remover, delete_of_runs
from stores.mongo.search_indexer import SearchIndexer
from stores.mongo.search_log import note_outdated, outdated_logs
from stores.mongo.streaming import STREAMS
from stores.mongo.transactions import run_transaction
from stores.paging import microseconds
from stores.retention_policies import MARGIN, Retained, RetentionPolicy, expendable
from stores.rows import SnapshotRow

RUNS_AT_ONCE = 100
"""Of one page, and of one transaction."""

UNITS_AT_ONCE = 1000
"""Runs of one page where they go as a whole, with the conversations that they are of."""

DETAILS = ("events", "tool_effects", "tool_attempts", STREAMS)
"""Collections whose rows tell how a run went, and not what was said."""

_COMPARED = dict.fromkeys(
    ("workspace_id", "run_id", "branch", "number", "sequence", "state", "ranges", "mark"), 1
)

Tell = Callable[[Retained], None]
"""Hears how far a retention has come, after each page."""


@dataclass(frozen=True)
class _Place:
    """Where a page of runs ended."""

    ended_at: int
    run_id: str


class Retainer:
    """Applies a policy to one workspace.

    Args:
        connection: the store's.
        indexer: of the workspace's search log.
        workspace_id: the workspace.
        policy: what it keeps.
        temporal_keeps: how long Temporal keeps what has ended: nothing younger goes.
        is_dry: only say what would go.
        tell: hears of progress.
    """

    def __init__(
        self,
        connection: MongoConnection,
        indexer: SearchIndexer,
        *,
        workspace_id: str,
        policy: RetentionPolicy,
        temporal_keeps: timedelta,
        is_dry: bool,
        tell: Tell = lambda _: None,
    ) -> None:
        self._connection = connection
        self._indexer = indexer
        self._workspace_id = workspace_id
        self._policy = policy
        self._temporal_keeps = temporal_keeps + MARGIN
        self._tell = tell
        self._done = Retained(is_dry=is_dry)

    @property
    def _database(self) -> Database:
        return self._connection.database

    async def run(self, *, now: datetime) -> Retained:
        """Whole runs first, then what is to go of the others.

        Raises:
            StoreError: MongoDB failed; what was removed until then is consistent.
        """
        policy = self._policy
        with store_errors("apply retention", self._connection.where):
            if policy.runs_days is not None:
                await self._remove_runs(self._cutoff(now, policy.runs_days), now)
            if policy.details_days is not None:
                await self._remove_details(self._cutoff(now, policy.details_days), now)
            if policy.snapshots is not None:
                await self._prune(self._cutoff(now, 0))
        return self._done

    def _cutoff(self, now: datetime, days: float) -> int:
        return microseconds(now - max(timedelta(days=days), self._temporal_keeps))

    def _add(self, **counts: int) -> None:
        self._done = self._done.plus(**counts)

    async def _ended(
        self, cutoff: int, extra: Document | None = None, *, at_once: int | None = None
    ) -> AsyncGenerator[list[Document]]:
        """Pages of runs that ended before the cutoff, the newest first."""
        place: _Place | None = None
        query: Document = {"workspace_id": self._workspace_id, "live": True, **(extra or {})}
        query["ended_at"] = {"$exists": True, "$lt": cutoff}
        order = [("ended_at", -1), ("_id", -1)]
        shown = {"ended_at": 1, "conversation_id": 1}
        at_once = at_once or RUNS_AT_ONCE
        while True:  # ends: each page begins behind the one before
            if place is not None:
                before = {"ended_at": place.ended_at, "_id": {"$lt": place.run_id}}
                query["$or"] = [{"ended_at": {"$lt": place.ended_at}}, before]
                query["ended_at"] = {"$exists": True, "$lte": place.ended_at}
            found = self._database["runs"].find(query, shown).sort(order).limit(at_once)
            page = await found.to_list()
            if not page:
                return
            place = _Place(page[-1]["ended_at"], page[-1]["_id"])
            yield page
            self._add(looked_at=len(page))
            self._tell(self._done)

    # Snapshots

    async def _prune(self, cutoff: int) -> None:
        async for page in self._ended(cutoff):
            gone = [
                row.row_id
                for rows in (await self._snapshots([each["_id"] for each in page])).values()
                for row in expendable(rows, self._policy)
            ]
            if gone and not self._done.is_dry:
                change: Document = {"live": False, "mark": "pruned", "pruned_at": SERVER_TIME}
                await self._database["snapshots"].update_many(
                    {"_id": {"$in": gone}, "live": True}, [{"$set": change}]
                )
            self._add(snapshots=len(gone))

    async def _snapshots(self, run_ids: Sequence[str]) -> dict[str, list[SnapshotRow]]:
        query: Document = {
            "workspace_id": self._workspace_id,
            "run_id": {"$in": list(run_ids)},
            "live": True,
            # What the search has not taken in yet stays until it has.
            "unindexed": {"$exists": False},
        }
        waiting = {**query, "unindexed": True}
        unindexed = set(await self._database["snapshots"].distinct("run_id", waiting))
        stored: dict[str, list[SnapshotRow]] = {}
        async for document in self._database["snapshots"].find(query, _COMPARED):
            row = snapshot_row(document)
            if row.run_id not in unindexed:
                stored.setdefault(row.run_id, []).append(row)
        return stored

    # Details

    async def _remove_details(self, cutoff: int, now: datetime) -> None:
        whole = {"details_pruned_at": {"$exists": False}}
        async for page in self._ended(cutoff, whole):
            ids = await self._without_details_to_keep([each["_id"] for each in page])
            rows = 0
            if ids and not self._done.is_dry:
                rows = await self._delete_details(ids, now)
            self._add(detailed=len(ids), rows=rows)

    async def _without_details_to_keep(self, ids: Sequence[str]) -> list[str]:
        """Those whose newest snapshot says all, and whose calls all have a known outcome."""
        unresolved = await self._unresolved(ids)
        self._add(unresolved=len(unresolved))
        newest: dict[str, str] = {}
        query = {"workspace_id": self._workspace_id, "run_id": {"$in": list(ids)}, "live": True}
        shown = {"run_id": 1, "state": 1, "sequence": 1}
        found = self._database["snapshots"].find(query, shown)
        async for each in found.sort([("run_id", 1), ("sequence", 1)]):
            newest[each["run_id"]] = each["state"]
        return [
            each
            for each in ids
            if each not in unresolved and newest.get(each, "complete") == "complete"
        ]

    async def _unresolved(self, ids: Sequence[str]) -> set[str]:
        query = {
            "run_id": {"$in": list(ids)},
            "workspace_id": self._workspace_id,
            "unresolved": True,
        }
        return set(await self._database["tool_effects"].distinct("run_id", query))

    async def _delete_details(self, ids: Sequence[str], now: datetime) -> int:
        """In one transaction with the mark on the runs; a page that is too large, run by run."""

        async def work(session: AsyncClientSession) -> int:
            runs = {"_id": {"$in": list(ids)}, "workspace_id": self._workspace_id}
            change = {"$set": {"details_pruned_at": microseconds(now)}}
            await self._database["runs"].update_many(runs, change, session=session)
            counts = [
                await delete_of_runs(self._database, name, self._workspace_id, ids, session=session)
                for name in DETAILS
            ]
            return sum(counts)

        try:
            with store_errors("remove details of runs", self._connection.where):
                return await run_transaction(self._connection.client(), work)
        except StoreUnavailableError:
            if len(ids) == 1:
                raise
            return sum([await self._delete_details([each], now) for each in ids])

    # Whole runs

    async def _remove_runs(self, cutoff: int, now: datetime) -> None:
        """Pass by pass, since what a removed run began with may go after it."""
        before = -1
        while before != self._done.runs and not (self._done.is_dry and before >= 0):
            before = self._done.runs
            departing = Departing(self._database, self._workspace_id, cutoff)
            claimer = Claimer(self._connection, self._workspace_id, cutoff)
            async for page in self._ended(cutoff, at_once=UNITS_AT_ONCE):
                layers = await departing.layers(page)
                self._add(unresolved=len(departing.unresolved))
                if self._done.is_dry:
                    await self._count_runs(layers[:1])
                    continue
                for layer in layers:
                    await self._remove_layer(await claimer.claim(layer, now=now))
        if not self._done.is_dry:
            for each in await outdated_logs(self._database, self._workspace_id):
                await reindex_conversation(self._database, self._indexer, self._workspace_id, each)

    async def _count_runs(self, layers: Sequence[Sequence[Unit]]) -> None:
        for layer in layers:
            conversations = [each.conversation_id for each in layer if each.conversation_id]
            own: Document = {"workspace_id": self._workspace_id, "live": True}
            own["conversation_id"] = {"$in": conversations}
            count = await self._database["runs"].count_documents(own)
            lone = len(layer) - len(conversations)
            self._add(runs=count + lone, conversations=len(conversations))

    async def _remove_layer(self, layer: Sequence[Unit]) -> None:
        """What is claimed; a run that has come into a conversation since stays."""
        own: Document = {"workspace_id": self._workspace_id, "live": True}
        remover = Remover(self._connection, self._workspace_id, only={DEPARTS: {"$exists": True}})
        lone = [each.run_id for each in layer if each.run_id]
        if lone:
            await remover.runs({**own, "_id": {"$in": lone}})
        named = [each.conversation_id for each in layer if each.conversation_id]
        # All of one's runs may have gone with those that delegated to them.
        query = {**own, "conversation_id": {"$in": named}}
        left = await self._database["runs"].distinct("conversation_id", query) if named else []
        if left:
            await remover.buried_conversations(left)
            for each in await self._database["runs"].distinct("conversation_id", query):
                await note_outdated(self._database, self._workspace_id, each)
        self._add(runs=remover.counts["runs"], conversations=len(left))
