"""The connection: whose client it is, what it sends, and what happens when MongoDB is away."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient, ReadPreference

from stores.commits import Commit
from stores.errors import StoreConfigurationError
from stores.mongo.client import MongoConnection
from stores.mongo.steps import MongoStepStore
from tests.stores.watching import Document, Watcher
from tests.stores.writer import at, new_run

pytestmark = pytest.mark.integration

NOWHERE = "mongodb://name:secret@127.0.0.1:1/?directConnection=true"


@pytest.fixture
async def store(mongodb_uri: str, prepared_database: str) -> AsyncIterator[MongoStepStore]:
    store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
    yield store
    await store.aclose()


class TestOwnership:
    @pytest.mark.spec("SP-51")
    @pytest.mark.parametrize("given", [{}, {"client": object(), "db_url": "mongodb://x"}])
    def test_exactly_one_of_client_and_connection_string_is_needed(
        self, given: dict[str, Any]
    ) -> None:
        with pytest.raises(ValueError, match="exactly one of client= and db_url="):
            MongoStepStore(database="d", **given)

    @pytest.mark.spec("SP-51")
    @pytest.mark.parametrize("database", [None, ""])
    def test_a_database_is_needed(self, database: str | None) -> None:
        with pytest.raises(ValueError, match="database="):
            MongoStepStore(db_url="mongodb://x", database=database)

    @pytest.mark.parametrize("url", ["mongodb://", "mongodb://h:99999/", "http://h"])
    async def test_a_malformed_connection_string_is_named(self, url: str) -> None:
        store = MongoStepStore(db_url=url, database="d")
        with pytest.raises(StoreConfigurationError, match="correct the connection string"):
            await store.get_run(run_id="r")

    def test_each_event_loop_takes_a_store_of_its_own(
        self, mongodb_uri: str, prepared_database: str
    ) -> None:
        async def life() -> None:
            store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
            await store.verify()
            await store.aclose()
            await store.aclose()

        asyncio.run(life())
        asyncio.run(life())

    def test_a_store_is_refused_in_another_loop(
        self, mongodb_uri: str, prepared_database: str
    ) -> None:
        store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)

        async def use() -> None:
            await store.get_run(run_id="r")

        with asyncio.Runner() as first, asyncio.Runner() as second:
            first.run(use())
            with pytest.raises(RuntimeError, match="another event loop"):
                second.run(use())
            first.run(store.aclose())

    @pytest.mark.spec("SP-52")
    async def test_a_closed_store_says_so(self, mongodb_uri: str, prepared_database: str) -> None:
        store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
        other = store.for_workspace("other")
        await store.verify()
        await other.aclose()
        with pytest.raises(RuntimeError, match="is closed; open another one"):
            await store.get_run(run_id="r")

    async def test_a_store_that_was_never_used_can_be_closed(self) -> None:
        await MongoStepStore(db_url=NOWHERE, database="d").aclose()

    @pytest.mark.spec("SP-52")
    async def test_a_shared_client_is_left_open(
        self, mongodb_uri: str, prepared_database: str
    ) -> None:
        async with AsyncMongoClient[Document](mongodb_uri) as client:
            store = MongoStepStore(client=client, database=prepared_database)
            assert store.for_workspace("other") is not store
            await store.verify()
            await store.aclose()
            assert (await client.admin.command("ping"))["ok"] == 1
            named = MongoConnection(client=client, db_url=None, database="d").where
            assert named == f"{mongodb_uri.split('/')[2]}, database 'd'"

    async def test_a_client_of_another_process_is_refused(
        self, store: MongoStepStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.get_run(run_id="r")
        with monkeypatch.context() as patched:
            patched.setattr("os.getpid", lambda: -1)
            with pytest.raises(RuntimeError, match=r"in process -1.*does not survive a fork"):
                await store.get_run(run_id="r")

    def test_a_fork_is_refused_at_once(self, mongodb_uri: str, prepared_database: str) -> None:
        program = f"""
import asyncio, os
from stores.mongo.steps import MongoStepStore

async def main():
    store = MongoStepStore(db_url={mongodb_uri!r}, database={prepared_database!r})
    await store.get_run(run_id="r")
    if os.fork() == 0:
        try:
            await store.get_run(run_id="r")
        except RuntimeError as error:
            print(error, flush=True)
        os._exit(0)
    os.wait()
    await store.aclose()

