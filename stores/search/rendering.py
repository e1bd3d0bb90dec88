"""Messages as lines of text: what is indexed, and what an excerpt shows.

Files are named and never spelled out, so no media is read. Thinking, a provider's own bookkeeping
and kinds of parts that a newer core adds have no line.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic_ai.messages import (
    CompactionPart,
    InstructionDeltaPart,
    ModelMessage,
    ModelRequestPart,
    ModelResponsePart,
    RetryFeedbackPart,
    SpeechPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    error_details_ta,
    is_multi_modal_content,
)
from pydantic_core import ErrorDetails

TOOL_NAME = "search_conversation_history"
"""The search's own tool, under a prefix or without one."""

LONG_EXCERPT = 500
"""Characters shown of what was said: prompts, answers, returns of tools, retries, speech."""

SHORT_EXCERPT = 200
"""Characters shown of system text and of arguments of tool calls."""

_JSON = json.JSONEncoder(ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Line:
    """One part of a message. `is_own`: it is of the search's own tool."""

    label: str
    text: str
    shown: int = LONG_EXCERPT
    is_own: bool = False

    @property
    def indexed(self) -> str:
        """The whole of it, with who speaks."""
        return f"{self.label}: {self.text}"


def lines_of(message: ModelMessage) -> list[Line]:
    """The lines of a message; empty when nothing in it reads as conversation."""
    lines: Iterator[Line | None]
    if message.kind == "request":
        lines = (_of_request(each) for each in message.parts)
    else:
        lines = (_of_response(each) for each in message.parts)
    return [each for each in lines if each is not None]


def indexed_text(message: ModelMessage, *, includes_own: bool = False) -> str:
    """What a message adds to the corpus.

    Args:
        message: any.
        includes_own: count the search's own calls and answers, too.
    """
    lines = lines_of(message)
    return "\n".join(each.indexed for each in lines if includes_own or not each.is_own)


def own_text(message: ModelMessage) -> str:
    """The search's own calls and answers in a message; mostly empty."""
    return "\n".join(each.indexed for each in lines_of(message) if each.is_own)


def _of_request(part: ModelRequestPart) -> Line | None:  # noqa: PLR0911 - one for each kind
    match part:
        case UserPromptPart():
            return Line("User", _prompt_text(part))
        case SystemPromptPart():
            return Line("System", part.content, SHORT_EXCERPT)
        case InstructionDeltaPart():
            return Line("System", part.render(), SHORT_EXCERPT)
        case ToolReturnPart():
            return _of_return(part)
        case RetryFeedbackPart():
            return Line("Retry", _retry_text(part.content))
        case CompactionPart():
            return Line("Summary", part.content) if part.content else None
        case SpeechPart():
            return _of_speech(part)
        case _:
            # A retry of the older kind becomes one of the above when it is loaded. Of a kind that
            # is not known here it is not known either which of its fields are conversation.
            return None


def _of_response(part: ModelResponsePart) -> Line | None:
    match part:
        case TextPart():
            return Line("Assistant", part.content)
        case ToolCallPart():
            arguments = _JSON.encode(part.args_as_dict())
            is_own = _is_own(part.tool_name)
            return Line(f"Tool Call [{part.tool_name}]", arguments, SHORT_EXCERPT, is_own)
        case SpeechPart():
            return _of_speech(part)
        case _:
            return None


def _of_return(part: ToolReturnPart) -> Line:
    is_own = _is_own(part.tool_name)
    if part.outcome == "retried":
        text = part.model_response_str(wrap_if_error=False)
        return Line(f"Retry [{part.tool_name}]", text, is_own=is_own)
    return Line(f"Tool [{part.tool_name}]", _return_text(part), is_own=is_own)


def _of_speech(part: SpeechPart) -> Line | None:
    return Line(f"Speech [{part.speaker}]", part.transcript) if part.transcript else None


def _is_own(tool_name: str) -> bool:
    return tool_name == TOOL_NAME or tool_name.endswith(f"_{TOOL_NAME}")


def _prompt_text(part: UserPromptPart) -> str:
    if isinstance(part.content, str):
        return part.content
    texts = (each.content if isinstance(each, TextContent) else each for each in part.content)
    return " ".join(each for each in texts if isinstance(each, str))


def _return_text(part: ToolReturnPart) -> str:
    if not part.files:
        return str(part.content)
    return " ".join(
        f"See file {item.identifier}." if is_multi_modal_content(item) else str(item)
        for item in part.content_items()
    )


def _retry_text(content: list[ErrorDetails] | str) -> str:
    if isinstance(content, str):
        return content
    return error_details_ta.dump_json(content, exclude={"__all__": {"ctx"}}).decode()
