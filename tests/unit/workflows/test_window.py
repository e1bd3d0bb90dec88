"""What the window keeps of a history, and where it cuts."""

import pytest
from pydantic_ai import RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage

from tests.helpers.chatting import prompts
from workflows.window import (
    ChatDeps,
    keep_recent_turns,
    trim_to_recent_turns,
    trim_to_token_budget,
)

pytestmark = pytest.mark.spec("CV-27")


def turn(n: int) -> list[ModelMessage]:
    return [
        ModelRequest(parts=[UserPromptPart(f"q{n}")]),
        ModelResponse(parts=[TextPart(f"a{n}")]),
    ]


def conversation_of(count: int) -> list[ModelMessage]:
    return [message for n in range(1, count + 1) for message in turn(n)]


WITH_TOOL: list[ModelMessage] = [
    ModelRequest(parts=[UserPromptPart("look it up")]),
    ModelResponse(parts=[ToolCallPart("lookup", {"q": "x"}, tool_call_id="c1")]),
    ModelRequest(parts=[ToolReturnPart("lookup", "found", tool_call_id="c1")]),
    ModelResponse(parts=[TextPart("here it is")]),
]


@pytest.mark.spec("CV-7")
def test_a_conversation_within_the_window_is_untouched() -> None:
    messages = conversation_of(3)
    assert trim_to_recent_turns(messages, 3) is messages
    assert trim_to_recent_turns(messages, 10) is messages


def test_only_the_most_recent_turns_are_kept() -> None:
    assert prompts(trim_to_recent_turns(conversation_of(5), 2)) == ["q4", "q5"]
    assert prompts(trim_to_recent_turns(conversation_of(5), 1)) == ["q5"]


@pytest.mark.spec("CV-4")
def test_the_window_starts_at_a_users_prompt_never_mid_turn() -> None:
    kept = trim_to_recent_turns(conversation_of(4), 2)
    assert isinstance(kept[0], ModelRequest)
    assert prompts(kept)[0] == "q3"
    assert len(kept) == 4


@pytest.mark.spec("CV-5")
def test_a_tool_call_stays_with_its_result_because_the_whole_turn_is_one_unit() -> None:
    messages = [*conversation_of(2), *WITH_TOOL]
    assert trim_to_recent_turns(messages, 1) == WITH_TOOL


@pytest.mark.spec("CV-5")
def test_what_a_user_says_while_a_tool_works_starts_no_turn() -> None:
    answer = ModelRequest(
        parts=[ToolReturnPart("lookup", "found", tool_call_id="c1"), UserPromptPart("in French")]
    )
    messages = [*conversation_of(1), *WITH_TOOL[:2], answer, WITH_TOOL[3]]
    assert trim_to_recent_turns(messages, 1) == messages[2:]


@pytest.mark.spec("CV-7")
def test_an_empty_history_is_fine() -> None:
    assert trim_to_recent_turns([], 3) == []
    assert trim_to_token_budget([], 3) == []


@pytest.mark.spec("CV-6")
@pytest.mark.parametrize("bad", [0, -1])
def test_a_window_smaller_than_one_turn_is_rejected(bad: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ChatDeps(max_turns=bad)
    with pytest.raises(ValueError, match="at least 1"):
        ChatDeps(max_tokens=bad)


@pytest.mark.spec("CV-6")
def test_the_default_window_is_twenty_turns() -> None:
    assert ChatDeps().max_turns == 20


@pytest.mark.spec("CV-8")
async def test_the_processor_reads_the_window_from_deps() -> None:
    ctx = RunContext(deps=ChatDeps(max_turns=1), model=TestModel(), usage=RunUsage())
    assert prompts(await keep_recent_turns(ctx, conversation_of(3))) == ["q3"]
    tight = ChatDeps(max_turns=3, max_tokens=4)  # a turn here has 2
    ctx = RunContext(deps=tight, model=TestModel(), usage=RunUsage())
    assert prompts(await keep_recent_turns(ctx, conversation_of(3))) == ["q2", "q3"]


def test_a_token_budget_cuts_at_turn_starts_and_keeps_the_newest_turn() -> None:
    messages = [*conversation_of(2), *WITH_TOOL]
    assert trim_to_token_budget(messages, 1000) is messages
    assert trim_to_token_budget(messages, 1) == WITH_TOOL
    assert trim_to_token_budget(messages, 14) == messages[2:]
