"""Reading a database of pydantic-ai-harness: finds and counts, so nothing in it changes."""

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime

from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pymongo.errors import InvalidName

from stores.digests import load_messages
from stores.errors import StoreConfigurationError, StoreUnavailableError
from stores.importing import DamagedDocumentError, Problem, SnapshotHead
from stores.media.addresses import SCHEME
from stores.media.protocols import MediaStore
from stores.mongo.client import Database, MongoConnection
from stores.mongo.documents import Document
from stores.mongo.failures import store_errors
from stores.mongo.harness_documents import (
    harness_effect,
    harness_event,
    harness_run,
    harness_snapshot,
    references_of,
)
from stores.mongo.harness_media import (
    EXTERNAL_PREFIX,
    external_uris,
    read_media,
    with_content,
)
from stores.records import ContinuableSnapshot, RunRecord, StepEvent, ToolEffectRecord

DOCUMENTS_A_BATCH = 1000
"""Of small documents, and of ids asked for at once."""

HISTORIES_A_BATCH = 20
"""Of snapshots with their lists of references, which may have 16 MiB each."""

READ_TIMEOUT_SECONDS = 60.0
"""Of one batch; the slowest searches the messages of a run."""

SEARCH_TIMEOUT_SECONDS = 600.0
"""Of the search for rows without a run, which goes over whole collections."""

_Timed = SnapshotHead | ToolEffectRecord

_OURS = frozenset({"commit_heads", "positions"})
"""Collections that Perdure has and the harness lacks."""

_MENTIONS_EXTERNAL: Document = {"$regex": EXTERNAL_PREFIX}
_BY_REFERENCE: Document = {"$regex": r"^\{"}
_IN_ORDER = [("seq", 1), ("_id", 1)]

_BY_RUN: dict[str, Document] = {
    "events": {"run_id": 1, "seq": 1},
    "snapshots": {"run_id": 1, "seq": -1},
    "tool_effects": {"run_id": 1, "tool_call_id": 1},
}
"""The order of an index that the harness makes: with it, one row of each run is looked at."""


