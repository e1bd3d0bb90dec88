"""A turn's answer while it is given, for clients of Temporal: what its run says until it ends."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from stores.errors import RunNotFoundError
from stores.following import StreamEvent, follow_run, joined
from stores.protocols import StepStore

SOON = timedelta(seconds=2)
"""Within which a turn begins that waits for no other one."""

BETWEEN_LOOKS = timedelta(milliseconds=500)
"""For one that waits longer."""

LAST_WORDS = timedelta(seconds=2)
"""In which a run that ended may say so in its record; one that was terminated never does."""


async def live_events(
    store: StepStore, run_id: str, ended: "asyncio.Task[Any]"
) -> AsyncGenerator[StreamEvent]:
    """The events of `follow_run`, of a run that may have to wait for its turn.

    Args:
        store: the run's workspace.
        run_id: it may be registered any time from now on.
        ended: done when Temporal says that the run has ended, however it did; not awaited.

    Raises:
        StoreUnavailableError: what was said until then counts.
    """
    async with aclosing(_appearing(store, run_id)) as stream:
        coming: asyncio.Task[StreamEvent | None] | None = None
        try:
            while True:  # ends: with the run
                coming = coming or asyncio.ensure_future(anext(stream, None))
                await asyncio.wait([coming, ended], return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    await asyncio.wait([coming], timeout=LAST_WORDS.total_seconds())
                    if not coming.done():
                        return
                event, coming = coming.result(), None
                if event is None:
                    return
                yield event
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)


async def _appearing(store: StepStore, run_id: str) -> AsyncGenerator[StreamEvent]:
    within = SOON
    while True:  # ends: with the run, or by whoever reads it
        try:
            followed = follow_run(store, run_id, appears_within=within, is_streamed=True)
            async with aclosing(followed) as events:
                async for event in events:
                    yield event
        except RunNotFoundError:
            await asyncio.sleep(BETWEEN_LOOKS.total_seconds())  # noqa: TID251 - a client
            within = timedelta()
        else:
            return


class HeldReply:
    """A reply for a reader that only appends: its deltas are held back until they count.

    Until the run has ended, a tool call may follow, the output may be refused, or the attempt be
    lost: then the text so far is not of the reply.
    """

    def __init__(self) -> None:
        self._deltas: list[str] = []

    def take(self, event: StreamEvent) -> None:
        """Take the next event of the run."""
        if event.kind == "text":
            self._deltas.append(event.text)
        elif event.kind in {"step_text", "retry", "reset"}:
            counts = joined("", event)
            self._deltas = [counts] if counts else []

    def adds_up_to(self, output: str) -> bool:
        """Whether that is all that was said."""
        return "".join(self._deltas) == output

    def chunks(self, output: str) -> list[str]:
        """What was said of the reply, as the model gave it; whole if it does not add up to it."""
        return self._deltas if self.adds_up_to(output) else [output]
