"""Large content of runs on a real Temporal, MongoDB and S3-compatible server."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.models.function import FunctionModel
from pymongo import AsyncMongoClient
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ActivityError

from stores.media.addresses import media_uri_for
from stores.media.s3 import S3MediaStore
from stores.mongo.steps import MongoStepStore
from tests.helpers.eventually import eventually
from tests.helpers.evidence import content_of
from tests.helpers.s3_server import BUCKET, S3Server, s3_server
from tests.helpers.script import follow, script
from tests.helpers.workers import running_worker
from tests.integration.conftest import WITHIN
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput, AgentRunOutput
from workflows.durable import durable

pytestmark = pytest.mark.integration

IMAGE = bytes(range(256)) * 800
GIVEN: dict[str, Any] = {
    "text": "ы" * 100_000,
    "image": BinaryContent(IMAGE, media_type="image/png"),
    "nested": {"a": ["b" * 100_000, {"__perdure_media__": {"version": 1, "uri": "x"}}]},
    "not utf-8": b"\xff\xfe",
}

Handle = WorkflowHandle[AgentRunWorkflow, AgentRunOutput]


def make_agent() -> Agent[None, str]:
    agent = Agent(FunctionModel(follow), name="media", capabilities=[*durable()])

    @agent.tool_plain(metadata={"effect": "read"})
    async def give(kind: str) -> Any:
        return GIVEN[kind]

    return agent


async def started(client: Client, task_queue: str, *kinds: str) -> Handle:
    prompt = script([[("give", {"kind": each})] for each in kinds])
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="media", prompt=prompt),
        id=f"run-{uuid4().hex}",
        task_queue=task_queue,
    )


@pytest.mark.spec("SP-56", "SP-71", "SP-75")
async def test_a_run_keeps_large_content_apart_and_loads_what_was_said(
    temporal: Client,
    mongo: MongoStepStore,
    mongodb_uri: str,
    mongodb_database: str,
    task_queue: str,
) -> None:
    agent = make_agent()
    kinds = ("text", "image", "nested")
    plain = await agent.run(script([[("give", {"kind": each})] for each in kinds]))
    async with running_worker(temporal, mongo, [agent], task_queue):
        handle = await started(temporal, task_queue, *kinds)
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
        unreadable = await started(temporal, task_queue, "not utf-8")
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(unreadable.result(), WITHIN.total_seconds())
    loaded = await mongo.latest_snapshot(run_id=handle.id)
    assert loaded is not None
    assert content_of(loaded.messages) == content_of(plain.all_messages())
    async with AsyncMongoClient[dict[str, Any]](mongodb_uri) as client:
        database = client[mongodb_database]
        blobs = {each["sha256"]: each async for each in database["media"].find()}
        texts = [each["text"] async for each in database["messages"].find()]
    assert blobs[media_uri_for(IMAGE)[-64:]]["media_type"] == "image/png"
    assert len(blobs) == 3
    assert max(map(len, texts)) < 5_000
    # What Temporal cannot carry never reaches a store, and says so.
    assert isinstance(failed.value.cause, ActivityError)
    assert "cannot be encoded as JSON" in str(failed.value.cause.cause)
    assert "invalid utf-8" in str(failed.value.cause.cause)


@pytest.mark.spec("SP-79")
async def test_a_run_waits_for_s3_that_is_away_and_ends_with_one_that_refuses(
    temporal: Client, mongodb_uri: str, mongodb_database: str, task_queue: str, tmp_path: Path
) -> None:
    with s3_server(tmp_path) as gone:
        pass  # a port that nobody listens on

    def store_with(server: S3Server, **changed: Any) -> MongoStepStore:
        media = S3MediaStore(**{**server.options, **changed})
        return MongoStepStore(db_url=mongodb_uri, database=mongodb_database, media_store=media)

    store, agent = store_with(gone), make_agent()
    await store.initialise()
    async with running_worker(temporal, store, [agent], task_queue):
        handle = await started(temporal, task_queue, "image")

        async def retries() -> bool:
            pending = (await handle.describe()).raw_description.pending_activities
            return any(each.attempt > 1 for each in pending)

        await eventually(retries, within=WITHIN, what="a commit that is tried again")
        with s3_server(tmp_path, gone.port):
            await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
            loaded = await store.latest_snapshot(run_id=handle.id)
    await store.aclose()
    assert loaded is not None
    assert IMAGE in [each.read_bytes() for each in (tmp_path / BUCKET).iterdir()]

    with s3_server(tmp_path, gone.port) as server:
        refused = store_with(server, secret_access_key="a wrong one")  # noqa: S106 - as it says
        async with running_worker(temporal, refused, [agent], f"{task_queue}-2"):
            handle = await started(temporal, f"{task_queue}-2", "image")
            with pytest.raises(WorkflowFailureError) as failed:
                await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
        await refused.aclose()
    assert "the server refuses" in str(failed.value.cause)
