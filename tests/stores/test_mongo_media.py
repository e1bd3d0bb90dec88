"""The MongoDB media store, and media in a sweep."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import Binary, ObjectId
from pymongo import AsyncMongoClient, MongoClient
from pymongo.database import Database

from stores.conversation_records import ConversationSpec
from stores.errors import MediaNotFoundError, StoreUnavailableError
from stores.media.addresses import media_uri_for, parse_media_uri
from stores.media.protocols import MediaContext
from stores.mongo.indexes import COLLECTIONS
from stores.mongo.media import LARGEST_CHUNK_SIZE_BYTES, MongoMediaStore
from stores.mongo.references import MEDIA_SOURCES
from stores.mongo.steps import MongoStepStore
from tests.stores.media_conformance import (
    DATA,
    PNG,
    URI,
    MediaStoreConformance,
    StreamingConformance,
)
from tests.stores.records import run_record, snapshot
from tests.stores.test_media_stores import peak_of_streaming
from tests.stores.watching import Document, Watcher, explained, stages
from tests.stores.writer import request

pytestmark = [pytest.mark.integration, pytest.mark.spec("SP-80")]

LONG = "long " * 20_000
LONG_URI = media_uri_for(LONG.encode())

A_DAY = timedelta(days=1)


@pytest.fixture
def database(mongodb_uri: str, prepared_database: str) -> Iterator[Database[Document]]:
    with MongoClient[Document](mongodb_uri) as client:
        yield client[prepared_database]
        for collection in client[prepared_database].list_collection_names():
            client[prepared_database][collection].delete_many({})


@pytest.fixture
async def make(mongodb_uri: str, database: Database[Document]) -> AsyncIterator[Any]:
    made: list[MongoMediaStore] = []

    def make(**options: Any) -> MongoMediaStore:
        options = {"chunk_size_bytes": 50_000, **options}
        made.append(MongoMediaStore(db_url=mongodb_uri, database=database.name, **options))
        return made[-1]

    yield make
    for each in made:
        await each.aclose()


class TestMongoMediaStore(MediaStoreConformance, StreamingConformance):
    @pytest.fixture
    def make(self, make: Any) -> Any:
        return make

    @pytest.fixture
    def store(self, make: Callable[..., MongoMediaStore]) -> MongoMediaStore:
        return make()

    @pytest.fixture
    def damage(self, database: Database[Document]) -> Any:
        def damage(_: str) -> None:
            database["media_chunks"].delete_one({"n": 1})

        return damage

    @pytest.mark.spec("SP-60", "SP-84", "SP-85")
    async def test_a_manifest_and_chunks_in_collections_of_that_name(
        self, make: Any, database: Database[Document]
    ) -> None:
        store = make(collection="pictures")
        odd = MediaContext(media_type="image/png", metadata={"$a.b": "c", "": "\0"})
        await store.put(DATA, context=odd)
        await store.put(DATA, context=PNG)
        await store.for_workspace("other").put(DATA)
        assert dict(await store.get_metadata(URI)) == odd.metadata
        manifest = database["pictures"].find_one({"workspace_id": "default"})
        assert manifest is not None
        assert manifest["_id"] == f"{parse_media_uri(URI)}.default"
        assert (manifest["size_bytes"], manifest["chunk_count"]) == (len(DATA), 2)
        chunks = database["pictures_chunks"]
        assert chunks.count_documents({}) == 4
        assert {"files_v1", "_id_"} == set(chunks.index_information())

    async def test_a_blob_larger_than_a_document_comes_back(self, make: Any) -> None:
        data = b"a" * 17_000_000
        store = make(chunk_size_bytes=LARGEST_CHUNK_SIZE_BYTES)
        assert await make().get(await store.put(data)) == data
        for size in (0, LARGEST_CHUNK_SIZE_BYTES + 1):
            with pytest.raises(ValueError, match="chunk_size_bytes"):
                make(chunk_size_bytes=size)

    async def test_a_large_stream_needs_little_memory(self, make: Any) -> None:
        assert await peak_of_streaming(make(chunk_size_bytes=1024 * 1024)) < 16_000_000


@pytest.fixture
async def steps(mongodb_uri: str, database: Database[Document]) -> AsyncIterator[MongoStepStore]:
    store = MongoStepStore(db_url=mongodb_uri, database=database.name)
    yield store
    await store.aclose()


def age(database: Database[Document], collection: str, days: float) -> None:
    """Make what is stored look as if it had been put so many days ago."""
    moved = {"$inc": {"touched_at": -round(days * 86_400_000_000)}}
    database[collection].update_many({}, moved)


async def swept(store: MongoStepStore, **options: Any) -> tuple[int, int]:
    options = {"is_dry": False, "all_workspaces": True, **options}
    found = await store.sweep(grace=A_DAY, **options)
    return found.media, found.media_size_bytes


@pytest.mark.spec("SP-117")
class TestSweep:
    async def test_media_go_when_no_message_names_them_any_more(
        self, steps: MongoStepStore, database: Database[Document]
    ) -> None:
        assert steps.media_store is not None
        await steps.save_snapshot(snapshot([request(LONG)]))
        await steps.media_store.put(b"orphan")
        forsaken = ObjectId.from_datetime(datetime.now(UTC) - 3 * A_DAY)
        for files_id in (forsaken, ObjectId()):
            chunk = {"files_id": files_id, "n": 0, "data": Binary(b"half")}
            database["media_chunks"].insert_one(chunk)
        assert await swept(steps) == (1, 4)  # what broke off long ago
        age(database, "media", 2)
        assert await swept(steps, is_dry=True) == (1, 6)
        assert await swept(steps, is_dry=True, all_workspaces=False) == (1, 6)
        other = steps.for_workspace("other")
        assert await swept(other, all_workspaces=False) == (0, 0)
        assert await swept(steps) == (1, 6)
        latest = await steps.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.messages == [request(LONG)]
        database["positions"].delete_many({})
        age(database, "messages", 2)
        assert await swept(steps) == (1, len(LONG))
        assert database["media"].count_documents({}) == 0
        assert database["media_chunks"].count_documents({}) == 1  # of an upload under way
        assert set(MEDIA_SOURCES) == {"messages"}

    async def test_a_put_keeps_a_blob_from_a_sweep_for_the_commit_after_it(
        self, steps: MongoStepStore, database: Database[Document]
    ) -> None:
        assert steps.media_store is not None
        await steps.media_store.put(LONG.encode())
        age(database, "media", 2)
        await steps.media_store.put(LONG.encode())
        assert await swept(steps) == (0, 0)
        assert (await steps.sweep(grace=timedelta(), is_dry=False)).media == 0

    async def test_a_commit_does_not_name_what_a_sweep_may_remove(
        self, steps: MongoStepStore, database: Database[Document], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As a process that was stopped between the put and the transaction."""
        put = MongoMediaStore.put

        async def put_long_ago(self: MongoMediaStore, data: bytes, **options: Any) -> str:
            uri = await put(self, data, **options)
            age(database, "media", 1 / 24)
            return uri

        monkeypatch.setattr(MongoMediaStore, "put", put_long_ago)
        with pytest.raises(StoreUnavailableError, match="1 of 1 media"):
            await steps.save_snapshot(snapshot([request(LONG)]))
        assert await steps.list_snapshot_summaries(run_id="run-1") == []
        monkeypatch.undo()
        await steps.save_snapshot(snapshot([request(LONG)]))
        assert await steps.latest_snapshot(run_id="run-1") is not None

    async def test_sweeping_and_saving_media_use_indexes(
        self, mongodb_uri: str, database: Database[Document]
    ) -> None:
        watcher = Watcher(database.name)
        async with AsyncMongoClient[Document](mongodb_uri, event_listeners=[watcher]) as client:
            store = MongoStepStore(client=client, database=database.name)
            await store.save_snapshot(snapshot([request(LONG)]))
            age(database, "media", 2)
            watcher.commands.clear()
            await swept(store)
            accounts = await explained(client, database.name, watcher.commands)
        assert accounts
        for query, account in accounts:
            assert "COLLSCAN" not in stages(account), query

    @pytest.mark.spec("SP-71")
    async def test_listing_reads_no_media_and_loading_each_blob_once(
        self, mongodb_uri: str, database: Database[Document]
    ) -> None:
        watcher = Watcher(database.name)
        async with AsyncMongoClient[Document](mongodb_uri, event_listeners=[watcher]) as client:
            store = MongoStepStore(client=client, database=database.name)
            for count in (1, 2, 3):
                messages = [request(LONG), *(request(f"{n} {LONG}") for n in range(count))]
                await store.save_snapshot(snapshot(messages, f"key-{count}", step_index=count))
            watcher.commands.clear()
            await store.list_runs()
            await store.page_runs()
            await store.list_events(run_id="run-1")
            await store.list_snapshot_summaries(run_id="run-1")
            await store.list_unresolved_tool_effects()
            assert not {"media", "media_chunks"} & collections(watcher)
            found = await store.list_snapshots(run_id="run-1")
            assert [len(each.messages) for each in found] == [2, 3, 4]
            reads = [each for each in watcher.commands if each.get("find") == "media_chunks"]
            assert len(reads) == 4


