"""What happens when MongoDB is away, other writers interfere, or the server is unfit."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.errors import PyMongoError

from cli.binaries import find_mongod
from cli.servers import MongoServer, free_port
from stores.commits import Commit
from stores.errors import StoreConfigurationError, StoreError, StoreUnavailableError
from stores.mongo import reading, transactions
from stores.mongo.client import SERVER_SELECTION_TIMEOUT_MS, open_client
from stores.mongo.documents import head_id
from stores.mongo.forsaken import end_forsaken_transactions
from stores.mongo.steps import MongoStepStore
from tests.helpers.eventually import eventually
from tests.stores.watching import Document
from tests.stores.writer import Execution, RunScript, new_run

pytestmark = pytest.mark.integration

PASSWORD = "of-the-tests"  # noqa: S105 - of a server that lives for seconds

NOWHERE = "mongodb://name:secret@127.0.0.1:1/?directConnection=true"


@pytest.fixture
async def store(mongodb_uri: str, prepared_database: str) -> AsyncIterator[MongoStepStore]:
    store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
    yield store
    await store.aclose()


class TestInterference:
    async def test_a_forsaken_transaction_does_not_block_the_next_writer(
        self, store: MongoStepStore, mongodb_uri: str, prepared_database: str
    ) -> None:
        execution, script = new_run("forsaken")
        await store.commit(execution.commit(script.register()))
        gone = open_client(mongodb_uri)
        session = gone.start_session()
        await session.start_transaction()
        await gone[prepared_database]["commit_heads"].update_one(
            {"_id": head_id("default", execution.execution_id)},
            {"$set": {"digest": "of a killed writer"}},
            session=session,
        )
        began_at = time.monotonic()
        result = await store.commit(execution.commit(*script.before_tool(1)))
        assert result.verdict == "apply"
        assert time.monotonic() - began_at < 4
        with pytest.raises(PyMongoError):
            await session.commit_transaction()
        await gone.close()

    async def test_a_server_that_is_away_ends_nothing(self) -> None:
        async with open_client(NOWHERE) as client:
            assert await end_forsaken_transactions(client) == 0

    async def test_a_client_without_a_name_ends_no_transactions(self, mongodb_uri: str) -> None:
        async with AsyncMongoClient[Document](mongodb_uri) as client:
            assert await end_forsaken_transactions(client) == 0

    async def test_a_commit_can_be_cancelled_anywhere_and_repeated(
        self, store: MongoStepStore
    ) -> None:
        execution, script = new_run("cancelled")
        await store.commit(execution.commit(script.register()))
        for step in range(1, 31):
            execution.next_task()
            commit = execution.commit(*script.before_tool(step), *script.after_tool(step))
            task = asyncio.create_task(store.commit(commit))
            await asyncio.wait([task], timeout=0.0007 * step)
            task.cancel()
            began_at = time.monotonic()
            await asyncio.wait([task])
            assert time.monotonic() - began_at < 2
            result = await store.commit(commit)
            assert result.verdict in {"apply", "suppress"}
        events = await store.list_events(run_id=script.run_id)
        assert [each.idempotency_key for each in events] == [
            f"{step + later}/{kind}"
            for step in range(1, 31)
            for kind, later in (
                ("model_request_completed", 0),
                ("tool_call_started/0", 0),
                ("tool_call_completed/0", 0),
                ("model_request_started", 1),
            )
        ]
        began_at = time.monotonic()
        await asyncio.gather(*(store.get_run(run_id=script.run_id) for _ in range(50)))
        assert time.monotonic() - began_at < 5


@pytest.fixture(scope="module")
def test_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    """A server of this module's own that can be frozen, killed, and told to fail."""
    directory = tmp_path_factory.mktemp("server")
    server = MongoServer(find_mongod(directory), directory, port=free_port())
    server.command = (*server.command, "--setParameter", "enableTestCommands=1")
    asyncio.run(server.start())
    yield server
    asyncio.run(server.kill())


