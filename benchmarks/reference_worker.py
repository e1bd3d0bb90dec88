"""The reference side, run by its own interpreter: pydantic-ai-harness on the same servers.

Every choice is the reference's default. `worker` polls a task queue until it is killed; `run` is
one run outside Temporal, for what the store then holds.
"""

import asyncio
import importlib
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin, TemporalDurability
from pydantic_ai.usage import UsageLimits
from temporalio.client import Client
from temporalio.worker import Worker

from benchmarks.charging import make_charging_agent
from benchmarks.chat_workflow import BenchmarkChatWorkflow
from benchmarks.chatting import make_chatting_agent
from benchmarks.noting import make_noting_agent
from benchmarks.noting_workflow import NotingRunWorkflow
from benchmarks.scripted import PERSISTED, PLAIN, Plan, make_agent
from benchmarks.workflow import WORKFLOWS


def _persistent(
    mongodb_uri: str, database: str, topic: str | None = None
) -> list[AbstractCapability[Any]]:
    # By name: type checkers run in an environment that has no harness.
    harness: Any = importlib.import_module("pydantic_ai_harness.step_persistence")
    store = harness.MongoStepStore(db_url=mongodb_uri, database=database)
    return [TemporalDurability(event_stream_topic=topic), harness.StepPersistence(store=store)]


def _persisted_agent(mongodb_uri: str, database: str) -> Agent[None, str]:
    return make_agent(PERSISTED, _persistent(mongodb_uri, database))


async def _work(mongodb_uri: str, database: str, address: str, task_queue: str) -> None:
    client = await Client.connect(address, plugins=[PydanticAIPlugin()])
    agents: list[Agent[Any, Any]] = [
        _persisted_agent(mongodb_uri, database),
        make_charging_agent(_persistent(mongodb_uri, database)),
        make_chatting_agent(_persistent(mongodb_uri, database, "events")),
        make_noting_agent(_persistent(mongodb_uri, database)),
        make_agent(PLAIN, [TemporalDurability()]),
    ]
    worker = Worker(
        client,
        task_queue=task_queue,
        workflows=[*WORKFLOWS, BenchmarkChatWorkflow, NotingRunWorkflow],
        plugins=[AgentPlugin(agent) for agent in agents],
    )
    await worker.run()


async def _run(mongodb_uri: str, database: str, steps: str, size_bytes: str) -> None:
    plan = Plan(steps=int(steps), size_bytes=int(size_bytes))
    agent = _persisted_agent(mongodb_uri, database)
    await agent.run(plan.prompt, usage_limits=UsageLimits(request_limit=None))


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    asyncio.run({"worker": _work, "run": _run}[command](*arguments))
