"""What it costs to verify a long run, and to check the histories of short ones."""

from time import perf_counter, process_time
from uuid import uuid4

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median, percentile
from benchmarks.ours import our_side, persisted_agent
from benchmarks.scripted import PERSISTED, Plan
from benchmarks.workflow import WORKFLOWS
from cli.output import note
from cli.replay_gate import ReplayGate
from cli.verification import Verifier
from stores.mongo.steps import MongoStepStore

LONG = Plan(steps=200)
SHORT = Plan(steps=3)

REPEATS, QUICK_REPEATS = 30, 5
HISTORIES = 30


async def measure_verifying(bench: Bench) -> list[Figure]:
    """Seconds and CPU of `verify` for 200 steps, of `replay-check` for runs of 3 steps.

    The worker that made the runs has stopped, so the CPU is that of the check, the driver and the
    SDK's core in this process.
    """
    agent = persisted_agent()
    database = f"verifying_{uuid4().hex}"
    async with our_side(bench.client, bench.mongodb_uri, [agent], database=database) as side:
        long = await side.run(PERSISTED, LONG)
        short = [await side.run(PERSISTED, SHORT) for _ in range(HISTORIES)]
    repeats = QUICK_REPEATS if bench.is_quick else REPEATS
    store = MongoStepStore(db_url=bench.mongodb_uri, database=database)
    verifier = Verifier(bench.client, store, [agent], workflows=WORKFLOWS)
    seconds: list[float] = []
    cpu: list[float] = []
    rows = 0
    try:
        for index in range(repeats + 1):
            began, used = perf_counter(), process_time()
            (found,) = await verifier.verify(long.id)
            if index:  # the first loads what later ones find loaded
                seconds.append(perf_counter() - began)
                cpu.append(process_time() - used)
            if found.verdict != "EXACT":
                problem = f"run {long.id} is {found.verdict}: {found.comparison.differences[:3]}"
                raise AssertionError(problem)
            rows = found.comparison.compared
        note(f"    {repeats} verifications: median {median(seconds):.2f} s")
    finally:
        await store.aclose()
        await bench.mongodb.drop_database(database)
    gate = ReplayGate([agent], bench.client.data_converter, workflows=WORKFLOWS)
    histories = [await each.fetch_history() for each in short]
    checks: list[float] = []
    used = process_time()
    for history in histories:
        began = perf_counter()
        checked = await gate.check(history)
        checks.append(perf_counter() - began)
        if checked.outcome != "same":
            raise AssertionError(checked)
    gate_cpu = (process_time() - used) / len(histories)
    return [
        Figure(
            name=f"verify a run of {LONG.steps} steps",
            unit="s",
            measured=median(seconds),
            detail=f"p95 {percentile(seconds, 0.95):.2f} s of {len(seconds)}; {rows} rows",
        ),
        Figure(
            name=f"CPU to verify a run of {LONG.steps} steps",
            unit="s",
            measured=median(cpu),
            detail=f"p95 {percentile(cpu, 0.95):.2f} s",
        ),
        Figure(
            name=f"histories of {SHORT.steps} steps checked in a minute",
            unit="",
            measured=60 / median(checks),
            detail=f"{1000 * median(checks):.0f} ms each, {1000 * gate_cpu:.0f} ms of CPU",
        ),
    ]