class TestOutage:
    @pytest.fixture
    async def store(self, test_server: MongoServer) -> AsyncIterator[MongoStepStore]:
        store = MongoStepStore(db_url=test_server.uri, database="outage")
        await store.initialise()
        yield store
        await store.aclose()

    async def test_a_server_that_is_nowhere_is_named_without_the_password(self) -> None:
        store = MongoStepStore(db_url=NOWHERE, database="d")
        began_at = time.monotonic()
        failures = await asyncio.gather(
            store.verify(),
            store.initialise(),
            store.get_run(run_id="r"),
            store.list_snapshots(run_id="r"),
            store.commit(Execution().commit(RunScript().register())),
            return_exceptions=True,
        )
        assert time.monotonic() - began_at < 4
        await store.aclose()
        for failure in failures:
            assert isinstance(failure, StoreUnavailableError)
            assert failure.retryable
            assert "on 127.0.0.1:1, database 'd'" in str(failure)
            assert "secret" not in str(failure)

    async def test_a_commit_survives_a_restart(
        self, store: MongoStepStore, test_server: MongoServer
    ) -> None:
        execution, script = new_run("restart")
        await store.commit(execution.commit(script.register()))
        await test_server.kill()
        commit = execution.commit(*script.before_tool(1))
        with pytest.raises(StoreUnavailableError, match="commit 2 of 'run-restart'"):
            await store.commit(commit)
        await test_server.start()

        async def commits() -> str | None:
            try:
                return (await store.commit(commit)).verdict
            except StoreUnavailableError:
                return None

        verdict = await eventually(commits, within=timedelta(seconds=20))
        assert verdict == "apply"

    # The driver leaves the socket of a handshake that was cancelled to the garbage collector.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    @pytest.mark.parametrize("has_begun", [False, True])
    async def test_what_a_workflow_commits_is_given_up_at_once_without_a_server(
        self, store: MongoStepStore, test_server: MongoServer, *, has_begun: bool
    ) -> None:
        execution, script = new_run(f"at-once-{has_begun}")
        await store.commit(execution.commit(script.register()))
        commit = execution.commit(*script.before_tool(1))
        plain = replace(commit, position=None)
        if has_begun:  # each command is answered so late that the server goes in the middle
            _delay(test_server, milliseconds=300)
        began_at = time.monotonic()
        commits = asyncio.gather(*(_seconds_until_refused(store, each) for each in (commit, plain)))
        if has_begun:
            await asyncio.wait([commits], timeout=0.4)
        await test_server.kill()
        killed_after = time.monotonic() - began_at
        at_once, patiently = await commits
        await test_server.start()
        gc.collect()
        assert at_once < killed_after + 1.5
        assert patiently > killed_after + 0.9 * SERVER_SELECTION_TIMEOUT_MS / 1000

    # The driver leaves the socket of a handshake that was cancelled to the garbage collector.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    async def test_calls_to_a_frozen_server_end_in_time_and_go_on_after(
        self, store: MongoStepStore, test_server: MongoServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        execution, script = new_run("frozen")
        await store.commit(execution.commit(script.register()))
        commit = execution.commit(*script.before_tool(1), *script.after_tool(1))
        test_server.freeze()
        try:
            began_at = time.monotonic()
            with pytest.raises(StoreUnavailableError):
                await store.commit(commit)
            assert time.monotonic() - began_at < 8
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.commit(commit), 0.5)
            monkeypatch.setattr(reading, "READ_TIMEOUT_SECONDS", 0.5)
            with pytest.raises(StoreUnavailableError, match="no answer within"):
                await store.get_run(run_id=script.run_id)
        finally:
            test_server.thaw()
        began_at = time.monotonic()
        assert (await store.commit(commit)).verdict in {"apply", "suppress"}
        assert time.monotonic() - began_at < 5
        gc.collect()

    @pytest.mark.parametrize(
        ("command", "label", "code"),
        [
            ("insert", "TransientTransactionError", 112),
            ("insert", "TransientTransactionError", 251),
            ("commitTransaction", "TransientTransactionError", 251),
            ("commitTransaction", "UnknownTransactionCommitResult", 64),
        ],
    )
    async def test_what_may_be_repeated_is_repeated(
        self, store: MongoStepStore, test_server: MongoServer, command: str, label: str, code: int
    ) -> None:
        execution, script = new_run(f"{command}-{label}-{code}")
        _fail(test_server, {"times": 2}, command, label, code)
        result = await store.commit(execution.commit(script.register(), *script.before_tool(1)))
        assert (result.verdict, result.outcomes) == ("apply", ())
        assert len(await store.list_events(run_id=script.run_id)) == 2

    async def test_what_fails_for_long_is_unavailable(
        self,
        store: MongoStepStore,
        test_server: MongoServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(transactions, "TRANSACTION_TIMEOUT_SECONDS", 0.5)
        execution, script = new_run("for-long")
        commit = execution.commit(script.register())
        for command, label, code in (
            ("insert", "TransientTransactionError", 112),
            ("commitTransaction", "UnknownTransactionCommitResult", 64),
        ):
            _fail(test_server, "alwaysOn", command, label, code)
            try:
                with pytest.raises(StoreUnavailableError):
                    await store.commit(commit)
            finally:
                _fail(test_server, "off", command, label, code)
        monkeypatch.undo()
        assert (await store.commit(commit)).verdict in {"apply", "suppress"}

    async def test_another_failure_is_told_as_it_is(
        self, store: MongoStepStore, test_server: MongoServer
    ) -> None:
        execution, script = new_run("other-failure")
        _fail(test_server, {"times": 1}, "insert", "", 8000)
        with pytest.raises(StoreError, match="commit 1 of 'run-other-failure'") as raised:
            await store.commit(execution.commit(script.register()))
        assert not raised.value.retryable


async def _seconds_until_refused(store: MongoStepStore, commit: Commit) -> float:
    began_at = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="commit"):
        await store.commit(commit)
    return time.monotonic() - began_at


