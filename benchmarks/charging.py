"""An agent whose tool charges somebody, and whose worker dies once just after it has.

Both sides import this module, so it knows pydantic-ai alone. What is to happen is in the
environment of the worker.
"""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.scripted import AGENTS

CHARGING = "charging"
CALLS = 3

CHARGES, DIES_AT = "PERDURE_BENCHMARK_CHARGES", "PERDURE_BENCHMARK_DIES_AT"
"""A file that gets a line for each charge, and the call at which the worker dies, from 1."""


def make_charging_agent(capabilities: Sequence[AbstractCapability[Any]]) -> Agent[None, str]:
    """The agent, which `AGENTS` then holds. Its tool declares nothing, as most tools do."""
    agent = Agent(FunctionModel(_follow), name=CHARGING, capabilities=capabilities)

    @agent.tool_plain
    async def charge(call: int) -> str:
        """Charge, and die once at the planned call, before anybody hears of it."""
        charges = Path(os.environ[CHARGES])
        with charges.open("a") as file:  # noqa: ASYNC230 - the effect itself
            file.write(f"{call}\n")
        died = charges.with_suffix(".died")
        if call == int(os.environ[DIES_AT]) and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"charged {call}"

    AGENTS[CHARGING] = agent
    return agent


def _follow(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    call = sum(isinstance(message, ModelResponse) for message in messages) + 1
    if call > CALLS:
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart("charge", {"call": call}, tool_call_id=f"c{call}")])
