"""Our side: Perdure's worker in this process, built as production builds it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from pydantic_ai import Agent
from pydantic_ai.durable_exec.temporal import TemporalDurability
from temporalio.client import Client

from benchmarks.scripted import PERSISTED, PLAIN, make_agent
from benchmarks.side import Side
from benchmarks.workflow import WORKFLOWS
from settings import Settings
from stores.opening import open_step_store
from worker import build_worker
from workflows.durable import StableTemporalDurability, durable


def persisted_agent(name: str = PERSISTED) -> Agent[None, str]:
    """The agent as users make it."""
    return make_agent(name, durable())


def plain_agent() -> Agent[None, str]:
    """The same agent, its durability configured alike, without `StepPersistence`."""
    durability = [each for each in durable() if isinstance(each, StableTemporalDurability)]
    return make_agent(PLAIN, durability)


@asynccontextmanager
async def our_side(
    client: Client,
    mongodb_uri: str,
    persisted: Sequence[Agent[Any, Any]],
    *,
    plain: Sequence[Agent[Any, Any]] = (),
    database: str | None = None,
    task_queue: str | None = None,
) -> AsyncGenerator[Side]:
    """One worker for agents with and without persistence, so that both have all else in common.

    Args:
        client: its interceptors are the worker's, too.
        database: a fresh one when `None`.
        task_queue: likewise.
    """
    name = database or f"benchmark_{uuid4().hex}"
    store = open_step_store("mongodb", db_url=mongodb_uri, database=name)
    settings = Settings(task_queue=task_queue or f"ours-{uuid4().hex}", graceful_shutdown_seconds=1)
    durabilities = [TemporalDurability.from_agent(agent) for agent in plain]
    activities = [run for each in durabilities if each for run in each.temporal_activities]
    try:
        await store.initialise()
        worker = build_worker(
            client, store, persisted, settings, workflows=WORKFLOWS, activities=activities
        )
        async with worker:
            yield Side(client=client, task_queue=settings.task_queue)
    finally:
        await store.aclose()
