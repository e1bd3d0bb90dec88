"""The writer of live text: what it does when the store is away, and that nobody waits for it."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest

from activities import streaming
from activities.streaming import StreamWriter
from stores.faulty import Fault, FaultPlan, with_faults
from stores.memory import InMemoryStepStore
from stores.streaming import StreamItem, StreamTake
from tests.helpers.eventually import eventually

TAKE = StreamTake(
    run_id="run-1", branch="b", request=2, started_at=datetime(2026, 1, 1, tzinfo=UTC)
)


async def items(store: InMemoryStepStore) -> list[str]:
    found = await store.streams.list_items(TAKE)
    return [item.text or f"<{item.kind}>" for item in found]


async def is_whole(store: InMemoryStepStore) -> bool:
    return StreamItem(kind="ended") in await store.streams.list_items(TAKE)


async def test_first_word_is_written_at_once_and_the_next_ones_together() -> None:
    store = InMemoryStepStore()
    writer = StreamWriter(store.streams, TAKE)
    writer.write("text", "a")
    await eventually(lambda: items(store), within=timedelta(milliseconds=40))
    for text in "bcd":
        writer.write("text", text)
    writer.close(is_whole=True)
    writer.write("text", "too late")
    await eventually(lambda: is_whole(store))
    assert await items(store) == ["<began>", "a", "b", "c", "d", "<ended>"]
    assert await store.streams.delete_run(run_id="run-1") == 2


async def test_flush_that_fails_is_repeated_and_nothing_is_lost(tmp_path: Path) -> None:
    store = InMemoryStepStore()
    moments: tuple[Literal["before", "after"], ...] = ("before", "after", "before")
    faults = tuple(
        Fault(name=f"away-{number}", action="fail", when=when, method="append")
        for number, when in enumerate(moments)
    )
    faulty = with_faults(store, FaultPlan(directory=tmp_path, faults=faults))
    writer = StreamWriter(faulty.streams, TAKE)
    for text in "abcdef":
        writer.write("text", text)
        await asyncio.sleep(0.02)
    writer.close(is_whole=True)
    await eventually(lambda: is_whole(store))
    assert await items(store) == ["<began>", *"abcdef", "<ended>"]


async def test_too_much_text_for_a_store_that_is_away_is_dropped_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streaming, "LARGEST_BACKLOG", 10)
    store = InMemoryStepStore()
    away = Fault(name="away", action="wait", method="append")
    faulty = with_faults(store, FaultPlan(directory=tmp_path, faults=(away,)))
    writer = StreamWriter(faulty.streams, TAKE)
    await eventually((tmp_path / "away").exists)
    for _ in range(5):
        writer.write("text", "secret")
    writer.close(is_whole=True)
    assert "request 2, attempt 1 is dropped: too much waits" in caplog.text
    assert "secret" not in caplog.text
    assert await items(store) == []
