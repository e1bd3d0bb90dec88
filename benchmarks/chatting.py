"""The agent of the benchmarks that hold conversations; both sides import this, so it is plain."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.scripted import AGENTS

CHATTING = "chatting"

WORDS = 20
"""Of each reply, as many deltas."""


def make_chatting_agent(capabilities: Sequence[AbstractCapability[Any]]) -> Agent[None, str]:
    """An agent that says a sentence, word by word and at once; `AGENTS` then holds it."""
    model = FunctionModel(_answer, stream_function=_speak)
    agent = Agent(model, name=CHATTING, capabilities=capabilities)
    AGENTS[CHATTING] = agent
    return agent


async def _speak(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
    for number in range(WORDS):
        yield f"word-{len(messages)}-{number} "


async def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([TextPart("".join([each async for each in _speak(messages, info)]))])
