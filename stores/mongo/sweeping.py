"""Removing messages and media that nothing refers to: mark and sweep, page by page.

Workers may run meanwhile.

Two things keep a message that a worker is about to refer to. A commit that names one writes it in
the same transaction, were it only its `touched_at`, so it and a removal at that moment cannot both
succeed. And the removal looks again, inside its transaction: at the time, and at all sources.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from bson import CodecOptions
from pymongo.asynchronous.client_session import AsyncClientSession

from stores.errors import StoreUnavailableError
from stores.mongo.client import MongoConnection
from stores.mongo.documents import Document
from stores.mongo.failures import store_errors
from stores.mongo.leftovers import (
    RunPlace,
    View,
    count_leftovers,
    delete_leftovers,
    runs_with_leftovers,
)
from stores.mongo.media_sweeping import MediaSweeper
from stores.mongo.references import unreferred
from stores.mongo.transactions import run_transaction
from stores.paging import microseconds

MESSAGES_AT_ONCE = 1000

_AWARE_TIMES = CodecOptions[Document](tz_aware=True)

STEP_TIMEOUT_SECONDS = 60.0
"""For one page: a server that hangs must not hold a sweep for ever."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a sweep removed so far, or would remove.

    Attributes:
        is_dry: nothing was removed.
        looked_at: messages that were examined.
        stored: about how many there are.
        messages: those that nothing refers to.
        size_bytes: of them.
        positions: places in runs' logs that only pruned snapshots named.
        media: blobs that no message names, those of messages that would go not counted; and what
            uploads that broke off have left.
        media_size_bytes: of them.
    """

    is_dry: bool
    looked_at: int = 0
    stored: int = 0
    messages: int = 0
    size_bytes: int = 0
    positions: int = 0
    media: int = 0
    media_size_bytes: int = 0


Tell = Callable[[Sweep], None]
"""Hears how far a sweep has come, after each page."""


class Sweeper:
    """One sweep of a database. It may be stopped at any page and begun again."""

    def __init__(
        self, connection: MongoConnection, *, workspace_id: str | None, is_dry: bool
    ) -> None:
        """Sweep one workspace, or all of them for `None`."""
        self._connection = connection
        self._workspace_id = workspace_id
        self._swept = Sweep(is_dry=is_dry)

    async def run(self, *, grace: timedelta, tell: Tell) -> Sweep:
        """Look at every message once.

        Args:
            grace: what was written, pruned or ended within this time stays.
            tell: hears of progress.

        Raises:
            ValueError: the grace period is negative.
            StoreError: MongoDB failed; what was removed until then is consistent.
        """
        if grace < timedelta():
            msg = f"the grace period is {grace}; pass none or a positive one"
            raise ValueError(msg)
        with store_errors("sweep messages", self._connection.where):
            return await self._run(grace, tell)

    async def _run(self, grace: timedelta, tell: Tell) -> Sweep:
        view = await self._view(grace)
        async for place in runs_with_leftovers(view, self._workspace_id):
            await self._sweep_run(view, place)
            tell(self._swept)
        after = ""
        while digests := await self._page(view, after):
            await self._sweep_messages(view, digests)
            tell(self._swept)
            after = digests[-1]
        media = MediaSweeper(self._connection, workspace_id=self._workspace_id, step=self._step)
        async for count, size_bytes in media.run(view):
            self._swept = replace(
                self._swept,
                media=self._swept.media + count,
                media_size_bytes=self._swept.media_size_bytes + size_bytes,
            )
            tell(self._swept)
        return self._swept

    async def _view(self, grace: timedelta) -> View:
        async with self._step():
            database = self._connection.database
            hello = await database.client.admin.command("hello", codec_options=_AWARE_TIMES)
            stored = await database["messages"].estimated_document_count()
        self._swept = replace(self._swept, stored=stored)
        now = microseconds(hello["localTime"])
        cutoff = now - grace // timedelta(microseconds=1)
        return View(database=database, cutoff=cutoff, now=now, is_dry=self._swept.is_dry)

    @asynccontextmanager
    async def _step(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(STEP_TIMEOUT_SECONDS):
                yield
        except TimeoutError as error:
            where, seconds = self._connection.where, f"{STEP_TIMEOUT_SECONDS:.0f} s"
            msg = f"sweep messages on {where}: no answer within {seconds}; begin again"
            raise StoreUnavailableError(msg) from error

    # Positions

    async def _sweep_run(self, view: View, place: RunPlace) -> None:
        if view.is_dry:
            async with self._step():
                count = await count_leftovers(view, place)
            self._swept = replace(self._swept, positions=self._swept.positions + count)
            return
        start: int | None = 0
        while start is not None:
            count, start = await self._delete_positions(view, place, start)
            self._swept = replace(self._swept, positions=self._swept.positions + count)

    async def _delete_positions(
        self, view: View, place: RunPlace, start: int
    ) -> tuple[int, int | None]:
        async def work(session: AsyncClientSession) -> tuple[int, int | None]:
            return await delete_leftovers(replace(view, session=session), place, start)

        async with self._step():
            return await run_transaction(self._connection.client(), work)

    # Messages

    async def _page(self, view: View, after: str) -> list[str]:
        """The next digests; the index alone answers."""
        found = view.database["messages"].find({"_id": {"$gt": after}}, {"_id": 1})
        async with self._step():
            page = await found.sort("_id", 1).limit(MESSAGES_AT_ONCE).to_list()
        return [each["_id"] for each in page]

    async def _sweep_messages(self, view: View, digests: Sequence[str]) -> None:
        async with self._step():
            sizes = await self._removable(view, digests)
        if sizes and not view.is_dry:
            sizes = await self._delete_messages(view, list(sizes))
        self._swept = replace(
            self._swept,
            looked_at=self._swept.looked_at + len(digests),
            messages=self._swept.messages + len(sizes),
            size_bytes=self._swept.size_bytes + sum(sizes.values()),
        )

    async def _removable(self, view: View, digests: Sequence[str]) -> dict[str, int]:
        """The messages of these that may go, with the bytes of each."""
        left = await unreferred(view, digests)
        if not left:
            return {}
        wanted: Document = {"_id": {"$in": left}, "touched_at": {"$lt": view.cutoff}}
        if self._workspace_id is not None:
            wanted["workspace_id"] = self._workspace_id
        pipeline: list[dict[str, Any]] = [
            {"$match": wanted},
            {"$project": {"size_bytes": {"$bsonSize": "$$ROOT"}}},
        ]
        found = await view.database["messages"].aggregate(pipeline, session=view.session)
        return {each["_id"]: each["size_bytes"] async for each in found}

    async def _delete_messages(self, view: View, digests: Sequence[str]) -> dict[str, int]:
        async def work(session: AsyncClientSession) -> dict[str, int]:
            sizes = await self._removable(replace(view, session=session), digests)
            await view.database["messages"].delete_many(
                {"_id": {"$in": list(sizes)}, "touched_at": {"$lt": view.cutoff}}, session=session
            )
            return sizes

        async with self._step():
            return await run_transaction(self._connection.client(), work)
