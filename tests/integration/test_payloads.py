"""Runs whose payloads are stored beside the history: what the history holds, and what reads it."""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from pydantic_ai import Tool
from pymongo import MongoClient
from pymongo.database import Database
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.client import ActivityFailureError, Client, WorkflowFailureError, WorkflowHandle
from temporalio.converter import DefaultFailureConverter, PayloadCodec
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.searching import SearchHistoryRequest, SearchHistoryResult
from client import connect
from converter import DATA_CONVERTER, build_data_converter
from settings import Settings
from stores.mongo.steps import MongoStepStore
from tests.helpers.delegating import AGENTS as DELEGATING
from tests.helpers.delegating import asking
from tests.helpers.memory import growth_of_peak
from tests.helpers.payloads import another_process, failure_of_replay, references
from tests.helpers.script import make_agent, script
from tests.helpers.workers import count_events, running_worker
from tests.integration.conftest import WITHIN
from worker import build_replayer
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput, AgentRunOutput

pytestmark = pytest.mark.integration

BULK_BYTES = 200_000_000

LOOKALIKE = {
    "metadata": {"encoding": "json/protobuf", "perdure-place": "inline"},
    "messageType": "temporal.api.sdk.v1.ExternalStorageReference",
    "driverName": "perdure",
    "claimData": {"root": "00" * 32, "workflow": "another one"},
}
"""What stands for a payload in a history, as a tool may return it."""


async def bulk(size_bytes: int) -> str:
    """A text of that size."""
    return "x" * size_bytes


async def unreadable() -> bytes:
    """What is no UTF-8, and so no JSON."""
    return b"\xff\xfe" * 20_000


async def look_alike() -> list[Any]:
    """What looks like a reference, in a result that is large enough to be stored."""
    return [LOOKALIKE, "filler " * 5000]


READ = {"effect": "read"}

AGENT = make_agent(
    "script",
    tools=[
        Tool(bulk, metadata=READ),
        Tool(bulk, name="bulk_in_workflow", metadata={**READ, "temporal": False}),
        Tool(unreadable, metadata=READ),
        Tool(look_alike, metadata=READ),
    ],
)

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
    client: Client,
    task_queue: str,
    prompt: str,
    workspace_id: str = "default",
    *,
    agent: str = "script",
    run_id: str | None = None,
) -> Handle:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent=agent, prompt=prompt, workspace_id=workspace_id),
        id=run_id or uuid4().hex,
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


async def test_a_delegate_with_a_long_prompt_and_a_long_answer_belongs_to_both_workflows(
    storing: Client,
    mongo: MongoStepStore,
    settings: Settings,
    task_queue: str,
    database: Database[dict[str, Any]],
) -> None:
    answer = "z" * 2_200_000
    asked = script([[("echo", {"text": "word"})]], final=answer)
    async with running_worker(storing, mongo, DELEGATING, task_queue):
        handle = await started(storing, task_queue, asking(asked), agent="lead")
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
        (child,) = await mongo.list_runs(parent_run_id=handle.id)
    latest = await mongo.latest_snapshot(run_id=handle.id)
    assert latest is not None
    returned = latest.messages[2].parts[0]
    assert returned.part_kind == "tool-return"
    assert returned.content == answer

    roots = {
        workflow_id: {
            each["_id"]["root"]
            for each in database["payload_manifests"].find({"_id.workflow_id": workflow_id})
        }
        for workflow_id in (handle.id, child.run_id)
    }
    assert len(roots[handle.id] & roots[child.run_id]) >= 2, "the child's input and its result"
    for workflow_id in (handle.id, child.run_id):
        history = await storing.get_workflow_handle(workflow_id).fetch_history()
        assert sum(event.ByteSize() for event in history.events) < 60_000
        async with another_process(settings) as converter:
            assert await failure_of_replay(history, DELEGATING, converter) == "None"

    async def is_needed(workflow_id: str) -> bool:
        return workflow_id == handle.id

    swept = await mongo.sweep_payloads(
        grace=timedelta(), namespace=storing.namespace, is_needed=is_needed, is_dry=False
    )
    assert swept.manifests == len(roots[child.run_id])
    history = await handle.fetch_history()
    async with another_process(settings) as converter:
        assert await failure_of_replay(history, DELEGATING, converter) == "None"


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("bulk", {"size_bytes": BULK_BYTES}, "are too large; the limit is 67108864"),
        ("bulk_in_workflow", {"size_bytes": BULK_BYTES}, "are too large; the limit is 67108864"),
        ("unreadable", dict[str, int](), "invalid utf-8"),
        ("odd_in_workflow", dict[str, int](), "invalid utf-8"),
    ],
)
async def test_a_tool_that_returns_what_no_payload_holds_fails_its_run_at_once(
    storing: Client,
    mongo: MongoStepStore,
    task_queue: str,
    tool: str,
    arguments: dict[str, int],
    words: str,
) -> None:
    """200 MB, or bytes that are no UTF-8: neither is sent, and the worker goes on."""
    async with running_worker(storing, mongo, [AGENT], task_queue):
        with growth_of_peak() as memory:
            handle = await started(storing, task_queue, script([[(tool, arguments)]]))
            with pytest.raises(WorkflowFailureError) as failed:
                await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
        fine = await started(storing, task_queue, script([[("bulk", {"size_bytes": 20_000})]]))
        await asyncio.wait_for(fine.result(), WITHIN.total_seconds())
    events = count_events(await handle.fetch_history())
    assert events["EVENT_TYPE_WORKFLOW_TASK_FAILED"] == 0
    assert events["EVENT_TYPE_ACTIVITY_TASK_FAILED"] <= 1
    told = failed.value.cause
    error = told.cause if isinstance(told, ActivityError) else told
    assert isinstance(error, ApplicationError)
    assert words in str(error)
    run = await mongo.get_run(run_id=handle.id)
    assert run is not None
    assert run.state == "failed"
    assert memory.grown_bytes < 6 * BULK_BYTES


