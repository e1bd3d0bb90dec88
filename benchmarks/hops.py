"""Runs that go on in execution after execution: what each one takes, and that nothing is lost."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from uuid import uuid4

from pydantic_ai.messages import ModelMessagesTypeAdapter
from temporalio.client import Client

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.scripted import Plan
from benchmarks.windowed import GROWING, WINDOWED
from cli.processes import ChildProcess
from stores.opening import open_step_store
from stores.protocols import StepStore
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

ROOT = Path(__file__).parents[1]

LONGEST_RUN = timedelta(hours=1)

HISTORY_BUDGET_MB = {10_000: 10.0, 65_536: 5.0}
"""Of one execution, by the size of a tool result in bytes."""

EVENTS_BUDGET = 10_000
MEMORY_BUDGET = 1.2

EARLY_STEPS = 200
"""When the worker's memory is looked at for the first time."""

RECYCLED = Plan(steps=200)
QUICK_RECYCLED = Plan(steps=40)
RECYCLED_EVERY = 5

LONG = (Plan(steps=2000, size_bytes=10_000), Plan(steps=500, size_bytes=65_536))
QUICK_LONG = (Plan(steps=400, size_bytes=10_000), Plan(steps=100, size_bytes=65_536))

STAMPS = {"timestamp", "run_id", "conversation_id"}


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A store, a worker process of its own, and the queue that this polls."""

    client: Client
    store: StepStore
    worker: ChildProcess
    task_queue: str

    async def start(self, agent: str, plan: Plan) -> str:
        run_id = f"hops-{uuid4().hex}"
        await self.client.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent=agent, prompt=plan.prompt),
            id=run_id,
            task_queue=self.task_queue,
            execution_timeout=LONGEST_RUN,
        )
        return run_id

    def peak_mb(self) -> float:
        """Most memory that the worker has had so far (`VmHWM`), in MB of a million bytes."""
        status = Path(f"/proc/{self.worker.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024 / 1e6


async def measure_hops(bench: Bench) -> list[Figure]:
    """A run that hops every 5 steps next to one that does not, and two long ones with a window."""
    plans = QUICK_LONG if bench.is_quick else LONG
    figures = await _recycled(bench, QUICK_RECYCLED if bench.is_quick else RECYCLED)
    for plan in plans:
        figures += await _long(bench, plan)
    return figures


async def _recycled(bench: Bench, plan: Plan) -> list[Figure]:
    async with _place(bench) as place:
        start = perf_counter()
        plain_id = await place.start(GROWING, plan)
        await place.client.get_workflow_handle(plain_id).result()
        plain_seconds = perf_counter() - start
        plain = await _evidence(place.store, plain_id)
    async with _place(bench, PERDURE_HOP_AFTER_REQUESTS=str(RECYCLED_EVERY)) as place:
        start = perf_counter()
        run_id = await place.start(GROWING, plan)
        await place.client.get_workflow_handle(run_id).result()
        seconds = perf_counter() - start
        recycled = await _evidence(place.store, run_id)
        run = await place.store.get_run(run_id=run_id)
    hops = len(run.branches) - 1 if run else 0
    name = f"{plan.steps} steps, a hop every {RECYCLED_EVERY}"
    return [
        Figure(
            name=f"{name}: event keys, snapshots, effects and messages that differ from no hop",
            unit="",
            measured=sum(one != other for one, other in zip(plain, recycled, strict=False))
            + abs(len(plain) - len(recycled)),
            budget=0,
            detail=f"of {len(plain)}; {hops} hops",
        ),
        Figure(
            name=f"{name}: seconds, over those with no hop",
            unit="x",
            measured=seconds / plain_seconds,
            detail=f"{seconds:.1f} s against {plain_seconds:.1f} s",
        ),
    ]


async def _evidence(store: StepStore, run_id: str) -> list[str]:
    """All that is stored of a run, without times and ids, in its order."""
    events = await store.list_events(run_id=run_id)
    effects = await store.list_tool_effects(run_id=run_id)
    summaries = await store.list_snapshot_summaries(run_id=run_id)
    latest = await store.latest_snapshot(run_id=run_id)
    messages = latest.messages if latest else []
    stamps = dict.fromkeys(STAMPS, True)
    return [
        *(f"{each.sequence} {each.idempotency_key}" for each in events),
        *(f"{each.sequence} {each.step_index}/{each.call_index} {each.status}" for each in effects),
        *(f"{each.sequence} {each.idempotency_key} {each.message_count}" for each in summaries),
        *(
            ModelMessagesTypeAdapter.dump_json(
                [message], exclude={0: {**stamps, "parts": {"__all__": {"timestamp"}}}}
            ).decode()
            for message in messages
        ),
    ]


async def _long(bench: Bench, plan: Plan) -> list[Figure]:
    async with _place(bench) as place:
        start = perf_counter()
        run_id = await place.start(WINDOWED, plan)
        handle = place.client.get_workflow_handle(run_id)
        ended = asyncio.ensure_future(handle.result())
        early = min(EARLY_STEPS, plan.steps // 2)
        while not ended.done() and await _steps(place.store, run_id) < early:
            await asyncio.wait([ended], timeout=0.5)
        early_mb = place.peak_mb()
        await ended
        seconds = perf_counter() - start
        late_mb = place.peak_mb()
        run = await place.store.get_run(run_id=run_id)
        branches = [each.branch for each in run.branches] if run else []
        described = [
            await place.client.get_workflow_handle(run_id, run_id=each).describe()
            for each in branches
        ]
    sizes_mb = [
        each.raw_description.workflow_execution_info.history_size_bytes / 1e6 for each in described
    ]
    name = f"{plan.steps} steps of {plan.size_bytes} bytes, a window of 500 KB"
    return [
        Figure(
            name=f"{name}: largest history",
            unit="MB",
            measured=max(sizes_mb),
            budget=HISTORY_BUDGET_MB[plan.size_bytes],
            detail=f"{len(branches)} executions, {sum(sizes_mb):.0f} MB in all; {seconds:.0f} s",
        ),
        Figure(
            name=f"{name}: most events of a history",
            unit="",
            measured=max(each.history_length for each in described),
            budget=EVENTS_BUDGET,
        ),
        Figure(
            name=f"{name}: peak memory of the worker at the end, over that after {early} steps",
            unit="x",
            measured=late_mb / early_mb,
            budget=MEMORY_BUDGET,
            detail=f"{late_mb:.0f} MB and {early_mb:.0f} MB",
        ),
    ]


async def _steps(store: StepStore, run_id: str) -> int:
    return len(await store.list_snapshot_summaries(run_id=run_id))


@asynccontextmanager
async def _place(bench: Bench, **settings: str) -> AsyncGenerator[_Place]:
    """A worker in a process of its own, so that its memory is its own."""
    database, task_queue = f"hops_{uuid4().hex}", f"hops-{uuid4().hex}"
    store = open_step_store("mongodb", db_url=bench.mongodb_uri, database=database)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PERDURE_TEMPORAL_ADDRESS": bench.client.service_client.config.target_host,
        "PERDURE_MONGODB_URI": bench.mongodb_uri,
        "PERDURE_MONGODB_DATABASE": database,
        "PERDURE_TASK_QUEUE": task_queue,
        "PERDURE_AGENTS": "benchmarks.windowed:windowed,benchmarks.windowed:growing",
        **settings,
    }
    with TemporaryDirectory(prefix="perdure-hops-") as home:
        worker = ChildProcess(
            "The worker",
            [sys.executable, "-m", "worker"],
            log_path=Path(home) / "worker.log",
            env=environment,
        )
        try:
            await store.initialise()
            worker.spawn()
            yield _Place(client=bench.client, store=store, worker=worker, task_queue=task_queue)
        finally:
            await worker.stop()
            await store.aclose()
            await bench.mongodb.drop_database(database)
