"""Keyword search in MongoDB: from memory where a workspace's rows are there, else from the index.

A search first asks the lanes of the workspace how far they are; what changed since the last search
is read into the view. One that has much to read, because the process is new to the workspace, reads
a part of it and is answered by the multikey index, and so is every search of a workspace whose rows
are more than memory is given. Both give the same candidates, and pages are filled from what is
stored, so neither is believed.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bson import Binary

from stores.errors import StoreConfigurationError
from stores.keyword.cursors import CursorSealer, Place
from stores.keyword.queries import (
    DEFAULT_MATCHES,
    ConversationFilter,
    KeywordMatch,
    KeywordPage,
    KeywordQuery,
    check_page_size,
)
from stores.mongo.client import Database, MongoConnection
from stores.mongo.documents import Document
from stores.mongo.failures import store_errors
from stores.mongo.keyword_postings import StoredPostings
from stores.mongo.keyword_reindexing import ReindexedKeywords, Tell, reindex_keywords
from stores.mongo.keyword_rows import (
    LANES,
    ROWS,
    STATE,
    WHOLE,
    Candidate,
    of_lanes,
    parts_of,
)
from stores.mongo.keyword_settling import settle_soon
from stores.mongo.keyword_texts import KeywordTexts
from stores.mongo.keyword_view import KeywordView
from stores.search.counting import term_key

MEMORY_BYTES = 256 * 1024 * 1024
"""Of all views of a process together: some 500,000 fields."""

ROWS_A_SEARCH = 20_000
"""Rows that a search reads into memory before it is answered: 0.2 s."""

_AT_ONCE = 2_000
"""Rows of a lane that are read together: more than any transaction writes."""

CURSOR_KEY: Document = {"_id": "cursors"}
_READ = dict.fromkeys(
    (
        *("conversation_id", "position", "field", "order_id", "number", "sequence"),
        *("lexemes", "live", "pending", "facts", "parts", "version"),
    ),
    1,
)


class _Source(Protocol):
    """Where candidates come from: rows with all lexemes, behind a place, in order."""

    async def candidates(
        self, behind: Place | None, count: int
    ) -> tuple[Sequence[Candidate], Place | None]:
        """About `count` of them, and where to go on; `None`: those were all."""
        ...


@dataclass(kw_only=True)
class _Slot:
    """A view with its lock, and the lanes as they were when it was last complete."""

    view: KeywordView = field(default_factory=KeywordView)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    lanes: dict[int, int] | None = None
    is_too_large: bool = False

    def clear(self) -> None:
        self.view, self.lanes = KeywordView(), None


class KeywordMemory:
    """What the stores of one process share for keyword search, whatever their workspaces.

    Args:
        memory_bytes: of all views together; 0: nothing is kept in memory.
        rows_a_search: most rows that one search reads into memory.
    """

    def __init__(
        self, *, memory_bytes: int = MEMORY_BYTES, rows_a_search: int = ROWS_A_SEARCH
    ) -> None:
        self.memory_bytes = memory_bytes
        self.rows_a_search = rows_a_search
        self.cursor_key: bytes | None = None
        self.is_complete = False
        self._slots: OrderedDict[str, _Slot] = OrderedDict()

    def slot(self, workspace_id: str) -> _Slot:
        """The view of a workspace, which was used last from now on."""
        slot = self._slots.get(workspace_id)
        if slot is None:
            slot = self._slots[workspace_id] = _Slot(is_too_large=not self.memory_bytes)
        self._slots.move_to_end(workspace_id)
        return slot

    def settle(self, slot: _Slot) -> None:
        """Keep to the bound: what was not used for longest goes; a view above it goes at once."""
        if slot.view.size_bytes > self.memory_bytes:
            slot.clear()
            slot.is_too_large = True
        total = sum(each.view.size_bytes for each in self._slots.values())
        for workspace_id, each in list(self._slots.items()):
            if total <= self.memory_bytes:
                return
            if each is not slot and not each.lock.locked():
                total -= each.view.size_bytes
                del self._slots[workspace_id]


class MongoKeywords:
    """`KeywordReads` on MongoDB."""

    def __init__(self, connection: MongoConnection, memory: KeywordMemory) -> None:
        self._connection = connection
        self._memory = memory

    @property
    def _database(self) -> Database:
        return self._connection.database

    async def search_history(
        self,
        workspace_id: str,
        query: KeywordQuery,
        allowed: ConversationFilter,
        *,
        page_size: int = DEFAULT_MATCHES,
        after: str | None = None,
    ) -> KeywordPage:
        """See `KeywordReads.search_history`."""
        check_page_size(page_size)
        with store_errors("search conversations by keyword", self._connection.where):
            key = await self._cursor_key()
            sealer = CursorSealer(key=key, workspace_id=workspace_id, query=query, allowed=allowed)
            behind = None if after is None else sealer.open(after)
            if not query.lexemes:
                return KeywordPage(matches=())
            found = await self._fill(workspace_id, query, allowed, behind, page_size + 1)
        shown = found[:page_size]
        return KeywordPage(
            matches=tuple(match for _, match in shown),
            next_after=sealer.seal(shown[-1][0]) if len(found) > page_size else None,
        )

    async def reindex(self, *, tell: Tell = lambda _: None) -> ReindexedKeywords:
        """Make the rows of all workspaces anew; see `stores.mongo.keyword_reindexing`."""
        with store_errors("make the keyword index", self._connection.where):
            return await reindex_keywords(self._connection, tell=tell)

    async def _fill(
        self,
        workspace_id: str,
        query: KeywordQuery,
        allowed: ConversationFilter,
        behind: Place | None,
        count: int,
    ) -> list[tuple[Place, KeywordMatch]]:
        """Matches behind a place, as many as there are up to a count."""
        source = await self.source(workspace_id, query, allowed)
        texts = KeywordTexts(database=self._database, workspace_id=workspace_id)
        found: list[tuple[Place, KeywordMatch]] = []
        start = behind
        while True:  # ends: each time further down, until the page is full or there are no more
            candidates, start = await source.candidates(start, count - len(found))
            matches = await texts.matches(candidates, query, allowed)
            found += [each for each in matches if behind is None or each[0] < behind]
            if start is None or len(found) >= count:
                return found[:count]

    async def source(
        self, workspace_id: str, query: KeywordQuery, allowed: ConversationFilter
    ) -> _Source:
        """Where the candidates of a search come from, brought up to what is stored."""
        await self._check_complete()
        slot = self._memory.slot(workspace_id)
        is_in_memory = False
        if not slot.is_too_large:
            async with slot.lock:
                is_in_memory = await self._refresh(slot, workspace_id)
                if slot.view.pending:
                    await settle_soon(self._connection, workspace_id)
                    is_in_memory = await self._refresh(slot, workspace_id)
        if is_in_memory and not slot.is_too_large:
            return _InMemory(slot.view, slot.lock, query, allowed)
        pending = {"workspace_id": workspace_id, "pending": True}
        if await self._database[ROWS].find_one(pending, {"_id": 1}) is not None:
            await settle_soon(self._connection, workspace_id)
        return StoredPostings(self._database, workspace_id, query, allowed)

    async def _cursor_key(self) -> bytes:
        """The secret of this database's cursors, made by whoever needs it first."""
        if self._memory.cursor_key is None:
            made = {"$setOnInsert": {"key": Binary(secrets.token_bytes(32))}}
            state = self._database[STATE]
            await state.update_one(CURSOR_KEY, made, upsert=True)
            found = await state.find_one(CURSOR_KEY) or {}
            self._memory.cursor_key = bytes(found["key"])
        return self._memory.cursor_key

    async def _check_complete(self) -> None:
        """Refuse an index that lacks rows; once whole it stays so."""
        if self._memory.is_complete:
            return
        if await self._database[STATE].find_one(WHOLE) is None:
            msg = (
                "the keyword index does not hold what conversations said before it was made; "
                "run `perdure reindex --keyword`"
            )
            raise StoreConfigurationError(msg)
        self._memory.is_complete = True

    # The view

    async def _refresh(self, slot: _Slot, workspace_id: str) -> bool:
        """Read what changed, up to a bound; whether the view is level with what is stored."""
        lanes = await self._lanes(workspace_id)
        if lanes == slot.lanes:
            return True
        if slot.view.is_mostly_dead:
            slot.clear()
        left = self._memory.rows_a_search
        view = slot.view
        for lane, newest in lanes.items():
            if newest < view.until.get(lane, 0):  # another database, of the same name
                slot.clear()
                return False
            while view.until.get(lane, 0) < newest and left > 0:
                left -= await self._read_lane(view, workspace_id, lane, newest)
        if view.is_worth_sorting:
            await asyncio.to_thread(view.sort)
        if left > 0:
            slot.lanes = lanes
        self._memory.settle(slot)
        return left > 0

    async def _lanes(self, workspace_id: str) -> dict[int, int]:
        """How far each lane is."""
        found = await self._database[LANES].find(of_lanes(workspace_id)).to_list()
        return {each["_id"]["lane"]: int(each["sequence"]) for each in found}

    async def _read_lane(self, view: KeywordView, workspace_id: str, lane: int, newest: int) -> int:
        """Read on in a lane, and say how many rows that were."""
        behind = {"$gt": view.until.get(lane, 0)}
        query = {"workspace_id": workspace_id, "lane": lane, "sequence": behind}
        found = self._database[ROWS].find(query, _READ, sort=[("sequence", 1)], limit=_AT_ONCE)
        rows = await found.to_list()
        is_all = len(rows) < _AT_ONCE
        if not is_all:  # the last transaction may be here in part
            last = rows[-1]["sequence"]
            rows = [each for each in rows if each["sequence"] < last]
            newest = last - 1
        for row in rows:
            if row.get("parts", 1) > 1:
                await self._join(row)
        await asyncio.to_thread(view.take, rows)
        view.until[lane] = newest
        return len(rows) or 1

    async def _join(self, row: dict[str, Any]) -> None:
        """Add the lexemes of its parts; where it changed meanwhile it is read once more later."""
        query = {**parts_of(row["_id"], 1), "version": row["version"]}
        async for part in self._database[ROWS].find(query, {"lexemes": 1}):
            row["lexemes"] += part["lexemes"]


@dataclass(frozen=True)
class _InMemory:
    """Candidates of a view that is level with what is stored; nobody changes it meanwhile."""

    view: KeywordView
    lock: asyncio.Lock
    query: KeywordQuery
    allowed: ConversationFilter

    async def candidates(
        self, behind: Place | None, count: int
    ) -> tuple[Sequence[Candidate], Place | None]:
        """See `_Source`."""
        keys = [term_key(each) for each in self.query.lexemes]
        async with self.lock:
            found = self.view.find(keys, self.query, self.allowed, behind, count)
            return found, self.view.place(found[-1]) if len(found) == count else None
