"""Message bodies: stored once, replaced when stamped, kept when shared; and the size of it all."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection

from stores.errors import DamagedSnapshotError, StoreError
from stores.mongo.steps import MongoStepStore
from stores.records import ContinuableSnapshot
from tests.stores.watching import Document
from tests.stores.writer import Execution, RunScript, new_run, request

pytestmark = pytest.mark.integration

Messages = Collection[Document]


@pytest.fixture
async def store(mongodb_uri: str, prepared_database: str) -> AsyncIterator[MongoStepStore]:
    store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
    yield store
    await store.aclose()


class TestMessages:
    @pytest.fixture
    def messages(self, mongodb_uri: str, prepared_database: str) -> Any:
        with MongoClient[Document](mongodb_uri) as client:
            collection = client[prepared_database]["messages"]
            collection.delete_many({})
            yield collection

    @pytest.mark.spec("SP-53")
    async def test_each_message_is_stored_once(
        self, store: MongoStepStore, messages: Messages
    ) -> None:
        history = [request(str(number)) for number in range(5)]
        for length in range(1, 6):
            await store.save_snapshot(
                ContinuableSnapshot(run_id="r-once", step_index=1, messages=list(history[:length]))
            )
        assert messages.count_documents({}) == 5

    async def test_a_stamped_message_takes_the_place_of_the_bare_one(
        self, store: MongoStepStore, messages: Messages
    ) -> None:
        execution, script = new_run("stamped")
        await store.commit(execution.commit(script.register()))
        for step in range(1, 6):
            await store.commit(execution.commit(*script.after_tool(step)))
        assert messages.count_documents({}) == 10

    async def test_a_message_that_another_run_has_too_is_kept(
        self, store: MongoStepStore, messages: Messages
    ) -> None:
        shared = request("shared")
        execution, script = new_run("sharing")
        script.messages = [shared]
        await store.commit(execution.commit(script.snapshot(1, 0)))
        await store.save_snapshot(
            ContinuableSnapshot(run_id="r-shares", step_index=1, messages=[shared])
        )
        assert messages.count_documents({"owner": None}) == 1
        script.messages = [request("shared", run_id=script.run_id)]
        await store.commit(execution.commit(script.snapshot(2, 0)))
        assert messages.count_documents({}) == 2
        latest = await store.latest_snapshot(run_id="r-shares")
        assert latest is not None
        assert latest.messages == [shared]

    async def test_two_positions_of_one_commit_share_a_message_for_good(
        self, store: MongoStepStore, messages: Messages
    ) -> None:
        execution, script = new_run("twins")
        script.messages = [request("again"), request("again")]
        await store.commit(execution.commit(script.snapshot(1, 0)))
        assert messages.count_documents({"owner": None}) == 1
        script.messages[1] = request("again", run_id=script.run_id)
        await store.commit(execution.commit(script.snapshot(2, 1)))
        latest = await store.latest_snapshot(run_id=script.run_id)
        assert latest is not None
        assert latest.messages == script.messages

    async def test_a_missing_message_is_a_damaged_snapshot(
        self, store: MongoStepStore, messages: Messages
    ) -> None:
        await store.save_snapshot(
            ContinuableSnapshot(run_id="r-lost", step_index=1, messages=[request("a")])
        )
        messages.delete_many({})
        with pytest.raises(StoreError, match=r"is damaged: message '[0-9a-f]{64}' is missing"):
            await store.latest_snapshot(run_id="r-lost")
        assert await store.list_snapshots(run_id="r-lost") == []

    @pytest.mark.parametrize("ranges", [b"\x80", "lost", [[0]]])
    async def test_damaged_ranges_spoil_their_snapshot_alone(
        self,
        store: MongoStepStore,
        mongodb_uri: str,
        prepared_database: str,
        caplog: pytest.LogCaptureFixture,
        ranges: object,
    ) -> None:
        run_id = f"r-torn-{ranges!r}"
        for step in (1, 2):
            await store.save_snapshot(
                ContinuableSnapshot(run_id=run_id, step_index=step, messages=[request("a")])
            )
        with MongoClient[Document](mongodb_uri) as client:
            client[prepared_database]["snapshots"].update_one(
                {"run_id": run_id, "step_index": 2}, {"$set": {"ranges": ranges}}
            )
        with pytest.raises(DamagedSnapshotError):
            await store.latest_snapshot(run_id=run_id)
        assert [each.step_index for each in await store.list_snapshots(run_id=run_id)] == [1]
        assert f"snapshot 2 of run {run_id!r} is damaged" in caplog.text


class TestDataSize:
    async def test_two_hundred_steps_of_five_kilobytes_take_less_than_two_megabytes(
        self, store: MongoStepStore, mongodb_uri: str, prepared_database: str
    ) -> None:
        collections = ("runs", "events", "snapshots", "tool_effects", "messages")
        with MongoClient[Document](mongodb_uri) as client:
            for collection in collections:
                client[prepared_database][collection].delete_many({})
        execution = Execution(
            execution_id="0b8c5a0e-61d5-4e0e-8f4e-6d1c57d8a001",
            branch="0b8c5a0e-61d5-4e0e-8f4e-6d1c57d8a001",
        )
        script = RunScript(run_id="4ad2bd77-9f66-4b0e-9d3b-1f6f5b1c2e02", result_size=5 * 1024)
        await store.commit(execution.commit(script.register(), script.event("run_started", 0)))
        for step in range(1, 201):
            execution.next_task()
            await store.commit(execution.commit(*script.before_tool(step)))
            await store.commit(execution.commit(*script.after_tool(step)))
        with MongoClient[Document](mongodb_uri) as client:
            database = client[prepared_database]
            sizes = {each: database.command("collStats", each)["size"] for each in collections}
        assert sum(sizes.values()) <= 2_000_000, sizes
