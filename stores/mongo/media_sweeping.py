"""Removing media that no message names: after the messages, in the same sweep.

A put of a blob that is there makes its manifest young again, and a commit refuses to name one that
is not young, so what a sweep finds old is named by nobody who is under way. It looks again, inside
the transaction that removes manifest and chunks.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo.asynchronous.client_session import AsyncClientSession

from stores.mongo.client import MongoConnection
from stores.mongo.documents import SERVER_TIME, Document
from stores.mongo.leftovers import View
from stores.mongo.media import REFRESHED_AFTER_MICROSECONDS
from stores.mongo.references import MEDIA_SOURCES, unreferred
from stores.mongo.transactions import run_transaction
from stores.paging import time_at

MEDIA_AT_ONCE = 100
"""Blobs of one transaction: each has chunks that go with it."""

UPLOAD_TIME = timedelta(days=1)
"""How long an upload may take until it counts as one that broke off."""

YOUNGEST = timedelta(microseconds=3 * REFRESHED_AFTER_MICROSECONDS)

Step = Callable[[], AbstractAsyncContextManager[None]]
"""Bounds the time of one page."""

Removed = tuple[int, int]
"""How many, and their bytes."""


class MediaSweeper:
    """The part of a sweep that looks at media; `None` sweeps all workspaces."""

    def __init__(
        self,
        connection: MongoConnection,
        *,
        workspace_id: str | None,
        step: Step,
        youngest: timedelta = YOUNGEST,
    ) -> None:
        """Leave what was put within `youngest`: less, only while nobody writes."""
        self._youngest = youngest
        self._connection = connection
        self._workspace_id = workspace_id
        self._step = step

    async def run(self, view: View) -> AsyncGenerator[Removed]:
        """What was removed, or would be, page by page."""
        after = ""
        while media := await self._page(view, after):
            yield await self.sweep(view, media)
            after = media[-1]
        if self._workspace_id is None:  # a chunk tells no workspace
            first: ObjectId | None = None
            while uploads := await self._uploads(view, first):
                yield await self._sweep_uploads(view, uploads)
                first = uploads[-1]

    async def _page(self, view: View, after: str) -> list[str]:
        found = view.database["media"].find({"_id": {"$gt": after}}, {"_id": 1})
        async with self._step():
            page = await found.sort("_id", 1).limit(MEDIA_AT_ONCE).to_list()
        return [each["_id"] for each in page]

    async def sweep(self, view: View, media: Sequence[str]) -> Removed:
        """Remove those of these that no message names, and that are old enough."""
        async with self._step():
            found = await self._removable(view, media)
        if found and not view.is_dry:
            found = await self._delete(view, [each["_id"] for each in found])
        return len(found), sum(each["size_bytes"] for each in found)

    async def _removable(self, view: View, media: Sequence[str]) -> list[Document]:
        """The manifests of these that may go."""
        left = await unreferred(view, media, MEDIA_SOURCES)
        if not left:
            return []
        youngest = {"$subtract": [SERVER_TIME, self._youngest // timedelta(microseconds=1)]}
        wanted: Document = {
            "_id": {"$in": left},
            "touched_at": {"$lt": view.cutoff},
            "$expr": {"$lt": ["$touched_at", youngest]},
        }
        if self._workspace_id is not None:
            wanted["workspace_id"] = self._workspace_id
        fields = {"files_id": 1, "size_bytes": 1}
        found = view.database["media"].find(wanted, fields, session=view.session)
        return await found.to_list()

    async def _delete(self, view: View, media: Sequence[str]) -> list[Document]:
        async def work(session: AsyncClientSession) -> list[Document]:
            found = await self._removable(replace(view, session=session), media)
            files = [each["files_id"] for each in found]
            ids = [each["_id"] for each in found]
            await view.database["media"].delete_many(
                {"_id": {"$in": ids}, "touched_at": {"$lt": view.cutoff}}, session=session
            )
            await view.database["media_chunks"].delete_many(
                {"files_id": {"$in": files}}, session=session
            )
            return found

        async with self._step():
            return await run_transaction(self._connection.client(), work)

    # Uploads that broke off

    async def _uploads(self, view: View, after: ObjectId | None) -> list[ObjectId]:
        """The next uploads that are old enough; the index alone answers."""
        began_before = min(time_at(view.cutoff), time_at(view.now) - UPLOAD_TIME)
        oldest = ObjectId.from_datetime(max(began_before, datetime(1970, 1, 2, tzinfo=UTC)))
        wanted: Document = {"files_id": {"$lt": oldest}, "n": 0}
        if after is not None:
            wanted["files_id"]["$gt"] = after
        found = view.database["media_chunks"].find(wanted, {"_id": 0, "files_id": 1})
        async with self._step():
            page = await found.sort("files_id", 1).limit(MEDIA_AT_ONCE).to_list()
        return [each["files_id"] for each in page]

    async def _sweep_uploads(self, view: View, uploads: Sequence[ObjectId]) -> Removed:
        manifests, chunks = view.database["media"], view.database["media_chunks"]
        async with self._step():
            named = await manifests.distinct("files_id", {"files_id": {"$in": list(uploads)}})
            forsaken = [each for each in uploads if each not in set(named)]
            pipeline: list[dict[str, Any]] = [
                {"$match": {"files_id": {"$in": forsaken}}},
                {"$group": {"_id": None, "size_bytes": {"$sum": {"$binarySize": "$data"}}}},
            ]
            sizes = await (await chunks.aggregate(pipeline)).to_list() if forsaken else []
            if forsaken and not view.is_dry:
                await chunks.delete_many({"files_id": {"$in": forsaken}})
        return len(forsaken), sum(each["size_bytes"] for each in sizes)
