"""`max_snapshots_per_run` over the stores that have it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.database import Database

from stores.commits import Commit
from stores.errors import IdempotencyConflictError
from stores.file.steps import FileStepStore
from stores.memory import InMemoryStepStore
from stores.mongo.indexes import COLLECTIONS
from stores.mongo.steps import MongoStepStore
from stores.preparing import prepare
from stores.protocols import StepStore
from stores.retention import prunable
from stores.rows import SnapshotRow
from stores.sqlite.steps import SqliteStepStore
from tests.stores.records import event, snapshot
from tests.stores.writer import Execution, RunScript, at, request


async def save(store: StepStore, number: int, state: str = "complete", **values: object) -> None:
    message = request(str(number))
    await store.save_snapshot(snapshot([message], str(number), state=state, **values))


async def kept(store: StepStore, run_id: str = "run-1") -> list[str | None]:
    summaries = await store.list_snapshot_summaries(run_id=run_id)
    listed = await store.list_snapshots(run_id=run_id)
    keys = [each.idempotency_key for each in summaries]
    assert [each.idempotency_key for each in listed] == keys
    return keys


class RetentionConformance(ABC):
    """Subclasses open the store."""

    @abstractmethod
    def open_store(self, place: Path, bound: int | None) -> StepStore:
        """A store with this bound, on what is at that place."""

    @pytest.fixture
    async def bounded(self, tmp_path: Path) -> AsyncIterator[StepStore]:
        store = self.open_store(tmp_path, 2)
        yield store
        await store.aclose()

    @pytest.mark.spec("SP-66")
    @pytest.mark.parametrize("bound", [0, -1])
    def test_a_bound_below_one_is_refused(self, tmp_path: Path, bound: int) -> None:
        with pytest.raises(ValueError, match=f"max_snapshots_per_run is {bound}; pass 1 or more"):
            self.open_store(tmp_path, bound)

    @pytest.mark.spec("SP-66", "SP-116")
    async def test_without_a_bound_all_are_kept(self, tmp_path: Path) -> None:
        store = self.open_store(tmp_path, None)
        for number in range(12):
            await save(store, number)
        assert len(await kept(store)) == 12
        await store.aclose()

    @pytest.mark.spec("SP-66", "SP-67")
    async def test_the_newest_are_kept(self, bounded: StepStore) -> None:
        for number in range(5):
            await save(bounded, number)
            await save(bounded, number, run_id="run-2")
        assert await kept(bounded) == ["3", "4"]
        assert await kept(bounded, "run-2") == ["3", "4"]
        latest = await bounded.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.messages == [request("4")]

    @pytest.mark.spec("SP-67")
    async def test_the_newest_complete_one_is_kept_below_interrupted_ones(
        self, bounded: StepStore
    ) -> None:
        for number in range(6):
            await save(bounded, number, "complete" if number < 2 else "interrupted")
        assert await kept(bounded) == ["1", "4", "5"]
        latest = await bounded.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.idempotency_key == "1"
        newest = await bounded.latest_snapshot(run_id="run-1", include_interrupted=True)
        assert newest is not None
        assert newest.idempotency_key == "5"
        await save(bounded, 6)
        assert await kept(bounded) == ["5", "6"]

    async def test_only_the_newest_is_kept_with_a_bound_of_one(self, tmp_path: Path) -> None:
        store = self.open_store(tmp_path, 1)
        for number in range(3):
            await save(store, number)
            assert await kept(store) == [str(number)]
        await store.aclose()

    @pytest.mark.spec("SP-116")
    async def test_events_are_never_pruned(self, bounded: StepStore) -> None:
        for number in range(5):
            await bounded.append_event(event(number, str(number)))
            await save(bounded, number)
        assert len(await bounded.list_events(run_id="run-1")) == 5

    async def test_a_key_outlives_its_snapshot(self, bounded: StepStore) -> None:
        for number in range(5):
            await save(bounded, number)
        await save(bounded, 0)
        await save(bounded, 2, timestamp=at(99))
        assert await kept(bounded) == ["3", "4"]
        with pytest.raises(IdempotencyConflictError, match="key '0'"):
            await bounded.save_snapshot(snapshot([request("other")], "0"))
        assert await kept(bounded) == ["3", "4"]

    async def test_snapshots_without_a_key_are_pruned_too(self, bounded: StepStore) -> None:
        for number in range(5):
            await bounded.save_snapshot(snapshot([request(str(number))]))
        listed = await bounded.list_snapshots(run_id="run-1")
        assert [each.messages for each in listed] == [[request("3")], [request("4")]]
        assert [each.sequence for each in listed] == [4, 5]

    async def test_workspaces_share_the_bound_and_count_apart(self, bounded: StepStore) -> None:
        other = bounded.for_workspace("other")
        for number in range(3):
            await save(bounded, number)
            await save(other, number)
        assert await kept(bounded) == ["1", "2"]
        assert await kept(other) == ["1", "2"]

    @pytest.mark.spec("SP-69", "SP-70")
    async def test_a_history_goes_on_from_the_newest_one(self, bounded: StepStore) -> None:
        messages = [request(str(number)) for number in range(6)]
        for number in range(1, 7):
            await bounded.save_snapshot(snapshot(messages[:number], str(number)))
        listed = await bounded.list_snapshots(run_id="run-1")
        assert [each.messages for each in listed] == [messages[:5], messages]

    async def test_what_a_task_may_commit_again_is_kept(self, tmp_path: Path) -> None:
        store = self.open_store(tmp_path, 1)
        script, execution = RunScript(), Execution()
        script.messages = [request("a")]
        await store.commit(execution.commit(script.register(), script.snapshot(1, 0, key="1")))
        # The same task: another attempt may put something in place of the commit before.
        await store.commit(execution.commit(script.snapshot(1, 1, key="2")))
        assert await kept(store) == ["1", "2"]
        execution.next_task()
        await store.commit(execution.commit(script.snapshot(2, 1, key="3")))
        assert await kept(store) == ["3"]
        # Outside of a workflow nothing comes again.
        one = script.snapshot(3, 1, key="4")
        await store.commit(Commit(operations=(one,), now=at(9), branch="other"))
        assert await kept(store) == ["4"]
        await store.aclose()


class LastingRetentionConformance(RetentionConformance):
    async def test_a_bound_that_is_set_later_prunes_with_the_next_save(
        self, tmp_path: Path, bounded: StepStore
    ) -> None:
        unbounded = self.open_store(tmp_path, None)
        for number in range(6):
            await save(unbounded, number)
        await unbounded.aclose()
        assert len(await kept(bounded)) == 6
        await save(bounded, 6)
        assert await kept(bounded) == ["5", "6"]


class ReversibleRetentionConformance(RetentionConformance):
    """For stores in which a workflow's commits may be taken back."""

    async def test_a_lost_task_leaves_what_its_next_attempt_needs(self, tmp_path: Path) -> None:
        store = self.open_store(tmp_path, 1)
        script, execution = RunScript(), Execution()
        script.messages = [request("a")]
        await store.commit(execution.commit(script.register(), script.snapshot(1, 0, key="1")))
        execution.next_task()
        await store.commit(execution.commit(script.snapshot(2, 1, key="2")))
        await store.commit(execution.commit(script.snapshot(3, 1, key="3")))
        assert await kept(store) == ["2", "3"]
        execution.next_task(number=1)
        result = await store.commit(execution.commit(script.snapshot(2, 1, key="2"), number=2))
        assert result.verdict == "supersede"
        assert await kept(store) == ["2"]
        await store.commit(execution.commit(script.snapshot(3, 1, key="other")))
        assert await kept(store) == ["2", "other"]
        await store.aclose()

    async def test_a_reset_goes_back_to_what_was_kept(self, tmp_path: Path) -> None:
        store = self.open_store(tmp_path, 1)
        script, execution = RunScript(), Execution()
        script.messages = [request("a")]
        for number in range(3):
            execution.next_task()
            await store.commit(execution.commit(script.snapshot(number, 0, key=str(number))))
        assert await kept(store) == ["2"]
        reset = Execution(branch="branch-2", branch_time=at(60), number=1)
        await store.commit(reset.commit(script.snapshot(1, 0, key="1")))
        assert await kept(store) == ["1"]
        latest = await store.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.branch == "branch-2"
        await store.aclose()


