"""What a snapshot sends, checked against a log that only does what a store does."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from workflows.transcript import Transcript, is_settled

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def request(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text, timestamp=NOW)])


def response(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)], timestamp=NOW)


class Log:
    """A run's message log as a store keeps it: position to message, newest version."""

    def __init__(self) -> None:
        self.transcript = Transcript()
        self.messages: dict[int, ModelMessage] = {}
        self.sent: list[int] = []

    def save(self, messages: Sequence[ModelMessage]) -> tuple[tuple[int, int], ...]:
        ranges, entries = self.transcript.plan(messages)
        self.sent.append(len(entries))
        for entry in entries:
            self.messages[entry.position] = deepcopy(entry.message)
        assert self.read(ranges) == list(messages)
        return ranges

    def read(self, ranges: tuple[tuple[int, int], ...]) -> list[ModelMessage]:
        return [self.messages[position] for first, end in ranges for position in range(first, end)]


def test_growing_history_sends_what_is_new_and_stays_one_range() -> None:
    log = Log()
    history: list[ModelMessage] = [request("a"), response("b")]
    log.save(history)
    for step in range(20):
        history += [request(f"r{step}"), response(f"s{step}")]
        ranges = log.save(history)
        assert ranges == ((0, len(history)),)
    assert log.sent == [2] * 21


def test_message_that_the_core_stamps_later_keeps_its_position() -> None:
    log = Log()
    pending = request("pending")
    saved: list[ModelMessage] = [request("a"), response("b"), pending]
    log.save(saved)
    pending.timestamp = NOW
    pending.run_id = "run"
    pending.instructions = "be brief"
    history: list[ModelMessage] = [*saved, response("c")]
    assert log.save(history) == ((0, 4),)
    assert log.sent == [3, 2]
    assert log.messages[2] == pending


def test_equal_copies_are_recognised() -> None:
    log = Log()
    history: list[ModelMessage] = [request("a"), response("b"), request("c")]
    log.save(history)
    log.save([*deepcopy(history), response("d")])
    assert log.sent == [3, 1]


def test_repeated_text_is_two_messages() -> None:
    log = Log()
    first, again = request("again"), request("again")
    history: list[ModelMessage] = [first, response("b"), again]
    assert log.save(history) == ((0, 3),)
    assert log.save([*deepcopy(history), response("c")]) == ((0, 4),)


def test_messages_that_left_the_history_stay_in_the_log() -> None:
    log = Log()
    history: list[ModelMessage] = [request("a"), response("b"), request("c"), response("d")]
    before = log.save(history)
    after = log.save([request("summary"), *history[2:]])
    assert after == ((4, 5), (2, 4))
    assert log.read(before) == history


@pytest.mark.spec("SP-107", "SP-124")
def test_equals_tells_whether_the_final_history_is_saved() -> None:
    log = Log()
    history: list[ModelMessage] = [request("a"), response("b")]
    assert not log.transcript.equals(history)
    log.save(history)
    assert log.transcript.equals(history)
    assert not log.transcript.equals(history[:1])
    assert not log.transcript.equals([history[0], response("other")])
    history[1].run_id = "stamped since"
    assert not log.transcript.equals(history)


edits = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.text(max_size=3)),
        st.tuples(st.just("drop"), st.integers(0, 9)),
        st.tuples(st.just("rewrite"), st.integers(0, 9)),
        st.tuples(st.just("copy"), st.integers(0, 9)),
        st.tuples(st.just("stamp"), st.just(0)),
    ),
    max_size=25,
)


@given(edits)
@example([("append", ""), ("rewrite", 1), ("stamp", 0), ("rewrite", 0)])
def test_any_history_is_read_back_as_it_was_saved(changes: list[tuple[str, str | int]]) -> None:
    log = Log()
    history: list[ModelMessage] = [request("start")]
    log.save(history)
    for kind, value in changes:
        if kind == "append":
            history = [*history, request(str(value))]
        elif kind == "stamp":
            history[-1].run_id = f"run-{len(log.sent)}"
        elif history:
            index = int(value) % len(history)
            if kind == "drop" and len(history) > 1:
                history = history[:index] + history[index + 1 :]
            elif kind == "rewrite":
                history = [*history[:index], request("rewritten"), *history[index + 1 :]]
            elif kind == "copy":
                history = [*history[:index], replace(history[index]), *history[index + 1 :]]
        log.save(history)


call = ToolCallPart("tool", {}, tool_call_id="1")
other_call = ToolCallPart("tool", {}, tool_call_id="2")
feedback = RetryFeedbackPart(content="again", retry=RetryInfo(cause="no_output"))


def old_retry(tool_name: str | None) -> ModelMessage:
    """As histories of earlier versions hold it; without a tool its id answers nothing."""
    part = {"part_kind": "retry-prompt", "content": "again", "tool_name": tool_name}
    (message,) = ModelMessagesTypeAdapter.validate_python(
        [{"kind": "request", "parts": [{**part, "tool_call_id": "1"}]}]
    )
    return message


returned = ToolReturnPart("tool", "x", tool_call_id="1", timestamp=NOW)
retried = replace(returned, outcome="retried")
other_returned = ToolReturnPart("tool", "x", tool_call_id="2", timestamp=NOW)


@pytest.mark.spec("SP-4", "SP-131")
@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], True),
        ([request("a")], True),
        ([request("a"), ModelResponse(parts=[call])], False),
        ([ModelResponse(parts=[call]), ModelRequest(parts=[returned])], True),
        ([ModelResponse(parts=[call, other_call]), ModelRequest(parts=[returned])], False),
        ([ModelRequest(parts=[returned])], False),
        ([ModelRequest(parts=[returned]), ModelResponse(parts=[call])], False),
        ([ModelResponse(parts=[call]), ModelRequest(parts=[returned, returned])], False),
        ([ModelResponse(parts=[call, call]), ModelRequest(parts=[returned])], False),
        ([ModelResponse(parts=[call]), response("b"), ModelRequest(parts=[returned])], False),
        ([response("a"), ModelRequest(parts=[feedback])], True),
        ([response("a"), old_retry(None)], True),
        ([ModelResponse(parts=[call]), old_retry(None)], False),
        ([ModelResponse(parts=[call]), old_retry("tool")], True),
        ([old_retry("tool")], False),
        ([ModelResponse(parts=[call]), ModelRequest(parts=[feedback])], False),
        ([ModelResponse(parts=[call]), ModelRequest(parts=[retried])], True),
        ([ModelResponse(parts=[call]), ModelRequest(parts=[retried, returned])], False),
        ([ModelRequest(parts=[retried])], False),
        ([ModelResponse(parts=[call]), ModelRequest(parts=[returned, feedback])], True),
        (
            [ModelResponse(parts=[call]), request("b"), ModelRequest(parts=[returned])],
            True,
        ),
        (
            [ModelResponse(parts=[call]), ModelRequest(parts=[returned])] * 2,
            True,
        ),
        (
            [
                ModelResponse(parts=[call, other_call]),
                ModelRequest(parts=[other_returned]),
                ModelRequest(parts=[returned]),
            ],
            True,
        ),
        ([ModelResponse(parts=[call]), ModelRequest(parts=[other_returned])], False),
    ],
)
def test_settled_means_each_call_has_one_later_answer(
    messages: list[ModelMessage],
    expected: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert is_settled(messages) is expected
