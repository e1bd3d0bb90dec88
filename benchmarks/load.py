"""Runs a second of worker processes, a load that goes on, and the cost of runs that are open."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from time import monotonic, perf_counter
from uuid import uuid4

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median
from benchmarks.place import Place, open_place
from benchmarks.scripted import PERSISTED, PLAIN, Plan
from benchmarks.side import Side
from benchmarks.workflow import HeldRunWorkflow
from cli.output import note

PLAN = Plan(steps=5)

PROCESSES = (1, 2)

AT_A_TIME = 30

RUNS, FEWER_RUNS = 120, 30
"""Fewer when rough figures will do, and of the reference."""

ROUNDS, FEWER_ROUNDS = 3, 1
"""Of both agents in turn, so that what else the machine does meets both."""

LOADING = 4
"""Runs before each measurement, which load what is lazy."""

BUDGET = 1 / 0.9
"""Runs a second without persistence over those with it."""

SOAKED_AT_A_TIME = 8
SOAK_SAMPLES = 60
STEADY = 1.1
"""Memory in the last fifth of a soak over that in the second fifth."""

OPEN = (1, 10, 100, 1000)
QUICK_OPEN = (1, 10, 100)

HELD = Plan(steps=1)
"""Of each run that then stays open: what a worker keeps of it is all that matters."""

MEASURED, FEWER_MEASURED = 30, 10
"""Runs one after the other beside the open ones."""

GROWTH = 1.2
"""Processor time of a run beside the most open ones, over that beside one."""


async def measure_load(bench: Bench) -> list[Figure]:
    """Runs a second with 1 and with 2 processes, the reference's beside them."""
    figures: list[Figure] = []
    for processes in PROCESSES:
        figures += await _throughput(bench, processes)
    return figures


async def _throughput(bench: Bench, processes: int) -> list[Figure]:
    rounds = FEWER_ROUNDS if bench.is_quick else ROUNDS
    runs = FEWER_RUNS if bench.is_quick else RUNS
    found: dict[str, list[float]] = {PLAIN: [], PERSISTED: []}
    spent: dict[str, list[float]] = {PLAIN: [], PERSISTED: []}
    async with _place(bench, processes) as place:
        for number in range(rounds):
            order = (PLAIN, PERSISTED) if number % 2 == 0 else (PERSISTED, PLAIN)
            for agent in order:
                before = place.cpu_seconds()
                found[agent].append(await _runs_a_second(place.side, agent, runs))
                spent[agent].append(1000 * (place.cpu_seconds() - before) / (runs + LOADING))
                note(
                    f"    {processes} processes, {agent}: {found[agent][-1]:.2f} runs/s, "
                    f"{spent[agent][-1]:.0f} ms of the workers' processor a run"
                )
    theirs: dict[str, float] = {}
    if bench.reference is not None:
        side = await bench.reference.side(processes=processes)
        for agent in (PLAIN, PERSISTED):
            theirs[agent] = await _runs_a_second(side, agent, FEWER_RUNS)
    ratios = [a / b for a, b in zip(found[PLAIN], found[PERSISTED], strict=True)]
    name = f"{PLAN.steps}-step runs, {AT_A_TIME} at a time, {processes} processes"
    return [
        *(
            Figure(
                name=f"{name}, {agent}",
                unit="/s",
                measured=median(found[agent]),
                reference=theirs.get(agent),
                detail=f"{min(found[agent]):.2f} to {max(found[agent]):.2f}; "
                f"{median(spent[agent]):.0f} ms of the workers' processor a run",
            )
            for agent in (PLAIN, PERSISTED)
        ),
        Figure(
            name=f"{name}: runs a second without over with persistence",
            unit="x",
            measured=median(ratios),
            budget=BUDGET,
            reference=theirs[PLAIN] / theirs[PERSISTED] if theirs else None,
            detail=f"{1 / median(ratios):.2f} of the agent without persistence",
        ),
    ]


async def _runs_a_second(side: Side, agent: str, runs: int) -> float:
    limit = asyncio.Semaphore(AT_A_TIME)

    async def one() -> None:
        async with limit:
            await side.run(agent, PLAN)

    await asyncio.gather(*(side.run(agent, PLAN) for _ in range(LOADING)))
    start = perf_counter()
    await asyncio.gather(*(one() for _ in range(runs)))
    return runs / (perf_counter() - start)


