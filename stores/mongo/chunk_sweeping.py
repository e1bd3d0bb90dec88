"""Removing payloads that no history needs: mark, then sweep, beside running workers.

A manifest goes once Temporal knows no execution of its workflow id any more. Before any chunk goes,
all chunks of all manifests that are left are touched; a chunk that was not touched within the grace
period is needed by none. Writers touch what they write and what they believe to be stored, which
they believe for less than half of the shortest grace period.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import CodecOptions
from pymongo.asynchronous.cursor import AsyncCursor

from stores.chunks import ids_in
from stores.errors import StoreUnavailableError
from stores.mongo.chunks import CHUNKS, MANIFESTS, TOUCH
from stores.mongo.client import Database, MongoConnection
from stores.mongo.documents import Document
from stores.mongo.failures import store_errors

AT_ONCE = 1000

STEP_TIMEOUT_SECONDS = 60.0

IsNeeded = Callable[[str], Awaitable[bool]]
"""Whether Temporal still has an execution of this workflow id, open or within its retention."""

_AWARE_TIMES = CodecOptions[Document](tz_aware=True)


@dataclass(frozen=True, kw_only=True)
class ChunkSweep:
    """What a sweep of payloads removed so far, or would remove.

    Attributes:
        is_dry: nothing was removed.
        workflows: whose manifests were examined.
        manifests: those of workflows that Temporal knows no more.
        chunks: those that no manifest needs.
        size_bytes: of them, as they are stored.
    """

    is_dry: bool
    workflows: int = 0
    manifests: int = 0
    chunks: int = 0
    size_bytes: int = 0


class ChunkSweeper:
    """One sweep of the payloads of a database. It may be stopped and begun again."""

    def __init__(
        self, connection: MongoConnection, *, namespace: str, is_needed: IsNeeded, is_dry: bool
    ) -> None:
        """Ask about workflows of one namespace; those of others keep what they have."""
        self._connection = connection
        self._namespace = namespace
        self._is_needed = is_needed
        self._swept = ChunkSweep(is_dry=is_dry)
        self._cutoff = self._touch_before = datetime.min.replace(tzinfo=UTC)
        self._marked: set[bytes] = set()

    async def run(self, *, grace: timedelta) -> ChunkSweep:
        """Look at every manifest and every chunk once.

        Args:
            grace: what was written or touched within this time stays. Beside running workers more
                than twice `stores.payload_cache.KNOWN_FOR`.

        Raises:
            StoreError: MongoDB failed; what was removed until then is consistent.
            Exception: Temporal could not be asked; no chunk was removed.
        """
        with store_errors("sweep payloads", self._connection.where):
            await self._set_times(grace)
            async for workflow, manifests in self._workflows():
                await self._mark(await self._still_needed(workflow, manifests))
            await self._sweep()
        return self._swept

    @property
    def _database(self) -> Database:
        return self._connection.database

    async def _set_times(self, grace: timedelta) -> None:
        async with self._step():
            hello = await self._database.client.admin.command("hello", codec_options=_AWARE_TIMES)
        self._cutoff = hello["localTime"] - grace
        self._touch_before = hello["localTime"] - grace / 2

    # Manifests

    async def _workflows(self) -> AsyncGenerator[tuple[tuple[str, str], list[Document]]]:
        """Namespace and workflow id, with the manifests of it."""
        place: tuple[str, str] | None = None
        group: list[Document] = []
        async for page in self._pages():
            for manifest in page:
                its = (manifest["_id"]["namespace"], manifest["_id"]["workflow_id"])
                if place is not None and its != place:
                    yield place, group
                    group = []
                place = its
                group.append(manifest)
        if place is not None:
            yield place, group

    async def _still_needed(
        self, workflow: tuple[str, str], manifests: Sequence[Document]
    ) -> list[bytes]:
        """The roots of a workflow's payloads; manifests of one that is gone are removed."""
        self._swept = replace(self._swept, workflows=self._swept.workflows + 1)
        namespace, workflow_id = workflow
        old = [each["_id"] for each in manifests if each["touched_at"] < self._cutoff]
        gone: list[Document] = []
        if old and namespace == self._namespace and not await self._is_needed(workflow_id):
            gone = old
            self._swept = replace(self._swept, manifests=self._swept.manifests + len(gone))
            if not self._swept.is_dry:
                query = {"_id": {"$in": gone}, "touched_at": {"$lt": self._cutoff}}
                async with self._step():
                    await self._database[MANIFESTS].delete_many(query)
        # One that is touched in this moment stays; so do its chunks, which its writer has touched.
        kept = [each["_id"] for each in manifests if each["_id"] not in gone]
        return [bytes(each["root"]) for each in kept]

    # Chunks

    async def _mark(self, roots: Iterable[bytes]) -> None:
        """Touch all chunks of these trees."""
        seen: set[bytes] = set()
        level = set(roots)
        while level:
            seen |= level
            children: set[bytes] = set()
            ids = list(level)
            for start in range(0, len(ids), AT_ONCE):
                children |= await self._mark_some(ids[start : start + AT_ONCE])
            level = children - seen
        if self._swept.is_dry:
            self._marked |= seen

    async def _mark_some(self, ids: Sequence[bytes]) -> set[bytes]:
        """Touch these, and answer what they refer to."""
        chunks = self._database[CHUNKS]
        query: dict[str, Any] = {"_id": {"$in": list(ids)}}
        async with self._step():
            if not self._swept.is_dry:
                await chunks.update_many(
                    {**query, "touched_at": {"$lt": self._touch_before}}, TOUCH
                )
            nodes = await chunks.find({**query, "kind": "ids"}, {"data": 1}).to_list()
        return {child for each in nodes for child in ids_in(bytes(each["data"]))}

    async def _sweep(self) -> None:
        """Remove what was touched neither by a writer nor now."""
        chunks = self._database[CHUNKS]
        found = chunks.find(
            {"touched_at": {"$lt": self._cutoff}}, {"size_bytes": {"$bsonSize": "$$ROOT"}}
        )
        async with found:
            while page := await self._next(found):
                sizes = {bytes(each["_id"]): each["size_bytes"] for each in page}
                for marked in sizes.keys() & self._marked:
                    del sizes[marked]
                removed = len(sizes)
                if sizes and not self._swept.is_dry:
                    query = {"_id": {"$in": list(sizes)}, "touched_at": {"$lt": self._cutoff}}
                    async with self._step():
                        removed = (await chunks.delete_many(query)).deleted_count
                self._swept = replace(
                    self._swept,
                    chunks=self._swept.chunks + removed,
                    size_bytes=self._swept.size_bytes + sum(sizes.values()),
                )

    async def _next(self, found: AsyncCursor[Document]) -> list[Document]:
        async with self._step():
            return await found.to_list(AT_ONCE)

    async def _pages(self) -> AsyncGenerator[list[Document]]:
        """All manifests, in the order of their ids."""
        query: Document = {}
        while True:  # ends: each page begins behind the one before
            found = self._database[MANIFESTS].find(query).sort("_id", 1).limit(AT_ONCE)
            page = await self._next(found)
            if not page:
                return
            yield page
            query = {"_id": {"$gt": page[-1]["_id"]}}

    @asynccontextmanager
    async def _step(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(STEP_TIMEOUT_SECONDS):
                yield
        except TimeoutError as error:
            where, seconds = self._connection.where, f"{STEP_TIMEOUT_SECONDS:.0f} s"
            msg = f"sweep payloads on {where}: no answer within {seconds}; begin again"
            raise StoreUnavailableError(msg) from error
