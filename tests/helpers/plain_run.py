"""A plain run that never ends: `python -m tests.helpers.plain_run file|sqlite PLACE`.

Two tools run at once: one completes, the other says so on stdout and waits to be killed.
"""

import asyncio
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from stores.opening import open_step_store
from tests.helpers.eventually import eventually
from workflows.persistence import StepPersistence


def call_tools(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    names = ["quick"] if turn == 0 else ["quick", "slow"]
    calls = [ToolCallPart(name, {"turn": turn}, tool_call_id=f"{turn}-{name}") for name in names]
    return ModelResponse(parts=calls)


async def main(backend: Any, place: str) -> None:
    options: dict[str, Any] = {"directory" if backend == "file" else "database": place}
    store = open_step_store(backend, **options)
    persistence = StepPersistence[Any](store=store, run_id="run", capture_frontier=True)
    agent = Agent(FunctionModel(call_tools), capabilities=[persistence])

    @agent.tool_plain
    async def quick(turn: int) -> str:
        return f"quick {turn}"

    @agent.tool_plain
    async def slow(turn: int) -> str:
        async def sibling_has_ended() -> bool:
            events = await store.list_events(run_id="run")
            ended = {each.tool_call_id for each in events if each.kind == "tool_call_completed"}
            return f"{turn}-quick" in ended

        await eventually(sibling_has_ended)
        print("waiting", flush=True)  # noqa: T201 - heard by the test
        await asyncio.Event().wait()
        return "never"

    await agent.run("go")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
