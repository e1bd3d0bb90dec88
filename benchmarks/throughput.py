"""How many short runs a second one worker process does."""

import asyncio
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.ours import our_side, persisted_agent, plain_agent
from benchmarks.scripted import PERSISTED, PLAIN, Plan
from benchmarks.side import Side

PLAN = Plan(steps=3)
AT_A_TIME = 30

RUNS, FEWER_RUNS = 90, 30
"""Fewer when rough figures will do, and of the reference."""


async def measure_throughput(bench: Bench) -> list[Figure]:
    """Runs a second without and with persistence; each of ours has the reference's beside it."""
    runs = FEWER_RUNS if bench.is_quick else RUNS
    reference = await bench.reference.side() if bench.reference else None
    async with our_side(
        bench.client, bench.mongodb_uri, [persisted_agent()], plain=[plain_agent()]
    ) as ours:
        return [
            Figure(
                name=f"{PLAN.steps}-step runs a second, {AT_A_TIME} at a time, {agent}",
                unit="/s",
                measured=await _runs_a_second(ours, agent, runs),
                reference=await _runs_a_second(reference, agent, FEWER_RUNS) if reference else None,
            )
            for agent in (PLAIN, PERSISTED)
        ]


async def _runs_a_second(side: Side, agent: str, runs: int) -> float:
    limit = asyncio.Semaphore(AT_A_TIME)

    async def one() -> None:
        async with limit:
            await side.run(agent, PLAN)

    await side.run(agent, PLAN)  # a first run loads what later ones find loaded
    start = perf_counter()
    await asyncio.gather(*(one() for _ in range(runs)))
    return runs / (perf_counter() - start)
