"""Where Temporal ends a run: on a server with its own limits, with results of two sizes."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHistory,
)

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.reference import Reference
from benchmarks.scripted import PERSISTED, Plan
from benchmarks.sizes import LONGEST_RUN, ended_run
from benchmarks.workflow import BenchmarkRunWorkflow
from cli.binaries import find_temporal
from cli.servers import TemporalServer, free_port
from client import connect
from settings import Settings
from workflows.names import SEARCH_ATTRIBUTES

PLANS = (Plan(steps=100, size_bytes=10_000), Plan(steps=40, size_bytes=65_536))
"""Each goes beyond what the reference reaches."""

QUICK_PLANS = (Plan(steps=30, size_bytes=65_536),)


async def measure_limits(bench: Bench) -> Sequence[Figure]:
    """Steps that a run has done when it ends by itself, or is ended by the server."""
    with TemporaryDirectory(prefix="perdure-limits-") as home:
        async with _usual_server(Path(home)) as (client, address):
            there = replace(bench, client=client, reference=_moved(bench, client, address))
            try:
                plans = QUICK_PLANS if bench.is_quick else PLANS
                return [await _ended(there, plan) for plan in plans]
            finally:
                if there.reference is not None:
                    await there.reference.stop()


def _moved(bench: Bench, client: Client, address: str) -> Reference | None:
    """The reference with a worker for another server."""
    if bench.reference is None:
        return None
    return Reference(
        client=client,
        address=address,
        mongodb_uri=bench.mongodb_uri,
        python=bench.reference.python,
        log_dir=bench.reference.log_dir / "limits",
    )


async def _ended(bench: Bench, plan: Plan) -> Figure:
    async with ended_run(bench, plan) as ended:
        done = sum(map(_tool_calls, ended.histories))
    theirs: int | None = None
    words = ""
    if bench.reference is not None:
        theirs, words = await _reached(bench.reference, plan)
    return Figure(
        name=f"steps of {plan.size_bytes} bytes that a run of {plan.steps} does",
        unit="",
        measured=done,
        reference=theirs,
        detail=f"reference: {words}" if words else "",
    )


async def _reached(reference: Reference, plan: Plan) -> tuple[int, str]:
    """How many steps the reference has done at its end, and what ended it."""
    side = await reference.side()
    handle = await reference.client.start_workflow(
        BenchmarkRunWorkflow.run,
        args=[PERSISTED, plan],
        id=f"limits-{uuid4().hex}",
        task_queue=side.task_queue,
        execution_timeout=LONGEST_RUN,
    )
    try:
        await handle.result()
    except WorkflowFailureError as error:
        words = str(error.cause)
    else:
        words = "completed"
    status = (await handle.describe()).status or WorkflowExecutionStatus.RUNNING
    return _tool_calls(await handle.fetch_history()), f"{status.name.lower()}, {words}"


def _tool_calls(history: WorkflowHistory) -> int:
    return sum(
        event.activity_task_scheduled_event_attributes.activity_type.name.endswith("call_tool")
        for event in history.events
    )


@asynccontextmanager
async def _usual_server(home: Path) -> AsyncGenerator[tuple[Client, str]]:
    """A Temporal server with the limits that it has by itself."""
    server = TemporalServer(
        find_temporal(), home, port=free_port(), search_attributes=SEARCH_ATTRIBUTES
    )
    try:
        await server.start()
        yield await connect(Settings(temporal_address=server.address)), server.address
    finally:
        await server.stop()