async def test_a_prompt_above_what_is_stored_at_once_is_refused_and_nothing_starts(
    storing: Client, task_queue: str, database: Database[dict[str, Any]]
) -> None:
    with pytest.raises(ApplicationError, match=r"PayloadTooLargeError.*limit is 67108864"):
        await started(storing, task_queue, "x" * 67_200_000, run_id="too-large")
    with pytest.raises(RPCError, match="not found"):
        await storing.get_workflow_handle("too-large").describe()
    assert database["payload_chunks"].count_documents({}) == 0


async def test_a_search_without_a_workflow_has_its_long_answer_in_itself(
    storing: Client, mongo: MongoStepStore, task_queue: str, database: Database[dict[str, Any]]
) -> None:
    """Nothing would tell when what belongs to no workflow may be removed: it is not stored."""
    said = script([[("echo", {"text": "a zebra that goes on and on; " * 50})]] * 20)
    async with running_worker(storing, mongo, [AGENT], task_queue):
        handle = await started(storing, task_queue, said)
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
        stored = database["payload_manifests"].count_documents({})
        found = await storing.execute_activity(
            "search_conversation_history",
            SearchHistoryRequest(query="zebra", scope="all", max_matches=40),
            id=f"search-{uuid4().hex}",
            task_queue=task_queue,
            start_to_close_timeout=WITHIN,
            result_type=SearchHistoryResult,
        )
    assert len(found.text) > Settings().payload_threshold_bytes
    assert database["payload_manifests"].count_documents({}) == stored


@activity.defn
async def repeat(text: str, times: int) -> str:
    """A text, longer."""
    return text * times


async def test_an_activity_without_a_workflow_takes_and_returns_what_temporal_takes(
    storing: Client, task_queue: str
) -> None:
    async def repeated(text: str, times: int) -> str:
        return await storing.execute_activity(
            repeat,
            args=[text, times],
            id=f"repeat-{uuid4().hex}",
            task_queue=task_queue,
            start_to_close_timeout=WITHIN,
        )

    async with Worker(storing, task_queue=task_queue, activities=[repeat]):
        assert await repeated("x" * 100_000, 5) == "x" * 500_000
        with pytest.raises(ActivityFailureError) as failed:
            await asyncio.wait_for(repeated("x", 3_000_000), WITHIN.total_seconds())
        assert "PayloadTooLargeError: a payload of 30" in str(failed.value.cause)
        with pytest.raises(ApplicationError, match="belongs to no workflow"):
            await repeated("x" * 3_000_000, 1)


async def test_a_result_that_looks_like_a_reference_is_kept_as_it_was(
    storing: Client, mongo: MongoStepStore, settings: Settings, task_queue: str
) -> None:
    async with running_worker(storing, mongo, [AGENT], task_queue):
        handle = await started(storing, task_queue, script([[("look_alike", {})]]))
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
    latest = await mongo.latest_snapshot(run_id=handle.id)
    assert latest is not None
    returned = latest.messages[2].parts[0]
    assert returned.part_kind == "tool-return"
    assert returned.content == await look_alike()
    async with another_process(settings) as converter:
        assert await failure_of_replay(await handle.fetch_history(), [AGENT], converter) == "None"


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
