"""Following a run, against the store in memory."""

import asyncio
from datetime import timedelta
from typing import cast

import pytest
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    TextPart,
    ToolCallPart,
)

from stores.errors import InvalidOffsetError, RunNotFoundError
from stores.following import StreamEvent, follow_run, joined, reply_text
from stores.memory import InMemoryStepStore
from stores.streaming import StreamChunk, StreamItem, StreamItemKind, StreamTake
from tests.stores.writer import Execution, RunScript, at, request, response

RUN = "run-1"


class Run:
    """A run that streams, told step by step."""

    def __init__(self) -> None:
        self.store = InMemoryStepStore()
        self.execution = Execution(branch="0193a1b2-7c00-7000-8000-00000001")
        self.script = RunScript(run_id=RUN, result_size=10)
        self.requests: list[int] = []

    async def begin(self) -> None:
        await self.store.commit(
            self.execution.commit(self.script.register(), self.script.event("run_started", 0))
        )

    async def ask(self, step: int) -> None:
        event = self.script.event("model_request_started", step)
        self.requests.append(self.script.sequence)
        await self.store.commit(self.execution.commit(event))

    async def say(self, *items: str, attempt: int = 1, first: int = 0, part: int = 0) -> None:
        """Text as such, other items in angles."""
        said = [
            StreamItem(kind=cast("StreamItemKind", each[1:-1]))
            if each.startswith("<")
            else StreamItem(kind="text", text=each)
            for each in items
        ]
        take = StreamTake(
            run_id=RUN,
            branch=self.execution.branch,
            request=self.requests[-1],
            part=part,
            attempt=attempt,
            started_at=at(attempt),
        )
        chunk = StreamChunk(take=take, first=first, items=tuple(said))
        await self.store.streams.append(chunk, expires_at=at(1e6))

    async def call_tool(self, step: int) -> None:
        ended = self.script.event("model_request_completed", step)
        await self.store.commit(
            self.execution.commit(
                ended,
                self.script.event(
                    "tool_call_started", step, 0, tool_name="look_up", tool_call_id="c"
                ),
                self.script.event(
                    "tool_call_completed", step, 0, tool_name="look_up", tool_call_id="c"
                ),
            )
        )

    async def end(self, text: str, step: int = 9) -> None:
        self.script.messages = [request("hello"), response(text)]
        await self.store.commit(
            self.execution.commit(
                self.script.event("model_request_completed", step),
                self.script.snapshot(step, 0),
                self.script.event("run_completed", step),
            )
        )


async def followed(run: Run, after: str | None = None) -> list[StreamEvent]:
    return [event async for event in follow_run(run.store, RUN, after=after)]


def told(events: list[StreamEvent]) -> list[tuple[str, str]]:
    return [(event.kind, event.text or event.tool_name or "") for event in events]


def reply_of(events: list[StreamEvent]) -> str:
    reply = ""
    for event in events:
        reply = joined(reply, event)
    return reply


@pytest.fixture
async def run() -> Run:
    made = Run()
    await made.begin()
    return made


@pytest.fixture
async def whole(run: Run) -> Run:
    """A run with a tool call, whose reply took two attempts."""
    await run.ask(1)
    await run.say("<began>", "Let me ", "look.", "<step_text>", "<ended>")
    await run.call_tool(1)
    await run.ask(2)
    await run.say("<began>", "It ", "was")
    await run.say("<began>", "It is ", "so", attempt=2)
    await run.say(".", "<ended>", attempt=2, first=3)
    await run.end("It is so.")
    return run


WHOLE = [
    ("text", "Let me "),
    ("text", "look."),
    ("step_text", "Let me look."),
    ("tool_call_started", "look_up"),
    ("tool_call_completed", "look_up"),
    ("text", "It is "),
    ("text", "so"),
    ("text", "."),
    ("run_completed", ""),
]


async def test_text_and_tools_come_in_their_order_and_add_up(whole: Run) -> None:
    events = await followed(whole)
    assert told(events) == WHOLE
    assert reply_of(events) == "It is so."


async def test_reader_that_comes_back_anywhere_sees_each_event_once(whole: Run) -> None:
    events = await followed(whole)
    for index, event in enumerate(events):
        assert await followed(whole, event.offset) == events[index + 1 :]


async def test_reader_is_told_that_an_attempt_is_dead(run: Run) -> None:
    await run.ask(1)
    await run.say("<began>", "Once", " upon")
    stream = follow_run(run.store, RUN)
    seen = [await anext(stream), await anext(stream)]
    await run.say("<began>", "There", "<ended>", attempt=2)
    await run.say(" a time", first=3)  # of an attempt that does not know that it is dead
    await run.end("There")
    rest = [event async for event in stream]
    assert told(rest) == [("retry", ""), ("text", "There"), ("run_completed", "")]
    assert reply_of([*seen, *rest]) == "There"
    assert await followed(run, seen[0].offset) == rest


async def test_another_model_that_takes_over_takes_back_what_the_first_said(run: Run) -> None:
    await run.ask(1)
    await run.say("<began>", "Bon", "<restarted>", "Good", "<ended>")
    await run.end("Good")
    events = await followed(run)
    assert told(events) == [("text", "Bon"), ("retry", ""), ("text", "Good"), ("run_completed", "")]


