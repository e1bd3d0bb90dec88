"""The worker's store as code in the body of an activity reaches it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from temporalio import activity

from stores.commits import Commit, CommitResult
from stores.errors import StoreError
from stores.protocols import StepStore
from stores.search.answering import search_history
from stores.search.query import HistoryQuery, SearchAnswer
from stores.search.source import SnapshotHistorySource

Answer = TypeVar("Answer")

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 2.0
"""Between two tries of a write; as long as between those of a boundary."""


async def when_store_is_back(
    write: Callable[[], Awaitable[Answer]], *, gives_up: Callable[[], bool] = lambda: False
) -> Answer:
    """What the write answers. A store that is away is waited for, as boundaries do.

    Args:
        write: may be tried again.
        gives_up: asked after each failure; then the error is raised.

    Raises:
        StoreError: it will not work later either, or nobody waits any more.
    """
    pause = FIRST_PAUSE_SECONDS
    while True:  # ends: when the store is back, or whoever waits for it gives up
        try:
            return await write()
        except StoreError as error:
            if not error.retryable or gives_up():
                raise
        await asyncio.sleep(pause)  # noqa: TID251 - an activity
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class WorkerStore:
    """The worker's store, from whatever thread the activity's body runs code in.

    Made in the worker's event loop, which the store's connections belong to: a tool that is no
    coroutine may start a loop of its own in its thread.
    """

    def __init__(self, store: StepStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()

    async def commit(self, commit: Commit) -> CommitResult:
        """See `StepStore.commit`. A store that is away is waited for, as boundaries do.

        Raises:
            StoreError: it will not work later either, or the activity was cancelled meanwhile.
        """
        return await when_store_is_back(
            lambda: self._in_its_loop(self._store.commit(commit)), gives_up=activity.is_cancelled
        )

    async def search(self, query: HistoryQuery) -> SearchAnswer:
        """Search what the store holds of its workspace.

        Raises:
            StoreError: the store is away, or the search cannot be made.
        """
        return await self._in_its_loop(search_history(SnapshotHistorySource(self._store), query))

    async def _in_its_loop(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        if asyncio.get_running_loop() is self._loop:
            return await call
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))
