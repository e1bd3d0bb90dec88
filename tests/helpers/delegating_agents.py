"""An agent whose tools run other agents, which are no workflows of their own."""

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.function import FunctionModel
from temporalio import activity
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityConfig

from tests.helpers.script import follow, make_agent, script
from workflows.annotations import annotate_tool_effect
from workflows.persistence import StepPersistence

RETRIED = ActivityConfig(
    heartbeat_timeout=timedelta(seconds=2),
    retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100), backoff_coefficient=1.0),
)
ONE_SECOND = ActivityConfig(
    start_to_close_timeout=timedelta(seconds=1),
    retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100)),
)
TOOLS_QUEUE = "delegating-tools"

HELPER: Agent[Any, str] = Agent(
    FunctionModel(follow), name="helper", capabilities=[StepPersistence()]
)
GRANDCHILD: Agent[Any, str] = Agent(
    FunctionModel(follow), name="grandchild", capabilities=[StepPersistence()]
)

outliving: dict[int, asyncio.Task[Any]] = {}
"""Delegates of `stubborn` by attempt, which nobody waits for."""


@HELPER.tool_plain
async def echo(text: str, delay: float = 0.0) -> str:
    """Give the text back after `delay` seconds."""
    await asyncio.sleep(delay)
    return text


@HELPER.tool_plain
async def wait_in_first_attempt(path: str) -> str:
    """Wait until the file exists."""
    while activity.info().attempt == 1 and not Path(path).exists():
        await asyncio.sleep(0.02)
    return "seen"


@HELPER.tool
async def ask(ctx: RunContext[Any], prompt: str) -> str:
    """Run another agent, and say so in the ledger."""
    await annotate_tool_effect(None, ctx, effect_summary=f"asks {GRANDCHILD.name}")
    return str((await GRANDCHILD.run(prompt)).run_id)


async def delegate(prompts: list[str], fail_until: int = 0, kill_until: int = 0) -> str:
    """Run the helper for each prompt at once; then fail or die in the first attempts."""
    results = await asyncio.gather(*(HELPER.run(each) for each in prompts))
    attempt = activity.info().attempt
    if attempt <= kill_until:
        os.kill(os.getpid(), signal.SIGKILL)
    if attempt <= fail_until:
        message = f"attempt {attempt}"
        raise RuntimeError(message)
    return f"{os.getpid()}: {' '.join(result.run_id for result in results)}"


def delegate_in_a_thread(prompt: str) -> str:
    """Run the helper in an event loop of the tool's own."""
    return asyncio.run(HELPER.run(prompt)).run_id


async def delegate_as(run_ids: list[str], parent_run_id: str | None = None) -> str:
    """Run an agent under each of these ids."""
    for run_id in run_ids:
        persistence = StepPersistence[Any](run_id=run_id, parent_run_id=parent_run_id)
        agent = Agent(FunctionModel(follow), name="named", capabilities=[persistence])
        await agent.run(script([]))
    return "done"


async def stubborn(prompt: str) -> str:
    """Run the helper, which goes on when this attempt is over."""
    task = asyncio.create_task(HELPER.run(prompt))
    outliving[activity.info().attempt] = task
    return (await asyncio.shield(task)).run_id


async def set_label(ctx: RunContext[None], label: str, go: str = "", kill: int = 0) -> str:
    """Say what is going to happen, wait for the file `go` or die, and say more."""
    await annotate_tool_effect(
        None, ctx, idempotency_key=f"label::{label}", effect_summary=f"set {label}"
    )
    if activity.info().attempt <= kill:
        os.kill(os.getpid(), signal.SIGKILL)
    while go and not Path(go).exists():
        await asyncio.sleep(0.02)
    return "ok"


async def label_in_workflow(ctx: RunContext[None], label: str) -> str:
    """Say what happens from inside the workflow."""
    await annotate_tool_effect(None, ctx, idempotency_key=f"label::{label}")
    await annotate_tool_effect(None, ctx, effect_summary=f"set {label}")
    return "ok"


def add_tools(agent: Agent[None, str]) -> Agent[None, str]:
    """Give an agent the tools above."""
    for tool in (delegate, delegate_in_a_thread, delegate_as, stubborn):
        agent.tool_plain(metadata={"effect": "idempotent"})(tool)
    agent.tool(metadata={"effect": "idempotent"})(set_label)
    agent.tool(metadata={"temporal": False, "effect": "read"})(label_in_workflow)
    return agent


PARENT = add_tools(make_agent("parent", activities=RETRIED))
HASTY = add_tools(make_agent("hasty", activities=ONE_SECOND))
SPLIT = add_tools(make_agent("split", activities=ActivityConfig(task_queue=TOOLS_QUEUE)))

AGENTS = [PARENT, HASTY, SPLIT]
