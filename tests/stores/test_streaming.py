"""What every `StreamStore` must do, and what MongoDB's does beside it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pymongo import AsyncMongoClient

from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from stores.protocols import StepStore
from stores.streaming import StreamChunk, StreamItem, StreamTake
from tests.stores.abstract import StepStoreTests
from tests.stores.watching import Document, Watcher, explained, stages, work

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER = START + timedelta(days=36500)
FIRST = StreamTake(run_id="run-1", branch="b-1", request=3, started_at=START)
SECOND = replace(FIRST, attempt=2, started_at=START + timedelta(seconds=1))
BEGAN = StreamItem(kind="began")


def chunk(take: StreamTake, first: int, *texts: str) -> StreamChunk:
    items = tuple(StreamItem(kind="text", text=text) for text in texts)
    return StreamChunk(take=take, first=first, items=(BEGAN, *items) if first == 0 else items)


class StreamConformance(StepStoreTests):
    async def test_items_are_read_from_an_offset_up_to_a_gap(self, store: StepStore) -> None:
        streams = store.streams
        for each in (chunk(FIRST, 3, "c"), chunk(FIRST, 0, "a", "b"), chunk(FIRST, 5, "e")):
            await streams.append(each, expires_at=LATER)
        await streams.append(chunk(FIRST, 3, "another"), expires_at=LATER)  # written before
        assert [item.text for item in await streams.list_items(FIRST)] == ["", "a", "b", "c"]
        assert [item.text for item in await streams.list_items(FIRST, first=3)] == ["c"]
        assert await streams.list_items(FIRST, first=4) == []
        assert await streams.list_items(SECOND) == []

    async def test_newest_take_is_last_also_one_of_another_branch(self, store: StepStore) -> None:
        reset = replace(FIRST, branch="b-2", started_at=START + timedelta(seconds=5))
        part = replace(FIRST, part=1)
        other = replace(FIRST, request=9)
        for take in (part, reset, SECOND, FIRST, other):
            await store.streams.append(chunk(take, 0, "x"), expires_at=LATER)
        takes = await store.streams.list_takes(run_id="run-1", request=3)
        assert takes == [FIRST, SECOND, reset, part]
        assert await store.streams.list_takes(run_id="run-1", request=4) == []

    async def test_another_workspace_sees_and_deletes_nothing(self, store: StepStore) -> None:
        await store.streams.append(chunk(FIRST, 0, "x"), expires_at=LATER)
        foreign = store.for_workspace("other").streams
        assert await foreign.list_takes(run_id="run-1", request=3) == []
        assert await foreign.list_items(FIRST) == []
        assert await foreign.delete_run(run_id="run-1") == 0
        assert await store.streams.delete_run(run_id="run-1") == 1
        assert await store.streams.list_takes(run_id="run-1", request=3) == []

    async def test_a_watch_returns_in_time_when_nothing_changes(self, store: StepStore) -> None:
        async with store.streams.watch("run-1") as watch:
            await watch.changed(within=timedelta(milliseconds=10))


class TestInMemoryStreams(StreamConformance):
    @pytest.fixture
    def store(self) -> StepStore:
        return InMemoryStepStore()


@pytest.mark.integration
class TestMongoStreams(StreamConformance):
    @pytest.fixture
    async def store(self, mongodb_uri: str, prepared_database: str) -> AsyncIterator[StepStore]:
        store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
        yield store
        await store.streams.delete_run(run_id="run-1")
        await store.aclose()

    async def test_rows_expire_and_reads_cost_what_they_show(
        self, mongodb_uri: str, prepared_database: str
    ) -> None:
        watcher = Watcher(prepared_database)
        async with AsyncMongoClient[Document](mongodb_uri, event_listeners=[watcher]) as client:
            store = MongoStepStore(client=client, database=prepared_database)
            for number in range(40):
                take = replace(FIRST, run_id=f"run-{number % 4}", request=number)
                for first in (0, 2, 3):
                    await store.streams.append(chunk(take, first, "x"), expires_at=LATER)
            watcher.commands.clear()
            take = replace(FIRST, run_id="run-1", request=5)
            assert await store.streams.list_takes(run_id="run-1", request=5) == [take]
            assert len(await store.streams.list_items(take, first=2)) == 2
            accounts = await explained(client, prepared_database, watcher.commands)
            assert [work(account) for _, account in accounts] == [(1, 1, 1), (2, 2, 2)]
            assert not {"COLLSCAN", "SORT"} & {s for _, each in accounts for s in stages(each)}
            information = await client[prepared_database]["stream_chunks"].index_information()
            assert information["stream_chunks_expiry_v1"]["expireAfterSeconds"] == 0
