"""A message history as a person reads it."""

import json
from collections.abc import Iterator, Sequence

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)


def describe_messages(messages: Sequence[ModelMessage], *, first: int = 0) -> Iterator[str]:
    """A heading for each message, then its parts, whole, by pydantic-ai's names for them.

    Args:
        messages: of a history.
        first: the number of the first one in it.
    """
    for index, message in enumerate(messages, start=first):
        model = message.model_name if isinstance(message, ModelResponse) else None
        yield f"--- {index} {message.kind}{f' of {model}' if model else ''}"
        for part in message.parts:
            yield f"{part.part_kind}{_tool(part)}: {_text(part)}"


def _tool(part: ModelRequestPart | ModelResponsePart) -> str:
    name, call_id = getattr(part, "tool_name", None), getattr(part, "tool_call_id", None)
    return f" {name} ({call_id})" if name else ""


def _text(part: ModelRequestPart | ModelResponsePart) -> str:
    match part:
        case UserPromptPart():
            contents = [part.content] if isinstance(part.content, str) else part.content
            return "\n".join(each if isinstance(each, str) else _kind(each) for each in contents)
        case SystemPromptPart() | TextPart() | ThinkingPart():
            return part.content
        case ToolReturnPart():
            return part.model_response_str()
        case ToolCallPart():
            return part.args_as_json_str()
        case _:
            return str(getattr(part, "content", part))


def _kind(content: object) -> str:
    """What identifies an image, a file or the like; never its bytes."""
    known = {
        name: value
        for name in ("kind", "url", "media_type", "identifier", "content")
        if isinstance(value := getattr(content, name, None), str)
    }
    return json.dumps(known, ensure_ascii=False)
