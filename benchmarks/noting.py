"""An agent that makes many calls at once with large deps.

Both sides import this module, so it knows pydantic-ai alone.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

NOTING = "noting"
CALLS = 20
DEPS_BYTES = 200_000


class Customer(BaseModel):
    """The deps."""

    notes: str = "x" * DEPS_BYTES


NOTING_AGENTS: list[Agent[Customer, str]] = []
"""What `make_noting_agent` made in this process, for the workflow to find."""


def make_noting_agent(capabilities: Sequence[AbstractCapability[Any]]) -> Agent[Customer, str]:
    """The agent, which `NOTING_AGENTS` then holds."""
    agent = Agent(
        FunctionModel(_follow), name=NOTING, deps_type=Customer, capabilities=capabilities
    )

    @agent.tool(metadata={"effect": "read"})
    async def count(ctx: RunContext[Customer]) -> int:
        """Give the length of the notes."""
        return len(ctx.deps.notes)

    NOTING_AGENTS.append(agent)
    return agent


def _follow(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    if len(messages) > 1:
        return ModelResponse(parts=[TextPart("done")])
    calls = [ToolCallPart("count", {}, tool_call_id=f"call-{each}") for each in range(CALLS)]
    return ModelResponse(parts=calls)
