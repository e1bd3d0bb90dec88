"""The index of a workspace: its log, read up to what is new, ranked in memory.

A conversation's view stays in memory, within a bound for all of them together, and a search reads
what was appended since. A conversation that is larger than the bound, and scope `all`, are read as
a stream for each search, of which only what the query asks for is kept.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bson import decode_all  # pyright: ignore[reportUnknownVariableType]
from pymongo.asynchronous.client_session import AsyncClientSession

from stores.mongo.client import Database, MongoConnection
from stores.mongo.documents import Document
from stores.mongo.failures import store_errors
from stores.mongo.reindexing import Reindexed, Tell, reindex
from stores.mongo.search_indexer import SearchIndexer
from stores.mongo.search_lines import KeptLines, SearchLines
from stores.mongo.search_log import COMPLETE, LOG, STATE, of_conversation
from stores.mongo.search_ranking import LogRanking, hits_of, scores_of
from stores.mongo.search_segments import SEGMENTS, of_segments
from stores.mongo.search_terms import inflated, terms_id
from stores.mongo.search_texts import SearchTexts
from stores.mongo.search_upkeep import SearchUpkeep
from stores.mongo.search_view import LogView
from stores.mongo.search_views import MEMORY_BYTES, SearchViews, Slot
from stores.mongo.search_writer import LoggedConversations
from stores.search.analysis import AnalyzerName, analyzer_named
from stores.search.query import HistoryQuery, IndexUnusableError, windows_of
from stores.threads import in_thread_if

_FEW_ENTRIES, _FEW_IN_BLOCKS = 50_000, 2_500
"""Messages up to which ranking takes a millisecond or two, and is not worth a thread; the second
before there are postings."""

_MOST_NEWS = 100
"""Appends that are read with the question what is new; more come as a stream."""

_BATCH = 64
"""Appends or segments that are read together."""

_SHORT_BATCH = 200_000
"""Bytes that are inflated and taken in a few milliseconds, and not worth a thread."""

_MOST_ATTEMPTS = 10
_UNREADABLE = (
    "it changes faster than it can be read, or has lost a part; then `perdure reindex` makes it "
    "again"
)


class SearchMemory:
    """What the stores of one process share for searching, whatever their workspaces.

    Args:
        analyzer: makes the terms of the log.
        memory_bytes: of all views together.
    """

    def __init__(self, analyzer: AnalyzerName, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self.analyzer = analyzer_named(analyzer)
        self.views = SearchViews(memory_bytes)
        self.lines = KeptLines()
        self._known = LoggedConversations()
        self._upkeep = SearchUpkeep()

    async def aclose(self) -> None:
        """Finish what is being logged."""
        await self._upkeep.aclose()

    def index(
        self, connection: MongoConnection, texts: SearchTexts, workspace_id: str
    ) -> "SearchIndex":
        """The index of a workspace."""
        indexer = SearchIndexer(
            connection, self._known, self.analyzer, texts, self._upkeep, workspace_id=workspace_id
        )
        return SearchIndex(connection, self, indexer, texts, workspace_id=workspace_id)


class SearchIndex:
    """`HistoryIndex` of one workspace in MongoDB."""

    def __init__(
        self,
        connection: MongoConnection,
        memory: SearchMemory,
        indexer: SearchIndexer,
        texts: SearchTexts,
        *,
        workspace_id: str,
    ) -> None:
        self._connection = connection
        self._memory = memory
        self._views = memory.views
        self.indexer = indexer
        self._texts = texts
        self._lines = SearchLines(texts, memory.lines)
        self._analyzer = memory.analyzer
        self._workspace_id = workspace_id

    @property
    def _database(self) -> Database:
        return self._connection.database

    async def rank(self, query: HistoryQuery) -> LogRanking:
        """See `HistoryIndex.rank`."""
        if query.analyzer_id != self._analyzer.id:
            message = (
                f"the index holds terms of analyzer {self._analyzer.id!r}, and the search asks for "
                f"{query.analyzer_id!r}"
            )
            raise IndexUnusableError(message)
        with store_errors("search the conversation log", self._connection.where):
            if query.scope == "all":
                return await self._rank_stream(query)
            return await self._rank_conversation(query)

    async def reindex(self, *, tell: Tell = lambda _: None) -> Reindexed:
        """Make the index of all workspaces anew; see `stores.mongo.reindexing`."""
        with store_errors("make the search index", self._connection.where):
            return await reindex(self._database, self._indexer_of, tell=tell)

    def _indexer_of(self, workspace_id: str) -> SearchIndexer:
        texts = self._texts.for_workspace(workspace_id)
        return self._memory.index(self._connection, texts, workspace_id).indexer

    # From memory

    async def _rank_conversation(self, query: HistoryQuery) -> LogRanking:
        conversation_id = query.conversation_id or ""
        place = (self._workspace_id, conversation_id, query.includes_own)
        slot = self._views.slot(place)
        if not slot.is_too_large:
            async with slot.lock:
                try:
                    guess = await self._refresh_beside_guess(slot, query)
                    self._views.settle(slot)
                    if not slot.is_too_large:
                        return guess or await self._ranked(slot.view, query)
                except BaseException:  # a thread may still be at work on the view
                    slot.begin_again(includes_own=query.includes_own)
                    raise
        return await self._rank_stream(query)

    async def _refresh_beside_guess(self, slot: Slot, query: HistoryQuery) -> LogRanking | None:
        """Take in what is new; the ranking from before, if nothing is.

        Mostly nothing is. So what that ranking shows is read while it is asked; if something is
        new, the ranking of that shows mostly the same.
        """
        before = slot.last_id
        if before is None:
            await self._refresh(slot, query)
            return None
        guess = await self._ranked(slot.view, query)
        refreshing = self._refresh(slot, query)
        failed, _ = await asyncio.gather(refreshing, guess.read(), return_exceptions=True)
        if failed is not None:
            raise failed
        return guess if slot.last_id == before else None

    async def _refresh(self, slot: Slot, query: HistoryQuery) -> None:
        conversation_id, includes_own = query.conversation_id or "", query.includes_own
        await self.indexer.settle(conversation_id)
        for _ in range(_MOST_ATTEMPTS):
            is_new = slot.last_id is None
            if is_new and not await self._take_segments(slot, conversation_id):
                slot.begin_again(includes_own=includes_own)
                continue
            if slot.view.size_bytes > self._views.memory_bytes:
                return  # and be read as a stream
            news = await self._news(slot, conversation_id, is_new=is_new)
            if is_new:
                self._check_complete(is_complete=news.is_complete)
            if news.is_behind:
                await self.indexer.catch_up(conversation_id)
                continue
            if news.is_of_known and await self._take(slot, news, conversation_id):
                self._check_analyzer(slot.view)
                return
            slot.begin_again(includes_own=includes_own)
        raise IndexUnusableError(_UNREADABLE)

    async def _take(self, slot: Slot, news: "_News", conversation_id: str) -> bool:
        view = slot.view
        if not view.take(news.appends):
            return False
        if news.appends:
            slot.last_id = news.appends[-1]["_id"]
        if len(news.appends) < _MOST_NEWS:
            return True
        query = of_conversation(
            self._workspace_id, conversation_id, after=view.until[conversation_id]
        )
        return await self._stream(LOG, query, view, slot)

    async def _take_segments(self, slot: Slot, conversation_id: str) -> bool:
        query = of_segments(self._workspace_id, conversation_id)
        return await self._stream(SEGMENTS, query, slot.view, slot)

    async def _stream(
        self,
        collection: str,
        query: Document,
        view: LogView,
        slot: Slot | None = None,
        session: AsyncClientSession | None = None,
    ) -> bool:
        """Take what matches, each batch in a thread while the next is read.

        Args:
            collection: the log or its segments.
            query: for what to take.
            view: takes it.
            slot: of the view, if it is to be kept.
            session: to read in.

        Returns:
            Whether nothing was missing.
        """
        fields = {} if view.includes_own else {"own_terms": 0}
        number = "sequence" if collection == LOG else "last"
        sort = [("workspace_id", 1), ("conversation_id", 1), (number, 1)]
        cursor = self._database[collection].find_raw_batches(
            query, fields, sort=sort, batch_size=_BATCH, session=session
        )

        async def take(batch: Any, last: "asyncio.Task[bool] | None") -> bool:  # noqa: ANN401 - see `_decoded`
            documents, is_long = _decoded(batch), len(batch) > _SHORT_BATCH
            # Python lets go of its lock for it: on two cores it takes half as long.
            halves = (partial(_inflate, each) for each in (documents[::2], documents[1::2]))
            await asyncio.gather(*(in_thread_if(is_long, each) for each in halves))
            if last is not None and not await last:
                return False
            if slot is not None and documents:
                slot.last_id = documents[-1].get("last_id", documents[-1]["_id"])
            return await in_thread_if(is_long, lambda: view.take(documents))

        last: asyncio.Task[bool] | None = None
        async for batch in cursor:
            before, last = last, asyncio.create_task(take(batch, last))
            if before is not None and not await before:
                await last
                return False
            if slot is not None and view.size_bytes > self._views.memory_bytes:
                break
        return last is None or await last

    async def _news(self, slot: Slot, conversation_id: str, *, is_new: bool) -> "_News":
        """One question: is anything not logged yet, is the index whole, what was appended since.

        They are answered in this order, so that what was not logged at the first is there at the
        last, or was said to be missing. Only of a log that was not known the second is asked: while
        it is made anew all of it is there, until it begins again.
        """
        until = slot.view.until.get(conversation_id, 0)
        behind = {
            "workspace_id": self._workspace_id,
            "conversation_id": conversation_id,
            "unindexed": True,
        }
        appends: list[Document] = [
            {"$match": of_conversation(self._workspace_id, conversation_id, after=until - 1)},
            {"$sort": {"sequence": 1}},
            {"$limit": _MOST_NEWS + 1},
        ]
        pipeline: list[Document] = [
            {"$match": behind},
            {"$limit": 1},
            {"$project": {"_id": 0, "behind": {"$literal": True}}},
        ]
        if is_new:
            pipeline.append({"$unionWith": {"coll": STATE, "pipeline": [{"$match": COMPLETE}]}})
        pipeline.append({"$unionWith": {"coll": LOG, "pipeline": appends}})
        cursor = await self._database["snapshots"].aggregate(pipeline)
        return _News.of(await cursor.to_list(), until, slot.last_id)

    def _check_complete(self, *, is_complete: bool) -> None:
        if not is_complete:
            message = (
                "the index does not hold what was saved before it was made, or is being made "
                "again; `perdure reindex` completes it"
            )
            raise IndexUnusableError(message)

    def _check_analyzer(self, view: LogView) -> None:
        own = terms_id(self._analyzer.id)
        others = view.kept_terms - {own}
        if others:
            message = (
                f"the index holds terms of analyzer {', '.join(sorted(others))}, and this version "
                f"makes those of {own}; `perdure reindex` makes it again"
            )
            raise IndexUnusableError(message)

    # As a stream

    async def _rank_stream(self, query: HistoryQuery) -> LogRanking:
        place: Document = {"workspace_id": self._workspace_id}
        if query.scope == "conversation":
            place["conversation_id"] = query.conversation_id or ""
        await self.indexer.settle(place.get("conversation_id"))
        for _ in range(_MOST_ATTEMPTS):
            is_complete = await self._database[STATE].find_one(COMPLETE) is not None
            self._check_complete(is_complete=is_complete)
            if await self._database["snapshots"].find_one({**place, "unindexed": True}, {"_id": 1}):
                await self.indexer.catch_up(place.get("conversation_id"))
                continue
            view = LogView(includes_own=query.includes_own, only=query.terms)
            if await self._take_all(place, view):
                self._check_analyzer(view)
                return await self._ranked(view, query)
        raise IndexUnusableError(_UNREADABLE)

    async def _take_all(self, place: Document, view: LogView) -> bool:
        """Take a log or all, as they were at one moment: what is in no segment is not missed."""
        tail = {**place, "sequence": {"$exists": True}, "is_merged": {"$exists": False}}
        segments = {**place, "last": {"$exists": True}}
        async with self._connection.client().start_session(snapshot=True) as session:
            return await self._stream(
                SEGMENTS, segments, view, session=session
            ) and await self._stream(LOG, tail, view, session=session)

    async def _ranked(self, view: LogView, query: HistoryQuery) -> LogRanking:
        def rank() -> LogRanking:
            places = view.places(query.run_id)
            scores = scores_of(view, places, query.terms, query.bm25)
            windows = windows_of(hits_of(scores, places.starts), places.sections, query)
            return LogRanking(self._lines, view, places, scores, windows)

        few = _FEW_IN_BLOCKS
        if view.is_searched:  # a first search is done before that
            await in_thread_if(view.entries.is_long_to_unpack, view.entries.unpack)
            few = _FEW_ENTRIES
        ranking = await in_thread_if(len(view.digests) > few, rank)
        view.is_searched = True
        return ranking


def _decoded(batch: Any) -> list[Document]:  # noqa: ANN401 - the driver's types say documents; they are bytes
    return decode_all(batch)


def _inflate(documents: Iterable[Document]) -> None:
    for each in documents:
        inflated(each)


@dataclass(frozen=True, kw_only=True)
class _News:
    """The answer to `_news`. `is_of_known`: the append that was known as the last one is there."""

    is_complete: bool
    is_behind: bool
    is_of_known: bool
    appends: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, rows: Sequence[Document], until: int, last_id: Document | None) -> "_News":
        appends = [each for each in rows if "sequence" in each]
        last = (each["_id"] for each in appends if each["sequence"] == until)
        return cls(
            is_complete=any(each.get("_id") == COMPLETE["_id"] for each in rows),
            is_behind=any("behind" in each for each in rows),
            is_of_known=last_id is None or last_id == next(last, None),
            appends=[inflated(each) for each in appends if each["sequence"] > until],
        )
