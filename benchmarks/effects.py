"""What a lost worker does to effects, on both sides: how many ran twice, and what is shown of it.

The plan of faults: a run of three charges, once for each charge; the worker dies just after it.
"""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from temporalio.client import WorkflowHandle

from benchmarks.bench import Bench
from benchmarks.charging import CALLS, CHARGES, CHARGING, DIES_AT
from benchmarks.figures import Figure
from benchmarks.reference import ROOT
from benchmarks.scripted import Plan
from benchmarks.side import LONGEST_RUN
from benchmarks.workflow import BenchmarkRunWorkflow
from cli.processes import ChildProcess
from stores.errors import StoreError
from stores.opening import open_step_store
from stores.protocols import StepStore
from workflows import names
from workflows.parking import ResolveToolEffectRequest, ResolveToolEffectResult

LOOK_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one run came to."""

    charged_twice: int
    attempts_shown: int
    parked: int


async def measure_effects(bench: Bench) -> Sequence[Figure]:
    """Effects run twice, and attempts shown, in so many runs as a run has calls."""
    ours = await _all(bench, "benchmarks.ours_worker", Path(sys.executable), ())
    theirs: list[Found] | None = None
    if bench.reference is not None:
        python = bench.reference.python
        theirs = await _all(bench, "benchmarks.reference_worker", python, ("worker",))

    def figure(name: str, field: str, detail: str = "", budget: float | None = None) -> Figure:
        return Figure(
            name=name,
            unit="",
            measured=sum(getattr(each, field) for each in ours),
            reference=sum(getattr(each, field) for each in theirs) if theirs else None,
            budget=budget,
            detail=detail,
        )

    runs = f"{CALLS} runs of {CALLS} charges, a worker lost after one of each"
    return [
        figure("effects run twice", "charged_twice", runs, budget=0),
        figure("attempts shown of the calls", "attempts_shown"),
        figure("runs that waited for a decision, and ended after it", "parked"),
    ]


async def _all(bench: Bench, module: str, python: Path, command: Sequence[str]) -> list[Found]:
    with TemporaryDirectory(prefix="perdure-charges-") as home:
        runs = (
            _run(bench, [python, "-m", module, *command], Path(home), call)
            for call in range(1, CALLS + 1)
        )
        return await asyncio.gather(*runs)


async def _run(bench: Bench, command: Sequence[Path | str], home: Path, dies_at: int) -> Found:
    name = f"effects_{uuid4().hex}"
    charges = home / f"{dies_at}.charges"
    address = bench.client.service_client.config.target_host
    worker = ChildProcess(
        f"The worker that dies at call {dies_at}",
        [*command, bench.mongodb_uri, name, address, name],
        log_path=home / f"{dies_at}.log",
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            CHARGES: str(charges),
            DIES_AT: str(dies_at),
        },
    )
    store = open_step_store("mongodb", db_url=bench.mongodb_uri, database=name)
    worker.spawn()
    try:
        handle = await bench.client.start_workflow(
            BenchmarkRunWorkflow.run,
            args=[CHARGING, Plan(steps=CALLS)],
            id=name,
            task_queue=name,
            execution_timeout=LONGEST_RUN,
        )
        parked = await _see_through(handle, worker, store)
        counts = Counter(charges.read_text().split())
        return Found(
            charged_twice=sum(count > 1 for count in counts.values()),
            attempts_shown=await _attempts_shown(bench, name),
            parked=parked,
        )
    finally:
        await worker.kill()
        await store.aclose()


async def _see_through(
    handle: WorkflowHandle[Any, str], worker: ChildProcess, store: StepStore
) -> int:
    """Start another worker for a dead one, decide on a call that waits; how often that was."""
    ending = asyncio.create_task(handle.result())
    parked = 0
    while not ending.done():
        await asyncio.wait([ending], timeout=LOOK_SECONDS)
        if not worker.is_running:
            worker.spawn()
        if not parked and (call := await _waiting_call(store, handle.id)):
            parked += 1
            await _resolve(handle, call)
    await ending
    return parked


async def _waiting_call(store: StepStore, run_id: str) -> str | None:
    try:
        run = await store.get_run(run_id=run_id)
    except (StoreError, TypeError, ValueError, KeyError):  # of the reference, rows unlike ours
        return None
    if run is None or run.state != "needs_attention":
        return None
    (effect,) = await store.list_unresolved_tool_effects(run_id=run_id)
    return effect.tool_call_id


async def _resolve(handle: WorkflowHandle[Any, str], call: str) -> None:
    await handle.execute_update(  # pyright: ignore[reportUnknownMemberType] - the SDK's
        names.RESOLVE_UPDATE,
        ResolveToolEffectRequest(
            run_id=handle.id, call=call, decision="completed", result=f"charged {call[1:]}"
        ),
        result_type=ResolveToolEffectResult,
    )


async def _attempts_shown(bench: Bench, database: str) -> int:
    """Attempts that the database tells of; a row of a call that says nothing of them shows none."""
    shown = 0
    found = bench.mongodb[database]
    for name in await found.list_collection_names():
        async for document in found[name].find():
            attempts: list[object] | None = document.get("attempts")
            shown += len(attempts or ())
    return shown
