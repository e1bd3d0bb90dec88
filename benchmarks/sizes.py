"""What a long run costs where its payloads are stored beside the history."""

import base64
import math
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
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
from benchmarks.search_corpus import texts
from benchmarks.side import RunHandle
from client import connect
from payload_driver import PayloadDriver
from settings import Settings
from stores.mongo.steps import MongoStepStore
from stores.payload_store import PayloadCounts
from worker import build_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.durable import durable

IDS, FILES = "sizes-ids", "sizes-files"
"""Agents by what their tool returns: hexadecimal digits, which compress by half and of which each
word is new, or what a tool reads that reads source files."""

LONG = Plan(steps=400, size_bytes=10_000)
QUICK_LONG = Plan(steps=80, size_bytes=10_000)
SHORT = Plan(steps=40, size_bytes=10_000)
"""What the reference survives, too."""
WIDE = Plan(steps=40, size_bytes=60_000)

LONGEST_RUN = timedelta(hours=1)

SEARCHED = ("search_log", "search_segments", "search_state")
"""What `ConversationSearch` is answered from: the terms of each text."""

STEPS_OF_500_MESSAGES = 250

LAST_REQUESTS = 40
"""Model requests at the end of a run, whose steps are weighed."""

FAILED_TASKS = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
}


def make_agent(name: str, text: Callable[[int, int], str]) -> Agent[None, str]:
    """An agent whose tool gives such texts."""
    agent = Agent(FunctionModel(follow), name=name, capabilities=durable())

    @agent.tool_plain(metadata={"effect": "read"})
    async def look_up(left: int, size_bytes: int) -> str:
        """Give a text of that size, which no other step gets."""
        return text(left, size_bytes)

    return agent


