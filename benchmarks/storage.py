"""How many bytes a long run takes in MongoDB."""

from uuid import uuid4

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.ours import our_side, persisted_agent
from benchmarks.scripted import PERSISTED, Plan
from benchmarks.side import LONGEST_RUN
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

BUDGET_MB = 2.0

BUDGETED = ("runs", "events", "snapshots", "tool_effects", "messages")
"""The budget is about these; what else there is stands beside them."""

PLAN = Plan(steps=200, size_bytes=5000)
QUICK_PLAN = Plan(steps=40, size_bytes=5000)


async def measure_storage(bench: Bench) -> list[Figure]:
    """`dataSize` of the collections after one run, in MB of a million bytes."""
    plan = QUICK_PLAN if bench.is_quick else PLAN
    database = f"storage_{uuid4().hex}"
    async with our_side(
        bench.client, bench.mongodb_uri, [persisted_agent()], database=database
    ) as side:
        await bench.client.execute_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent=PERSISTED, prompt=plan.prompt),
            id=f"storage-{uuid4().hex}",
            task_queue=side.task_queue,
            execution_timeout=LONGEST_RUN,
        )
    sizes = await _sizes_mb(bench, database)
    reference: dict[str, float] = {}
    if bench.reference is not None:
        beside = f"storage_reference_{uuid4().hex}"
        await bench.reference.run_outside(plan, database=beside)
        reference = await _sizes_mb(bench, beside)
    name = f"dataSize of {plan.steps} steps of {plan.size_bytes // 1000} KB"
    return [
        Figure(
            name=f"{name}, the run's {len(BUDGETED)} collections",
            unit="MB",
            measured=sum(sizes[each] for each in BUDGETED),
            budget=BUDGET_MB * plan.steps / PLAN.steps,
            detail=_parts(sizes),
        ),
        Figure(
            name=f"{name}, all collections",
            unit="MB",
            measured=sum(sizes.values()),
            reference=sum(reference.values()) or None,
            detail=f"reference: {_parts(reference)}" if reference else "",
        ),
    ]


async def _sizes_mb(bench: Bench, database: str) -> dict[str, float]:
    """Uncompressed bytes of each collection, the largest first."""
    found = bench.mongodb[database]
    sizes = {
        name: (await found.command("collStats", name))["size"] / 1e6
        for name in await found.list_collection_names()
    }
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _parts(sizes: dict[str, float]) -> str:
    return ", ".join(f"{name} {size:.2f}" for name, size in sizes.items())
