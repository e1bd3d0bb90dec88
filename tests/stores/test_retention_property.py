"""A bound on snapshots takes nothing that somebody needs: in memory, in files, in SQLite."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stores.file.steps import FileStepStore
from stores.memory import InMemoryStepStore
from stores.protocols import StepStore
from stores.sqlite.steps import SqliteStepStore
from tests.stores.retained import PLANS, Plan, found, seen, write

Open = Callable[[Path, int | None], StepStore]


def in_memory(_: Path, bound: int | None) -> StepStore:
    return InMemoryStepStore(max_snapshots_per_run=bound)


def in_files(place: Path, bound: int | None) -> StepStore:
    return FileStepStore(place / f"runs-{bound}", max_snapshots_per_run=bound)


def in_sqlite(place: Path, bound: int | None) -> StepStore:
    return SqliteStepStore(database=place / f"runs-{bound}.db", max_snapshots_per_run=bound)


ORIGINS = ("parent_run_id", "continued_from", "forked_from")


@pytest.mark.parametrize("open_store", [in_memory, in_files, in_sqlite])
@settings(max_examples=15, deadline=None)
@given(plans=PLANS, bound=st.integers(1, 3))
def test_a_bound_takes_nothing_that_somebody_needs(
    open_store: Open, plans: list[Plan], bound: int
) -> None:
    with TemporaryDirectory() as place:
        asyncio.run(check(open_store, Path(place), plans, bound))


async def check(open_store: Open, place: Path, plans: list[Plan], bound: int) -> None:
    whole, bounded = open_store(place, None), open_store(place, bound)
    try:
        ids = await write(whole, plans, "x")
        await write(bounded, plans, "x")
        kept = {each: await check_run(whole, bounded, each, bound) for each in ids}
        # A compaction took the words out of the snapshots that these runs have left.
        said = [n for n, each in enumerate(plans) if each.steps < 3]
        await found(bounded, plans, "x", said)
    finally:
        await whole.aclose()
        await bounded.aclose()
    if open_store is not in_memory:
        await check_opened_again(open_store(place, bound), kept)


async def check_run(whole: StepStore, bounded: StepStore, run_id: str, bound: int) -> list[int]:
    """What it is resumed from, its lineage and its ledger; the snapshots that it has left."""
    now = await seen(bounded, run_id)
    assert now == await seen(whole, run_id)
    for origin in (getattr(now["run"], each) for each in ORIGINS):
        assert origin is None or await bounded.get_run(run_id=origin) is not None
    everything = {
        each.sequence: each for each in await whole.list_snapshot_summaries(run_id=run_id)
    }
    left = [each.sequence for each in await bounded.list_snapshot_summaries(run_id=run_id)]
    assert left[-bound:] == sorted(everything)[-bound:]
    assert len(left) <= bound + 1  # the newest settled one may be older than those
    for sequence in left:
        snapshot = await bounded.find_snapshot(run_id=run_id, sequence=sequence)
        assert snapshot is not None
        assert snapshot == await whole.find_snapshot(run_id=run_id, sequence=sequence)
    return left


async def check_opened_again(store: StepStore, kept: dict[str, list[int]]) -> None:
    """A second look takes nothing more."""
    try:
        for run_id, sequences in kept.items():
            left = await store.list_snapshot_summaries(run_id=run_id)
            assert [each.sequence for each in left] == sequences
    finally:
        await store.aclose()