def collections(watcher: Watcher) -> set[object]:
    """What the commands are about."""
    return {next(iter(each.values())) for each in watcher.commands}


async def test_media_of_another_workspace_are_not_there(
    steps: MongoStepStore, database: Database[Document]
) -> None:
    await steps.save_snapshot(snapshot([request(LONG)]))
    other = steps.for_workspace("other")
    assert other.media_store is not None
    with pytest.raises(MediaNotFoundError):
        await other.media_store.get(LONG_URI)
    assert [each["workspace_id"] for each in database["media"].find()] == ["default"]
    assert set(COLLECTIONS) >= {"media", "media_chunks"}


async def test_a_deleted_conversation_takes_the_media_that_it_alone_names(
    steps: MongoStepStore, database: Database[Document]
) -> None:
    now = datetime.now(UTC)
    shared, own = [request(LONG)], [request(LONG), request("own " * 30_000)]
    await steps.conversations.open("c", ConversationSpec(agent="conversation"), now=now)
    for run_id, conversation_id, messages in (("run-1", "c", own), ("run-2", "other", shared)):
        record = run_record(run_id, conversation_id=conversation_id)
        await steps.register_run(record)
        await steps.save_snapshot(
            snapshot(messages, run_id=run_id, conversation_id=conversation_id)
        )
    assert database["media"].count_documents({}) == 2
    age(database, "media", 2)
    removed = await steps.conversations.delete("c", now=now)
    assert (removed.counts["runs"], removed.counts["media"]) == (1, 1)
    latest = await steps.latest_snapshot(run_id="run-2")
    assert latest is not None
    assert latest.messages == shared
    assert database["search_log"].count_documents({"conversation_id": "c"}) == 0
