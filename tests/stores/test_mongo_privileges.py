"""The roles of the guide are enough for what they are for, and nothing in them is spare."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

from cli.binaries import find_mongod
from cli.servers import MongoServer, free_port
from stores.errors import StoreConfigurationError, StoreError
from stores.mongo.steps import MongoStepStore
from tests.stores.shard_keys import GUIDE
from tests.stores.writer import new_run

pytestmark = pytest.mark.integration

Document = dict[str, Any]

DATABASE = "perdure"
PASSWORD = "of-the-tests"  # noqa: S105 - of a server that lives for seconds

ROLES: dict[str, Document] = {
    role["role"]: role
    for role in map(
        json.loads,
        re.findall(r"^db\.createRole\((\{.*?^\})\)", GUIDE.read_text(), re.DOTALL | re.MULTILINE),
    )
}
WORKER, INIT, READER = "perdureWorker", "perdureInit", "perdureReader"
(_ALL,) = ROLES[WORKER]["privileges"]
ACTIONS: list[str] = _ALL["actions"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MongoServer]:
    """A server that wants a user, with the guide's roles, and the worker's less one action each."""
    directory = tmp_path_factory.mktemp("guarded")
    server = MongoServer(find_mongod(directory), directory, port=free_port())
    asyncio.run(server.start())
    with MongoClient[Document](server.uri) as client:
        for role in ROLES.values():
            _make(client, role)
        for action in ACTIONS:
            actions = [each for each in ACTIONS if each != action]
            privileges = [{**_ALL, "actions": actions}]
            _make(client, {"role": f"no-{action}", "privileges": privileges, "roles": []})
    asyncio.run(server.stop())
    key_file = directory / "key"
    key_file.write_text("c2VjcmV0c2VjcmV0")
    key_file.chmod(0o400)
    server.command = (*server.command, "--auth", "--keyFile", str(key_file))
    asyncio.run(server.start())
    asyncio.run(_initialise(server))
    yield server
    asyncio.run(server.kill())


def _make(client: MongoClient[Document], role: Document) -> None:
    client.admin.command({"createRole": role["role"], **{k: role[k] for k in role if k != "role"}})
    client.admin.command("createUser", role["role"], pwd=PASSWORD, roles=[role["role"]])


def _store(server: MongoServer, user: str) -> MongoStepStore:
    uri = server.uri.replace("mongodb://", f"mongodb://{user}:{PASSWORD}@")
    return MongoStepStore(db_url=uri, database=DATABASE)


async def _initialise(server: MongoServer) -> None:
    store = _store(server, INIT)
    assert await store.initialise()
    await store.aclose()


async def _work(store: MongoStepStore, name: str) -> None:
    """What workers do: look at the database, commit, read, follow live text and remove it."""
    await store.verify()
    execution, script = new_run(name)
    await store.commit(execution.commit(script.register(), *script.before_tool(1)))
    await store.commit(execution.commit(*script.after_tool(1)))
    assert await store.latest_snapshot(run_id=script.run_id) is not None
    async with store.streams.watch(script.run_id) as watch:
        if type(watch).__name__ == "PollingWatch":
            message = "no change stream"
            raise StoreError(message)
    await store.streams.delete_run(run_id=script.run_id)


async def test_init_can_do_all_again_and_index_anew(guarded: MongoServer) -> None:
    store = _store(guarded, INIT)
    assert await store.initialise() == []
    uri = guarded.uri.replace("mongodb://", f"mongodb://{INIT}:{PASSWORD}@")
    async with AsyncMongoClient[Document](uri) as client:
        await client[DATABASE]["events"].drop_index("events_key_v1")
        await client[DATABASE]["events"].create_index([("run_id", 1)], name="events_key_v1")
    assert await store.initialise() == ["repaired index events_key_v1"]
    await store.aclose()


async def test_a_worker_needs_no_more_than_its_role(guarded: MongoServer) -> None:
    store = _store(guarded, WORKER)
    await _work(store, "worker")
    await store.aclose()


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_worker_needs_each_action_of_its_role(guarded: MongoServer, action: str) -> None:
    store = _store(guarded, f"no-{action}")
    with pytest.raises(StoreError):
        await _work(store, f"no-{action}")
    await store.aclose()


async def test_a_worker_may_not_change_indexes(guarded: MongoServer) -> None:
    uri = guarded.uri.replace("mongodb://", f"mongodb://{WORKER}:{PASSWORD}@")
    async with AsyncMongoClient[Document](uri) as client:
        with pytest.raises(Exception, match="not authorized"):
            await client[DATABASE]["events"].drop_index("events_key_v1")
        with pytest.raises(Exception, match="not authorized"):
            await client[DATABASE]["of_my_own"].create_index([("x", 1)])


async def test_a_reader_reads_and_writes_nothing(guarded: MongoServer) -> None:
    store = _store(guarded, READER)
    assert (await store.page_runs()).runs is not None
    assert await store.list_unresolved_tool_effects() is not None
    execution, script = new_run("reader")
    with pytest.raises(StoreConfigurationError, match=r"readWrite|not authorized"):
        await store.commit(execution.commit(script.register()))
    await store.aclose()
