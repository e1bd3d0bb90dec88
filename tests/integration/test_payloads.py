"""Runs whose payloads are stored beside the history: what the history holds, and what reads it."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from pymongo import MongoClient
from pymongo.database import Database
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowHandle
from temporalio.converter import DefaultFailureConverter, PayloadCodec

from client import connect
from converter import DATA_CONVERTER, build_data_converter
from settings import Settings
from stores.mongo.steps import MongoStepStore
from tests.helpers.payloads import another_process, failure_of_replay, references
from tests.helpers.script import make_agent, script
from tests.helpers.workers import running_worker
from worker import build_replayer
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput, AgentRunOutput

pytestmark = pytest.mark.integration

AGENT = make_agent("script")

KEYS = {each: base64.b64encode(each.encode().ljust(32)).decode() for each in ("first", "second")}

Handle = WorkflowHandle[AgentRunWorkflow, AgentRunOutput]


class ReversingCodec(PayloadCodec):
    """A user's: turns payloads around and says so."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": b"reversed"}, data=each.SerializeToString()[::-1])
            for each in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload.FromString(each.data[::-1]) for each in payloads]


class OwnFailureConverter(DefaultFailureConverter):
    """A user's."""


@pytest.fixture
def settings(temporal_address: str, mongodb_uri: str, mongodb_database: str) -> Settings:
    return Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=mongodb_database,
    )


@pytest.fixture
def database(mongodb_uri: str, mongodb_database: str) -> Any:
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        yield client[mongodb_database]


@pytest_asyncio.fixture
async def storing(settings: Settings, mongo: MongoStepStore) -> Client:
    """A client as a worker has it: payloads go over the connection of the store."""
    return await connect(settings, chunks=mongo.chunks)


async def started(
    client: Client, task_queue: str, prompt: str, workspace_id: str = "default"
) -> Handle:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="script", prompt=prompt, workspace_id=workspace_id),
        id=uuid4().hex,
        task_queue=task_queue,
    )


async def test_a_prompt_above_the_limit_runs_and_its_history_holds_references(
    storing: Client, mongo: MongoStepStore, settings: Settings, task_queue: str
) -> None:
    prompt = script([[("echo", {"text": "word " * 10_000})]] * 3, final="z" * 3_000_000)
    async with running_worker(storing, mongo, [AGENT], task_queue):
        handle = await started(storing, task_queue, prompt)
        output = await handle.result()
    history = await handle.fetch_history()
    size = sum(event.ByteSize() for event in history.events)

    assert output.output == "z" * 3_000_000
    assert len(prompt) > 3_000_000
    assert size < 40_000
    assert references(history) > 6
    (newest,) = (await mongo.list_snapshots(run_id=handle.id))[-1:]
    assert len(newest.messages) == output.message_count == 8
    async with another_process(settings) as converter:
        await build_replayer([AGENT], converter=converter).replay_workflow(history)
    assert "external storage is not configured" in await failure_of_replay(
        history, [AGENT], DATA_CONVERTER
    )
    away = settings.model_copy(update={"mongodb_uri": "mongodb://127.0.0.1:9/?replicaSet=rs0"})
    async with another_process(away) as converter:
        told = await failure_of_replay(history, [AGENT], converter)
    assert "chunks of payloads on 127.0.0.1:9" in told
    assert "MongoDB is away or busy" in told


async def test_with_keys_nothing_is_readable_and_a_workspace_has_its_own(
    mongo: MongoStepStore,
    settings: Settings,
    task_queue: str,
    database: Database[dict[str, Any]],
) -> None:
    """A user's codec and failure converter stay what they are, and see what is not encrypted."""
    update = {
        "payload_keys": KEYS,
        "payload_key": "first",
        "payload_workspace_keys": {"acme": "second"},
    }
    encrypting = settings.model_copy(update=update)
    base = replace(
        DATA_CONVERTER,
        payload_codec=ReversingCodec(),
        failure_converter_class=OwnFailureConverter,
    )
    converter = build_data_converter(encrypting, chunks=mongo.chunks, base=base)
    assert converter.failure_converter_class is OwnFailureConverter
    client = await connect(encrypting, converter=converter)
    secret = "nobody reads this, " * 1000
    prompt = script([[("echo", {"text": secret})], [("echo", {"text": "nobody reads this"})]])
    async with running_worker(client, mongo, [AGENT], task_queue):
        handles = [await started(client, task_queue, prompt, each) for each in ("acme", "other")]
        for handle in handles:
            assert (await handle.result()).output == "done"
    kept: dict[str, set[str]] = {}
    for handle, key in zip(handles, ("second", "first"), strict=True):
        history = await handle.fetch_history()
        assert b"nobody reads" not in b"".join(each.SerializeToString() for each in history.events)
        async with another_process(encrypting, base) as reader:
            await build_replayer([AGENT], converter=reader).replay_workflow(history)
        with_one = encrypting.model_copy(
            update={"payload_keys": {each: KEYS[each] for each in KEYS if each != key}}
            | {"payload_key": None, "payload_workspace_keys": {}}
        )
        async with another_process(with_one, base) as reader:
            told = await failure_of_replay(history, [AGENT], reader)
        assert f"payload key '{key}' is not known here" in told
        manifests = database["payload_manifests"].find({"_id.workflow_id": handle.id})
        kept[key] = {each["_id"]["root"] for each in manifests}
    assert kept["first"]
    assert not kept["first"] & kept["second"]
    stored = list(database["payload_chunks"].find({}))
    assert {each["key_id"] for each in stored if each["kind"] == "bytes"} == {"first", "second"}
