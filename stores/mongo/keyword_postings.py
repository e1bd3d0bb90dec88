"""Candidates from the multikey index: for workspaces that are not in memory.

The rarest lexeme is walked in the order of the result, and the server looks into each row for the
others. Turns are taken whole, with all forks that show them, so that the second and third key of
the order can be told afterwards.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from stores.keyword.cursors import Place
from stores.keyword.queries import ConversationFilter, KeywordQuery
from stores.mongo.client import Database
from stores.mongo.documents import Document
from stores.mongo.keyword_rows import ROWS, Candidate, candidate_of, lexeme_key, parts_of

_COUNTED = 500
"""Rows up to which lexemes are counted, to find the rarest: beyond that all are common."""

_AT_ONCE = 100
"""Rows that are looked at for a page, at least: some may not be read."""

_MOST_NAMED = 1_000
"""Conversations up to which the server is told them; of more it is asked for all."""

_FIRST_OF_ALL = "content"
"""The field that comes last in the descending order, so that nothing of a turn is behind it."""

_READ = dict.fromkeys(
    ("order_id", "field", "conversation_id", "position", "number", "parts", "part", "version"), 1
)


class StoredPostings:
    """See `stores.mongo.keyword_index`; candidates come by turn, and pages sort the rest."""

    def __init__(
        self,
        database: Database,
        workspace_id: str,
        query: KeywordQuery,
        allowed: ConversationFilter,
    ) -> None:
        self._rows = database[ROWS]
        self._keys = [lexeme_key(each) for each in query.lexemes]
        self._mine: Document = {"workspace_id": workspace_id, "live": True}
        self._named: Document = {}
        if not (allowed.everything or allowed.owners):
            ids = sorted(allowed.conversation_ids)
            if len(ids) <= _MOST_NAMED:
                self._named = {"conversation_id": {"$in": ids}}
        self._is_ordered = False

    async def candidates(
        self, behind: Place | None, count: int
    ) -> tuple[Sequence[Candidate], Place | None]:
        """About `count` rows, and where to go on; those of the turn of `behind` come again."""
        await self._order_keys()
        most = max(count, _AT_ONCE)
        bound = self._bound(behind)
        found = await self._find(bound, most)
        if len(found) < most:
            return await self._whole(found), None
        last = found[-1]["order_id"]
        complete = [each for each in found if each["order_id"] != last]
        if not complete:  # one turn with very many forks
            complete = await self._find({"$eq": last}, 0)
            return await self._whole(complete), Place(last, "", _FIRST_OF_ALL)
        return await self._whole(complete), Place(complete[-1]["order_id"], "", _FIRST_OF_ALL)

    def _bound(self, behind: Place | None) -> Document:
        if behind is None:
            return {}
        is_whole = not behind.public_id  # as `candidates` says where to go on
        return {"$lt" if is_whole else "$lte": behind.order_id}

    async def _find(self, bound: Document, limit: int) -> list[Document]:
        query: Document = {**self._mine, **self._named, "lexemes": self._keys[0]}
        if bound:
            query["order_id"] = bound
        if len(self._keys) > 1:
            others = {"lexemes": {"$all": self._keys[1:]}}
            query["$or"] = [others, {"parts": {"$gt": 1}}]
        found = self._rows.find(query, _READ, sort=[("order_id", -1)], limit=limit)
        return await found.to_list()

    async def _order_keys(self) -> None:
        """Begin with the rarest lexeme."""
        if self._is_ordered or len(self._keys) == 1:
            return
        counts = await asyncio.gather(*(self._count(each) for each in self._keys))
        ordered = sorted(zip(counts, self._keys, strict=True))
        self._keys = [key for _, key in ordered]
        self._is_ordered = True

    async def _count(self, key: int) -> int:
        return await self._rows.count_documents({**self._mine, "lexemes": key}, limit=_COUNTED)

    async def _whole(self, documents: Sequence[Document]) -> list[Candidate]:
        """Those that hold all lexemes where a row has parts."""
        return [
            candidate_of(each)
            for each in documents
            if each["parts"] == 1 or await self._is_whole(each)
        ]

    async def _is_whole(self, document: Document) -> bool:
        of_row: dict[str, Any] = {**document["_id"], "part": 0}
        of_text = {**parts_of(of_row), "version": document["version"]}
        wanted: list[Document] = [{"_id": of_row, "live": True, "version": document["version"]}]
        wanted += [{**of_text, "lexemes": each} for each in self._keys]
        for query in wanted:
            if await self._rows.find_one(query, {"_id": 1}) is None:
                return False
        return True