async def measure_soak(bench: Bench) -> list[Figure]:
    """Runs one after the other, eight at a time, for minutes: memory of the worker."""
    seconds = 60 * bench.soak_minutes
    samples: list[float] = []
    ended = 0
    over = asyncio.Event()

    async def keep_running(side: Side) -> None:
        nonlocal ended
        while not over.is_set():
            await side.run(PERSISTED, PLAN)
            ended += 1

    async with _place(bench, 1) as place:
        await place.side.run(PERSISTED, PLAN)
        start = monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(SOAKED_AT_A_TIME):
                group.create_task(keep_running(place.side))
            while monotonic() - start < seconds:
                await asyncio.sleep(seconds / SOAK_SAMPLES)
                samples.append(place.memory_mb())
            over.set()
        took, cpu = monotonic() - start, place.cpu_seconds()
    fifth = max(1, len(samples) // 5)
    early, late = median(samples[fifth : 2 * fifth]), median(samples[-fifth:])
    return [
        Figure(
            name=f"{bench.soak_minutes:g} minutes of {PLAN.steps}-step runs: memory in the last "
            "fifth over the second fifth",
            unit="x",
            measured=late / early,
            budget=STEADY,
            detail=f"{early:.0f} MB, {late:.0f} MB, at most {max(samples):.0f} MB; {ended} runs, "
            f"{ended / took:.2f}/s, {1000 * cpu / max(1, ended):.0f} ms of processor a run",
        )
    ]


async def measure_growth(bench: Bench) -> list[Figure]:
    """What a run costs beside 1, 10, 100 and 1,000 open ones, and what each of those keeps."""
    levels = QUICK_OPEN if bench.is_quick else OPEN
    count = FEWER_MEASURED if bench.is_quick else MEASURED
    costs: dict[int, float] = {}
    figures: list[Figure] = []
    async with _place(bench, 1) as place:
        await _one_after_the_other(place, count)
        memory: dict[int, float] = {}
        held = 0
        for level in levels:
            await _hold(place, level - held)
            held = level
            costs[level], seconds = await _one_after_the_other(place, count)
            memory[level] = place.memory_mb()
            figures.append(
                Figure(
                    name=f"processor time of a {PLAN.steps}-step run beside {level} open runs",
                    unit="ms",
                    measured=1000 * costs[level],
                    detail=f"{1000 * seconds:.0f} ms in all; the worker has {memory[level]:.0f} MB",
                )
            )
            note(f"    {level} open: {1000 * costs[level]:.0f} ms, {memory[level]:.0f} MB")
    first, last = levels[0], levels[-1]
    return [
        *figures,
        Figure(
            name=f"processor time of a run beside {last} open runs over that beside {first}",
            unit="x",
            measured=costs[last] / costs[first],
            budget=GROWTH,
        ),
        Figure(
            name=f"memory of an open run in the cache, after {HELD.steps} steps of 1 KB",
            unit="KB",
            measured=1000 * (memory[last] - memory[first]) / (last - first),
            detail=f"{memory[first]:.0f} MB beside {first}, {memory[last]:.0f} MB beside {last}",
        ),
    ]


async def _hold(place: Place, count: int) -> None:
    """Open that many runs more, each of which has done its steps and waits."""
    limit = asyncio.Semaphore(AT_A_TIME)

    async def one() -> None:
        async with limit:
            handle = await place.client.start_workflow(
                HeldRunWorkflow.run,
                args=[PERSISTED, HELD],
                id=f"held-{uuid4().hex}",
                task_queue=place.task_queue,
            )
            await handle.execute_update(HeldRunWorkflow.has_done)  # pyright: ignore[reportUnknownMemberType] - the SDK's overloads

    await asyncio.gather(*(one() for _ in range(count)))


async def _one_after_the_other(place: Place, count: int) -> tuple[float, float]:
    """Processor seconds of the worker for a run, and seconds in all."""
    start, cpu = perf_counter(), place.cpu_seconds()
    for _ in range(count):
        await place.side.run(PERSISTED, PLAN)
    return (place.cpu_seconds() - cpu) / count, (perf_counter() - start) / count


@asynccontextmanager
async def _place(bench: Bench, processes: int) -> AsyncGenerator[Place]:
    database = f"load_{uuid4().hex}"
    async with open_place(
        bench.client,
        bench.mongodb_uri,
        module="benchmarks.load_worker",
        processes=processes,
        database=database,
        settings={"PERDURE_MAX_CACHED_WORKFLOWS": str(2 * OPEN[-1])},
    ) as place:
        await asyncio.gather(*(place.side.run(PERSISTED, HELD) for _ in range(2 * processes)))
        yield place
    await bench.mongodb.drop_database(database)
