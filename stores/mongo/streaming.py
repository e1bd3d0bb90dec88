"""Live text on MongoDB: one document a flush, which the server removes when it expires.

A reader is woken by a change stream, and reads what is new by an index: what it shows is never more
than what is stored, and a missed change costs it nothing but time.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta

from opentelemetry import metrics
from pymongo import WriteConcern
from pymongo.asynchronous.change_stream import AsyncDatabaseChangeStream
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern

from stores.memory_streaming import PollingWatch
from stores.mongo.client import MongoConnection
from stores.mongo.documents import Document
from stores.mongo.failures import store_errors
from stores.paging import microseconds, time_at
from stores.streaming import StreamChunk, StreamItem, StreamTake, StreamWatch, following
from telemetry_names import STREAM_LAG

_LAG = metrics.get_meter("perdure").create_histogram(
    STREAM_LAG.name, unit=STREAM_LAG.unit, description=STREAM_LAG.help
)

_LOGGER = logging.getLogger(__name__)

STREAMS = "stream_chunks"

POLLING_PAUSE = timedelta(milliseconds=50)
"""Between two looks where the server offers no change streams, or not to this user."""

LONGEST_AWAIT_MS = 250
"""Of one question for changes, which the server answers when there is one: a reader that is to
look again earlier is late by so much at most."""

UNWAITED = WriteConcern(w=1)
UNCONFIRMED = ReadConcern("local")
"""Enough for what may be lost: readers compare with the record at the end."""


class MongoStreams:
    """`StreamStore` on MongoDB."""

    def __init__(self, connection: MongoConnection, *, workspace_id: str) -> None:
        self._connection = connection
        self._workspace_id = workspace_id

    async def append(self, chunk: StreamChunk, *, expires_at: datetime) -> None:
        """See `StreamStore.append`."""
        place = self._place(chunk.take)
        document: Document = {
            "_id": {**place, "first": chunk.first},
            **place,
            "first": chunk.first,
            "items": [[item.kind, item.text] for item in chunk.items],
            "written_at": microseconds(_now()),
            "expires_at": expires_at,
        }
        with self._errors("write the stream", chunk.take.run_id):
            try:
                await self._chunks.insert_one(document)
            except DuplicateKeyError:  # an earlier try came through, and only its answer was lost
                return

    async def list_takes(self, *, run_id: str, request: int) -> list[StreamTake]:
        """See `StreamStore.list_takes`."""
        query = {
            "run_id": run_id,
            "request": request,
            "first": 0,
            "workspace_id": self._workspace_id,
        }
        with self._errors("read the stream", run_id):
            found = await self._chunks.find(query, {"items": False}).to_list()
        return sorted(map(_take, found), key=lambda take: take.order)

    async def list_items(self, take: StreamTake, *, first: int = 0) -> list[StreamItem]:
        """See `StreamStore.list_items`."""
        query = {**self._place(take), "first": {"$gte": first}}
        with self._errors("read the stream", take.run_id):
            found = await self._chunks.find(query, sort=[("first", 1)]).to_list()
        if first:  # a reader that begins is not late, whatever it finds
            _record_lag(found)
        return following([_chunk(each, take) for each in found], first)

    @asynccontextmanager
    async def watch(self, run_id: str) -> AsyncGenerator[StreamWatch]:
        """See `StreamStore.watch`. Where there are no change streams, it polls."""
        with self._errors("watch", run_id):
            changes = await self._open(run_id)
        if changes is None:
            yield PollingWatch(POLLING_PAUSE)
            return
        try:
            yield _ChangeWatch(changes)
        finally:
            await changes.close()

    async def _open(self, run_id: str) -> AsyncDatabaseChangeStream[Document] | None:
        match = {
            "operationType": "insert",
            "ns.coll": {"$in": [STREAMS, "events"]},
            "fullDocument.run_id": run_id,
        }
        pipeline: list[Document] = [{"$match": match}, {"$project": {"ns": 1}}]
        try:
            return await self._connection.database.watch(
                pipeline, max_await_time_ms=LONGEST_AWAIT_MS
            )
        except PyMongoError as error:
            _LOGGER.info("no change stream for run %r (%s); it is polled", run_id, error)
            return None

    async def delete_run(self, *, run_id: str) -> int:
        """See `StreamStore.delete_run`."""
        query = {"run_id": run_id, "workspace_id": self._workspace_id}
        with self._errors("delete the stream", run_id):
            return (await self._chunks.delete_many(query)).deleted_count

    @property
    def _chunks(self) -> AsyncCollection[Document]:
        return self._connection.database.get_collection(
            STREAMS, write_concern=UNWAITED, read_concern=UNCONFIRMED
        )

    def _place(self, take: StreamTake) -> Document:
        return {
            "run_id": take.run_id,
            "request": take.request,
            "part": take.part,
            "branch": take.branch,
            "attempt": take.attempt,
            "started_at": microseconds(take.started_at),
            "workspace_id": self._workspace_id,
        }

    def _errors(self, attempt: str, run_id: str) -> AbstractContextManager[None]:
        return store_errors(f"{attempt} of run {run_id!r}", self._connection.where)


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - outside workflow code


def _record_lag(found: list[Document]) -> None:
    now = _now()
    for written_at in filter(None, (each.get("written_at") for each in found)):
        _LAG.record(max((now - time_at(written_at)).total_seconds(), 0))


class _ChangeWatch:
    """`StreamWatch` by a change stream; when that breaks, it polls."""

    def __init__(self, changes: AsyncDatabaseChangeStream[Document]) -> None:
        self._changes = changes
        self._polling = PollingWatch(POLLING_PAUSE)
        self._is_broken = False

    async def changed(self, *, within: timedelta) -> None:
        """See `StreamWatch.changed`."""
        if self._is_broken:
            await self._polling.changed(within=within)
            return
        deadline = asyncio.get_running_loop().time() + within.total_seconds()
        try:
            while await self._changes.try_next() is None:  # waits on the server
                if asyncio.get_running_loop().time() > deadline:
                    return
        except PyMongoError as error:
            _LOGGER.info("a change stream broke (%s); its run is polled", error)
            self._is_broken = True


def _take(document: Document) -> StreamTake:
    return StreamTake(
        run_id=document["run_id"],
        branch=document["branch"],
        request=document["request"],
        part=document["part"],
        attempt=document["attempt"],
        started_at=time_at(document["started_at"]),
    )


def _chunk(document: Document, take: StreamTake) -> StreamChunk:
    items = tuple(StreamItem(kind=kind, text=text) for kind, text in document["items"])
    return StreamChunk(take=take, first=document["first"], items=items)