class TestRetentionInMemory(ReversibleRetentionConformance):
    def open_store(self, place: Path, bound: int | None) -> StepStore:  # noqa: ARG002 - nowhere
        return InMemoryStepStore(max_snapshots_per_run=bound)


class TestRetentionInFiles(LastingRetentionConformance):
    def open_store(self, place: Path, bound: int | None) -> StepStore:
        return FileStepStore(place / "runs", max_snapshots_per_run=bound)

    @pytest.mark.spec("SP-45")
    async def test_the_file_of_a_pruned_snapshot_goes_and_its_key_stays(
        self, tmp_path: Path, bounded: StepStore
    ) -> None:
        for number in range(4):
            await save(bounded, number)
        run = tmp_path / "runs" / "run-1"
        assert sorted(each.name for each in (run / "snapshots").iterdir()) == ["3.json", "4.json"]
        assert len((run / "snapshot-keys.jsonl").read_text().splitlines()) == 2
        again = FileStepStore(tmp_path / "runs", max_snapshots_per_run=2)
        await save(again, 0)
        assert await kept(again) == ["2", "3"]


class TestRetentionInSqlite(LastingRetentionConformance):
    def open_store(self, place: Path, bound: int | None) -> StepStore:
        return SqliteStepStore(database=place / "runs.db", max_snapshots_per_run=bound)


