"""Content on its way into a media store, going on when its caller gives up.

A commit has seconds, and a large blob may need more. So an upload outlives the attempt that began
it, and the next attempt in this process joins it instead of beginning again.
"""

import asyncio

from stores.media.markers import Blob
from stores.media.protocols import MediaStore


class Uploads:
    """The uploads of one process, shared by the store objects of all workspaces."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], asyncio.Task[str]] = {}

    async def put(self, store: MediaStore, uri: str, blob: Blob, *, workspace_id: str) -> None:
        """Return when the blob is in the store.

        Raises:
            StoreError: the store's. Another call begins again.
        """
        key = (workspace_id, uri)
        task = self._running.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = asyncio.create_task(store.put(blob.data, context=blob.context))
            self._running[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        await asyncio.shield(task)

    def _ended(self, key: tuple[str, str], task: asyncio.Task[str]) -> None:
        if self._running.get(key) is task:
            del self._running[key]
        if not task.cancelled():
            task.exception()  # or asyncio complains of an attempt that has given up

    async def cancel(self) -> None:
        """Give up all that is under way."""
        tasks = [each for each in self._running.values() if not each.get_loop().is_closed()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
