"""Runs that go on in execution after execution: what each one takes, and that nothing is lost."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from time import perf_counter
from uuid import uuid4

from benchmarks.bench import Bench
from benchmarks.evidence import evidence_of
from benchmarks.figures import Figure
from benchmarks.place import Place, open_place
from benchmarks.scripted import Plan
from benchmarks.windowed import GROWING, WINDOWED
from stores.protocols import StepStore

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
        undisturbed = await place.start(GROWING, plan)
        await undisturbed.result()
        plain_seconds = perf_counter() - start
        plain = await evidence_of(place.store, undisturbed.id)
    async with _place(bench, PERDURE_HOP_AFTER_REQUESTS=str(RECYCLED_EVERY)) as place:
        start = perf_counter()
        handle = await place.start(GROWING, plan)
        await handle.result()
        seconds = perf_counter() - start
        recycled = await evidence_of(place.store, handle.id)
        run = await place.store.get_run(run_id=handle.id)
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


async def _long(bench: Bench, plan: Plan) -> list[Figure]:
    async with _place(bench) as place:
        start = perf_counter()
        handle = await place.start(WINDOWED, plan)
        run_id = handle.id
        ended = asyncio.ensure_future(handle.result())
        early = min(EARLY_STEPS, plan.steps // 2)
        while not ended.done() and await _steps(place.store, run_id) < early:
            await asyncio.wait([ended], timeout=0.5)
        early_mb = place.memory_mb("VmHWM")
        await ended
        seconds = perf_counter() - start
        late_mb = place.memory_mb("VmHWM")
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
async def _place(bench: Bench, **settings: str) -> AsyncGenerator[Place]:
    agents = {"PERDURE_AGENTS": "benchmarks.windowed:windowed,benchmarks.windowed:growing"}
    database = f"hops_{uuid4().hex}"
    async with open_place(
        bench.client, bench.mongodb_uri, database=database, settings={**agents, **settings}
    ) as place:
        yield place
    await bench.mongodb.drop_database(database)
