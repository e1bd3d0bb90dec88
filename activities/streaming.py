"""The live text of a model request, written while the model speaks.

Nothing here fails, and nothing waits: a model activity goes on as if nobody listened. What cannot
be written is dropped, and readers take the answer from the record.
"""

import asyncio
import logging
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

from stores.errors import RedactionError
from stores.redactor import MASK, Redactor
from stores.streaming import StreamChunk, StreamItem, StreamItemKind, StreamStore, StreamTake

logger = logging.getLogger(__name__)

BETWEEN_FLUSHES = timedelta(milliseconds=25)
"""What a model says meanwhile goes into one write. The first word of all is written at once."""

LONGEST_WRITE = timedelta(seconds=5)
"""Of one flush; then it is tried again."""

LONGEST_DRAIN = timedelta(seconds=10)
"""After the model has ended; an outage that lasts longer costs the text that is not written."""

LARGEST_BACKLOG = 1_000_000
"""Characters that wait to be written, and the most of one document, which may have 16 MiB."""

DEFAULT_LIFETIME = timedelta(days=1)
"""How long live text is kept. Whoever reads later gets the answers alone."""

_flushes: set["asyncio.Task[None]"] = set()
"""The event loop itself holds no task alive."""


class StreamWriter:
    """Takes what a model says, and writes it in the background.

    Made and used in the worker's event loop, which the store's connections belong to.

    Args:
        take: the attempt that speaks.
        lifetime: how long the items are kept.
        redactor: masks the text; a word is then written when it has ended.
    """

    def __init__(
        self,
        store: StreamStore,
        take: StreamTake,
        *,
        lifetime: timedelta = DEFAULT_LIFETIME,
        redactor: Redactor | None = None,
    ) -> None:
        self._store = store
        self._take = take
        self._lifetime = lifetime
        self._redactor = redactor
        self._held = ""
        self._waiting: list[StreamItem] = []
        self._flushed: tuple[StreamItem, ...] = ()
        """What the newest flush holds, of which it is not known that it is written: it is repeated
        as it was, since it may have come through."""
        self._backlog = 0
        self._written = 0
        self._news = asyncio.Event()
        self._is_closed = False
        self._is_lost = False
        self.write("began")
        flush = asyncio.get_running_loop().create_task(self._flush())
        _flushes.add(flush)
        flush.add_done_callback(_flushes.discard)

    def write(self, kind: StreamItemKind, text: str = "") -> None:
        """Add an item. Returns at once, and never raises."""
        if self._redactor is None:
            self._add(kind, text)
            return
        self._held += text
        end = self._redactor.settled(self._held) if kind == "text" else len(self._held)
        told, self._held = self._held[:end], self._held[end:]
        if told:
            self._add("text", _masked(self._redactor, told))
        if kind != "text":
            self._add(kind)

    def _add(self, kind: StreamItemKind, text: str = "") -> None:
        if self._is_closed or self._is_lost:
            return
        self._backlog += len(text)
        if self._backlog > LARGEST_BACKLOG:
            self._lose("too much waits to be written")
            return
        self._waiting.append(StreamItem(kind=kind, text=text))
        self._news.set()

    def restart(self) -> None:
        """Take back what was said so far in this take, if anything was: another model begins."""
        self._held = ""
        if self._written + len(self._flushed) + len(self._waiting) > 1:
            self.write("restarted")

    def close(self, *, is_whole: bool) -> None:
        """Write what waits, in the background.

        Args:
            is_whole: the model has ended its response; else another attempt has to.
        """
        if is_whole:
            self.write("ended")
        self._is_closed = True
        self._news.set()

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        give_up_at: float | None = None
        while not self._is_lost:
            await self._news.wait()
            self._news.clear()
            if self._flushed or self._waiting:
                await self._write_out()
            if self._is_closed:
                if not (self._flushed or self._waiting):
                    return
                give_up_at = give_up_at or loop.time() + LONGEST_DRAIN.total_seconds()
                if loop.time() > give_up_at:
                    self._lose("the store is away")
            await asyncio.sleep(BETWEEN_FLUSHES.total_seconds())  # noqa: TID251 - an activity

    async def _write_out(self) -> None:
        if not self._flushed:
            self._flushed, self._waiting = tuple(self._waiting), []
        items = self._flushed
        chunk = StreamChunk(take=self._take, first=self._written, items=items)
        now = datetime.now(UTC)  # noqa: TID251 - activities are where the clock is read
        try:
            async with asyncio.timeout(LONGEST_WRITE.total_seconds()):
                await self._store.append(chunk, expires_at=now + self._lifetime)
        except Exception as error:  # noqa: BLE001 - no failure of the stream is one of the run
            logger.debug("A flush of run %r failed: %s", self._take.run_id, type(error).__name__)
            self._news.set()
            return
        self._flushed = ()
        self._written += len(items)
        self._backlog -= sum(len(item.text) for item in items)
        if self._waiting:
            self._news.set()

    def _lose(self, reason: str) -> None:
        """Write no more: a reader must not see text behind a gap."""
        self._is_lost = True
        self._waiting.clear()
        self._news.set()
        take = self._take
        logger.warning(
            "Live text of run %r, request %d, attempt %d is dropped: %s. The run is not affected",
            take.run_id,
            take.request,
            take.attempt,
            reason,
        )


def _masked(redactor: Redactor, text: str) -> str:
    try:
        return redactor.text(text)
    except RedactionError:  # the run hears of it when its answer is stored
        return MASK


current_stream: ContextVar[StreamWriter | None] = ContextVar("perdure_current_stream", default=None)
"""Set around the body of a model activity whose run streams."""