async def test_later_part_of_a_request_is_retried_by_itself(run: Run) -> None:
    await run.ask(1)
    await run.say("<began>", "One, ", "<ended>")
    await run.say("<began>", "tw", part=1)
    stream = follow_run(run.store, RUN)
    seen = [await anext(stream), await anext(stream)]
    await run.say("<began>", "two", "<ended>", part=1, attempt=2)
    await run.end("One, two")
    rest = [event async for event in stream]
    assert told(rest)[0] == ("retry", "One, ")
    assert reply_of([*seen, *rest]) == "One, two"


async def test_answer_that_was_refused_is_no_part_of_the_reply(run: Run) -> None:
    await run.ask(1)
    await run.say("<began>", "first", "<ended>")
    await run.ask(2)
    await run.say("<began>", "second", "<ended>")
    await run.end("second")
    events = await followed(run)
    assert told(events)[:3] == [("text", "first"), ("step_text", "first"), ("text", "second")]
    assert reply_of(events) == "second"


@pytest.mark.parametrize(
    ("said", "put_right"),
    [
        ((), ("text", "All of it")),
        (("<began>", "All", " of"), ("text", " it")),
        (("<began>", "None"), ("retry", "All of it")),
    ],
)
async def test_what_was_not_streamed_comes_from_the_record(
    run: Run, said: tuple[str, ...], put_right: tuple[str, str]
) -> None:
    await run.ask(1)
    if said:
        await run.say(*said)
    await run.end("All of it")
    events = await followed(run)
    assert told(events)[-2:] == [put_right, ("run_completed", "")]
    assert reply_of(events) == "All of it"


async def test_end_of_a_response_may_be_later_than_its_event(run: Run) -> None:
    await run.ask(1)
    await run.say("<began>", "a")
    stream = follow_run(run.store, RUN)
    seen = [await anext(stream)]
    await run.call_tool(1)
    await run.say("b", "<step_text>", "<ended>", first=2)
    seen += [await anext(stream), await anext(stream), await anext(stream)]
    await stream.aclose()
    assert told(seen)[1:] == [("text", "b"), ("step_text", "ab"), ("tool_call_started", "look_up")]


async def test_reader_whose_place_has_expired_is_told_the_whole_reply(whole: Run) -> None:
    events = await followed(whole)
    place = events[-3]
    assert place.text == "so"
    await whole.store.streams.delete_run(run_id=RUN)
    rest = await followed(whole, place.offset)
    assert told(rest) == [("retry", "It is so."), ("run_completed", "")]


async def test_run_that_is_reset_is_told_from_its_start(run: Run) -> None:
    await run.ask(1)
    await run.say("<began>", "old", "<ended>")
    await run.call_tool(1)
    stream = follow_run(run.store, RUN)
    seen = [await anext(stream) for _ in range(3)]
    run.execution.branch, run.execution.branch_time = "0193a1b2-7c00-7000-8000-00000002", at(60)
    run.script.sequence = run.requests[-1]
    await run.store.commit(
        run.execution.commit(run.script.event("model_request_completed", 1), number=3, now=60)
    )
    run.script.messages = [request("hello"), response("new")]
    await run.store.commit(
        run.execution.commit(run.script.snapshot(2, 0), run.script.event("run_completed", 2))
    )
    rest = [event async for event in stream]
    assert told(rest) == [("reset", ""), ("text", "old"), ("retry", "new"), ("run_completed", "")]
    assert reply_of([*seen, *rest]) == "new"
    assert await followed(run, seen[-1].offset) == rest
    assert await followed(run, rest[0].offset) == rest[1:]


async def test_failed_run_ends_with_its_error(run: Run) -> None:
    await run.ask(1)
    await run.store.commit(run.execution.commit(run.script.event("run_failed", 1, error="no")))
    (event,) = await followed(run)
    assert (event.kind, event.error) == ("run_failed", "no")


async def test_unknown_run_and_one_of_another_workspace_are_one_answer(whole: Run) -> None:
    for store, run_id in ((whole.store, "run-2"), (whole.store.for_workspace("other"), RUN)):
        with pytest.raises(RunNotFoundError, match=f"has no run '{run_id}'"):
            await anext(follow_run(store, run_id))


async def test_run_may_appear_a_little_later() -> None:
    run = Run()
    stream = follow_run(run.store, RUN, appears_within=timedelta(seconds=10))
    first = asyncio.ensure_future(anext(stream))
    await run.begin()
    await run.end("late")
    assert (await first).text == "late"
    await stream.aclose()


@pytest.mark.parametrize("offset", ["", "7", "x.1~", "1.2.3~", "1.2.3.4.5~", "~"])
async def test_what_is_no_offset_is_refused(whole: Run, offset: str) -> None:
    with pytest.raises(InvalidOffsetError, match="is no offset of a stream"):
        await followed(whole, offset)


CALL = ToolCallPart("look_up", {})
NATIVE = NativeToolCallPart("web_search", {})


@pytest.mark.parametrize(
    ("parts", "reply"),
    [
        ([TextPart("a"), TextPart("b")], "ab"),
        ([TextPart("a"), CALL], ""),
        ([TextPart("a"), NATIVE, TextPart("b")], "b"),
        ([TextPart("a"), NATIVE], "a"),
    ],
)
def test_reply_is_what_the_output_is_taken_from(parts: list[ModelResponsePart], reply: str) -> None:
    assert reply_text([request("hello"), ModelResponse(parts=parts)]) == reply


def test_history_that_ends_with_a_request_has_no_reply() -> None:
    assert reply_text([]) == reply_text([request("hello")]) == ""
