"""Messages as lines."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    CompactionPart,
    ImageUrl,
    InstructionDeltaPart,
    ModelRequest,
    ModelResponse,
    SpeechPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from stores.digests import load_message, message_text
from stores.search.rendering import indexed_text, lines_of, own_text

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def request(*parts: Any) -> str:
    return indexed_text(load_message(message_text(ModelRequest(parts=list(parts)))))


def response(*parts: Any) -> str:
    return indexed_text(load_message(message_text(ModelResponse(parts=list(parts)))))


@pytest.mark.spec("CS-38")
def test_each_kind_of_part_has_its_line_and_says_who_speaks() -> None:
    assert request(
        SystemPromptPart("be brief"),
        UserPromptPart(["look", ImageUrl("https://x/cat.png"), "here"]),
        ToolReturnPart("add", {"sum": 3}, tool_call_id="1"),
        ToolReturnPart("sub", "no such tool", tool_call_id="2", outcome="retried"),
        CompactionPart(content="my own summary"),
        SpeechPart(speaker="user", transcript="good morning"),
        SpeechPart(speaker="user"),
    ).splitlines() == [
        "System: be brief",
        "User: look here",
        "Tool [add]: {'sum': 3}",
        "Retry [sub]: no such tool",
        "Summary: my own summary",
        "Speech [user]: good morning",
    ]
    assert response(
        ThinkingPart("hmm"), TextPart("three"), ToolCallPart("add", {"ä": 1}, tool_call_id="1")
    ).splitlines() == ["Assistant: three", 'Tool Call [add]: {"ä": 1}']


@pytest.mark.spec("CS-37", "CS-64")
def test_files_are_named_and_their_bytes_are_nowhere() -> None:
    image = BinaryContent(b"\x00secretbytes" * 50, media_type="image/png", identifier="cat-1")
    line = request(ToolReturnPart("look", ["a cat", image], tool_call_id="1"))
    assert line == "Tool [look]: a cat See file cat-1."
    assert request(UserPromptPart([image])) == "User: "


@pytest.mark.spec("CS-36")
def test_changes_of_instructions_are_system_text_and_the_first_ones_are_not_there() -> None:
    change = InstructionDeltaPart(id=cast("Any", None), content="answer in verse")
    message = ModelRequest(parts=[UserPromptPart("hi"), change], instructions="be a pirate")
    text = indexed_text(message)
    assert "answer in verse" in text
    assert "pirate" not in text
    assert lines_of(message)[1].label == "System"


@pytest.mark.spec("CS-39")
def test_a_part_that_is_not_known_has_no_line() -> None:
    class Unheard:
        part_kind = "unheard-of"

    message = ModelRequest(parts=[UserPromptPart("hi"), cast("Any", Unheard())])
    assert indexed_text(message) == "User: hi"
    answer = ModelResponse(parts=[cast("Any", Unheard())])
    assert indexed_text(answer) == ""


def test_the_searchs_own_calls_are_left_out_unless_they_are_asked_for() -> None:
    call = ToolCallPart("search_conversation_history", {"query": "cats"}, tool_call_id="1")
    prefixed = ToolReturnPart("old_search_conversation_history", "Found cats", tool_call_id="1")
    message = ModelResponse(parts=[TextPart("let me look"), call])
    assert indexed_text(message) == "Assistant: let me look"
    assert "cats" in indexed_text(message, includes_own=True)
    assert own_text(ModelRequest(parts=[prefixed])).startswith("Tool [old_search")
    assert own_text(ModelResponse(parts=[TextPart("cats")])) == ""
