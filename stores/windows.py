"""What a window keeps of a history: its most recent turns, cut at turn starts."""

import math

from pydantic_ai.messages import BinaryContent, ModelMessage, ModelRequest, UserPromptPart
from pydantic_core import to_json

CHARACTERS_PER_TOKEN = 4
"""A rule of thumb for English; it bounds a context, it does not bill one."""


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
