"""How much of a conversation a model gets to see."""

from dataclasses import dataclass

from pydantic_ai.messages import ModelMessage
from pydantic_ai.tools import RunContext

from stores.windows import trim_to_recent_turns, trim_to_token_budget

__all__ = ["ChatDeps", "keep_recent_turns", "trim_to_recent_turns", "trim_to_token_budget"]


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


async def keep_recent_turns(
    ctx: RunContext[ChatDeps], messages: list[ModelMessage]
) -> list[ModelMessage]:
    """The history processor: runs before every model request, using the window from deps."""
    window = ctx.deps
    recent = trim_to_recent_turns(messages, window.max_turns)
    return recent if window.max_tokens is None else trim_to_token_budget(recent, window.max_tokens)
