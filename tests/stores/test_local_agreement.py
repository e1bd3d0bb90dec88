"""Whatever plain runs ask of them, memory, files and SQLite answer and hold the same."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stores.errors import StoreError
from stores.file.steps import FileStepStore
from stores.memory import InMemoryStepStore
from stores.protocols import StepStore
from stores.sqlite.steps import SqliteStepStore
from tests.stores.asking import everything
from tests.stores.records import effect, event, run_record, snapshot
from tests.stores.writer import at, request

Call = Callable[[StepStore], Awaitable[None]]

RUNS = st.sampled_from(["run-1", "run-2"])
KEYS = st.sampled_from(["a", "b", "c", None])
BRANCHES = st.sampled_from(["", "x"])
TIMES = st.integers(0, 5).map(at)
SEQUENCES = st.sampled_from([0, 0, 0, 3, 7])


@st.composite
def registrations(draw: st.DrawFn) -> Call:
    record = run_record(
        draw(RUNS),
        registration_id=draw(st.sampled_from(["one", "two", None])),
        started_at=draw(TIMES),
    )
    return lambda store: store.register_run(record)


@st.composite
def events(draw: st.DrawFn) -> Call:
    kinds = ["run_started", "run_completed", "run_failed", "tool_call_started"]
    appended = event(
        draw(st.integers(0, 2)),
        draw(KEYS),
        run_id=draw(RUNS),
        kind=draw(st.sampled_from(kinds)),
        timestamp=draw(TIMES),
        branch=draw(BRANCHES),
        sequence=draw(SEQUENCES),
        error=draw(st.sampled_from([None, "cancelled", "no"])),
    )
    return lambda store: store.append_event(appended)


@st.composite
def saves(draw: st.DrawFn) -> Call:
    texts = draw(st.lists(st.sampled_from("uvw"), max_size=4))
    saved = snapshot(
        [request(text) for text in texts],
        draw(KEYS),
        run_id=draw(RUNS),
        timestamp=draw(TIMES),
        branch=draw(BRANCHES),
        sequence=draw(SEQUENCES),
        state=draw(st.sampled_from(["complete", "interrupted"])),
    )
    return lambda store: store.save_snapshot(saved)


@st.composite
def effects(draw: st.DrawFn) -> Call:
    recorded = effect(
        draw(st.sampled_from(["started", "completed", "failed", "unknown", "resolved"])),
        run_id=draw(RUNS),
        tool_call_id=draw(st.sampled_from(["c", "d"])),
        step_index=(step := draw(st.sampled_from([None, 1, 2]))),
        call_index=None if step is None else 0,
        started_at=draw(TIMES),
        ended_at=at(9),
        branch=draw(BRANCHES),
        effect_summary=draw(st.sampled_from([None, "done"])),
    )
    return lambda store: store.record_tool_effect(recorded)


async def answer(store: StepStore, call: Call) -> tuple[type[Exception], str] | None:
    try:
        await call(store)
    except StoreError as error:
        return type(error), str(error)
    return None


async def content(store: StepStore) -> list[Any]:
    runs = [await everything(store, run_id) for run_id in ("run-1", "run-2")]
    latest = [
        await store.latest_snapshot(run_id="run-1", include_interrupted=each)
        for each in (False, True)
    ]
    unresolved = await store.list_unresolved_tool_effects()
    assert unresolved == sorted(unresolved, key=lambda each: each.started_at)
    unresolved.sort(key=lambda each: (each.run_id, each.sequence, each.tool_call_id, each.branch))
    return [runs, latest, await store.list_runs(), unresolved]


@given(
    st.lists(st.one_of(registrations(), events(), saves(), effects()), max_size=25),
    st.sampled_from([None, 1, 2]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_plain_writes_in_any_order_end_the_same(calls: list[Call], bound: int | None) -> None:
    async def compare(place: Path) -> None:
        memory = InMemoryStepStore(max_snapshots_per_run=bound)
        stores: list[StepStore] = [
            SqliteStepStore(database=place / "runs.db", max_snapshots_per_run=bound),
            FileStepStore(place / "runs", max_snapshots_per_run=bound),
        ]
        try:
            for call in calls:
                expected = await answer(memory, call)
                assert [await answer(store, call) for store in stores] == [expected, expected]
            expected_content = await content(memory)
            for store in (*stores, FileStepStore(place / "runs")):
                assert await content(store) == expected_content
        finally:
            await stores[0].aclose()

    with tempfile.TemporaryDirectory() as place:
        asyncio.run(compare(Path(place)))
