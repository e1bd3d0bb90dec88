"""The agent `conversation`: memory across turns, a bounded context window, and streaming.

How it works:
    1. Each turn passes the earlier messages in; the result's messages become the next turn's
       history, so the agent remembers what was said.
    2. A history processor keeps only the most recent turns before each model request, so cost and
       context stay bounded. It cuts at turn starts, so a call is never parted from its result.
    3. `Conversation` holds the history: `say()` gives a whole reply, `stream()` its text as it is
       generated. `Conversation.connect()` gives the same, held by Temporal and MongoDB.

What leaves the window the model no longer sees. `PERDURE_MODEL` names the model.
"""

import logging
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory, RaiseContentFilterError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import UsageLimits

from agents.assistant import EnvironmentModel
from workflows.durable import durable
from workflows.results import RunResult, Step
from workflows.window import ChatDeps, keep_recent_turns, trim_to_recent_turns

if TYPE_CHECKING:
    from temporalio.client import Client

    from workflows.durable_conversation import DurableConversation

__all__ = [
    "ChatDeps",
    "Conversation",
    "chat_agent",
    "keep_recent_turns",
    "run_chat",
    "trim_to_recent_turns",
]

logger = logging.getLogger(__name__)


def _cost_limit() -> Decimal | None:
    value = os.environ.get("PERDURE_COST_LIMIT")
    return Decimal(value) if value else None


# Per turn, not per conversation: each call of say() or stream() is bounded by this.
USAGE_LIMITS = UsageLimits(request_limit=10, total_tokens_limit=100_000, cost_limit=_cost_limit())

chat_agent: Agent[ChatDeps, str] = Agent(
    EnvironmentModel(),
    name="conversation",
    deps_type=ChatDeps,  # no output_type: plain text, which is also what streams
    instructions=Path(__file__).with_name("prompt.txt").read_text(),
    capabilities=[*durable(RaiseContentFilterError(), ProcessHistory(keep_recent_turns))],
)


async def run_chat(
    user_input: str, deps: ChatDeps | None = None, *, history: list[ModelMessage] | None = None
) -> RunResult[str]:
    """One turn: the reply to `user_input`, given the earlier `history`.

    For the next turn pass `result.steps[0].result.all_messages()` as `history`; `Conversation` does
    that for you.
    """
    _log_turn(user_input, history)
    result = await chat_agent.run(
        user_input,
        deps=deps or ChatDeps(),
        message_history=history,
        usage_limits=USAGE_LIMITS,
    )
    step = Step(agent=str(chat_agent.name), result=result)
    return RunResult(output=result.output, steps=(step,))


@dataclass
class Conversation:
    """A conversation that remembers: holds the history and feeds it back each turn."""

    deps: ChatDeps = field(default_factory=ChatDeps)
    history: list[ModelMessage] = field(default_factory=list[ModelMessage])

    async def say(self, text: str) -> RunResult[str]:
        """Send a message and wait for the whole reply.

        Raises:
            ValueError: the text is empty.
        """
        result = await run_chat(_checked(text), self.deps, history=self.history)
        self.history = result.steps[0].result.all_messages()
        return result

    async def stream(self, text: str) -> AsyncGenerator[str]:
        """Send a message and yield the reply as it is generated, a few words at a time.

        The history is updated once the reply is complete, exactly as after `say()`.

        Raises:
            ValueError: the text is empty.
        """
        _log_turn(_checked(text), self.history)
        async with chat_agent.run_stream(
            text, deps=self.deps, message_history=self.history, usage_limits=USAGE_LIMITS
        ) as response:
            # debounce_by=None gives every chunk as the provider sends it; a number of seconds
            # merges chunks that come close together, which suits a display that repaints.
            async for delta in response.stream_text(delta=True, debounce_by=None):
                yield delta
            self.history = response.all_messages()

    @staticmethod
    def connect(
        client: "Client",
        *,
        conversation_id: str,
        agent: str = "conversation",
        workspace_id: str = "default",
        max_turns: int = 20,
        **options: Any,  # noqa: ANN401 - those of `DurableConversation.connect`
    ) -> "DurableConversation":
        """The same, held by the workflow `conversation`; see `DurableConversation.connect`.

        With `store=`, the workers' one, `stream` yields the deltas as the model gave them. Each
        turn has the limits of a plain one, cost included, unless `usage_limits=` says otherwise.
        """
        from workflows.durable_conversation import DurableConversation  # noqa: PLC0415

        return DurableConversation.connect(
            client,
            agent=agent,
            conversation_id=conversation_id,
            workspace_id=workspace_id,
            max_turns=max_turns,
            usage_limits=options.pop("usage_limits", USAGE_LIMITS),
            **options,
        )


def _checked(text: str) -> str:
    if not text.strip():
        message = "a message to a conversation is empty; say something"
        raise ValueError(message)
    return text


def _log_turn(text: str, history: list[ModelMessage] | None) -> None:
    lengths = {"input_length": len(text), "history_length": len(history or [])}
    logger.info("Chat turn: %(input_length)d characters, %(history_length)d messages", lengths)