asyncio.run(main())
"""
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        assert "does not survive a fork" in ended.stdout


class TestCommands:
    async def test_primary_and_majority_hold_whatever_the_client_prefers(
        self, mongodb_uri: str, prepared_database: str
    ) -> None:
        watcher = Watcher(prepared_database)
        execution, script = new_run("preferences")
        async with AsyncMongoClient[Document](
            mongodb_uri,
            event_listeners=[watcher],
            readPreference="secondaryPreferred",
            w=1,
        ) as client:
            assert client.read_preference == ReadPreference.SECONDARY_PREFERRED
            store = MongoStepStore(client=client, database=prepared_database)
            await store.commit(execution.commit(script.register()))
            await store.commit(execution.commit(*script.before_tool(1), *script.after_tool(1)))
            await store.list_events(run_id=script.run_id)
            await store.latest_snapshot(run_id=script.run_id)
            await store.page_runs()
        assert {"find", "insert", "aggregate", "commitTransaction"} <= set(watcher.names())
        for command in watcher.commands:
            mode = command.get("$readPreference", {"mode": "primary"})["mode"]
            assert mode == "primary", command
            name = next(iter(command))
            if name == "commitTransaction":
                assert command["writeConcern"] == {"w": "majority", "j": True}
            elif "autocommit" not in command and name in {"find", "aggregate"}:
                assert command["readConcern"] == {"level": "majority"}
            elif "autocommit" not in command:
                assert command["writeConcern"] == {"w": "majority", "j": True}, command
            elif command.get("startTransaction"):
                assert command["readConcern"]["level"] == "snapshot"

    async def test_a_step_takes_fourteen_commands_and_its_size_is_flat(
        self, mongodb_uri: str, prepared_database: str
    ) -> None:
        watcher = Watcher(prepared_database)
        execution, script = new_run("flat")
        counts: list[int] = []
        sizes: list[int] = []
        async with AsyncMongoClient[Document](mongodb_uri, event_listeners=[watcher]) as client:
            store = MongoStepStore(client=client, database=prepared_database)
            await store.commit(execution.commit(script.register(), script.event("run_started", 0)))
            for step in range(1, 61):
                execution.next_task()
                watcher.commands.clear()
                await store.commit(execution.commit(*script.before_tool(step)))
                await store.commit(execution.commit(*script.after_tool(step)))
                await store.history_index.indexer.settle(None)  # what goes on behind the commit
                counts.append(len(watcher.commands))
                sizes.append(watcher.size())
        # Twelve, and a look and a write of the search index; now and then a segment of it.
        assert sorted(counts[1:]) == [14] * 56 + [20] * 3
        assert sizes[59] <= 1.05 * sizes[4]

    async def test_another_process_reads_what_it_does_not_remember(
        self, store: MongoStepStore, mongodb_uri: str, prepared_database: str
    ) -> None:
        execution, script = new_run("remembered")
        await store.commit(execution.commit(script.register()))
        other = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
        for step, writer in enumerate((store, store, other, store, other, other, store), start=1):
            execution.next_task()
            for operations in (script.before_tool(step), script.after_tool(step)):
                result = await writer.commit(execution.commit(*operations))
                assert (result.verdict, result.outcomes) == ("apply", ())
        await other.aclose()
        latest = await store.latest_snapshot(run_id=script.run_id)
        assert latest is not None
        assert latest.messages == script.messages
        effects = await store.list_tool_effects(run_id=script.run_id)
        assert [each.status for each in effects] == ["completed"] * 7

    async def test_an_effect_that_somebody_else_has_moved_is_not_overwritten(
        self, store: MongoStepStore, mongodb_uri: str, prepared_database: str
    ) -> None:
        execution, script = new_run("moved")
        await store.commit(execution.commit(script.register(), script.started(1)))
        other = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
        resolved = script.finished(1, status="resolved", ordinal=9, effect_summary="by hand")
        await other.commit(Commit(operations=(resolved,), now=at(5)))
        await other.aclose()
        result = await store.commit(execution.commit(script.finished(1), number=2))
        assert [each.disposition for each in result.outcomes] == ["suppressed"]
        (effect,) = await store.list_tool_effects(run_id=script.run_id)
        assert (effect.status, effect.effect_summary) == ("resolved", "by hand")
