"""The agent that every benchmark runs: a scripted model that calls one tool a step.

Both sides import this module, so it knows pydantic-ai alone.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

PERSISTED = "persisted"
PLAIN = "plain"

AGENTS: dict[str, Agent[None, str]] = {}
"""By name: what `make_agent` made in this process, for the workflow to find."""


class Plan(BaseModel):
    """What an agent does: `steps` calls one after the other, each with a result of this size."""

    model_config = ConfigDict(frozen=True)

    steps: int
    size_bytes: int = 1000

    @property
    def prompt(self) -> str:
        """The plan as the prompt that makes the model follow it."""
        return self.model_dump_json()


def make_agent(
    name: str, capabilities: Sequence[AbstractCapability[Any]], *, step_seconds: float = 0
) -> Agent[None, str]:
    """An agent of that name, which `AGENTS` then holds; its tool takes so long."""
    agent = Agent(FunctionModel(follow), name=name, capabilities=capabilities)

    @agent.tool_plain(metadata={"effect": "read"})
    async def look_up(left: int, size_bytes: int) -> str:
        """Give a text of that size, which no other step gets."""
        await asyncio.sleep(step_seconds)
        return f"{left} ".ljust(size_bytes, "x")

    AGENTS[name] = agent
    return agent


def follow(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """The next call, read from the newest one, so that a shortened history changes nothing."""
    left, size_bytes = _left(messages)
    if left == 0:
        return ModelResponse(parts=[TextPart("done")])
    arguments = {"left": left, "size_bytes": size_bytes}
    return ModelResponse(parts=[ToolCallPart("look_up", arguments, tool_call_id=f"call-{left}")])


def _left(messages: list[ModelMessage]) -> tuple[int, int]:
    for message in reversed(messages):
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                arguments = part.args_as_dict()
                return arguments["left"] - 1, arguments["size_bytes"]
            if isinstance(part, UserPromptPart) and isinstance(part.content, str):
                plan = Plan.model_validate_json(part.content)
                return plan.steps, plan.size_bytes
    problem = "The scripted model found neither a call nor a plan in its history"
    raise ValueError(problem)
