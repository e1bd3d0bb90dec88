"""A run's live stream, put together: what its model says, and what its tools do.

Text comes from the live stream (`stores.streaming`), everything else from the run's event rows; at
the end the text is compared with the stored answer, and put right where they differ. So a reader
who joins the pieces has what is stored, whatever happened to the stream on the way.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    NativeToolCallPart,
    TextPart,
    ToolCallPart,
)

from stores.errors import RunNotFoundError
from stores.offsets import BRANCH_LENGTH, StreamOffset
from stores.paging import microseconds
from stores.protocols import StepStore
from stores.records import RunRecord, StepEvent
from stores.streaming import StreamItem, StreamTake

StreamEventKind = Literal[
    "text",
    "step_text",
    "retry",
    "reset",
    "tool_call_started",
    "tool_call_completed",
    "tool_call_failed",
    "run_completed",
    "run_failed",
]
"""`text`: a delta as the model gave it. `step_text`: the text so far, which `text` repeats, was
said on the way to something else and is not of the reply. `retry`: the text so far is void, and
`text` holds what counts instead, mostly nothing. `reset`: the run was taken back in time, and
everything is told again from its start."""

TOOL_EVENTS = frozenset({"tool_call_started", "tool_call_completed", "tool_call_failed"})
LAST_EVENTS = frozenset({"run_completed", "run_failed"})

LONGEST_WAIT = timedelta(seconds=2)
"""Between two looks where nothing was heard."""

ENDED_WITHIN = timedelta(seconds=1)
"""The end of a response is written beside the run, which may be a little faster."""


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    """One thing that a reader is told; `offset` is where to go on after it."""

    offset: str
    kind: StreamEventKind
    text: str = ""
    step_index: int | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    error: str | None = None


def joined(reply: str, event: StreamEvent) -> str:
    """The reply so far, after this event. Over all events of a run it is the stored reply."""
    match event.kind:
        case "text":
            return reply + event.text
        case "retry":
            return event.text
        case "step_text" | "reset":
            return ""
        case _:
            return reply


def reply_text(messages: list[ModelMessage]) -> str:
    """The text of the last response, as pydantic-ai takes it for the output; else nothing.

    Text in front of a provider's own tool call is of the reply only when none comes after it.
    """
    last = messages[-1] if messages else None
    if not isinstance(last, ModelResponse):
        return ""
    text = before_call = ""
    for part in last.parts:
        match part:
            case TextPart(content=content):
                text += content
            case NativeToolCallPart():
                before_call, text = text or before_call, ""
            case ToolCallPart():
                return ""
            case _:
                pass
    return text or before_call


async def follow_run(
    store: StepStore,
    run_id: str,
    *,
    after: str | None = None,
    appears_within: timedelta = timedelta(),
    is_streamed: bool = False,
) -> AsyncGenerator[StreamEvent]:
    """What the run says and does, from its start or from behind an offset, until it ends.

    Shape: each delta once and in order; with `joined` the text adds up to the stored reply, also
    of a run that did not stream, whose reply comes in one piece. A run that somebody terminated
    records no end: whoever follows one asks Temporal, too.
    Repeats: the same offset gives the same events again, or tells with `retry` what counts.

    Args:
        store: the reader's workspace.
        after: `offset` of the last event that was read.
        appears_within: how long a run that is not there yet may take to be registered.
        is_streamed: the run is known to stream, so even a first word that is late is waited for.

    Raises:
        RunNotFoundError: the workspace has no such run. Not retryable.
        InvalidOffsetError: `after` is none. Not retryable.
        StoreUnavailableError: go on with the last offset when the store is back.
    """
    place = None if after is None else StreamOffset.parse(after)
    follower = _Follower(store, run_id, place, is_streamed=is_streamed)
    async with store.streams.watch(run_id) as watch:
        await _appearance(store, run_id, appears_within)
        while True:  # ends: with the run
            async with aclosing(follower.look()) as events:
                async for event in events:
                    yield event
            if follower.is_over:
                return
            await watch.changed(within=follower.patience)


async def _appearance(store: StepStore, run_id: str, within: timedelta) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within.total_seconds()
    while await store.get_run(run_id=run_id) is None:
        if loop.time() >= deadline:
            raise RunNotFoundError(run_id, store.workspace_id)
        await asyncio.sleep(_BETWEEN_LOOKS.total_seconds())  # noqa: TID251 - a reader, no workflow


_BETWEEN_LOOKS = timedelta(milliseconds=20)
"""For a run that is not there yet: it takes a hundred from submit to registration."""


class _Follower:
    """What one reader has been told.

    It goes through event rows in order. At a `model_request_started` it stays with the items of
    that request until the row that ends it is there.
    """

    def __init__(
        self, store: StepStore, run_id: str, after: StreamOffset | None, *, is_streamed: bool
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._is_streamed = is_streamed
        self._was_live = False
        """Whether the run was seen before it ended: what it said last may still be on its way."""
        self._after = after
        self._is_placed = after is None
        self._is_unsure = after is not None and after.is_item
        """Whether the reader has text that was not seen here."""
        self.is_over = False
        self.patience = LONGEST_WAIT
        self._begin(-1)

    def _begin(self, sequence: int) -> None:
        """Go on behind that row."""
        self._sequence = sequence
        self._branch: str | None = None
        self._request: StepEvent | None = None
        self._parts: dict[int, _Part] = {}
        self._ended_by: float | None = None

    @property
    def _reply(self) -> str:
        return "".join(part.text for part in self._parts.values())

    async def look(self) -> AsyncGenerator[StreamEvent]:
        """What is new."""
        async for offset, event in self._look():
            is_new = self._after is None or offset.order > self._after.order
            if is_new and event.kind in {"step_text", "retry"}:
                self._is_unsure = False
            if is_new:
                yield event
            elif self._after is not None and offset.order == self._after.order:
                self._is_unsure = False

    async def _look(self) -> AsyncGenerator[tuple[StreamOffset, StreamEvent]]:
        run, rows = await self._read()
        if run is None:
            return
        self._was_live = self._was_live or run.ended_at is None
        if not self._is_placed:
            self._place(run, rows)
            run, rows = await self._read()
        if run is not None and self._is_taken_back(run):
            self._after, self._is_unsure = None, False
            self._begin(-1)
            yield self._event(StreamOffset(sequence=-1), "reset")
            run, rows = await self._read()
        self.patience = LONGEST_WAIT
        for row in rows:
            async for told in self._say():
                yield told
            if self._was_live and self._may_say_more(row):
                return
            self._request = None
            async for told in self._tell(row):
                yield told
            self._sequence, self._branch = row.sequence, row.branch
        async for told in self._say():
            yield told

    async def _read(self) -> tuple[RunRecord | None, list[StepEvent]]:
        """The run, and its rows behind those that were gone through.

        The run is the newer of the two, so that no row behind a reset is taken for the next one.
        """
        rows = await self._store.list_events(run_id=self._run_id, after=self._sequence)
        return await self._store.get_run(run_id=self._run_id), rows

    def _place(self, run: RunRecord, rows: list[StepEvent]) -> None:
        """Begin at the last request up to the reader's offset: its text is built up from there."""
        after, self._is_placed = self._after, True
        if after is None or after.sequence < 0:
            return
        requests = [
            row.sequence
            for row in rows
            if row.kind == "model_request_started" and row.sequence <= after.sequence
        ]
        self._begin(max(requests, default=0) - 1)
        if not _branch_at(run, after.sequence).endswith(after.branch):
            self._sequence, self._branch = after.sequence, _NO_BRANCH

    def _is_taken_back(self, run: RunRecord) -> bool:
        return self._branch is not None and _branch_at(run, self._sequence) != self._branch

    def _may_say_more(self, row: StepEvent) -> bool:
        """Whether the end of the response may still come, although the run goes on already."""
        newest = self._parts[max(self._parts)] if self._parts else None
        is_whole = not self._is_streamed if newest is None else newest.is_whole
        if row.kind != "model_request_completed" or is_whole:
            return False
        now = asyncio.get_running_loop().time()
        self._ended_by = self._ended_by or now + ENDED_WITHIN.total_seconds()
        self.patience = max(timedelta(seconds=self._ended_by - now), timedelta())
        return now < self._ended_by

    # Event rows

    async def _tell(self, row: StepEvent) -> AsyncIterator[tuple[StreamOffset, StreamEvent]]:
        at = StreamOffset(sequence=row.sequence, branch=row.branch[-BRANCH_LENGTH:])
        if row.kind == "model_request_started":
            if self._reply or self._is_unsure:
                yield self._event(at, "step_text", text=self._reply)
            self._begin(self._sequence)
            self._request = row
        elif row.kind in TOOL_EVENTS:
            yield self._event(at, cast("StreamEventKind", row.kind), row=row)
        elif row.kind in LAST_EVENTS:
            self.is_over = True
            if row.kind == "run_completed":
                async for told in self._put_right(at):
                    yield told
            yield self._event(_next(at), cast("StreamEventKind", row.kind), row=row)

    async def _put_right(self, at: StreamOffset) -> AsyncIterator[tuple[StreamOffset, StreamEvent]]:
        """Tell of the stored reply what the stream lacks."""
        snapshot = await self._store.latest_snapshot(run_id=self._run_id, include_interrupted=True)
        stored, said = reply_text(snapshot.messages if snapshot else []), self._reply
        if self._is_unsure or not stored.startswith(said):
            yield self._event(at, "retry", text=stored)
        elif stored != said:
            yield self._event(at, "text", text=stored[len(said) :])

    # Items

    async def _say(self) -> AsyncIterator[tuple[StreamOffset, StreamEvent]]:
        request, streams = self._request, self._store.streams
        if request is None:
            return
        takes = await streams.list_takes(run_id=self._run_id, request=request.sequence)
        for number, take in {take.part: take for take in takes}.items():
            part = self._parts.get(number)
            if part is None or part.take != take:
                is_again = part is not None or self._has_read_another(take)
                part = self._parts[number] = _Part(take=take, is_again=is_again)
            if part.is_whole:
                continue
            for item in await streams.list_items(take, first=part.count):
                at = StreamOffset(
                    sequence=take.request,
                    part=number,
                    started=microseconds(take.started_at),
                    index=part.count,
                    branch=request.branch[-BRANCH_LENGTH:],
                )
                part.count += 1
                for told in self._say_item(at, part, item):
                    yield told

    def _has_read_another(self, take: StreamTake) -> bool:
        """Whether the reader comes with an offset in an earlier attempt at the same."""
        after = self._after
        return (
            after is not None
            and (after.sequence, after.part) == (take.request, take.part)
            and after.started != microseconds(take.started_at)
        )

    def _say_item(
        self, at: StreamOffset, part: "_Part", item: StreamItem
    ) -> list[tuple[StreamOffset, StreamEvent]]:
        match item.kind:
            case "text":
                part.text += item.text
                return [self._event(at, "text", text=item.text)]
            case "step_text":
                said = self._reply
                for each in self._parts.values():
                    each.text = ""
                return [self._event(at, "step_text", text=said)]
            case "ended":
                part.is_whole = True
                return []
            case "began" if not part.is_again:
                return []
            case _:
                part.text = ""
                return [self._event(at, "retry", text=self._reply)]

    def _event(
        self,
        at: StreamOffset,
        kind: StreamEventKind,
        *,
        text: str = "",
        row: StepEvent | None = None,
    ) -> tuple[StreamOffset, StreamEvent]:
        event = StreamEvent(
            offset=str(at),
            kind=kind,
            text=text,
            step_index=row.step_index if row else None,
            tool_name=row.tool_name if row else None,
            tool_call_id=row.tool_call_id if row else None,
            error=row.error if row else None,
        )
        return at, event


@dataclass(kw_only=True)
class _Part:
    """What was told of one take."""

    take: StreamTake
    is_again: bool
    count: int = 0
    text: str = ""
    is_whole: bool = False


_NO_BRANCH = "~"
"""No execution is called so: what was read on a branch that is gone was taken back."""


def _next(at: StreamOffset) -> StreamOffset:
    return StreamOffset(sequence=at.sequence, index=at.index + 1, branch=at.branch)


def _branch_at(run: RunRecord, sequence: int) -> str:
    """The live branch that wrote the run's row there; of a run outside a workflow there is none."""
    reached = [each.branch for each in run.branches if each.first_sequence <= sequence]
    return reached[-1] if reached else ""
