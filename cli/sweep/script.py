"""What every run of the sweep does: an agent whose model follows a fixed script, and its tools.

Each tool's body notes outside of everything, in a file, that it has begun. What a run says of its
tools can be compared with that.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio import activity
from temporalio.workflow import ActivityConfig

from stores.faulty import FaultPlan
from workflows import policies
from workflows.delegates import delegate
from workflows.durable import durable
from workflows.effects import effect

Call = tuple[str, float]
"""A tool, and how many seconds its body takes."""

SOON = 0.05
SLOW = 0.6
"""Longer than it takes to see that a commit was written, shorter than anybody waits."""

STEPS: dict[str, Sequence[Sequence[Call]]] = {
    "sweep": (
        (("look", SOON),),
        (("charge", SLOW),),
        (("look", SOON), ("mark", 0.4), ("charge", 0.8)),
        (("note", 0), ("note", 0)),
        (("refuse", SOON),),
        (("refuse", SOON),),
        (("falter", SOON),),
        (("ask_helper", 0),),
    ),
    "helper": ((("mark", SOON),),),
}
"""By agent, the model's responses; the calls of one run side by side."""

BODIES = "bodies"
"""File in the plan's directory: a line for each body that began."""

ONCE_TOOLS = frozenset({"charge"})
REPEATABLE_TOOLS = frozenset({"mark", "refuse", "falter"})


class Scene:
    """What this worker process plays in; set before it polls."""

    plan: FaultPlan | None = None


def body_counts(directory: Path, run_id: str) -> Counter[str]:
    """How often the bodies of a run's calls began, by tool call id."""
    path = directory / BODIES
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return Counter(each["call"] for each in found if each["run_id"] == run_id)


def follow(agent_name: str) -> FunctionModel:
    """The model: its n-th response is the n-th step of the agent's script."""
    steps = STEPS[agent_name]

    async def respond(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        done = sum(isinstance(message, ModelResponse) for message in messages)
        if Scene.plan is not None:
            await Scene.plan.meet(f"model:{agent_name}:{done}")
        if done == len(steps):
            return ModelResponse(parts=[TextPart(f"{agent_name} is done")])
        return ModelResponse(parts=[_part(done, index, *c) for index, c in enumerate(steps[done])])

    return FunctionModel(respond, model_name="script")


def _part(step: int, index: int, tool: str, seconds: float) -> ToolCallPart:
    arguments = {"prompt": "go"} if tool == "ask_helper" else {"seconds": seconds}
    return ToolCallPart(tool, arguments, tool_call_id=f"call-{step + 1}-{index}")


async def _act(ctx: RunContext[None], seconds: float) -> str:
    """What every body in an activity does: note that it began, meet its fault, take its time."""
    _note(ctx)
    if Scene.plan is not None:
        await Scene.plan.meet(f"body:{ctx.tool_call_id}")
    await asyncio.sleep(seconds)  # noqa: TID251 - an activity that takes its time
    return f"{ctx.tool_name} {ctx.tool_call_id}"


def _note(ctx: RunContext[None]) -> None:
    if Scene.plan is None:
        return
    line = {"run_id": ctx.run_id, "call": ctx.tool_call_id, "tool": ctx.tool_name}
    with (Scene.plan.directory / BODIES).open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


MODEL = ActivityConfig(heartbeat_timeout=policies.HEARTBEAT_TIMEOUT)
"""A model call that is lost is noticed as soon as a tool, so that the sweep does not wait."""


@dataclass(frozen=True)
class _Tools:
    agent: Agent[None, str]

    def add(self) -> Agent[None, str]:
        self.agent.tool(metadata=effect("read"))(look)
        self.agent.tool(metadata=effect("idempotent"))(mark)
        self.agent.tool(charge)
        self.agent.tool(metadata={"temporal": False}, sequential=True)(note)
        self.agent.tool(metadata=effect("idempotent"), retries=3)(refuse)
        self.agent.tool(metadata=effect("idempotent"))(falter)
        return self.agent


async def look(ctx: RunContext[None], seconds: float) -> str:
    """Change nothing."""
    return await _act(ctx, seconds)


async def mark(ctx: RunContext[None], seconds: float) -> str:
    """Do what may be done twice."""
    return await _act(ctx, seconds)


async def charge(ctx: RunContext[None], seconds: float) -> str:
    """Do what may be done once; says nothing of it."""
    return await _act(ctx, seconds)


async def note(ctx: RunContext[None], seconds: float) -> str:
    """Run inside the workflow, in turn, so that one task holds several commits."""
    if Scene.plan is not None:
        Scene.plan.meet_at_once(f"body:{ctx.tool_call_id}")
    return f"{ctx.tool_name} {ctx.tool_call_id} {seconds}"


async def refuse(ctx: RunContext[None], seconds: float) -> str:
    """Ask the model for another try, once."""
    said = await _act(ctx, seconds)
    if not ctx.retry:
        message = "once more"
        raise ModelRetry(message)
    return said


async def falter(ctx: RunContext[None], seconds: float) -> str:
    """Raise at the first attempt."""
    said = await _act(ctx, seconds)
    if activity.info().attempt == 1:
        raise RuntimeError(said)
    return said


def _made(name: str, **options: Any) -> Agent[None, str]:  # noqa: ANN401 - the agent's own
    agent = Agent(
        follow(name),
        name=name,
        capabilities=[*durable(activities=MODEL)],
        deps_type=type(None),
        **options,
    )
    return _Tools(agent).add()


HELPER = _made("helper")
SWEEP = _made("sweep", tools=[delegate(HELPER, description="Does one thing.")])

AGENTS = [SWEEP, HELPER]
"""What a worker of the sweep serves."""
