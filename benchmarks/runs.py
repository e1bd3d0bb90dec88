"""How long a page of runs takes where there are many, next to a round trip to the server."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Any
from uuid import uuid4

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median, percentile
from stores.mongo.documents import run_document
from stores.opening import open_step_store
from stores.protocols import StepStore
from stores.records import RunRecord
from stores.rows import RunRow

BUDGET_MS = 20.0

RUNS = 100_000
AT_ONCE = 10_000
MEASURED = 50
"""Pages of each kind, each behind the one before it."""

FILTERS: dict[str, dict[str, Any]] = {
    "all": {},
    "of an agent": {"agent_name": "agent-1"},
    "of a state": {"state": "failed"},
    "of a conversation": {"conversation_id": "talk-1"},
    "of a parent and a state": {"parent_run_id": "run-1", "state": "completed"},
    "of all four filters": {
        "conversation_id": "talk-1",
        "parent_run_id": "run-1",
        "agent_name": "agent-1",
        "state": "completed",
    },
}
"""Pages by what they are narrowed to; the stored runs are spread over all of it."""


async def measure_runs(bench: Bench) -> list[Figure]:
    """Milliseconds of `page_runs`, newest first, 50 a page, through 100,000 runs."""
    database = f"runs_{uuid4().hex}"
    store = open_step_store("mongodb", db_url=bench.mongodb_uri, database=database)
    try:
        await store.initialise()
        for start in range(0, RUNS, AT_ONCE):
            documents = [run_document(each) for each in _runs(start)]
            await bench.mongodb[database]["runs"].insert_many(documents, ordered=False)
        return [await _figure(store, name, filters) for name, filters in FILTERS.items()]
    finally:
        await store.aclose()
        await bench.mongodb.drop_database(database)


def _runs(start: int) -> Iterator[RunRow]:
    began_at = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(start, start + AT_ONCE):
        record = RunRecord(
            run_id=f"run-{number}",
            conversation_id=f"talk-{number % 7}",
            parent_run_id=f"run-{number % 11}",
            agent_name=f"agent-{number % 5}",
            state="completed" if number % 10 else "failed",
            started_at=began_at + timedelta(seconds=number),
            metadata={"ticket": str(number)},
        )
        yield RunRow(record=record, branch=f"branch-{number}", number=1)


async def _figure(store: StepStore, name: str, filters: dict[str, Any]) -> Figure:
    times: list[float] = []
    after: str | None = None
    for _ in range(MEASURED):
        start = perf_counter()
        page = await store.page_runs(after=after, **filters)
        times.append(1000 * (perf_counter() - start))
        after = page.after  # behind the last one, from the first one again
    return Figure(
        name=f"page_runs with {RUNS} runs, {name}",
        unit="ms",
        measured=median(times),
        budget=BUDGET_MS,
        detail=f"p95 {percentile(times, 0.95):.1f} ms of {len(times)}",
    )
