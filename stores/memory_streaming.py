"""Live text in this process's memory."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from stores.streaming import StreamChunk, StreamItem, StreamTake, StreamWatch, following

Chunks = dict[tuple[str, StreamTake, int], StreamChunk]
"""By workspace, take and offset; shared by the objects of all workspaces."""


class PollingWatch:
    """`StreamWatch` of a store that tells nobody: look again after a pause."""

    def __init__(self, pause: timedelta) -> None:
        self._pause = pause

    async def changed(self, *, within: timedelta) -> None:
        """See `StreamWatch.changed`."""
        pause = min(self._pause, within)
        await asyncio.sleep(pause.total_seconds())  # noqa: TID251 - nothing tells us


POLLING_PAUSE = timedelta(milliseconds=20)
"""Between two looks into memory, which cost nothing."""


class InMemoryStreams:
    """`StreamStore` in memory. Nothing expires: such a store lives as long as its process."""

    def __init__(self, chunks: Chunks, *, workspace_id: str) -> None:
        self._chunks = chunks
        self._workspace_id = workspace_id

    async def append(self, chunk: StreamChunk, *, expires_at: datetime) -> None:  # noqa: ARG002 - see the class
        """See `StreamStore.append`."""
        self._chunks.setdefault((self._workspace_id, chunk.take, chunk.first), chunk)

    def _of_run(self, run_id: str) -> list[StreamChunk]:
        found = [
            chunk
            for (workspace_id, take, _), chunk in self._chunks.items()
            if workspace_id == self._workspace_id and take.run_id == run_id
        ]
        return sorted(found, key=lambda chunk: chunk.first)

    async def list_takes(self, *, run_id: str, request: int) -> list[StreamTake]:
        """See `StreamStore.list_takes`."""
        takes = {chunk.take for chunk in self._of_run(run_id) if chunk.take.request == request}
        return sorted(takes, key=lambda take: take.order)

    async def list_items(self, take: StreamTake, *, first: int = 0) -> list[StreamItem]:
        """See `StreamStore.list_items`."""
        return following([each for each in self._of_run(take.run_id) if each.take == take], first)

    @asynccontextmanager
    async def watch(self, run_id: str) -> AsyncGenerator[StreamWatch]:  # noqa: ARG002 - see `PollingWatch`
        """See `StreamStore.watch`."""
        yield PollingWatch(POLLING_PAUSE)

    async def delete_run(self, *, run_id: str) -> int:
        """See `StreamStore.delete_run`."""
        found = self._of_run(run_id)
        for chunk in found:
            del self._chunks[self._workspace_id, chunk.take, chunk.first]
        return len(found)