class HarnessDatabase:
    """`RunSource` over what `MongoStepStore` of the harness wrote."""

    def __init__(self, *, db_url: str, database: str, media: MediaStore | None = None) -> None:
        """Bind the reader; nothing is connected before the first call.

        Args:
            db_url: a connection string.
            database: the database's name.
            media: what holds the content of its messages, if that is not in the database.

        Raises:
            ValueError: no database is named.
        """
        self._media = media
        self._connection = MongoConnection(client=None, db_url=db_url, database=database)
        self._recent: dict[str, ModelMessage] = {}

    @property
    def where(self) -> str:
        """Hosts and database in words, without user and password."""
        return self._connection.where

    async def find_problem(self) -> str | None:
        """Why this is no database of the harness, `None` when it is one.

        Raises:
            StoreConfigurationError: the connection string or the name cannot be used.
        """
        try:
            database = self._connection.database
        except InvalidName as error:
            msg = f"cannot read {self.where}: {error}; correct the name of the database"
            raise StoreConfigurationError(msg) from error
        async with self._reading("names of collections"):
            found = set(await database.list_collection_names())
        if _OURS & found:
            return f"{self.where} is a database of Perdure's own"
        if "runs" not in found:
            names = ", ".join(sorted(found)) or "no collection at all"
            return f"{self.where} has no collection 'runs' (found: {names})"
        return None

    async def aclose(self) -> None:
        """Close the connection."""
        await self._connection.close()

    # Runs

    async def count_runs(self) -> int:
        """See `RunSource.count_runs`."""
        async with self._reading("runs") as database:
            return await database["runs"].count_documents({})

    async def runs(self) -> AsyncGenerator[RunRecord | Problem]:
        """See `RunSource.runs`. Pages, since a cursor would not outlive the work on its runs."""
        async for page in self._find("runs", {"_id": {"$not": {"$type": "string"}}}):
            for document in page:
                yield harness_run(document)
        last = ""
        while True:
            query: Document = {"_id": {"$type": "string", "$gt": last}}
            async with self._reading("runs") as database:
                found = database["runs"].find(query, sort=[("_id", 1)], limit=DOCUMENTS_A_BATCH)
                page = await found.to_list()
            if not page:
                return
            for document in page:
                yield harness_run(document)
            last = page[-1]["_id"]

    async def orphans(self) -> AsyncGenerator[Problem]:
        """See `RunSource.orphans`. One `Problem` for each run and collection."""
        for collection, order in _BY_RUN.items():
            pipeline: list[Document] = [
                {"$sort": order},
                {"$group": {"_id": "$run_id", "first": {"$first": "$_id"}}},
                {
                    "$lookup": {
                        "from": "runs",
                        "localField": "_id",
                        "foreignField": "_id",
                        "as": "runs",
                    }
                },
                {"$match": {"runs": []}},
                {"$sort": {"_id": 1}},
            ]
            async with self._reading(collection, within=SEARCH_TIMEOUT_SECONDS) as database:
                cursor = await database[collection].aggregate(pipeline, allowDiskUse=True)
                found = await cursor.to_list()
            for each in found:
                yield _orphan(collection, each)

    # Rows of a run

    async def snapshot_heads(self, run_id: str) -> list[SnapshotHead | Problem]:
        """See `RunSource.snapshot_heads`."""
        pages = self._find("snapshots", {"run_id": run_id}, {"messages": 0}, sort=_IN_ORDER)
        return [harness_snapshot(each) async for page in pages for each in page]

    async def rows(
        self, run_id: str, heads: Sequence[SnapshotHead | Problem]
    ) -> AsyncGenerator[StepEvent | SnapshotHead | ToolEffectRecord | Problem]:
        """See `RunSource.rows`."""
        effects = await self._effects(run_id)
        for problem in (each for each in (*heads, *effects) if isinstance(each, Problem)):
            yield problem
        snapshots: list[_Timed] = [each for each in heads if isinstance(each, SnapshotHead)]
        calls: list[_Timed] = [each for each in effects if isinstance(each, ToolEffectRecord)]
        waiting = deque(heapq.merge(snapshots, sorted(calls, key=_time_of), key=_time_of))
        async for page in self._find("events", {"run_id": run_id}, sort=_IN_ORDER):
            for event in map(harness_event, page):
                if isinstance(event, StepEvent):
                    while waiting and _time_of(waiting[0]) < event.timestamp:
                        yield waiting.popleft()
                yield event
        for row in waiting:
            yield row

    async def _effects(self, run_id: str) -> list[ToolEffectRecord | Problem]:
        pages = self._find("tool_effects", {"run_id": run_id}, sort=[("_id", 1)])
        return [harness_effect(each) async for page in pages for each in page]

    # Messages

    async def find_external(self, run_id: str) -> list[Problem]:
        """See `RunSource.find_external`. The server searches; little is sent but references."""
        inline: Document = {"run_id": run_id, "messages": _MENTIONS_EXTERNAL}
        mentioning = self._find("snapshots", inline, {"_id": 1}, sort=_IN_ORDER)
        suspects = [each["_id"] async for page in mentioning for each in page]
        named = [(each, _uris_or_none(await self._text_of(each))) for each in suspects]
        first_seen = await self._first_seen(run_id)
        texts = await self._texts(list(first_seen), _MENTIONS_EXTERNAL)
        named += [(first_seen[digest], _uris_or_none(text)) for digest, text in texts]
        missing = await self._missing({uri for _, uris in named for uri in uris})
        found = {each: uri for each, uris in named for uri in uris if uri in missing}
        return [_external(run_id, each, uri) for each, uri in found.items()]

    async def _missing(self, uris: Collection[str]) -> set[str]:
        """Those of the URIs under which there is nothing."""
        if self._media is not None:
            return {each for each in uris if not await self._media.exists(each)}
        digests = {uri.removeprefix(SCHEME): uri for uri in uris}
        query: Document = {"_id": {"$in": sorted(digests)}}
        async for page in self._find("media", query, {"_id": 1}):
            for each in page:
                digests.pop(each["_id"])
        return set(digests.values())

    async def _with_content(self, text: str) -> str:
        return await with_content(text, self._read_media)

    async def _read_media(self, uri: str) -> bytes:
        if self._media is not None:
            return await self._media.get(uri)
        async with self._reading("media") as database:
            return await read_media(database, uri)

    async def _first_seen(self, run_id: str) -> dict[str, object]:
        """The messages that the run's snapshots refer to, each with the first that does."""
        first_seen: dict[str, object] = {}
        query: Document = {"run_id": run_id, "messages": _BY_REFERENCE}
        pages = self._find(
            "snapshots", query, {"messages": 1}, sort=_IN_ORDER, size=HISTORIES_A_BATCH
        )
        async for page in pages:
            for document in page:
                for digest in _references_or_none(document["messages"]) or ():
                    first_seen.setdefault(digest, document["_id"])
        return first_seen

    async def read_snapshot(self, head: SnapshotHead) -> ContinuableSnapshot:
        """See `RunSource.read_snapshot`. What the snapshot before had is not read again."""
        text = await self._text_of(head.document)
        references = references_of(text)
        try:
            if references is None:
                whole = await self._with_content(text)
                messages = ModelMessagesTypeAdapter.validate_json(whole)
            else:
                messages = await self._referenced(references)
        except ValidationError as error:
            problem = f"its messages cannot be read: {error.error_count()} values do not fit"
            raise DamagedDocumentError(problem) from error
        return replace(head.snapshot, messages=messages)

    async def _referenced(self, references: Sequence[str]) -> list[ModelMessage]:
        wanted = dict.fromkeys(references)
        known = {each: self._recent[each] for each in wanted if each in self._recent}
        texts = dict(await self._texts([each for each in wanted if each not in known]))
        missing = [each for each in wanted if each not in known and each not in texts]
        if missing:
            problem = f"{len(missing)} of its messages are missing, the first is {missing[0]!r}"
            raise DamagedDocumentError(problem)
        whole = [await self._with_content(each) for each in texts.values()]
        self._recent = known | dict(zip(texts, load_messages(whole), strict=True))
        return [self._recent[each] for each in references]

    async def _text_of(self, document_id: object) -> str:
        async with self._reading("snapshots") as database:
            found = await database["snapshots"].find_one({"_id": document_id}, {"messages": 1})
        text = (found or {}).get("messages")
        if not isinstance(text, str):
            problem = f"messages: found {type(text).__name__} where text should be"
            raise DamagedDocumentError(problem)
        return text

    async def _texts(
        self, digests: Sequence[str], condition: Document | None = None
    ) -> list[tuple[str, str]]:
        """The stored messages of these digests whose text fits the condition."""
        found: list[tuple[str, str]] = []
        for start in range(0, len(digests), DOCUMENTS_A_BATCH):
            wanted = list(digests[start : start + DOCUMENTS_A_BATCH])
            query: Document = {"_id": {"$in": wanted}, "message": condition or {"$type": "string"}}
            async for page in self._find("snapshot_messages", query):
                found += [(each["_id"], each["message"]) for each in page]
        return found

    # Queries

    async def _find(
        self,
        collection: str,
        query: Document,
        fields: Document | None = None,
        *,
        sort: list[tuple[str, int]] | None = None,
        size: int = DOCUMENTS_A_BATCH,
    ) -> AsyncGenerator[list[Document]]:
        """The matching documents, in batches of up to `size`."""
        cursor = self._connection.database[collection].find(
            # Writing what a batch holds may take longer than the server keeps an idle cursor.
            query,
            fields,
            sort=sort,
            batch_size=size,
            no_cursor_timeout=True,
        )
        try:
            while True:
                async with self._reading(collection):
                    page = await cursor.to_list(size)
                if not page:
                    return
                yield page
        finally:
            await cursor.close()

    @asynccontextmanager
    async def _reading(
        self, what: str, *, within: float = READ_TIMEOUT_SECONDS
    ) -> AsyncGenerator[Database]:
        attempt = f"read {what}"
        try:
            # Not the driver's own timeout: with that it looks for a lost server all the time.
            async with asyncio.timeout(within):
                with store_errors(attempt, self.where):
                    yield self._connection.database
        except TimeoutError as error:
            msg = f"{attempt} on {self.where}: no answer within {within:.0f} s; retry"
            raise StoreUnavailableError(msg) from error


def _time_of(row: _Timed) -> datetime:
    return row.started_at if isinstance(row, ToolEffectRecord) else row.snapshot.timestamp


def _references_or_none(text: str) -> list[str] | None:
    try:
        return references_of(text)
    except DamagedDocumentError:  # found out when the snapshot is read
        return None


def _uris_or_none(text: str) -> list[str]:
    try:
        return external_uris(text)
    except DamagedDocumentError:  # found out when the snapshot is read
        return []


def _external(run_id: str, document_id: object, uri: str) -> Problem:
    return Problem(
        kind="external",
        collection="snapshots",
        document=str(document_id),
        run_id=run_id,
        problem=f"{uri}, content of its messages, is not in the source, and nothing of the run was "
        "imported; name the harness's media store with --media",
    )


def _orphan(collection: str, found: Document) -> Problem:
    run_id = found["_id"]
    return Problem(
        kind="damaged",
        collection=collection,
        document=str(found["first"]),
        run_id=run_id if isinstance(run_id, str) else None,
        problem="no run has the id that it names; this is the first of them",
    )