def _ids(left: int, size_bytes: int) -> str:
    return shake_128(b"%d" % left).hexdigest(size_bytes // 2)


def _file(left: int, size_bytes: int) -> str:
    return _sources()[left * size_bytes :][:size_bytes]


@cache
def _sources() -> str:
    """All that the longest run reads."""
    needed = (LONG.steps + 1) * LONG.size_bytes
    found: list[str] = []
    for size, text in enumerate(texts()):
        found.append(text)
        if size * 450 > 2 * needed:
            break
    return "".join(found)


@dataclass(kw_only=True)
class Activations:
    """Milliseconds of processor time of each workflow activation, in their order."""

    samples: list[float]

    def worst_ms(self, until: float) -> float:
        """Of those in the first part of the run (1: all of it)."""
        return max(self.samples[: math.ceil(until * len(self.samples))])


@contextmanager
def timed_activations() -> Generator[Activations]:
    """Measure in the thread that runs workflow code."""
    found = Activations(samples=[])
    instance: type[WorkflowInstance] = vars(sandbox)["_ContextFreeInstance"]
    activate, name = instance.activate, "activate"

    def timed(self: WorkflowInstance, act: WorkflowActivation) -> WorkflowActivationCompletion:
        start = time.thread_time()
        completion = activate(self, act)
        found.samples.append(1000 * (time.thread_time() - start))
        return completion

    setattr(instance, name, timed)
    try:
        yield found
    finally:
        setattr(instance, name, activate)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A run that has ended."""

    histories: Sequence[WorkflowHistory]
    """Of each execution."""
    store: MongoStepStore
    database: str
    run_id: str
    counts: PayloadCounts

    @property
    def failed_tasks(self) -> int:
        """Of all executions."""
        events = [event for each in self.histories for event in each.events]
        return sum(event.event_type in FAILED_TASKS for event in events)


@asynccontextmanager
async def ended_run(
    bench: Bench, plan: Plan, agent: str = IDS, options: Mapping[str, Any] | None = None
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
        agents = [make_agent(IDS, _ids), make_agent(FILES, _file)]
        async with build_worker(client, store, agents, settings):
            handle = await client.start_workflow(
                AgentRunWorkflow.run,
                AgentRunInput(agent=agent, prompt=plan.prompt),
                id=f"sizes-{uuid4().hex}",
                task_queue=settings.task_queue,
                execution_timeout=LONGEST_RUN,
            )
            await handle.result()
        run = await store.get_run(run_id=handle.id)
        executions = [each.branch for each in run.branches] if run else []
        histories = [
            await client.get_workflow_handle(handle.id, run_id=each).fetch_history()
            for each in executions
        ]
        storage = client.data_converter.external_storage
        driver = storage.drivers[0] if storage else None
        counts = driver.payloads.counts if isinstance(driver, PayloadDriver) else PayloadCounts()
        yield Ended(
            histories=histories,
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
    figures = await _beside(bench) if bench.reference else []
    with timed_activations() as activations:
        async with ended_run(bench, plan) as ended:
            figures += await _figures_of(bench, plan, ended)
    figures += [
        Figure(
            name="processor time of the longest activation, up to 500 messages and 2.5 MB",
            unit="ms",
            measured=activations.worst_ms(min(STEPS_OF_500_MESSAGES / plan.steps, 1.0)),
            budget=200,
            detail=f"{len(activations.samples)} activations in all",
        ),
        Figure(
            name=f"the same, up to {plan.steps * plan.size_bytes / 1e6:.1f} MB",
            unit="ms",
            measured=activations.worst_ms(1.0),
            budget=1000,
        ),
    ]
    async with ended_run(bench, plan, FILES) as ended:
        name = f"{plan.steps} steps of {plan.size_bytes // 1000} KB of source files"
        figures += _in_mongodb(await _sizes(bench, ended.database), name)
    async with ended_run(bench, WIDE) as ended:
        figures += await _wide(bench, ended)
    return figures + await _encrypted(bench)


async def _beside(bench: Bench) -> list[Figure]:
    """A run that the reference survives, next to the same on the reference."""
    reference = bench.reference
    if reference is None:
        return []
    handle: RunHandle = await reference.run(SHORT)
    theirs = [await handle.fetch_history()]
    beside = f"sizes_reference_{uuid4().hex}"
    await reference.run_outside(SHORT, database=beside)
    their_sizes = await _sizes(bench, beside)
    async with ended_run(bench, SHORT) as ended:
        sizes = await _sizes(bench, ended.database)
        name = f"{SHORT.steps} steps of {SHORT.size_bytes // 1000} KB"
        return [
            Figure(
                name=f"bytes in Temporal of one step, at the end of {name}",
                unit="KB",
                measured=_bytes_of_a_step(ended.histories, last=SHORT.steps // 4) / 1000,
                reference=_bytes_of_a_step(theirs, last=SHORT.steps // 4) / 1000,
            ),
            Figure(
                name=f"bytes in MongoDB, payloads included, {name}",
                unit="MB",
                measured=sum(sizes.values()) / 1e6,
                reference=sum(their_sizes.values()) / 1e6,
            ),
        ]


async def _figures_of(bench: Bench, plan: Plan, ended: Ended) -> list[Figure]:
    name = f"{plan.steps} steps of {plan.size_bytes // 1000} KB"
    events = [event for each in ended.histories for event in each.events]
    history_mb = sum(event.ByteSize() for event in events) / 1e6
    return [
        Figure(
            name=f"bytes in Temporal of one step, at the end of {name}",
            unit="KB",
            measured=_bytes_of_a_step(ended.histories, last=LAST_REQUESTS) / 1000,
            budget=25,
            detail=f"{len(events)} events, {history_mb:.1f} MB in all, in "
            f"{len(ended.histories)} executions",
        ),
        *_in_mongodb(await _sizes(bench, ended.database), f"{name} of ids"),
        Figure(
            name=f"workflow tasks that failed, {name}",
            unit="",
            measured=ended.failed_tasks,
            budget=0,
        ),
    ]


def _bytes_of_a_step(histories: Sequence[WorkflowHistory], *, last: int) -> float:
    """In Temporal, from the first of the last so many model requests on."""
    events = [event for each in histories for event in each.events]
    requests = [
        index
        for index, event in enumerate(events)
        if event.activity_task_scheduled_event_attributes.activity_type.name.endswith(
            "model_request"
        )
    ]
    counted = events[requests[-last] :]
    return sum(event.ByteSize() for event in counted) / last


def _in_mongodb(sizes: Mapping[str, int], name: str) -> list[Figure]:
    """All bytes over those of the messages, and without what search is answered from."""
    searched = sum(sizes.get(each, 0) for each in SEARCHED)
    total = sum(sizes.values())
    return [
        Figure(
            name=f"bytes in MongoDB over those of the messages, without search, {name}",
            unit="x",
            measured=(total - searched) / sizes["messages"],
            budget=2,
            detail=", ".join(
                f"{each} {size / 1e6:.2f} MB" for each, size in sizes.items() if size > total / 1000
            ),
        ),
        Figure(
            name=f"the same, with the terms that search is answered from, {name}",
            unit="x",
            measured=total / sizes["messages"],
            budget=2,
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
            measured=ended.failed_tasks,
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
        async with ended_run(bench, QUICK_LONG, options=given) as ended:
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
