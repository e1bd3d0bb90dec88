import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any
from uuid import uuid4

import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient, MongoClient

from stores.errors import StoreConfigurationError
from stores.mongo.documents import run_document
from stores.mongo.indexes import COLLECTIONS, INDEXES, check_indexes, create_indexes
from stores.mongo.steps import MongoStepStore
from stores.protocols import StepStore
from stores.records import RunRecord
from stores.rows import RunRow
from tests.stores.watching import Document, Watcher, explained, stages, work
from tests.stores.writer import Execution, RunScript, at, request

pytestmark = pytest.mark.integration

CLONES = 60
"""Copies of the watched run under other ids, so that a wrong plan shows."""


Read = Callable[[StepStore], Awaitable[object]]

READS: list[Read] = [
    lambda s: s.get_run(run_id="run-1"),
    lambda s: s.list_runs(),
    lambda s: s.list_runs(conversation_id="talk-1"),
    lambda s: s.list_runs(parent_run_id="parent-1"),
    lambda s: s.list_runs(conversation_id="talk-1", parent_run_id="parent-1"),
    lambda s: s.list_runs(continued_from="source-1"),
    lambda s: s.list_runs(forked_from="source-1"),
    lambda s: s.page_runs(limit=5),
    lambda s: s.page_runs(limit=5, conversation_id="talk-1"),
    lambda s: s.page_runs(limit=5, parent_run_id="parent-1"),
    lambda s: s.page_runs(limit=5, agent_name="agent-1"),
    lambda s: s.page_runs(limit=5, state="running"),
    lambda s: s.list_events(run_id="run-1"),
    lambda s: s.latest_snapshot(run_id="run-1"),
    lambda s: s.latest_snapshot(run_id="run-1", include_interrupted=True),
    lambda s: s.find_snapshot(run_id="run-1", sequence=8),
    lambda s: s.list_snapshots(run_id="run-1"),
    lambda s: s.list_snapshot_summaries(run_id="run-1"),
    lambda s: s.get_tool_effect(run_id="run-1", tool_call_id="call-3-0"),
    lambda s: s.list_tool_effects(run_id="run-1"),
    lambda s: s.list_unresolved_tool_effects(run_id="run-1"),
    lambda s: s.list_unresolved_tool_effects(),
    lambda s: s.find_commit_head(execution_id="execution-1"),
]
"""Every public read, each of which finds something."""


@pytest.fixture
async def client(mongodb_uri: str) -> AsyncIterator[AsyncMongoClient[Document]]:
    async with AsyncMongoClient[Document](mongodb_uri) as client:
        yield client


class TestIndexes:
    @pytest.mark.spec("SP-53", "SP-58")
    async def test_they_are_made_once_and_then_found(
        self, client: AsyncMongoClient[Document], mongodb_database: str
    ) -> None:
        database = client[mongodb_database]
        problems = await check_indexes(database)
        assert len(problems) == len(INDEXES)
        assert "index events_key_v1 is missing; run `perdure init`" in problems
        done = await create_indexes(database)
        assert len(done) == len(COLLECTIONS) + len(INDEXES)
        assert await check_indexes(database) == []
        assert await create_indexes(database) == []
        assert set(await database.list_collection_names()) == set(COLLECTIONS)

    async def test_one_with_other_options_is_reported_and_repaired(
        self, client: AsyncMongoClient[Document], mongodb_database: str
    ) -> None:
        database = client[mongodb_database]
        await database.events.create_index([("run_id", 1)], name="events_key_v1")
        await database.events.create_index([("x", 1)], name="somebody_elses")
        problem = (
            "index events_key_v1 has other options than this version needs; run `perdure init`"
        )
        assert problem in await check_indexes(database)
        assert "repaired index events_key_v1" in await create_indexes(database)
        assert await check_indexes(database) == []
        assert "somebody_elses" in await database.events.index_information()

    @pytest.mark.spec("SP-62")
    async def test_rows_that_break_a_unique_index_are_named(
        self, client: AsyncMongoClient[Document], mongodb_database: str
    ) -> None:
        row = {"run_id": "r", "branch": "", "key": "k", "workspace_id": "w", "live": True}
        await client[mongodb_database].events.insert_many([dict(row), dict(row)])
        with pytest.raises(StoreConfigurationError, match=r"unique indexes of events.*duplicates"):
            await create_indexes(client[mongodb_database])

    async def test_two_processes_may_make_them_at_once(
        self, client: AsyncMongoClient[Document], mongodb_database: str
    ) -> None:
        database = client[mongodb_database]
        await asyncio.gather(*(create_indexes(database) for _ in range(4)))
        assert await check_indexes(database) == []

    @pytest.mark.spec("SP-58", "SP-59")
    async def test_two_rows_without_a_key_are_allowed_and_two_with_one_are_not(
        self, client: AsyncMongoClient[Document], mongodb_database: str
    ) -> None:
        database = client[mongodb_database]
        await create_indexes(database)
        row = {"run_id": "r", "branch": "", "workspace_id": "w", "live": True}
        for collection in ("events", "snapshots"):
            await database[collection].insert_many([dict(row), dict(row)])
            await database[collection].insert_one({**row, "key": "k"})
            with pytest.raises(Exception, match="duplicate key"):
                await database[collection].insert_one({**row, "key": "k"})
            await database[collection].insert_one({**row, "key": "k", "live": False})


