"""How much of a conversation a model gets to see: its most recent turns, cut at turn starts."""

import math
from dataclasses import dataclass

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    UserPromptPart,
)
from pydantic_ai.tools import RunContext
from pydantic_core import to_json

CHARACTERS_PER_TOKEN = 4
"""A rule of thumb for English; it bounds a context, it does not bill one."""


@dataclass
class ChatDeps:
    """What an agent that holds conversations takes as `deps`: how much it may look back.

    Args:
        max_turns: how many of the user's most recent turns the model gets to see.
        max_tokens: about how many tokens they may have together; `None`: as many as they have.
    """

    max_turns: int = 20
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            ValueError: a bound is below 1.
        """
        if self.max_turns < 1:
            message = "max_turns must be at least 1"
            raise ValueError(message)
        if self.max_tokens is not None and self.max_tokens < 1:
            message = "max_tokens must be at least 1"
            raise ValueError(message)


def turn_starts(messages: list[ModelMessage]) -> list[int]:
    """Where turns start: at requests that carry a user's prompt.

    One that also answers tool calls does not start one: what a user says while tools work (a steer)
    travels with their results, and to cut there would part a call from its result.
    """
    return [i for i, message in enumerate(messages) if _starts_turn(message)]


def trim_to_recent_turns(messages: list[ModelMessage], max_turns: int) -> list[ModelMessage]:
    """The last `max_turns` turns of `messages`; the same list when it has no more.

    A turn starts at a request carrying the user's prompt and includes everything after it: the
    reply, any tool calls and their results.
    """
    starts = turn_starts(messages)
    if len(starts) <= max_turns:
        return messages
    return messages[starts[-max_turns] :]


def trim_to_token_budget(messages: list[ModelMessage], max_tokens: int) -> list[ModelMessage]:
    """The last turns that have about `max_tokens` together; the same list when all have no more.

    The newest turn is always kept, however long it is: without it there is nothing to answer.
    """
    starts = turn_starts(messages)
    left = max_tokens
    end = len(messages)
    kept = len(starts)
    for number in reversed(range(len(starts))):
        left -= sum(estimate_tokens(each) for each in messages[starts[number] : end])
        if left < 0 and kept < len(starts):
            break
        kept, end = number, starts[number]
    if not starts or kept == 0:
        return messages
    return messages[starts[kept] :]


def trim_to_window(messages: list[ModelMessage], window: ChatDeps) -> list[ModelMessage]:
    """What both bounds of the window leave of `messages`."""
    recent = trim_to_recent_turns(messages, window.max_turns)
    return recent if window.max_tokens is None else trim_to_token_budget(recent, window.max_tokens)


async def keep_recent_turns(
    ctx: RunContext[ChatDeps], messages: list[ModelMessage]
) -> list[ModelMessage]:
    """The history processor: runs before every model request, using the window from deps."""
    return trim_to_window(messages, ctx.deps)


def estimate_tokens(message: ModelMessage) -> int:
    """About how many tokens a message has; a picture or a file counts as 1,000.

    Unit: tokens, one for each `CHARACTERS_PER_TOKEN` characters of text, calls and results.
    """
    return sum(_estimate_part(part) for part in message.parts)


_FILE_TOKENS = 1000


def _estimate_part(part: object) -> int:
    content = getattr(part, "content", None)
    if content is None:
        content = getattr(part, "args", None)
    if isinstance(content, list | tuple):
        pieces = [each for each in content if not isinstance(each, BinaryContent)]  # pyright: ignore[reportUnknownVariableType]
        files = len(content) - len(pieces)  # pyright: ignore[reportUnknownArgumentType]
        return files * _FILE_TOKENS + sum(_estimate_value(each) for each in pieces)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return _estimate_value(content)


def _estimate_value(value: object) -> int:
    text = value if isinstance(value, str) else to_json(value, fallback=str).decode()
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def _starts_turn(message: ModelMessage) -> bool:
    if not isinstance(message, ModelRequest):
        return False
    has_prompt = any(isinstance(part, UserPromptPart) for part in message.parts)
    answers_calls = any(
        part.part_kind == "tool-return"
        or (part.part_kind == "retry-prompt" and part.tool_name is not None)  # older histories
        for part in message.parts
    )
    return has_prompt and not answers_calls
