"""Sweeping messages: what goes, what each source keeps, and workers that write meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Any, cast

import pytest
from pydantic_ai.messages import ModelMessage
from pymongo import AsyncMongoClient, MongoClient
from pymongo.database import Database

from stores.digests import message_digest, message_text
from stores.mongo import leftovers, sweeping
from stores.mongo.documents import MAX_PLAIN_RANGES
from stores.mongo.indexes import COLLECTIONS
from stores.mongo.leftovers import View
from stores.mongo.references import SOURCES, Source
from stores.mongo.steps import MongoStepStore
from stores.mongo.sweeping import Sweep
from stores.operations import PositionedMessage, SaveSnapshot
from tests.stores.records import snapshot
from tests.stores.watching import Document, Watcher, explained, stages
from tests.stores.writer import Execution, RunScript, at, new_run, request, text_of

pytestmark = [pytest.mark.integration, pytest.mark.spec("SP-69")]

NO_GRACE = timedelta()
A_DAY = timedelta(days=1)


@pytest.fixture
def database(mongodb_uri: str, prepared_database: str) -> Iterator[Database[Document]]:
    with MongoClient[Document](mongodb_uri) as client:
        yield client[prepared_database]
        for collection in COLLECTIONS:
            client[prepared_database][collection].delete_many({})


@pytest.fixture
async def store(mongodb_uri: str, database: Database[Document]) -> AsyncIterator[MongoStepStore]:
    """Keeps the newest snapshot alone."""
    store = MongoStepStore(db_url=mongodb_uri, database=database.name, max_snapshots_per_run=1)
    yield store
    await store.aclose()


def texts(database: Database[Document]) -> list[str]:
    found = (each["text"] for each in database["messages"].find())
    return sorted(text.partition('"content":"')[2].partition('"')[0] for text in found)


def make_orphan(database: Database[Document], message: ModelMessage, **changed: Any) -> str:
    """A message that an older version, or a defect, has left behind."""
    workspace = changed.get("workspace_id", "default")
    digest = message_digest(workspace, message_text(message))
    row = {"text": message_text(message), "workspace_id": workspace, "touched_at": 1, **changed}
    database["messages"].insert_one({"_id": digest, "owner": None, **row})
    return digest


async def compacted_run(store: MongoStepStore, name: str, *, ends: bool = True) -> Execution:
    """A run whose second snapshot, at another step, leaves out what the first one had."""
    execution, script = new_run(name)
    script.messages = [request(f"{name} old"), request(f"{name} kept")]
    register = script.register(started_at=at(0))
    await store.commit(execution.commit(register, script.snapshot(1, 0)))
    execution.next_task()
    later = script.snapshot(2, 2, ranges=((1, 2),))
    await store.commit(execution.commit(later))
    execution.next_task()
    if ends:
        await store.commit(execution.commit(script.event("run_completed", 3, at=at(9))))
    return execution


async def sweep(store: MongoStepStore, grace: timedelta = NO_GRACE, **options: Any) -> Sweep:
    return await store.sweep(grace=grace, is_dry=False, **options)


class TestWhatGoes:
    async def test_by_default_nothing_goes_and_the_same_is_counted(
        self, store: MongoStepStore, database: Database[Document]
    ) -> None:
        await compacted_run(store, "a")
        make_orphan(database, request("orphan"))
        before = {each: list(database[each].find()) for each in COLLECTIONS}
        would = await store.sweep(grace=NO_GRACE)
        assert {each: list(database[each].find()) for each in COLLECTIONS} == before
        assert would.is_dry
        assert (would.messages, would.positions) == (2, 1)
        sizes = {each["_id"]: len(each["text"]) for each in before["messages"]}
        done = await sweep(store)
        assert not done.is_dry
        assert (done.messages, done.positions) == (2, 1)
        assert done.size_bytes == would.size_bytes > sum(sorted(sizes.values())[:2])
        assert texts(database) == ["a kept"]
        assert (await sweep(store)).messages == 0

    async def test_what_is_left_can_be_read_and_goes_on(
        self, store: MongoStepStore, database: Database[Document]
    ) -> None:
        await compacted_run(store, "a")
        await sweep(store)
        latest = await store.latest_snapshot(run_id="run-a")
        assert latest is not None
        assert [text_of(each) for each in latest.messages] == ["a kept"]
        await store.save_snapshot(
            snapshot([*latest.messages, request("a more")], "next", run_id="run-a")
        )
        latest = await store.latest_snapshot(run_id="run-a")
        assert latest is not None
        assert [text_of(each) for each in latest.messages] == ["a kept", "a more"]
        assert texts(database) == ["a kept", "a more"]

    async def test_a_swept_snapshot_still_holds_its_key(
        self, store: MongoStepStore, database: Database[Document]
    ) -> None:
        for number in range(3):
            await store.save_snapshot(snapshot([request(str(number))], str(number)))
        assert (await sweep(store)).positions == 2
        assert database["snapshots"].count_documents({"pruned_at": {"$exists": True}}) == 0
        await store.save_snapshot(snapshot([request("0")], "0"))
        assert database["snapshots"].count_documents({"live": True}) == 1
        assert texts(database) == ["2"]

    async def test_pages_and_portions_make_no_difference(
        self,
        store: MongoStepStore,
        database: Database[Document],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(sweeping, "MESSAGES_AT_ONCE", 3)
        monkeypatch.setattr(leftovers, "POSITIONS_AT_ONCE", 2)
        told: list[Sweep] = []
        old = [request(f"old {number}") for number in range(9)]
        await store.save_snapshot(snapshot([*old, request("kept")], "1"))
        await store.save_snapshot(snapshot([request("kept")], "2"))
        would = await store.sweep(grace=NO_GRACE)
        done = await sweep(store, tell=told.append)
        assert (done.messages, done.positions) == (would.messages, would.positions) == (9, 9)
        assert texts(database) == ["kept"]
        assert [each.looked_at for each in told] == [0, 3, 6, 9, 10]
        assert told[-1] == done

    async def test_a_history_in_many_pieces_is_swept_like_any_other(
        self, store: MongoStepStore
    ) -> None:
        execution, script = new_run("pieces")
        script.messages = [request(str(number)) for number in range(2 * MAX_PLAIN_RANGES + 2)]
        pieces = [(each, each + 1) for each in range(0, len(script.messages), 2)]
        await store.commit(execution.commit(script.snapshot(1, 0, ranges=pieces)))
        execution.next_task()
        await store.commit(execution.commit(script.snapshot(2, 500, ranges=pieces[:1])))
        assert (await sweep(store)).positions == len(pieces) - 1
        latest = await store.latest_snapshot(run_id=script.run_id)
        assert latest is not None
        assert latest.messages == script.messages[:1]

    async def test_one_workspace_or_all_of_them(
        self, store: MongoStepStore, database: Database[Document]
    ) -> None:
        other = store.for_workspace("other")
        for each in (store, other):
            make_orphan(database, request("orphan"), workspace_id=each.workspace_id)
            for number in range(2):
                await each.save_snapshot(snapshot([request(str(number))], str(number)))
        done = await sweep(other)
        assert (done.messages, done.positions) == (2, 1)
        assert texts(database) == ["0", "1", "1", "orphan"]
        done = await sweep(other, all_workspaces=True)
        assert (done.messages, done.positions) == (2, 1)
        assert texts(database) == ["1", "1"]

    async def test_a_negative_grace_period_is_refused(self, store: MongoStepStore) -> None:
        with pytest.raises(ValueError, match=r"the grace period is -1 day, .* pass none or a pos"):
            await store.sweep(grace=-A_DAY)


class TestGrace:
    async def test_what_was_written_within_it_stays(
        self, store: MongoStepStore, database: Database[Document]
    ) -> None:
        await store.save_snapshot(snapshot([request("used")], "1"))
        database["positions"].delete_many({})
        make_orphan(database, request("orphan"))
        assert (await sweep(store, A_DAY)).messages == 1
        assert texts(database) == ["used"]
        assert (await sweep(store, NO_GRACE)).messages == 1

    async def test_a_message_without_a_time_stays(
        self, store: MongoStepStore, database: Database[Document]
    ) -> None:
        database["messages"].insert_one({"_id": "0" * 64, "text": "of another version"})
        assert (await sweep(store)).messages == 0

    async def test_a_message_that_comes_again_is_new_again(
        self, store: MongoStepStore, database: Database[Document]
    ) -> None:
        make_orphan(database, request("again"))
        await store.save_snapshot(snapshot([request("again")], "1"))
        database["positions"].delete_many({})
        assert (await sweep(store, A_DAY)).messages == 0

    @pytest.mark.parametrize("time", ["pruned_at", "ended_at"])
    async def test_what_was_pruned_or_has_ended_within_it_keeps_its_log(
        self, store: MongoStepStore, database: Database[Document], time: str
    ) -> None:
        await compacted_run(store, "a")
        database["messages"].update_many({}, {"$set": {"touched_at": 1}})
        collection = {"pruned_at": "snapshots", "ended_at": "runs"}
        for each, name in collection.items():
            if each != time:
                database[name].update_many({each: {"$exists": True}}, {"$set": {each: 1}})
            else:
                database[name].update_many({each: {"$exists": True}}, {"$inc": {each: 10**15}})
        done = await sweep(store, A_DAY)
        assert (done.messages, done.positions) == (0, 0)
        database[collection[time]].update_many({time: {"$exists": True}}, {"$set": {time: 1}})
        done = await sweep(store, A_DAY)
        assert (done.messages, done.positions) == (1, 1)


@pytest.mark.spec("SP-117")
class TestSources:
    """Each source keeps what only it refers to. `SOURCES` has them all."""

    def test_all_have_a_test_here(self) -> None:
        assert list(SOURCES) == ["snapshots", "searched"]

    async def test_snapshots_keep_their_messages(
        self, store: MongoStepStore, database: Database[Document]
    ) -> None:
        await store.save_snapshot(snapshot([request("live")], "1"))
        assert (await sweep(store)).messages == 0
        assert texts(database) == ["live"]

    async def test_superseded_snapshots_keep_theirs_for_the_next_attempt(
        self, store: MongoStepStore, database: Database[Document]
    ) -> None:
        execution, script = new_run("lost")
        await store.commit(execution.commit(script.register()))
        execution.next_task()
        script.messages = [request("lost")]
        await store.commit(execution.commit(script.snapshot(1, 0)))
        execution.next_task(number=1)
        result = await store.commit(execution.commit(script.event("run_failed", 1), number=2))
        assert result.verdict == "supersede"
        assert (await sweep(store)).messages == 0
        assert texts(database) == ["lost"]

    async def test_abandoned_snapshots_keep_theirs(
        self, store: MongoStepStore, database: Database[Document]
    ) -> None:
        await compacted_run(store, "a", ends=False)
        reset = Execution(execution_id="execution-a", branch="reset", branch_time=at(60), number=1)
        failed = RunScript(run_id="run-a", sequence=20).event("run_failed", 2, at=at(61))
        result = await store.commit(reset.commit(failed))
        assert result.verdict == "adopt"
        done = await sweep(store)
        # The position that both had is named by the abandoned snapshot; the other by none.
        assert (done.messages, done.positions) == (1, 1)
        assert texts(database) == ["a kept"]

    async def test_a_run_that_goes_on_keeps_what_retention_took_out(
        self, store: MongoStepStore
    ) -> None:
        await compacted_run(store, "a", ends=False)
        would = await store.sweep(grace=NO_GRACE)
        done = await sweep(store)
        assert (would.messages, would.positions) == (done.messages, done.positions) == (0, 0)
        # So a reset can go back to before.
        script = RunScript(run_id="run-a", sequence=20, saves=5)
        script.messages = [request("a old"), request("a kept"), request("a new")]
        reset = Execution(execution_id="execution-a", branch="reset", branch_time=at(60), number=1)
        await store.commit(reset.commit(script.snapshot(2, 2)))
        latest = await store.latest_snapshot(run_id="run-a")
        assert latest is not None
        assert [text_of(each) for each in latest.messages] == ["a old", "a kept", "a new"]
        assert (await sweep(store)).messages == 0

    async def test_one_run_of_several_that_share_a_message_is_enough(
        self, store: MongoStepStore, database: Database[Document]
    ) -> None:
        for run_id in ("one", "two"):
            await store.save_snapshot(snapshot([request("shared")], "1", run_id=run_id))
        await store.save_snapshot(snapshot([request("new")], "2", run_id="one"))
        would = await store.sweep(grace=NO_GRACE)
        done = await sweep(store)
        assert (would.messages, would.positions) == (done.messages, done.positions) == (0, 1)
        assert texts(database) == ["new", "shared"]

    async def test_a_source_more_is_asked_like_the_others(
        self,
        store: MongoStepStore,
        database: Database[Document],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        kept = make_orphan(database, request("kept"))
        make_orphan(database, request("orphan"))

        async def bookmarks(view: View, digests: Sequence[str]) -> set[str]:  # noqa: ARG001
            return {kept} & set(digests)

        monkeypatch.setitem(cast("dict[str, Source]", SOURCES), "bookmarks", bookmarks)
        assert (await sweep(store)).messages == 1
        assert texts(database) == ["kept"]


class TestBesideWriters:
    async def test_what_is_referred_to_after_the_first_look_stays(
        self,
        store: MongoStepStore,
        database: Database[Document],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        digest = make_orphan(database, request("taken up"))
        looks: list[View] = []

        async def writer(view: View, digests: Sequence[str]) -> set[str]:
            if not looks:
                position = {"run_id": "r", "workspace_id": "default", "position": 0, "live": True}
                database["positions"].insert_one({**position, "message": digest})
            looks.append(view)
            assert list(digests) == [digest]
            return set()

        sources = cast("dict[str, Source]", SOURCES)
        monkeypatch.setitem(sources, "writer", writer)
        assert (await sweep(store)).messages == 0
        assert texts(database) == ["taken up"]
        assert len(looks) == 1  # the second time, the first source knew

    async def test_nothing_that_is_needed_is_lost(
        self, store: MongoStepStore, database: Database[Document]
    ) -> None:
        """Writers take up messages that nothing refers to, at the moment at which they go."""
        runs, steps = 4, 12
        histories = {
            run: [request(f"{run} {step}") for step in range(steps)] for run in range(runs)
        }
        for history in histories.values():
            for message in history:
                make_orphan(database, message)
        is_over = False

        async def write(run: int) -> None:
            execution, script = new_run(str(run))
            await store.commit(execution.commit(script.register()))
            for step in range(steps):
                execution.next_task()
                script.messages = [*histories[run][: step + 1]]
                await store.commit(execution.commit(script.snapshot(step, step)))

        async def keep_sweeping() -> int:
            swept = 0
            while not is_over:
                for step in range(steps):  # bodies that lie about again
                    for run in range(runs):
                        _put_orphan(database, histories[run][step])
                swept += (await sweep(store)).messages
            return swept

        sweeps = asyncio.create_task(keep_sweeping())
        await asyncio.gather(*(write(run) for run in range(runs)))
        is_over = True
        assert await sweeps > 0
        for run, history in histories.items():
            latest = await store.latest_snapshot(run_id=f"run-{run}")
            assert latest is not None
            assert latest.messages == history

    async def test_a_commit_and_a_removal_of_its_message_do_not_both_succeed(
        self, mongodb_uri: str, store: MongoStepStore, database: Database[Document]
    ) -> None:
        digest = make_orphan(database, request("taken up"))
        save = SaveSnapshot(
            run_id="run-1",
            sequence=1,
            key="1",
            step_index=1,
            state="complete",
            ranges=((0, 1),),
            entries=(PositionedMessage(position=0, message=request("taken up")),),
        )
        async with AsyncMongoClient[Document](mongodb_uri) as client:
            async with client.start_session() as session:
                await session.start_transaction()
                messages = client[database.name]["messages"]
                await messages.delete_one({"_id": digest}, session=session)
                commit = asyncio.create_task(store.commit(Execution().commit(save)))
                done, _ = await asyncio.wait([commit], timeout=0.3)
                assert not done
                await session.commit_transaction()
            await commit
        assert texts(database) == ["taken up"]


async def test_a_sweep_scans_no_collection(
    mongodb_uri: str, store: MongoStepStore, database: Database[Document]
) -> None:
    for name in "abc":
        await compacted_run(store, name)
    make_orphan(database, request("orphan"))
    watcher = Watcher(database.name)
    async with AsyncMongoClient[Document](mongodb_uri, event_listeners=[watcher]) as client:
        watched = MongoStepStore(client=client, database=database.name)
        for is_dry in (True, False):
            await watched.sweep(grace=NO_GRACE, is_dry=is_dry)
        commands = [each for each in watcher.commands if "count" not in each]
        accounts = await explained(client, database.name, commands)
    assert len(accounts) > 20
    for query, account in accounts:
        assert "COLLSCAN" not in stages(account), query


def _put_orphan(database: Database[Document], message: ModelMessage) -> None:
    digest = message_digest("default", message_text(message))
    row = {"text": message_text(message), "owner": None, "workspace_id": "default"}
    database["messages"].update_one(
        {"_id": digest}, {"$setOnInsert": {**row, "touched_at": 1}}, upsert=True
    )