def _delay(server: MongoServer, *, milliseconds: int) -> None:
    """Let the server answer inserts and updates so late."""
    with MongoClient[Document](server.uri) as client:
        data = {
            "failCommands": ["insert", "update"],
            "blockConnection": True,
            "blockTimeMS": milliseconds,
        }
        client.admin.command(
            {"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data}
        )


def _fail(server: MongoServer, mode: object, command: str, label: str, code: int) -> None:
    """Let the server answer a command with an error of this code and label."""
    with MongoClient[Document](server.uri) as client:
        client.admin.command(
            {
                "configureFailPoint": "failCommand",
                "mode": mode,
                "data": {
                    "failCommands": [command],
                    "errorCode": code,
                    "errorLabels": [label] if label else [],
                    "closeConnection": False,
                },
            }
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    """A server that wants a user and a password."""
    directory = tmp_path_factory.mktemp("guarded")
    server = MongoServer(find_mongod(directory), directory, port=free_port())
    asyncio.run(server.start())
    with MongoClient[Document](server.uri) as client:
        _make_users(client)
    asyncio.run(server.stop())
    key_file = directory / "key"
    key_file.write_text("c2VjcmV0c2VjcmV0")
    key_file.chmod(0o400)
    server.command = (*server.command, "--auth", "--keyFile", str(key_file))
    asyncio.run(server.start())
    yield server
    asyncio.run(server.kill())


class TestFitness:
    """Servers that are not fit for use, and users who may not use them."""

    @pytest.mark.parametrize(
        ("user", "words"),
        [
            ("", "put user and password into the connection string"),
            ("admin:wrong@", "user or password are wrong"),
            (
                f"reader:{PASSWORD}@",
                "'reader' lacks insert, remove, update on database 'guarded'",
            ),
        ],
    )
    async def test_a_user_who_may_not_write_is_told_what_is_missing(
        self, guarded: MongoServer, user: str, words: str
    ) -> None:
        store = MongoStepStore(db_url=_as(guarded, user), database="guarded")
        with pytest.raises(StoreConfigurationError, match=words) as raised:
            await store.verify()
        assert not raised.value.retryable
        await store.aclose()

    @pytest.mark.spec("SP-61", "SP-63")
    async def test_a_user_without_the_right_to_make_indexes_works_after_an_admin_has(
        self, guarded: MongoServer
    ) -> None:
        writer = MongoStepStore(db_url=_as(guarded, f"writer:{PASSWORD}@"), database="guarded")
        with pytest.raises(StoreConfigurationError, match="readWrite"):
            await writer.initialise()
        admin = MongoStepStore(db_url=_as(guarded, f"admin:{PASSWORD}@"), database="guarded")
        await admin.initialise()
        await admin.aclose()
        await writer.verify()
        execution, script = new_run("writer")
        result = await writer.commit(execution.commit(script.register(), *script.before_tool(1)))
        assert result.verdict == "apply"
        assert await writer.latest_snapshot(run_id=script.run_id) is None
        await writer.aclose()

    async def test_a_user_sees_and_ends_its_own_forsaken_transactions(
        self, guarded: MongoServer
    ) -> None:
        uri = _as(guarded, f"writer:{PASSWORD}@")
        gone, mine = open_client(uri), open_client(uri)
        session = gone.start_session()
        await session.start_transaction()
        await gone["guarded"]["messages"].insert_one({"_id": "x"}, session=session)

        async def ends() -> bool:
            return await end_forsaken_transactions(mine) == 1

        await eventually(ends, within=timedelta(seconds=10))
        await gone.close()
        await mine.close()

    @pytest.mark.spec("SP-61")
    async def test_a_missing_index_is_named_with_its_repair(
        self, mongodb_uri: str, mongodb_database: str
    ) -> None:
        store = MongoStepStore(db_url=mongodb_uri, database=mongodb_database)
        with pytest.raises(
            StoreConfigurationError, match=r"events_key_v1 is missing.*perdure init"
        ):
            await store.verify()
        await store.aclose()

    async def test_a_standalone_server_is_named(self, tmp_path: Path) -> None:
        server = MongoServer(find_mongod(tmp_path), tmp_path, port=free_port())
        position = server.command.index("--replSet")
        server.command = server.command[:position] + server.command[position + 2 :]
        server.spawn()
        store = MongoStepStore(
            db_url=f"mongodb://127.0.0.1:{server.port}/?directConnection=true", database="d"
        )
        try:
            found = await eventually(lambda: _refusal(store), within=timedelta(seconds=20))
            assert "standalone server" in str(found)
            assert "--replSet" in str(found)
            with pytest.raises(StoreConfigurationError, match="replica set"):
                await store.commit(Execution().commit(RunScript().register()))
        finally:
            await store.aclose()
            await server.kill()


async def _refusal(store: MongoStepStore) -> StoreConfigurationError | None:
    try:
        await store.initialise()
    except StoreUnavailableError:
        return None
    except StoreConfigurationError as error:
        return error
    return None


def _as(server: MongoServer, user: str) -> str:
    return server.uri.replace("mongodb://", f"mongodb://{user}")


def _make_users(client: MongoClient[Document]) -> None:
    actions = ["find", "insert", "update", "remove", "listIndexes", "listCollections"]
    resource = {"db": "guarded", "collection": ""}
    client.admin.command(
        "createRole", "writer", privileges=[{"resource": resource, "actions": actions}], roles=[]
    )
    for user, role in (
        ("admin", "root"),
        ("writer", "writer"),
        ("reader", {"role": "read", "db": "guarded"}),
    ):
        client.admin.command("createUser", user, pwd=PASSWORD, roles=[role])
