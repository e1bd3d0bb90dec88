"""Retention of many runs: how fast, in how much memory, and what a stop in the middle costs.

The runs are inserted as documents, without their workflows: what is measured is the sweep.
"""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

from bson import ObjectId

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from stores.mongo.retaining import Tell
from stores.mongo.steps import MongoStepStore
from stores.paging import microseconds
from stores.retention_policies import Retained, RetentionPolicy

RUNS = 100_000
QUICK_RUNS = 10_000
IN_ONE_INSERT = 1_000
EVENTS = 4
SNAPSHOTS = 3

NOW = datetime(2026, 6, 1, tzinfo=UTC)
ENDED = NOW - timedelta(days=60)

LARGEST_GROWTH_MB = 32.0
"""Of the process, from the first tenth of the pages to the last one."""

_PAGE = 4096


class _StopError(Exception):
    """What a signal would do."""


async def measure_retention(bench: Bench) -> Sequence[Figure]:
    """Details and snapshots first, stopped half-way; then whole runs."""
    count = QUICK_RUNS if bench.is_quick else RUNS
    database = f"retention_{uuid4().hex}"
    store = MongoStepStore(db_url=bench.mongodb_uri, database=database)
    try:
        await store.initialise()
        await _fill(bench, database, count)
        return [*await _details(store, count), *await _whole(store, count)]
    finally:
        await store.aclose()
        await bench.mongodb.drop_database(database)


async def _details(store: MongoStepStore, count: int) -> list[Figure]:
    policy = RetentionPolicy(details_days=30, snapshots=1, originals=False)
    stopped: list[Retained] = []

    def stop(so_far: Retained) -> None:
        stopped.append(so_far)
        if so_far.detailed >= count // 2:
            raise _StopError

    with suppress(_StopError):
        await _retain(store, policy, stop)
    first = stopped[-1].detailed
    seconds, rest, memory = await _timed(store, policy)
    again = await _retain(store, policy, _nothing)
    return [
        Figure(
            name=f"details and snapshots of {count} runs: runs done twice after a stop",
            unit="",
            measured=float(first + rest.detailed - count),
            budget=0.0,
            detail=f"stopped after {first}, then {rest.detailed}, in {len(stopped) + len(memory)} "
            f"pages; again: {again.detailed} and {again.snapshots} snapshots",
        ),
        Figure(
            name="the same: time for 1,000 runs",
            unit="s",
            measured=1000 * seconds / rest.looked_at,
            detail=f"{rest.rows} rows and {rest.snapshots} snapshots in {seconds:.1f} s",
        ),
        _growth("the same", memory),
    ]


async def _whole(store: MongoStepStore, count: int) -> list[Figure]:
    seconds, done, memory = await _timed(store, RetentionPolicy(runs_days=40))
    return [
        Figure(
            name=f"whole runs, {count} in conversations of 10: time for 1,000 runs",
            unit="s",
            measured=1000 * seconds / max(done.runs, 1),
            detail=f"{done.runs} runs, {done.conversations} conversations in {seconds:.1f} s",
        ),
        _growth("the same", memory),
    ]


def _growth(what: str, memory: Sequence[float]) -> Figure:
    early = max(memory[: max(len(memory) // 10, 1)])
    return Figure(
        name=f"{what}: growth of the process",
        unit="MB",
        measured=max(memory) - early,
        budget=LARGEST_GROWTH_MB,
        detail=f"{early:.0f} MB at first, {max(memory):.0f} MB at most, {len(memory)} pages",
    )


async def _timed(
    store: MongoStepStore, policy: RetentionPolicy
) -> tuple[float, Retained, list[float]]:
    memory: list[float] = []

    def look(_: Retained) -> None:
        memory.append(_resident_mb())

    gc.collect()
    began = perf_counter()
    done = await _retain(store, policy, look)
    return perf_counter() - began, done, memory


async def _retain(store: MongoStepStore, policy: RetentionPolicy, tell: Tell) -> Retained:
    keeps = timedelta(days=3)
    return await store.retain(policy, temporal_keeps=keeps, now=NOW, is_dry=False, tell=tell)


def _nothing(_: Retained) -> None:
    """Nobody listens."""


def _resident_mb() -> float:
    pages = int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1])
    return pages * _PAGE / 1e6


async def _fill(bench: Bench, database: str, count: int) -> None:
    target = bench.mongodb[database]
    for start in range(0, count, IN_ONE_INSERT):
        rows: dict[str, list[dict[str, Any]]] = {}
        for number in range(start, start + IN_ONE_INSERT):
            for name, document in _run(number):
                rows.setdefault(name, []).append(document)
        for name, documents in rows.items():
            await target[name].insert_many(documents, ordered=False)


def _run(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The documents of a run with one tool call, as its commits would leave them."""
    run_id, ended = f"run-{number:06}", microseconds(ENDED) + number
    execution = {"execution_id": f"e-{number}", "branch": f"b-{number}", "first_sequence": 1}
    mine: dict[str, Any] = {"workspace_id": "default", "branch": f"b-{number}", "number": 1}
    conversation = f"conversation-{number // 10}"
    yield (
        "runs",
        {
            **mine,
            "_id": run_id,
            "live": True,
            "conversation_id": conversation,
            "agent_name": "bench",
            "metadata": "{}",
            "started_at": ended - 1,
            "ended_at": ended,
            "state": "completed",
            "branches": [execution],
            "state_sequence": 9,
        },
    )
    row = {**mine, "run_id": run_id, "live": True, "digest": "d", "scheme": 1, "at": ended}
    for sequence in range(EVENTS):
        event = {"event": "model_request_started", "step_index": sequence, "sequence": sequence}
        yield "events", {"_id": ObjectId(), **row, **event, "key": f"e{sequence}"}
    for sequence in range(SNAPSHOTS):
        ranges = {"ranges": [[0, sequence + 1]], "state": "complete", "step_index": sequence}
        place = {"sequence": EVENTS + sequence, "key": f"s{sequence}"}
        yield "snapshots", {"_id": ObjectId(), **row, **place, **ranges}
        message = f"{number:06}-{sequence}".ljust(64, "0")
        log = {"run_id": run_id, "position": sequence, "message": message, "revision": 0}
        yield "positions", {"_id": ObjectId(), **mine, "live": True, **log}
        text = '{"kind":"request","parts":[]}'
        yield (
            "messages",
            {
                "_id": message,
                "text": text,
                "owner": None,
                "workspace_id": "default",
                "touched_at": ended,
            },
        )
    call = {"effect_key": "1/0", "tool_call_id": "c", "tool_name": "t", "sequence": 8}
    yield (
        "tool_effects",
        {
            **mine,
            **call,
            "_id": ObjectId(),
            "run_id": run_id,
            "live": True,
            "revision": 0,
            "transitions": [],
            "status": "completed",
            "started_at": ended,
        },
    )
