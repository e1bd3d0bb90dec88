"""How long the commands that read take where there are many runs, and `unresolved` many effects."""

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

from bson import ObjectId

from benchmarks.bench import Bench
from benchmarks.commits import SteppedRun
from benchmarks.figures import Figure, median, percentile
from cli.processes import LocalServerError
from stores.conversation_records import ConversationRecord
from stores.mongo.conversation_documents import conversation_document
from stores.opening import open_step_store

RUNS, FEWER_RUNS = 10_000, 1_000
STEPS = 10
"""Tool calls of a run, so that there are ten times as many effects as runs."""

OPEN_RUNS = 100
"""Runs whose last call has no outcome, and whose workflow Temporal does not know."""

CONVERSATIONS = 100

COMMAND_BUDGET_SECONDS = 2.0
UNRESOLVED_BUDGET_MS = 200.0

REPEATS, FEWER_REPEATS = 5, 2
UNRESOLVED_REPEATS = 30

AT_ONCE = 5_000

RUN, OTHER, TALK = "run-7", "run-507", "talk-7"

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("runs",),
    ("runs", "--state", "failed"),
    ("runs", "--orphans"),
    ("runs", "--conversation", TALK),
    ("show", RUN),
    ("events", RUN),
    ("snapshots", RUN),
    ("effects", RUN),
    ("unresolved",),
    ("messages", RUN),
    ("search", TALK, "begin"),
    ("conversations",),
    ("conversations", "--query", "begin"),
    ("tree", TALK),
    ("diff", RUN, OTHER),
)
"""All that read; `follow` waits for a run, `doctor` and `replay` are about something else."""


async def measure_reads(bench: Bench) -> list[Figure]:
    """Each command as a person starts it, from the start of its process to its end."""
    runs = FEWER_RUNS if bench.is_quick else RUNS
    database = f"reads_{uuid4().hex}"
    store = open_step_store("mongodb", db_url=bench.mongodb_uri, database=database)
    try:
        await store.initialise()
        await fill(bench, database, runs)
        environment = {
            **os.environ,
            "PERDURE_MONGODB_URI": bench.mongodb_uri,
            "PERDURE_MONGODB_DATABASE": database,
            "PERDURE_TEMPORAL_ADDRESS": bench.client.service_client.config.target_host,
        }
        _run(("search", TALK, "begin"), environment)  # takes that conversation into the index
        effects = await bench.mongodb[database]["tool_effects"].count_documents({})
        times: list[float] = []
        found: Sequence[object] = ()
        for _ in range(UNRESOLVED_REPEATS):
            start = perf_counter()
            found = await store.list_unresolved_tool_effects()
            times.append(1000 * (perf_counter() - start))
        repeats = FEWER_REPEATS if bench.is_quick else REPEATS
        return [
            Figure(
                name=f"unresolved effects among {effects}, read from the store",
                unit="ms",
                measured=median(times),
                budget=UNRESOLVED_BUDGET_MS,
                detail=f"{len(found)} found; p95 {percentile(times, 0.95):.1f} ms of {len(times)}",
            ),
            *(_figure(command, environment, repeats, runs) for command in COMMANDS),
        ]
    finally:
        await store.aclose()
        await bench.mongodb.drop_database(database)


def _figure(command: Sequence[str], environment: dict[str, str], repeats: int, runs: int) -> Figure:
    taken = [_run(command, environment) for _ in range(repeats)]
    seconds, processor = zip(*taken, strict=True)
    return Figure(
        name=f"perdure {' '.join(command)}, with {runs} runs",
        unit="s",
        measured=median(seconds),
        budget=COMMAND_BUDGET_SECONDS,
        detail=f"at most {max(seconds):.2f} s of {repeats}; {median(processor):.2f} s of processor",
    )


def _run(command: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds from start to end, and seconds of processor time of the process."""
    perdure = Path(sys.executable).parent / "perdure"
    start, before = perf_counter(), _processor_seconds()
    done = subprocess.run(
        [perdure, *command], env=environment, capture_output=True, text=True, check=False
    )
    seconds = perf_counter() - start
    if done.returncode:
        message = f"perdure {' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}"
        raise LocalServerError(message)
    return seconds, _processor_seconds() - before


def _processor_seconds() -> float:
    """Of all child processes that have ended; the servers have not."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def fill(bench: Bench, database: str, runs: int) -> None:
    """Copies of one run that is over and of one with an open call, under other ids."""
    store = open_step_store("mongodb", db_url=bench.mongodb_uri, database=database)
    try:
        over, held = SteppedRun(store), SteppedRun(store)
        for run in (over, held):
            await run.register()
            for _ in range(STEPS):
                await run.step()
        await over.end()
        await held.begin_call()
    finally:
        await store.aclose()
    for collection in ("runs", "events", "snapshots", "positions", "tool_effects"):
        found = bench.mongodb[database][collection]
        key = "_id" if collection == "runs" else "run_id"
        rows = {
            name: await found.find({key: run.run_id}).to_list()
            for name, run in (("over", over), ("held", held))
        }
        copies = (
            _copy(row, number, key)
            for number in range(runs)
            for row in rows["held" if number < OPEN_RUNS else "over"]
        )
        while batch := list(islice(copies, AT_ONCE)):
            await found.insert_many(batch, ordered=False)
    heads = [conversation_document(_conversation(number)) for number in range(runs)]
    await bench.mongodb[database]["conversations"].insert_many(heads, ordered=False)


def _copy(row: dict[str, Any], number: int, key: str) -> dict[str, Any]:
    branch = f"branch-{number}"
    copy: dict[str, Any] = {
        **row,
        "_id": ObjectId(),
        key: f"run-{number}",  # `_id` of the run itself
        "branch": branch,
    }
    if "conversation_id" in row:
        copy["conversation_id"] = f"talk-{number % CONVERSATIONS}"
    if "ranges" in row and copy["conversation_id"] == TALK:
        copy["unindexed"] = True
    if "transitions" in row:
        copy["transitions"] = [{**each, "branch": branch} for each in row["transitions"]]
    if key == "_id":
        copy["started_at"] += 1_000_000 * number
        copy["branches"] = [
            {**each, "branch": branch, "execution_id": branch} for each in row["branches"]
        ]
        copy |= _kept_apart(number)
    return copy


def _conversation(number: int) -> ConversationRecord:
    began_at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
    return ConversationRecord(
        conversation_id=f"talk-{number}",
        public_id=f"{number:026}",
        agent="persisted",
        created_at=began_at,
        updated_at=began_at,
        title=f"Where to begin {number}",
    )


def _kept_apart(number: int) -> dict[str, Any]:
    """What lists are narrowed by: each run but the first hundred works for another one."""
    parent = {"parent_run_id": f"run-{number % OPEN_RUNS}"} if number >= OPEN_RUNS else {}
    failed = {"state": "failed"} if number % 10 == 1 and number >= OPEN_RUNS else {}
    return {**parent, **failed}
