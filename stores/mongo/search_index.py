"""The index of a workspace: its log, read up to what is new, ranked in memory.

A conversation's view stays in memory, within a bound for all of them together, and a search reads
what was appended since. A conversation that is larger than the bound, and scope `all`, are read as
a stream for each search, of which only what the query asks for is kept.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from bson import decode_all  # pyright: ignore[reportUnknownVariableType]
from numpy.typing import NDArray
from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage

from stores.digests import load_message, load_messages
from stores.mongo.client import Database, MongoConnection
from stores.mongo.documents import Document
from stores.mongo.failures import store_errors
from stores.mongo.reindexing import Reindexed, Tell, reindex
from stores.mongo.search_indexer import SearchIndexer
from stores.mongo.search_log import COMPLETE, LOG, STATE, of_conversation
from stores.mongo.search_ranking import hits_of, scores_of
from stores.mongo.search_terms import terms_id
from stores.mongo.search_texts import SearchTexts
from stores.mongo.search_upkeep import SearchUpkeep
from stores.mongo.search_view import LogView, Places
from stores.mongo.search_writer import LoggedConversations
from stores.search.analysis import AnalyzerName, analyzer_named
from stores.search.corpus import Section
from stores.search.identity import without_summary
from stores.search.query import (
    FoundMessage,
    HistoryQuery,
    IndexUnusableError,
    Window,
    windows_of,
)

MEMORY_BYTES = 256 * 1024 * 1024
"""Of all views of a process together: some 500,000 messages."""

_FEW_ENTRIES = 5_000
"""Messages up to which ranking takes less than a millisecond, and is not worth a thread."""

_LONG_BODIES = 200_000
"""Characters of messages whose parsing takes longer than that."""

_MOST_NEWS = 100
"""Appends that are read with the question what is new; more come as a stream."""

_MOST_ATTEMPTS = 10

Result = TypeVar("Result")


@dataclass(kw_only=True)
class _Slot:
    """A view with its lock; `last_id` is of the newest append that it took."""

    view: LogView
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    last_id: Document | None = None
    is_too_large: bool = False

    def begin_again(self, *, includes_own: bool) -> None:
        """Know nothing of the log."""
        self.view, self.last_id = LogView(includes_own=includes_own), None


class SearchViews:
    """The views of a process, the one that was used last at the end."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self.memory_bytes = memory_bytes
        self._slots: OrderedDict[tuple[str, str, bool], _Slot] = OrderedDict()

    def slot(self, place: tuple[str, str, bool]) -> _Slot:
        """The view of workspace, conversation, and whether the search's own calls count."""
        if place not in self._slots:
            self._slots[place] = _Slot(view=LogView(includes_own=place[2]))
        self._slots.move_to_end(place)
        return self._slots[place]

    def settle(self, slot: _Slot) -> None:
        """Keep to the bound: what was not used for longest goes; a view above it goes at once."""
        if slot.view.size_bytes > self.memory_bytes:
            slot.begin_again(includes_own=False)
            slot.is_too_large = True
        total = sum(each.view.size_bytes for each in self._slots.values())
        for place, each in list(self._slots.items()):
            if total <= self.memory_bytes:
                return
            if each is not slot and not each.lock.locked():
                total -= each.view.size_bytes
                del self._slots[place]


