"""Agents for runs that are longer than a history may be: one keeps a window of what it holds."""

from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolReturnPart

from benchmarks.scripted import make_agent
from workflows.durable import durable

WINDOWED = "windowed"
GROWING = "growing"

WINDOW_BYTES = 500_000
"""Of tool results that the model sees."""


async def keep_window(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The prompt, and the newest calls with their results that fit into the window."""
    kept: list[ModelMessage] = []
    size_bytes = 0
    start = len(messages)
    for index in range(len(messages) - 1, 0, -1):
        size_bytes += _size_bytes(messages[index])
        if size_bytes > WINDOW_BYTES:
            break
        if isinstance(messages[index], ModelResponse):  # never a result without its call
            start = index
    kept = messages[start:]
    return [*messages[:1], *kept] if start > 1 else messages


def _size_bytes(message: ModelMessage) -> int:
    if not isinstance(message, ModelRequest):
        return 0
    return sum(len(str(part.content)) for part in message.parts if isinstance(part, ToolReturnPart))


windowed = make_agent(WINDOWED, durable(ProcessHistory(keep_window)))
growing = make_agent(GROWING, durable())
