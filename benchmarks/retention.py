"""Retention of many runs: how fast, in how much memory, and what a stop in the middle costs.

The runs are inserted as documents, without their workflows: what is measured is the sweep.
"""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

from bson import ObjectId

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from stores.conversation_records import ConversationRecord, TurnRecord, VariantRecord
from stores.keyword.lexer import lexemes
from stores.mongo.conversation_documents import (
    conversation_document,
    turn_document,
    variant_document,
)
from stores.mongo.documents import head_id
from stores.mongo.keyword_rows import ROWS, Lane, keys_of, lane_of, row_document, row_key
from stores.mongo.keyword_upkeep import title_document
from stores.mongo.retaining import Tell
from stores.mongo.search_log import LOG, Append, LogEntry, append_document
from stores.mongo.search_terms import terms_id
from stores.mongo.steps import MongoStepStore
from stores.paging import microseconds
from stores.public_ids import new_public_id
from stores.retention_policies import Retained, RetentionPolicy
from stores.search.counting import CountedTerms

RUNS = 100_000
QUICK_RUNS = 10_000
IN_ONE_INSERT = 1_000
EVENTS = 4
SNAPSHOTS = 3

NOW = datetime(2026, 6, 1, tzinfo=UTC)
ENDED = NOW - timedelta(days=60)

LARGEST_GROWTH_MB = 32.0
"""Of the process, from the first tenth of the pages to the last one."""

RUNS_OF_A_CONVERSATION = 10

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
        began = perf_counter()
        await _fill(bench, database, count)
        filled = Figure(
            name=f"{count} runs with all that they have: time of inserting them",
            unit="s",
            measured=perf_counter() - began,
        )
        return [filled, *await _details(store, count), *await _whole(store, count)]
    finally:
        await store.aclose()
        await bench.mongodb.drop_database(database)


async def _details(store: MongoStepStore, count: int) -> list[Figure]:
    policy = RetentionPolicy(details_days=30, snapshots=1, originals=False)
    stopped = await _stopped(store, policy, lambda so_far: so_far.detailed >= count // 2)
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
    policy = RetentionPolicy(runs_days=40)
    stopped = await _stopped(store, policy, lambda so_far: so_far.runs >= count // 2)
    first = stopped[-1].runs
    seconds, rest, memory = await _timed(store, policy)
    again = await _retain(store, policy, _nothing)
    return [
        Figure(
            name=f"whole runs, {count} in conversations of 10: runs left or counted twice",
            unit="",
            measured=float(abs(first + rest.runs - count) + again.runs),
            budget=0.0,
            detail=f"stopped after {first} in {len(stopped)} pages, then {rest.runs} in "
            f"{len(memory)}",
        ),
        Figure(
            name="the same: time for 1,000 runs",
            unit="s",
            measured=1000 * seconds / max(rest.runs, 1),
            detail=f"{rest.runs} runs, {rest.conversations} conversations in {seconds:.1f} s",
        ),
        _growth("the same", memory),
    ]


async def _stopped(
    store: MongoStepStore, policy: RetentionPolicy, is_enough: Callable[[Retained], bool]
) -> list[Retained]:
    """What was done after each page, until that was enough."""
    pages: list[Retained] = []

    def stop(so_far: Retained) -> None:
        pages.append(so_far)
        if is_enough(so_far):
            raise _StopError

    with suppress(_StopError):
        await _retain(store, policy, stop)
    return pages


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
    yield "commit_heads", {"_id": head_id("default", f"e-{number}"), **execution}
    mine: dict[str, Any] = {"workspace_id": "default", "branch": f"b-{number}", "number": 1}
    conversation = f"conversation-{number // RUNS_OF_A_CONVERSATION}"
    yield from _turn(conversation, number % RUNS_OF_A_CONVERSATION, run_id, ended)
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


def _turn(
    conversation_id: str, position: int, run_id: str, ended: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A turn of a conversation with its answer, and what the indexes of both searches have of it.

    The last one brings the conversation's head.
    """
    head = ConversationRecord(
        conversation_id=conversation_id,
        public_id=new_public_id(ENDED),
        agent="bench",
        created_at=ENDED,
        updated_at=ENDED,
        title="A conversation of the benchmark",
        turn_count=RUNS_OF_A_CONVERSATION,
    )
    lane = Lane(index=lane_of(conversation_id), sequence=1)
    if position == RUNS_OF_A_CONVERSATION - 1:
        yield "conversations", conversation_document(head)
        yield ROWS, title_document(head, lane)
    prompt = f"What is the weather like in place {run_id}?"
    turn = TurnRecord(
        conversation_id=conversation_id,
        position=position,
        public_id=new_public_id(ENDED),
        message_id=f"m-{run_id}",
        prompt=prompt,
        created_at=ENDED,
        status="completed",
    )
    yield "turns", turn_document(turn)
    variant = VariantRecord(
        conversation_id=conversation_id,
        position=position,
        number=1,
        order=position,
        public_id=new_public_id(ENDED),
        run_id=run_id,
        status="completed",
        created_at=ENDED,
    )
    yield "variants", variant_document(variant)
    key = row_key("default", conversation_id, position, "prompt")
    words = {"live": True, "parts": 1, "number": 1, "version": "v", "order_id": turn.public_id}
    yield ROWS, row_document(key, lane) | words | {"lexemes": keys_of(lexemes(prompt))}
    entries = [
        LogEntry(
            each,
            f"{run_id[4:]}-{each}".ljust(64, "0"),
            ended + each,
            frozenset(),
            CountedTerms.of(["weather"]),
        )
        for each in range(SNAPSHOTS)
    ]
    append = Append(run_id=run_id, branch=f"b-{run_id}", started_at=ended, entries=entries)
    yield (
        LOG,
        append_document(
            append,
            workspace_id="default",
            conversation_id=conversation_id,
            sequence=position + 1,
            ordinal=0,
            terms_id=terms_id("bench"),
        ),
    )
