"""What one more step takes of everything that has to be bought: counts that carry over."""

from collections import Counter
from uuid import uuid4

from temporalio.client import Client
from temporalio.runtime import LoggingConfig, MetricBuffer, Runtime, TelemetryConfig

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.ours import our_side, persisted_agent, plain_agent
from benchmarks.place import open_place
from benchmarks.scripted import PERSISTED, PLAIN, Plan
from benchmarks.side import RunHandle, Side

SHORT, LONG = Plan(steps=20), Plan(steps=40)
"""Their difference holds only what a step costs: starts and ends cancel out."""

STEPS = LONG.steps - SHORT.steps

REPEATS, FEWER_REPEATS = 10, 3

REQUESTS = "temporal_request"
LONG_REQUESTS = "temporal_long_request"
"""The SDK's counters: what is answered at once, and the polls that wait."""

COMMANDS = ("find", "aggregate", "insert", "update", "delete", "commitTransaction")


async def measure_sizing(bench: Bench) -> list[Figure]:
    """Of a step of 1 KB: processor time, commands, documents, events, requests and bytes."""
    figures: list[Figure] = []
    for agent in (PERSISTED, PLAIN):
        figures += await _counts(bench, agent)
        figures.append(await _processor(bench, agent))
    return figures


async def _counts(bench: Bench, agent: str) -> list[Figure]:
    buffer = MetricBuffer(100_000)
    core = TelemetryConfig(metrics=buffer, logging=LoggingConfig.default)
    client = await _connected(bench, Runtime(telemetry=core))
    database = f"sizing_{uuid4().hex}"
    found: dict[int, Counter[str]] = {}
    async with our_side(
        client, bench.mongodb_uri, [persisted_agent()], plain=[plain_agent()], database=database
    ) as side:
        await side.run(agent, SHORT)
        for plan in (SHORT, LONG):
            found[plan.steps] = await _counted(
                bench, side, buffer, database=database, agent=agent, plan=plan
            )
    await bench.mongodb.drop_database(database)
    step = {
        name: (found[LONG.steps][name] - found[SHORT.steps][name]) / STEPS
        for name in found[LONG.steps]
    }
    commands = {each: step.get(f"command {each}", 0) for each in COMMANDS}
    detail = ", ".join(f"{name} {count:g}" for name, count in commands.items() if count)
    return [
        _figure(agent, "MongoDB commands", sum(commands.values()), detail),
        _figure(agent, "documents written to MongoDB", step["documents"], ""),
        _figure(agent, "bytes in MongoDB, uncompressed", step["data"], "", unit="B"),
        _figure(agent, "bytes of MongoDB's indexes", step["indexes"], "laid out by the page", "B"),
        _figure(agent, "events in Temporal", step["events"], ""),
        _figure(agent, "bytes of history in Temporal", step["history"], "", unit="B"),
        _figure(
            agent,
            "requests of the worker to Temporal",
            step["requests"],
            f"and {step['polls']:g} polls that wait",
        ),
    ]


def _figure(agent: str, what: str, count: float, detail: str, unit: str = "") -> Figure:
    return Figure(name=f"of a step, {agent}: {what}", unit=unit, measured=count, detail=detail)


async def _counted(
    bench: Bench, side: Side, buffer: MetricBuffer, *, database: str, agent: str, plan: Plan
) -> Counter[str]:
    """What one run of the plan came to."""
    buffer.retrieve_updates()
    before = await _of_mongodb(bench, database)
    handle = await side.run(agent, plan)
    counts = await _of_mongodb(bench, database)
    counts.subtract(before)
    for update in buffer.retrieve_updates():
        if update.metric.name == REQUESTS:
            counts["requests"] += int(update.value)
        elif update.metric.name == LONG_REQUESTS:
            counts["polls"] += int(update.value)
    counts.update(await _of_history(handle))
    return counts


async def _of_mongodb(bench: Bench, database: str) -> Counter[str]:
    status = await bench.mongodb.admin.command("serverStatus")
    counts: Counter[str] = Counter()
    for name in COMMANDS:
        counts[f"command {name}"] = status["metrics"]["commands"][name]["total"]
    documents = status["metrics"]["document"]
    counts["documents"] = documents["inserted"] + documents["updated"]
    size = await bench.mongodb[database].command("dbStats")
    counts["data"], counts["indexes"] = int(size["dataSize"]), int(size["indexSize"])
    return counts


async def _of_history(handle: RunHandle) -> Counter[str]:
    described = await handle.describe()
    info = described.raw_description.workflow_execution_info
    return Counter(events=info.history_length, history=info.history_size_bytes)


async def _connected(bench: Bench, runtime: Runtime) -> Client:
    return await Client.connect(
        bench.client.service_client.config.target_host,
        namespace=bench.client.namespace,
        data_converter=bench.client.data_converter,
        plugins=bench.client.config()["plugins"],
        runtime=runtime,
    )


async def _processor(bench: Bench, agent: str) -> Figure:
    """Processor time of a worker process, all its threads."""
    repeats = FEWER_REPEATS if bench.is_quick else REPEATS
    database = f"sizing_{uuid4().hex}"
    spent: dict[int, float] = {}
    async with open_place(
        bench.client, bench.mongodb_uri, module="benchmarks.load_worker", database=database
    ) as place:
        await place.side.run(agent, LONG)
        for plan in (SHORT, LONG):
            before = place.cpu_seconds()
            for _ in range(repeats):
                await place.side.run(agent, plan)
            spent[plan.steps] = (place.cpu_seconds() - before) / repeats
    await bench.mongodb.drop_database(database)
    milliseconds = 1000 * (spent[LONG.steps] - spent[SHORT.steps]) / STEPS
    return Figure(
        name=f"of a step, {agent}: processor time of the worker", unit="ms", measured=milliseconds
    )
