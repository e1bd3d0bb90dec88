"""Taking out of a workspace what its policy does not keep: page by page, beside running workers.

May be stopped at any page and begun again: what was done needs no second look. Runs that have not
ended, or that Temporal may still reset or replay, are not looked at.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pymongo.asynchronous.client_session import AsyncClientSession

from stores.errors import StoreUnavailableError
from stores.mongo.client import Database, MongoConnection
from stores.mongo.documents import SERVER_TIME, Document, snapshot_row
from stores.mongo.failures import store_errors
from stores.mongo.reindexing import reindex_conversation
from stores.mongo.removing import Remover, delete_of_runs
from stores.mongo.search_indexer import SearchIndexer
from stores.mongo.streaming import STREAMS
from stores.mongo.transactions import run_transaction
from stores.paging import microseconds
from stores.retention_policies import MARGIN, Retained, RetentionPolicy, expendable
from stores.rows import SnapshotRow

RUNS_AT_ONCE = 100
"""Of one page, and of one transaction."""

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
        self, cutoff: int, extra: Document | None = None
    ) -> AsyncGenerator[list[Document]]:
        """Pages of runs that ended before the cutoff, the newest first."""
        place: _Place | None = None
        query: Document = {"workspace_id": self._workspace_id, "live": True, **(extra or {})}
        query["ended_at"] = {"$exists": True, "$lt": cutoff}
        order = [("ended_at", -1), ("_id", -1)]
        shown = {"ended_at": 1, "conversation_id": 1, "parent_run_id": 1}
        while True:  # ends: each page begins behind the one before
            if place is not None:
                before = {"ended_at": place.ended_at, "_id": {"$lt": place.run_id}}
                query["$or"] = [{"ended_at": {"$lt": place.ended_at}}, before]
                query["ended_at"] = {"$exists": True, "$lte": place.ended_at}
            found = self._database["runs"].find(query, shown).sort(order).limit(RUNS_AT_ONCE)
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
        outdated: set[str] = set()
        before = -1
        while before != self._done.runs and not (self._done.is_dry and before >= 0):
            before = self._done.runs
            seen: set[str] = set()
            async for page in self._ended(cutoff):
                for run in page:
                    await self._remove_unit(run, cutoff, now, seen, outdated)
        for each in sorted(outdated):
            await reindex_conversation(self._database, self._indexer, self._workspace_id, each)

    async def _remove_unit(
        self, run: Document, cutoff: int, now: datetime, seen: set[str], outdated: set[str]
    ) -> None:
        """A conversation with all of its runs, or a run that has none."""
        conversation_id: str | None = run.get("conversation_id")
        if conversation_id is not None:
            if conversation_id in seen:
                return
            seen.add(conversation_id)
        own: Document = {"_id": run["_id"]}
        if conversation_id is not None:
            own = {"conversation_id": conversation_id}
        own = {**own, "workspace_id": self._workspace_id, "live": True}
        if not await self._is_old(own, conversation_id, cutoff):
            return
        if self._done.is_dry:
            count = await self._database["runs"].count_documents(own)
            self._add(runs=count, conversations=int(conversation_id is not None))
            return
        remover = Remover(self._connection, self._workspace_id)
        if conversation_id is None:
            await remover.runs(own)
        else:
            await remover.conversation(conversation_id, now=now, keeps_inherited=True)
        outdated |= remover.outdated_logs
        self._add(runs=remover.counts["runs"], conversations=int(conversation_id is not None))

    async def _is_old(self, own: Document, conversation_id: str | None, cutoff: int) -> bool:
        """Whether nothing of it is young, open, undecided, or needed by what stays."""
        runs = self._database["runs"]
        young = {"$or": [{"ended_at": {"$exists": False}}, {"ended_at": {"$gte": cutoff}}]}
        if await runs.find_one(own, {"_id": 1}) is None:
            return False  # it went with another one since the page was read
        if await runs.find_one({**own, **young}, {"_id": 1}):
            return False
        if conversation_id is not None and await self._is_alive(conversation_id, cutoff):
            return False
        found = runs.find(own, {"parent_run_id": 1}, batch_size=RUNS_AT_ONCE)
        page: list[Document] = []
        async for each in found:
            page.append(each)
            if len(page) == RUNS_AT_ONCE:
                if await self._is_needed(page, conversation_id, cutoff):
                    return False
                page = []
        return not (page and await self._is_needed(page, conversation_id, cutoff))

    async def _is_alive(self, conversation_id: str, cutoff: int) -> bool:
        """Whether its head is young, or answers are due, or forks hold turns of it."""
        place = {"workspace_id": self._workspace_id, "conversation_id": conversation_id}
        head = await self._database["conversations"].find_one(
            {"_id": place}, {"state": 1, "updated_at": 1}
        )
        if head and head["state"] != "deleted" and head["updated_at"] >= cutoff:
            return True
        if await self._database["variants"].find_one({**place, "is_unfinished": True}):
            return True
        source = {"workspace_id": self._workspace_id, "source_conversation_id": conversation_id}
        return await self._database["turns"].find_one(source, {"_id": 1}) is not None

    async def _is_needed(
        self, page: Sequence[Document], conversation_id: str | None, cutoff: int
    ) -> bool:
        ids = [each["_id"] for each in page]
        unresolved = await self._unresolved(ids)
        if unresolved:
            self._add(unresolved=len(unresolved))
            return True
        runs = self._database["runs"]
        live: Document = {"workspace_id": self._workspace_id, "live": True}
        elsewhere: Document = {**live, "conversation_id": {"$ne": conversation_id}}
        if conversation_id is None:
            elsewhere = {**live, "_id": {"$not": {"$in": ids}}}
        parents = [each["parent_run_id"] for each in page if "parent_run_id" in each]
        if parents and await runs.find_one({**elsewhere, "_id": {"$in": parents}}, {"_id": 1}):
            return True  # it goes with the run that it belongs to
        for origin in ("continued_from", "forked_from"):
            if await runs.find_one({**elsewhere, origin: {"$in": ids}}, {"_id": 1}):
                return True
        children = [
            each
            async for each in runs.find(
                {**elsewhere, "parent_run_id": {"$in": ids}}, {"ended_at": 1}
            )
        ]
        if any("ended_at" not in each or each["ended_at"] >= cutoff for each in children):
            return True
        # What they delegated to in turn; a conversation of their own goes with them.
        return bool(children) and await self._is_needed(
            [{"_id": each["_id"]} for each in children], conversation_id, cutoff
        )
