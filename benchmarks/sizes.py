"""What a long run costs where its payloads are stored beside the history."""

import base64
import os
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from hashlib import shake_128
from typing import Any
from uuid import uuid4

from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel
from temporalio.api.enums.v1 import EventType
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import WorkflowHistory
from temporalio.worker import WorkflowInstance

import sandbox
from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.scripted import Plan, follow
from benchmarks.side import LONGEST_RUN
from client import connect
from payload_driver import PayloadDriver
from settings import Settings
from stores.mongo.steps import MongoStepStore
from stores.payload_store import PayloadCounts
from worker import build_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.durable import durable

AGENT = "sizes"

LONG = Plan(steps=400, size_bytes=10_000)
QUICK_LONG = Plan(steps=80, size_bytes=10_000)
WIDE = Plan(steps=40, size_bytes=60_000)

FAILED_TASKS = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
}


def make_agent() -> Agent[None, str]:
    """An agent whose tool gives text that compresses by about half, as JSON of ids does."""
    agent = Agent(FunctionModel(follow), name=AGENT, capabilities=durable())

    @agent.tool_plain(metadata={"effect": "read"})
    async def look_up(left: int, size_bytes: int) -> str:
        """Give a text of that size, which no other step gets."""
        return shake_128(b"%d" % left).hexdigest(size_bytes // 2)

    return agent


@dataclass(kw_only=True)
class Activations:
    """Processor time of each workflow activation, with the length of the history it came at."""

    samples: list[tuple[int, float]]

    def worst_ms(self, until: float) -> float:
        """Of those in the first part of the history (1: all of it)."""
        last = max(length for length, _ in self.samples)
        return max(ms for length, ms in self.samples if length <= until * last)


@contextmanager
def timed_activations() -> Generator[Activations]:
    """Measure in the thread that runs workflow code."""
    found = Activations(samples=[])
    instance: type[WorkflowInstance] = vars(sandbox)["_ContextFreeInstance"]
    activate, name = instance.activate, "activate"

    def timed(self: WorkflowInstance, act: WorkflowActivation) -> WorkflowActivationCompletion:
        start = time.thread_time()
        completion = activate(self, act)
        found.samples.append((act.history_length, 1000 * (time.thread_time() - start)))
        return completion

    setattr(instance, name, timed)
    try:
        yield found
    finally:
        setattr(instance, name, activate)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run that has ended."""

    history: WorkflowHistory
    store: MongoStepStore
    database: str
    run_id: str
    counts: PayloadCounts

    def bytes_of_a_step(self, steps: int) -> float:
        """In Temporal, of the last tenth of the steps."""
        sizes = [event.ByteSize() for event in self.history.events]
        return sum(sizes[-len(sizes) // 10 :]) / (steps / 10)


@asynccontextmanager
async def ended_run(
    bench: Bench, plan: Plan, options: Mapping[str, Any] | None = None
) -> AsyncGenerator[Ended]:
    """A run of that plan on a worker as production builds it; `options` are settings."""
    settings = Settings(
        temporal_address=bench.client.service_client.config.target_host,
        mongodb_uri=bench.mongodb_uri,
        mongodb_database=f"sizes_{uuid4().hex}",
        task_queue=f"sizes-{uuid4().hex}",
        graceful_shutdown_seconds=1,
        **(options or {}),
    )
    store = MongoStepStore(db_url=bench.mongodb_uri, database=settings.mongodb_database)
    try:
        await store.initialise()
        client = await connect(settings, chunks=store.chunks)
        async with build_worker(client, store, [make_agent()], settings):
            handle = await client.start_workflow(
                AgentRunWorkflow.run,
                AgentRunInput(agent=AGENT, prompt=plan.prompt),
                id=f"sizes-{uuid4().hex}",
                task_queue=settings.task_queue,
                execution_timeout=LONGEST_RUN,
            )
            await handle.result()
            history = await handle.fetch_history()
        storage = client.data_converter.external_storage
        driver = storage.drivers[0] if storage else None
        counts = driver.payloads.counts if isinstance(driver, PayloadDriver) else PayloadCounts()
        yield Ended(
            history=history,
            store=store,
            database=settings.mongodb_database,
            run_id=handle.id,
            counts=counts,
        )
    finally:
        await store.aclose()


async def measure_sizes(bench: Bench) -> list[Figure]:
    """A context of 4 MB without a window; many results of 60,000 characters; encryption."""
    plan = QUICK_LONG if bench.is_quick else LONG
    with timed_activations() as activations:
        async with ended_run(bench, plan) as ended:
            figures = await _figures_of(bench, plan, ended)
    half = 2.0 / (plan.steps * plan.size_bytes / 1e6)
    figures += [
        Figure(
            name="processor time of the longest activation, up to 500 messages and 2 MB",
            unit="ms",
            measured=activations.worst_ms(min(half, 1.0)),
            budget=200,
        ),
        Figure(
            name=f"the same, up to {plan.steps * plan.size_bytes / 1e6:.1f} MB",
            unit="ms",
            measured=activations.worst_ms(1.0),
            budget=1000,
        ),
    ]
    async with ended_run(bench, WIDE) as ended:
        figures += await _wide(bench, ended)
    return figures + await _encrypted(bench)


async def _figures_of(bench: Bench, plan: Plan, ended: Ended) -> list[Figure]:
    name = f"{plan.steps} steps of {plan.size_bytes // 1000} KB"
    sizes = await _sizes(bench, ended.database)
    messages = sizes["messages"]
    history_mb = sum(event.ByteSize() for event in ended.history.events) / 1e6
    return [
        Figure(
            name=f"bytes in Temporal of one step, at the end of {name}",
            unit="KB",
            measured=ended.bytes_of_a_step(plan.steps) / 1000,
            budget=25,
            detail=f"{len(ended.history.events)} events, {history_mb:.1f} MB in all",
        ),
        Figure(
            name=f"bytes in MongoDB over those of the messages, {name}",
            unit="x",
            measured=sum(sizes.values()) / messages,
            budget=2,
            detail=", ".join(f"{each} {size / 1e6:.2f} MB" for each, size in sizes.items()),
        ),
        Figure(
            name=f"workflow tasks that failed, {name}",
            unit="",
            measured=_failed_tasks(ended.history),
            budget=0,
        ),
    ]


async def _wide(bench: Bench, ended: Ended) -> list[Figure]:
    largest = 0
    for each in await bench.mongodb[ended.database].list_collection_names():
        pipeline = [{"$group": {"_id": None, "size": {"$max": {"$bsonSize": "$$ROOT"}}}}]
        found = await bench.mongodb[ended.database][each].aggregate(pipeline)
        sizes = [int(row["size"]) for row in await found.to_list()]
        largest = max([largest, *sizes])
    (newest,) = (await ended.store.list_snapshots(run_id=ended.run_id))[-1:]
    said = "".join(map(str, newest.messages))
    lost = sum(
        shake_128(b"%d" % left).hexdigest(WIDE.size_bytes // 2) not in said
        for left in range(1, WIDE.steps + 1)
    )
    name = f"{WIDE.steps} results of {WIDE.size_bytes} characters"
    return [
        Figure(
            name=f"workflow tasks that failed, {name}",
            unit="",
            measured=_failed_tasks(ended.history),
            budget=0,
        ),
        Figure(name=f"largest document, {name}", unit="MB", measured=largest / 1e6, budget=8),
        Figure(
            name=f"results that the newest snapshot lacks, {name}",
            unit="",
            measured=lost,
            budget=0,
        ),
    ]


async def _encrypted(bench: Bench) -> list[Figure]:
    """What is written of what is given, without a key and with one."""
    secret = base64.b64encode(os.urandom(32)).decode()
    figures: list[Figure] = []
    options: Sequence[tuple[str, dict[str, Any]]] = (
        ("without a key", {}),
        ("with a key", {"payload_keys": {"one": secret}, "payload_key": "one"}),
    )
    for words, given in options:
        async with ended_run(bench, QUICK_LONG, given) as ended:
            counts = ended.counts
        figures.append(
            Figure(
                name=f"payload bytes given over new ones, {QUICK_LONG.steps} steps, {words}",
                unit="x",
                measured=counts.bytes_given / counts.bytes_new,
                detail=f"{counts.bytes_given / 1e6:.1f} MB given, {counts.bytes_new / 1e6:.2f} MB "
                f"new, {counts.bytes_written / 1e6:.2f} MB written",
            )
        )
    return figures


async def _sizes(bench: Bench, database: str) -> dict[str, int]:
    """`dataSize` of each collection, the largest first."""
    found = bench.mongodb[database]
    sizes = {
        name: (await found.command("collStats", name))["size"]
        for name in await found.list_collection_names()
    }
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _failed_tasks(history: WorkflowHistory) -> int:
    return sum(event.event_type in FAILED_TASKS for event in history.events)
