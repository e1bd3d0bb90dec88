"""An agent for conversations whose model is a function, and what that function was asked."""

import asyncio
from collections.abc import AsyncGenerator

from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from workflows.durable import durable
from workflows.window import ChatDeps, keep_recent_turns

CHUNKS = {"hi": ["Hello, ", "Priya", "!"], "I am Priya": ["Nice to meet you."]}
"""What the model says to these, in the pieces in which it streams; to others `reply` and how many
requests there were."""


def prompts(messages: list[ModelMessage]) -> list[str]:
    return [
        str(part.content)
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]


class EchoModel:
    """Answers, and keeps the messages of each request.

    A request whose first words are `wait` is answered when `gate` is set, one of `fail` not at all.
    """

    def __init__(self) -> None:
        self.seen: list[list[ModelMessage]] = []
        self.gate = asyncio.Event()

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self._whole, stream_function=self._streamed, model_name="echo")

    def agent(self, name: str = "conversation") -> Agent[ChatDeps, str]:
        capabilities = durable(ProcessHistory(keep_recent_turns))
        return Agent(self.model, name=name, deps_type=ChatDeps, capabilities=capabilities)

    async def _whole(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        chunks = [chunk async for chunk in self._streamed(messages, info)]
        return ModelResponse(parts=[TextPart("".join(chunks))])

    async def _streamed(self, messages: list[ModelMessage], _: AgentInfo) -> AsyncGenerator[str]:
        self.seen.append(list(messages))
        newest = prompts(messages)[-1]
        reply = f"reply {len(self.seen)}"
        if newest.startswith("wait"):
            await self.gate.wait()
        if newest.startswith("fail"):
            message = "the model is gone"
            raise UserError(message)
        for chunk in CHUNKS.get(newest, [reply]):
            yield chunk