@pytest.fixture(scope="module")
def filled_database(mongodb_uri: str) -> Iterator[str]:
    """One run of 20 steps, and many that differ from it by their ids alone."""
    name = f"test_{uuid4().hex}"

    async def fill() -> None:
        async with AsyncMongoClient[Document](mongodb_uri) as client:
            store = MongoStepStore(client=client, database=name)
            await store.initialise()
            await _write_run(store)
            await _clone(client, name)

    asyncio.run(fill())
    yield name
    with MongoClient[Document](mongodb_uri) as client:
        client.drop_database(name)


class TestIndexUse:
    @pytest.fixture
    def watcher(self, filled_database: str) -> Watcher:
        return Watcher(filled_database)

    @pytest.fixture
    async def store(self, mongodb_uri: str, watcher: Watcher) -> AsyncIterator[MongoStepStore]:
        async with AsyncMongoClient[Document](mongodb_uri, event_listeners=[watcher]) as client:
            yield MongoStepStore(client=client, database=watcher.database)

    @pytest.mark.spec("SP-58")
    @pytest.mark.parametrize("read", READS)
    async def test_a_read_examines_at_most_twice_what_it_returns(
        self,
        store: MongoStepStore,
        watcher: Watcher,
        client: AsyncMongoClient[Document],
        read: Read,
    ) -> None:
        assert await read(store)
        accounts = await explained(client, watcher.database, watcher.commands)
        assert accounts
        for query, account in accounts:
            keys, documents, returned = work(account)
            assert returned > 0, query
            assert "COLLSCAN" not in stages(account), query
            assert "SORT" not in stages(account), query
            assert documents <= 2 * returned, (query, work(account))
            assert keys <= 2 * returned + 2, (query, work(account))

    async def test_a_later_page_begins_where_the_first_one_ended(
        self, store: MongoStepStore, watcher: Watcher, client: AsyncMongoClient[Document]
    ) -> None:
        first = await store.page_runs(limit=30)
        watcher.commands.clear()
        await store.page_runs(limit=10, after=first.after)
        ((query, account),) = await explained(client, watcher.database, watcher.commands)
        keys, documents, returned = work(account)
        assert returned == 11
        assert documents <= 2 * returned, query
        assert keys <= 2 * returned, query

    @pytest.mark.parametrize("include_interrupted", [False, True])
    async def test_the_latest_snapshot_takes_two_queries(
        self,
        store: MongoStepStore,
        watcher: Watcher,
        *,
        include_interrupted: bool,
    ) -> None:
        latest = await store.latest_snapshot(
            run_id="run-1", include_interrupted=include_interrupted
        )
        assert latest is not None
        assert latest.conversation_id == "talk-1"  # of the run, which the snapshot leaves out
        assert watcher.names() == ["aggregate", "aggregate"]

    async def test_superseding_and_taking_back_scans_no_collection(
        self, store: MongoStepStore, watcher: Watcher, client: AsyncMongoClient[Document]
    ) -> None:
        execution, script = await _write_run(store, "superseded")
        lost = (*script.before_tool(21), *script.after_tool(21))
        await store.commit(execution.commit(*lost))
        execution.next_task(number=execution.number - 1)
        watcher.commands.clear()
        result = await store.commit(execution.commit(*lost))
        assert result.verdict == "supersede"
        await _assert_no_scan(client, watcher)

    async def test_adopting_a_branch_scans_no_collection(
        self, store: MongoStepStore, watcher: Watcher, client: AsyncMongoClient[Document]
    ) -> None:
        execution, script = await _write_run(store, "adopted")
        execution.branch, execution.branch_time = "reset", at(600)
        watcher.commands.clear()
        result = await store.commit(execution.commit(script.event("run_failed", 50), number=30))
        assert result.verdict == "adopt"
        await _assert_no_scan(client, watcher)

    async def test_a_commit_without_a_position_scans_no_collection(
        self, store: MongoStepStore, watcher: Watcher, client: AsyncMongoClient[Document]
    ) -> None:
        latest = await store.latest_snapshot(run_id="run-1")
        assert latest is not None
        watcher.commands.clear()
        messages = [*latest.messages, request("more")]
        more = replace(latest, messages=messages, idempotency_key="more", branch="", sequence=0)
        for _ in range(2):
            await store.save_snapshot(more)
        await _assert_no_scan(client, watcher)


FILTERS = {"conversation_id": 2, "parent_run_id": 3, "agent_name": 5, "state": 7}
"""Among how many values the runs of the next tests are spread, evenly and independently."""

MATCHING_ALL = 4


