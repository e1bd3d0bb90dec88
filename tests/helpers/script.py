"""An agent whose model follows the script in its prompt: steps of tool calls, then a text.

The prompt is JSON: `{"steps": [[["echo", {"text": "a"}], ["echo", {"text": "b"}]]], "final": "x"}`.
Each list of calls is one model response; its calls run in parallel.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, ApprovalRequired, ModelRetry, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from workflows.durable import durable

Call = tuple[str, dict[str, Any]]


def script(steps: Sequence[Sequence[Call]], final: str = "done") -> str:
    """The prompt that makes the agent do `steps` and then say `final`."""
    return json.dumps({"steps": steps, "final": final})


def echo_steps(count: int, *, parallel: int = 1, size: int = 4, delay: float = 0.0) -> str:
    """A script of `count` steps with `parallel` echo calls of `size` characters each."""
    return script(
        [
            [
                ("echo", {"text": f"{step}-{call}".ljust(size, "x"), "delay": delay})
                for call in range(parallel)
            ]
            for step in range(count)
        ]
    )


def follow(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """The model: its n-th response is the n-th step after the newest script in the history."""
    plan: dict[str, Any] = {"steps": [], "final": "nothing to do"}
    done = 0
    for message in messages:
        if isinstance(message, ModelResponse):
            done += 1
            continue
        for part in message.parts:
            if isinstance(part, UserPromptPart) and isinstance(part.content, str):
                plan, done = json.loads(part.content), 0
    if done >= len(plan["steps"]):
        return ModelResponse(parts=[TextPart(plan["final"])])
    calls = plan["steps"][done]
    turn = sum(isinstance(message, ModelRequest) for message in messages)
    return ModelResponse(
        parts=[
            ToolCallPart(name, args, tool_call_id=f"call-{turn}-{index}")
            for index, (name, args) in enumerate(calls)
        ]
    )


async def pay(path: str, delay: float = 0.0) -> str:
    """Append a line to a file; nobody says whether that may be repeated."""
    with Path(path).open("a") as file:
        file.write(f"paid {os.getpid()}\n")
    await asyncio.sleep(delay)
    return "paid"


async def _ask_first(ctx: RunContext[object], text: str) -> str:
    """Give the text back once the call is approved."""
    if not ctx.tool_call_approved:
        raise ApprovalRequired
    return text


ask_first = Tool(_ask_first, name="ask_first", metadata={"effect": "idempotent"})


async def _odd_in_workflow() -> bytes:
    """Return, from inside the workflow, what is no UTF-8."""
    return b"\xff\xfe"


odd_in_workflow = Tool(
    _odd_in_workflow, name="odd_in_workflow", metadata={"temporal": False, "effect": "read"}
)


def make_agent(
    name: str | None = "script",
    *,
    tools: Sequence[Tool[Any]] = (),
    also: Sequence[AbstractCapability[Any]] = (),
    **options: Any,
) -> Agent[None, str]:
    """An agent of that name with `tools` and every one below; the rest goes to `durable`."""
    capabilities = durable(*also, **options)
    agent = Agent(
        FunctionModel(follow),
        name=name,
        tools=[
            *tools,
            *(Tool(pay), Tool(pay, name="order", requires_approval=True), ask_first),
            odd_in_workflow,
        ],
        capabilities=capabilities,
    )

    @agent.tool_plain(metadata={"effect": "read"})
    async def echo(text: str, delay: float = 0.0) -> str:
        """Give the text back after `delay` seconds."""
        await asyncio.sleep(delay)
        return text

    @agent.tool_plain(metadata={"effect": "idempotent"})
    async def mark(path: str, text: str, delay: float = 0.0) -> str:
        """Append a line to a file, so that a test can count how often the body ran."""
        with Path(path).open("a") as file:
            file.write(f"{text} {os.getpid()}\n")
        await asyncio.sleep(delay)
        return text

    @agent.tool_plain(metadata={"effect": "idempotent"})
    async def wait_for(path: str, marker: str = "") -> str:
        """Create `marker`, then wait until the file `path` exists."""
        if marker:
            Path(marker).touch()
        while not Path(path).exists():
            await asyncio.sleep(0.02)
        return "seen"

    @agent.tool_plain(metadata={"effect": "idempotent"})
    async def fail(text: str) -> str:
        """Raise."""
        raise RuntimeError(text)

    @agent.tool_plain(metadata={"effect": "idempotent"})
    async def odd(kind: str) -> object:
        """Return something that JSON cannot hold."""
        return "\ud800" if kind == "surrogate" else asyncio.Lock()

    @agent.tool_plain(metadata={"effect": "idempotent"}, retries=3)
    async def retry(path: str, times: int) -> str:
        """Ask the model to try again, `times` times."""
        file = Path(path)
        count = len(file.read_text()) if file.exists() else 0
        if count < times:
            file.write_text("x" * (count + 1))
            message = "try again"
            raise ModelRetry(message)
        return "worked"

    return agent