class SearchMemory:
    """What the stores of one process share for searching, whatever their workspaces.

    Args:
        analyzer: makes the terms of the log.
        memory_bytes: of all views together.
    """

    def __init__(self, analyzer: AnalyzerName, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self.analyzer = analyzer_named(analyzer)
        self.views = SearchViews(memory_bytes)
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
        self._analyzer = memory.analyzer
        self._workspace_id = workspace_id

    @property
    def _database(self) -> Database:
        return self._connection.database

    async def rank(self, query: HistoryQuery) -> "LogRanking":
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

    async def _rank_conversation(self, query: HistoryQuery) -> "LogRanking":
        conversation_id = query.conversation_id or ""
        place = (self._workspace_id, conversation_id, query.includes_own)
        slot = self._views.slot(place)
        if not slot.is_too_large:
            async with slot.lock:
                try:
                    await self._refresh(slot, conversation_id, includes_own=query.includes_own)
                except BaseException:  # a thread may still be at work on the view
                    slot.begin_again(includes_own=query.includes_own)
                    raise
                self._views.settle(slot)
                if not slot.is_too_large:
                    return await self._ranked(slot.view, query)
        return await self._rank_stream(query)

    async def _refresh(self, slot: _Slot, conversation_id: str, *, includes_own: bool) -> None:
        await self.indexer.settle(conversation_id)
        for _ in range(_MOST_ATTEMPTS):
            news = await self._news(conversation_id, slot.view.until.get(conversation_id, 0))
            self._check_complete(is_complete=news.is_complete)
            if news.is_behind:
                await self.indexer.catch_up(conversation_id)
                continue
            is_known = slot.last_id is None or news.last_id == slot.last_id
            if is_known and await self._take(slot, news, conversation_id):
                self._check_analyzer(slot.view)
                if slot.view.is_searched:  # a first search is done before that
                    entries = slot.view.entries
                    await _in_thread_if(entries.is_long_to_unpack, entries.unpack)
                return
            slot.begin_again(includes_own=includes_own)
        message = "it changes faster than it can be read"
        raise IndexUnusableError(message)

    async def _take(self, slot: _Slot, news: "_News", conversation_id: str) -> bool:
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
        return await self._stream(query, view, slot)

    async def _stream(self, query: Document, view: LogView, slot: _Slot | None = None) -> bool:
        """Take appends, each batch in a thread while the next is read; whether none was missing."""
        fields = _FIELDS | (_OWN_FIELDS if view.includes_own else {})
        sort = [("workspace_id", 1), ("conversation_id", 1), ("sequence", 1)]
        cursor = self._database[LOG].find_raw_batches(query, fields, sort=sort, batch_size=500)

        def take(batch: Any) -> bool:  # noqa: ANN401 - see `_decoded`
            documents = _decoded(batch)
            if slot is not None:
                slot.last_id = documents[-1]["_id"]
            return view.take(documents)

        last: asyncio.Future[bool] | None = None
        async for batch in cursor:
            if last is not None and not await last:
                return False
            if slot is not None and view.size_bytes > self._views.memory_bytes:
                return True
            last = asyncio.ensure_future(asyncio.to_thread(take, batch))
        return last is None or await last

    async def _news(self, conversation_id: str, until: int) -> "_News":
        """One question: is the index whole, is anything not logged yet, what was appended since.

        They are answered in this order, so that what was not logged at the second is there at the
        third, or was said to be missing.
        """
        behind = {
            "workspace_id": self._workspace_id,
            "conversation_id": conversation_id,
            "unindexed": True,
        }
        known = {**of_conversation(self._workspace_id, conversation_id), "sequence": until}
        after = of_conversation(self._workspace_id, conversation_id, after=until)
        pipeline: list[dict[str, Any]] = [
            {"$match": behind},
            {"$limit": 1},
            {"$project": {"_id": 0, "behind": {"$literal": True}}},
            {"$unionWith": {"coll": STATE, "pipeline": [{"$match": COMPLETE}]}},
            {
                "$unionWith": {
                    "coll": LOG,
                    "pipeline": [{"$match": known}, {"$project": {"known": "$_id", "_id": 0}}],
                }
            },
            {
                "$unionWith": {
                    "coll": LOG,
                    "pipeline": [
                        {"$match": after},
                        {"$sort": {"sequence": 1}},
                        {"$limit": _MOST_NEWS},
                    ],
                }
            },
        ]
        cursor = await self._database["snapshots"].aggregate(pipeline)
        return _News.of(await cursor.to_list())

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

    async def _rank_stream(self, query: HistoryQuery) -> "LogRanking":
        conversation_id = query.conversation_id or ""
        behind: Document = {"workspace_id": self._workspace_id, "unindexed": True}
        wanted: Document = {"workspace_id": self._workspace_id, "sequence": {"$exists": True}}
        if query.scope == "conversation":
            behind["conversation_id"] = wanted["conversation_id"] = conversation_id
        await self.indexer.settle(behind.get("conversation_id"))
        for _ in range(_MOST_ATTEMPTS):
            is_complete = await self._database[STATE].find_one(COMPLETE) is not None
            self._check_complete(is_complete=is_complete)
            if await self._database["snapshots"].find_one(behind, {"_id": 1}):
                await self.indexer.catch_up(behind.get("conversation_id"))
                continue
            view = LogView(includes_own=query.includes_own, only=query.terms)
            if await self._stream(wanted, view):
                self._check_analyzer(view)
                return await self._ranked(view, query)
        message = "it changes faster than it can be read"
        raise IndexUnusableError(message)

    async def _ranked(self, view: LogView, query: HistoryQuery) -> "LogRanking":
        def rank() -> LogRanking:
            places = view.places(query.run_id)
            scores = scores_of(view, places, query.terms, query.bm25)
            windows = windows_of(hits_of(scores, places.starts), places.sections, query)
            return LogRanking(self._texts, view, places, scores, windows)

        ranking = await _in_thread_if(len(view.digests) > _FEW_ENTRIES, rank)
        view.is_searched = True
        return ranking


def _decoded(batch: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - the driver's types say documents; they are bytes
    return decode_all(batch)


async def _in_thread_if(is_long: bool, work: Callable[[], Result]) -> Result:  # noqa: FBT001 - reads as a sentence
    return await asyncio.to_thread(work) if is_long else work()


@dataclass(frozen=True, kw_only=True)
class _News:
    """The answer to `_news`."""

    is_complete: bool
    is_behind: bool
    last_id: Document | None
    appends: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> "_News":
        return cls(
            is_complete=any(each.get("_id") == COMPLETE["_id"] for each in rows),
            is_behind=any("behind" in each for each in rows),
            last_id=next((each["known"] for each in rows if "known" in each), None),
            appends=[each for each in rows if "sequence" in each],
        )


class LogRanking:
    """See `Ranking`: of a view as it was when it was ranked."""

    def __init__(
        self,
        texts: SearchTexts,
        view: LogView,
        places: Places,
        scores: NDArray[np.float64],
        windows: Sequence[Window],
    ) -> None:
        self._texts = texts
        self._digests = view.digests
        self._copies = view.copies
        self._places = places
        self._scores = scores
        self.sections: Sequence[Section] = places.sections
        self.windows: Sequence[Window] = windows
        self.message_count = len(places.flat)
        self.run_count = places.run_count
        self.skipped = places.skipped

    async def messages(self) -> list[list[FoundMessage]]:
        """See `Ranking.messages`. One query, and what large texts lie elsewhere.

        A message whose run has taken it back since is shown as another run has it.
        """
        wanted = [self._places_of(each) for each in self.windows]
        entries = {at: int(self._places.flat[at]) for each in wanted for at in each}
        found = await self._load({self._digests[each] for each in entries.values()})
        gone = [each for each in entries.values() if self._digests[each] not in found]
        found |= await self._load({copy for each in gone for copy in self._copies.get(each, ())})

        def message(at: int) -> FoundMessage:
            entry = entries[at]
            digests = (self._digests[entry], *self._copies.get(entry, ()))
            readable = next((found[each] for each in digests if each in found), None)
            return FoundMessage(readable, is_match=bool(self._scores[at] > 0))

        return [[message(at) for at in each] for each in wanted]

    def _places_of(self, window: Window) -> range:
        start = int(self._places.starts[window.hit.section])
        return range(start + window.start, start + window.end)

    async def _load(self, digests: set[str]) -> dict[str, ModelMessage]:
        texts = await self._texts.load(list(digests)) if digests else {}
        size = sum(map(len, texts.values()))
        return await _in_thread_if(size > _LONG_BODIES, lambda: _loaded(texts))


def _loaded(texts: Mapping[str, str]) -> dict[str, ModelMessage]:
    """The messages of these texts, without summaries; one that is damaged is left out."""
    loaded: Sequence[ModelMessage | None]
    try:
        loaded = load_messages(texts.values())
    except ValidationError:
        loaded = [_loaded_or_none(text) for text in texts.values()]
    searched = [each and without_summary(each) for each in loaded]
    return {digest: each for digest, each in zip(texts, searched, strict=True) if each is not None}


def _loaded_or_none(text: str) -> ModelMessage | None:
    try:
        return load_message(text)
    except ValidationError:
        return None


_FIELDS = dict.fromkeys(
    (
        *("conversation_id", "sequence", "run_id", "started_at", "analyzer", "places", "hashes"),
        *("messages", "terms", "changes", "inherited", "renewed", "dropped", "unreadable"),
        "is_reset",
    ),
    1,
)
_OWN_FIELDS = {"own_terms": 1}
