"""How long a reader waits for what a model says, and a run for being listened to."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from time import perf_counter
from uuid import uuid4

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median, percentile
from benchmarks.ours import our_side
from benchmarks.side import LONGEST_RUN, Side
from cli.output import note
from stores.following import follow_run
from stores.opening import open_step_store
from stores.protocols import StepStore
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.durable import durable

FIRST_BUDGET_MS = 250.0
LATER_BUDGET_MS = 100.0

FIRST_TOKEN_SECONDS = 0.2
BETWEEN_TOKENS_SECONDS = 0.02
TOKENS = 50
"""Of each answer: a second of fifty tokens."""

RUNS, QUICK_RUNS = 60, 30


async def speak(_: list[ModelMessage], __: AgentInfo) -> AsyncIterator[str]:
    """Tokens that say when they were given, on the clock of this process, which reads them too."""
    await asyncio.sleep(FIRST_TOKEN_SECONDS)
    for _number in range(TOKENS):
        yield f"{perf_counter():.6f} "
        await asyncio.sleep(BETWEEN_TOKENS_SECONDS)


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """The same, for a run that does not stream."""
    return ModelResponse(parts=[TextPart("".join([each async for each in speak(messages, info)]))])


async def measure_streaming(bench: Bench) -> list[Figure]:
    """Milliseconds from submit to the first delta, less the model's own, and of later deltas."""
    agent = Agent(
        FunctionModel(answer, stream_function=speak), name="speaking", capabilities=durable()
    )
    database = f"streaming_{uuid4().hex}"
    store = open_step_store("mongodb", db_url=bench.mongodb_uri, database=database)
    firsts: list[float] = []
    laters: list[float] = []
    streamed: list[float] = []
    silent: list[float] = []
    try:
        async with our_side(bench.client, bench.mongodb_uri, [agent], database=database) as side:
            await _read(side, store)  # a first run loads what later ones find loaded
            for index in range(QUICK_RUNS if bench.is_quick else RUNS):
                first, later, seconds = await _read(side, store)
                firsts.append(first)
                laters += later
                streamed.append(seconds)
                silent.append(await _run(side, f"silent-{uuid4().hex}", stream=False))
                if index % 10 == 9:
                    note(f"    {index + 1} runs: median {median(firsts):.0f} ms to the first")
    finally:
        await store.aclose()
        await bench.mongodb.drop_database(database)
    return [
        Figure(
            name=f"submit to first delta, less the model's {1000 * FIRST_TOKEN_SECONDS:.0f} ms",
            unit="ms",
            measured=median(firsts),
            budget=FIRST_BUDGET_MS,
            detail=f"p95 {percentile(firsts, 0.95):.1f} ms of {len(firsts)}",
        ),
        Figure(
            name="later delta, from the model to a reader",
            unit="ms",
            measured=median(laters),
            budget=LATER_BUDGET_MS,
            detail=f"p95 {percentile(laters, 0.95):.1f} ms, longest {max(laters):.1f} ms "
            f"of {len(laters)}",
        ),
        Figure(
            name="whole run that streams, less one that does not",
            unit="ms",
            measured=1000 * (median(streamed) - median(silent)),
            detail=f"{median(streamed):.3f} s against {median(silent):.3f} s, medians",
        ),
    ]


async def _read(side: Side, store: StepStore) -> tuple[float, list[float], float]:
    """Milliseconds to the first delta and of each later one, and the seconds of the run."""
    run_id = f"streamed-{uuid4().hex}"
    start = perf_counter()
    running = asyncio.create_task(_run(side, run_id, stream=True))
    waits: list[float] = []
    first = 0.0
    async for event in follow_run(store, run_id, appears_within=timedelta(minutes=1)):
        now = perf_counter()
        if event.kind == "text":
            waits.append(1000 * (now - float(event.text)))
            first = first or 1000 * (now - start - FIRST_TOKEN_SECONDS)
    return first, waits[1:], await running


async def _run(side: Side, run_id: str, *, stream: bool) -> float:
    start = perf_counter()
    await side.client.execute_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="speaking", prompt="speak", stream=stream),
        id=run_id,
        task_queue=side.task_queue,
        execution_timeout=LONGEST_RUN,
    )
    return perf_counter() - start