@pytest.fixture(scope="module")
def spread_database(mongodb_uri: str) -> Iterator[str]:
    """Runs of which each filter matches some, and all four together only `MATCHING_ALL`."""
    name = f"test_{uuid4().hex}"
    count = MATCHING_ALL * math.prod(FILTERS.values())

    async def fill() -> None:
        async with AsyncMongoClient[Document](mongodb_uri) as client:
            await MongoStepStore(client=client, database=name).initialise()
            runs = [run_document(_spread_run(number)) for number in range(count)]
            await client[name]["runs"].insert_many(runs)

    asyncio.run(fill())
    yield name
    with MongoClient[Document](mongodb_uri) as client:
        client.drop_database(name)


def _spread_run(number: int) -> RunRow:
    record = RunRecord(
        run_id=f"run-{number}",
        started_at=at(number),
        state="completed" if number % FILTERS["state"] else "failed",
        conversation_id=f"conversation_id-{number % FILTERS['conversation_id']}",
        parent_run_id=f"parent_run_id-{number % FILTERS['parent_run_id']}",
        agent_name=f"agent_name-{number % FILTERS['agent_name']}",
    )
    return RunRow(record=record, branch="branch", number=1)


@pytest.mark.parametrize(
    "names", [each for count in range(5) for each in combinations(FILTERS, count)], ids="+".join
)
async def test_a_page_of_runs_examines_at_most_twice_what_it_returns(
    mongodb_uri: str, spread_database: str, names: tuple[str, ...]
) -> None:
    filters: dict[str, Any] = {each: f"{each}-0" for each in names}
    if "state" in filters:
        filters["state"] = "failed"
    watcher = Watcher(spread_database)
    async with AsyncMongoClient[Document](mongodb_uri, event_listeners=[watcher]) as client:
        store = MongoStepStore(client=client, database=spread_database)
        first = await store.page_runs(limit=2, **filters)
        second = await store.page_runs(limit=2, after=first.after, **filters)
        found = [*first.runs, *second.runs]
        assert len({each.run_id for each in found}) == MATCHING_ALL
        assert found == sorted(found, key=lambda run: run.started_at, reverse=True)
        for query, account in await explained(client, watcher.database, list(watcher.commands)):
            keys, documents, returned = work(account)
            assert returned >= 2, query
            assert "SORT" not in stages(account), query
            assert documents <= 2 * returned, (query, work(account))
            assert keys <= 2 * returned, (query, work(account))


async def _assert_no_scan(client: AsyncMongoClient[Document], watcher: Watcher) -> None:
    accounts = await explained(client, watcher.database, watcher.commands)
    assert len(accounts) > 5
    for query, account in accounts:
        assert "COLLSCAN" not in stages(account), query
        _, documents, returned = work(account)
        assert documents <= max(2 * returned, 60), (query, work(account))


async def _write_run(store: MongoStepStore, name: str = "1") -> tuple[Execution, RunScript]:
    """A run of 20 steps with 42 commits and an open effect."""
    execution = Execution(execution_id=f"execution-{name}", branch=f"branch-{name}")
    script = RunScript(run_id=f"run-{name}", result_size=10)
    lineage = {"conversation_id": f"talk-{name}", "parent_run_id": f"parent-{name}"}
    origin = {"continued_from": f"source-{name}", "forked_from": f"source-{name}"}
    register = script.register(agent_name=f"agent-{name}", **lineage, **origin)
    await store.commit(execution.commit(register, script.event("run_started", 0)))
    for step in range(1, 21):
        execution.next_task()
        await store.commit(execution.commit(*script.before_tool(step)))
        await store.commit(execution.commit(*script.after_tool(step)))
    await store.commit(execution.commit(script.started(99, at=at(99))))
    return execution, script


async def _clone(client: AsyncMongoClient[Document], database: str) -> None:
    """Copies of all rows for other runs, and marked ones of the same run."""
    for collection in ("runs", "events", "snapshots", "positions", "tool_effects"):
        rows = await client[database][collection].find().to_list()
        copies = [_renamed(collection, row, n) for n in range(2, CLONES) for row in rows]
        if collection != "runs":
            copies += [_abandoned(row) for row in rows for _ in range(5)]
        await client[database][collection].insert_many(copies)


def _abandoned(row: Document) -> Document:
    marked = {**row, "_id": ObjectId(), "live": False, "mark": "abandoned"}
    marked.pop("unresolved", None)
    return marked


def _renamed(collection: str, row: Document, clone: int) -> Document:
    renamed: Document = {**row, "branch": f"branch-{clone}"}
    if collection == "runs":
        own = {"conversation_id": f"talk-{clone}", "parent_run_id": f"parent-{clone}"}
        renamed |= {"_id": f"run-{clone}", "agent_name": f"agent-{clone}", **own}
        renamed |= {"continued_from": f"source-{clone}", "forked_from": f"source-{clone}"}
        renamed["started_at"] += clone
        if clone % 2:
            renamed["state"] = "completed"
    else:
        renamed |= {"_id": ObjectId(), "run_id": f"run-{clone}"}
    if collection == "tool_effects":
        renamed["transitions"] = [
            {**each, "branch": f"branch-{clone}"} for each in row["transitions"]
        ]
    return renamed
