"""The reference's documented way to hold a conversation: the agent in a workflow that streams."""

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from pydantic_ai.durable_exec.temporal import AgentEventStream
    from pydantic_ai.messages import ModelMessage

    from benchmarks.scripted import AGENTS


@workflow.defn(name="benchmark_chat")
class BenchmarkChatWorkflow:
    """Answers one message after the other, and remembers them all."""

    @workflow.init
    def __init__(self, agent: str) -> None:
        self._agent = AGENTS[agent]
        self._events = AgentEventStream()
        self._messages: list[ModelMessage] = []
        self._is_free = asyncio.Lock()

    @workflow.run
    async def run(self, agent: str) -> None:
        """Live until it is terminated."""
        del agent
        await workflow.wait_condition(lambda: False)

    @workflow.update(name="say")
    async def say(self, text: str) -> str:
        """The answer."""
        async with self._is_free:
            result = await self._agent.run(text, message_history=self._messages)
            self._messages = result.all_messages()
            return result.output