@pytest.mark.integration
class TestRetentionInMongo(LastingRetentionConformance, ReversibleRetentionConformance):
    @pytest.fixture(autouse=True)
    def empty_database(self, mongodb_uri: str, prepared_database: str) -> Iterator[Database[Any]]:
        self.mongodb_uri, self.database = mongodb_uri, prepared_database
        with MongoClient[dict[str, Any]](mongodb_uri) as client:
            yield client[prepared_database]
            for collection in COLLECTIONS:
                client[prepared_database][collection].delete_many({})

    def open_store(self, place: Path, bound: int | None) -> StepStore:  # noqa: ARG002 - a server
        return MongoStepStore(
            db_url=self.mongodb_uri, database=self.database, max_snapshots_per_run=bound
        )

    async def test_a_pruned_snapshot_stays_as_the_row_of_its_key_with_its_messages(
        self, bounded: StepStore, empty_database: Database[Any]
    ) -> None:
        for number in range(4):
            await save(bounded, number)
        pruned = list(empty_database["snapshots"].find({"mark": "pruned"}).sort("sequence"))
        assert [(each["key"], each["live"]) for each in pruned] == [("0", False), ("1", False)]
        assert all(each["pruned_at"] > 0 for each in pruned)
        assert empty_database["messages"].count_documents({}) == 4

    async def test_two_writers_of_one_run_keep_its_bound(
        self, tmp_path: Path, bounded: StepStore
    ) -> None:
        other = self.open_store(tmp_path, 2)
        for number in range(10):
            await asyncio.gather(save(bounded, number), save(other, 100 + number))
        assert len(await kept(bounded)) == 2
        await other.aclose()


# The rule


def row(sequence: int, state: str) -> SnapshotRow:
    return SnapshotRow(
        workspace_id="default",
        run_id="run-1",
        branch="b",
        number=None,
        row_id=sequence,
        sequence=sequence,
        key=None,
        digest="",
        at=at(0),
        step_index=0,
        state="complete" if state == "complete" else "interrupted",
        ranges=(),
    )


@pytest.mark.spec("SP-67")
@given(
    st.lists(st.sampled_from(["complete", "interrupted"]), min_size=1, max_size=12),
    st.integers(1, 5),
    st.data(),
)
def test_what_is_kept_is_the_retain_set(states: list[str], bound: int, data: st.DataObject) -> None:
    rows = [row(sequence, state) for sequence, state in enumerate(states)]
    added = rows[-1]
    stored = data.draw(st.permutations(rows[:-1]))
    gone = prunable(
        stored,
        [replace(added, row_id=None)],
        bound=bound,
        prepared=prepare(Commit(operations=(), now=at(0))),
        head=None,
    )
    complete = [each for each in rows if each.state == "complete"]
    retained = {each.sequence for each in (*rows[-bound:], rows[-1], *complete[-1:])}
    assert {each.sequence for each in gone} == {each.sequence for each in rows} - retained
