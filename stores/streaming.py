"""Live text of a run: what a model has said of its answer so far.

It is beside the record, never part of it: rows go away after a while, and a run neither waits for
them nor fails for them. What was said in the end is in the snapshots.
"""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Protocol

StreamItemKind = Literal["began", "text", "step_text", "restarted", "ended"]
"""What a model activity says: `began`, always first; `text`, a delta as the model gave it;
`step_text`, a mark: the text since the last mark is not of the reply; `restarted`: another model
takes over, and the text is void; `ended`: the response is whole."""


@dataclass(frozen=True, kw_only=True)
class StreamTake:
    """One attempt at one model request.

    `request` is the sequence of its `model_request_started`, so takes and events have one order.
    `part` counts the activities of a request: a model may pause its turn. `started_at` is the
    server's: the newest take of a part counts, also after a reset.
    """

    run_id: str
    branch: str
    request: int
    part: int = 0
    attempt: int = 1
    started_at: datetime

    @property
    def order(self) -> tuple[int, datetime, int]:
        """Sort key among the takes of a request: parts as they follow, the newest take last."""
        return (self.part, self.started_at, self.attempt)


@dataclass(frozen=True, kw_only=True)
class StreamItem:
    """One thing that a take says; its place in the take is its offset there."""

    kind: StreamItemKind
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class StreamChunk:
    """Items that were written at once; `first` is the offset of the first one."""

    take: StreamTake
    first: int
    items: tuple[StreamItem, ...]


class StreamWatch(Protocol):
    """Hears of what is written of one run."""

    async def changed(self, *, within: timedelta) -> None:
        """Return when there may be something new, at the latest after that time."""
        ...


class StreamStore(Protocol):
    """The live text of one workspace's runs.

    Errors of every method: `StoreUnavailableError` (retryable) when no server could be reached.
    """

    async def append(self, chunk: StreamChunk, *, expires_at: datetime) -> None:
        """Write items; they may be gone any time after `expires_at`.

        Repeats: a chunk of the same take and offset changes nothing.
        """
        ...

    async def list_takes(self, *, run_id: str, request: int) -> list[StreamTake]:
        """The takes of one request in their order; empty when nothing was streamed, or is left."""
        ...

    async def list_items(self, take: StreamTake, *, first: int = 0) -> list[StreamItem]:
        """The take's items from `first` on, up to the first one that is missing.

        Args:
            first: 0, or the offset where an earlier answer ended.
        """
        ...

    def watch(self, run_id: str) -> AbstractAsyncContextManager[StreamWatch]:
        """Hear of new items and events of the run, from when the context is entered."""
        ...

    async def delete_run(self, *, run_id: str) -> int:
        """Remove all of a run's items; returns how many chunks there were."""
        ...


def following(chunks: list[StreamChunk], first: int) -> list[StreamItem]:
    """The items from `first` on without a gap, of a take's chunks in order."""
    items: list[StreamItem] = []
    for chunk in chunks:
        due = first + len(items) - chunk.first
        if due < 0:
            break
        items += chunk.items[due:]
    return items
