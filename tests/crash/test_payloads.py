"""Payloads beside the history when MongoDB is away, and when an execution's base has expired."""

import asyncio
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Tool
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode

from cli.servers import LocalServers
from client import connect
from retaining import is_known
from settings import Settings
from stores.mongo.steps import MongoStepStore
from tests.helpers.eventually import eventually
from tests.helpers.payloads import another_process, failure_of_replay
from tests.helpers.script import echo_steps, make_agent, script
from tests.helpers.workers import count_events, running_worker
from tests.integration.test_reset import reset
from worker import build_replayer
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

OUTAGE = timedelta(seconds=30)
ANSWERED_WITHIN = timedelta(seconds=1)
WITHIN = timedelta(seconds=60)

PAID: Counter[str] = Counter()
"""How often the body of `pay_at_length` ran, by path."""


async def hold(path: str) -> str:
    """Answer when the file is there; writes nothing, as reads do not."""
    await eventually(Path(path).exists, within=WITHIN)
    return "held"


async def say(size: int) -> str:
    """A long text, made in the workflow."""
    return "x" * size


async def pay_at_length(path: str) -> str:
    """Do something once, end when the file is there, and return what is stored as a payload."""
    PAID[path] += 1
    await eventually(Path(path).exists, within=WITHIN)
    return "paid " * 50_000


AGENT = make_agent(
    "script",
    tools=[
        Tool(hold, metadata={"effect": "read"}),
        Tool(say, metadata={"temporal": False}),
        Tool(pay_at_length),
    ],
)

Handle = WorkflowHandle[Any, Any]


async def start(client: Client, task_queue: str, prompt: str) -> Handle:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="script", prompt=prompt),
        id=f"payloads-{uuid4().hex}",
        task_queue=task_queue,
    )


async def ask(handle: Handle) -> None:
    """An update that the workflow itself refuses."""
    asked = monotonic()
    decision = {"run_id": handle.id, "tool_call_id": "none", "outcome": "completed", "by": "me"}
    with pytest.raises(WorkflowUpdateFailedError):
        await handle.execute_update("resolve_tool_effect", decision)  # pyright: ignore[reportUnknownMemberType] - the SDK's overloads
    assert monotonic() - asked < ANSWERED_WITHIN.total_seconds()


async def expire(client: Client, workflow_id: str, run_id: str | None) -> None:
    """What the end of the retention time does to an execution, some time later."""
    assert run_id is not None
    execution = WorkflowExecution(workflow_id=workflow_id, run_id=run_id)
    await client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
    )


async def is_gone(client: Client, workflow_id: str, run_id: str | None) -> bool:
    try:
        await client.get_workflow_handle(workflow_id, run_id=run_id).describe()
    except RPCError as error:
        return error.status is RPCStatusCode.NOT_FOUND
    return False


async def test_large_payloads_wait_for_mongodb_and_outlive_the_base_of_a_reset(
    own_servers: LocalServers, settings: Settings, tmp_path: Path
) -> None:
    """One outage and one expiry, which take half a minute each, side by side."""
    addresses = own_servers.addresses
    settings = settings.model_copy(
        update={
            "temporal_address": addresses.temporal_address,
            "mongodb_uri": addresses.mongodb_uri,
        }
    )
    store = MongoStepStore(db_url=settings.mongodb_uri, database=settings.mongodb_database)
    await store.initialise()
    client = await connect(settings, chunks=store.chunks)
    async with running_worker(client, store, [AGENT], settings.task_queue):
        base = await start(client, settings.task_queue, echo_steps(2, size=20_000))
        await base.result()
        again = await reset(client, base, task=4)
        await again.result()
        await expire(client, base.id, base.first_execution_run_id)
        await check_outage(own_servers, client, store, settings, tmp_path / "go on")
    await check_expiry(client, store, settings, base, again)
    await store.aclose()


async def check_outage(
    servers: LocalServers, client: Client, store: MongoStepStore, settings: Settings, go_on: Path
) -> None:
    """Of MongoDB, while two runs have long messages to commit and one a long result to return."""
    holding = ("hold", {"path": str(go_on)})
    scripts = [
        script([[holding, ("say", {"size": 1_000_000})]]),
        script([[holding, ("say", {"size": 1_400_000})]]),
        script([[("pay_at_length", {"path": str(go_on)})]]),
    ]
    handles = [await start(client, settings.task_queue, each) for each in scripts]
    await eventually(lambda: PAID[str(go_on)] == 1, within=WITHIN)
    for handle in handles[:2]:
        await eventually(partial(_has_said, store, handle.id), within=WITHIN)

    await servers.mongodb.kill()
    stopped = monotonic()
    go_on.touch()
    await asyncio.sleep(4)  # the first attempts of the commits are over
    while monotonic() - stopped < OUTAGE.total_seconds():
        for handle in handles:
            await ask(handle)
        await asyncio.sleep(1)  # between two questions
    await servers.mongodb.start()

    results = asyncio.gather(*(each.result() for each in handles))
    outputs = await asyncio.wait_for(results, WITHIN.total_seconds())
    assert [each.output for each in outputs] == ["done"] * 3
    assert PAID[str(go_on)] == 1
    for handle in handles:
        history = await handle.fetch_history()
        events = count_events(history)
        assert events["EVENT_TYPE_WORKFLOW_TASK_FAILED"] == 0
        assert events["EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT"] == 0
        run = await store.get_run(run_id=handle.id)
        assert run is not None
        assert run.state == "completed"
        (newest,) = (await store.list_snapshots(run_id=handle.id))[-1:]
        assert len(newest.messages) == 4
        async with another_process(settings) as converter:
            await build_replayer([AGENT], converter=converter).replay_workflow(history)
    (effect,) = await store.list_tool_effects(run_id=handles[2].id)
    assert effect.status == "completed"


async def check_expiry(
    client: Client, store: MongoStepStore, settings: Settings, base: Handle, again: Handle
) -> None:
    """A reset execution keeps what it took over; when it is gone, too, nothing is kept."""
    history = await again.fetch_history()
    await eventually(lambda: is_gone(client, base.id, base.first_execution_run_id), within=WITHIN)
    assert await _swept(store, client) == 0
    async with another_process(settings) as converter:
        assert await failure_of_replay(history, [AGENT], converter) == "None"
    await expire(client, again.id, again.run_id)
    await eventually(lambda: is_gone(client, again.id, again.run_id), within=WITHIN)
    assert await _swept(store, client) > 0
    async with another_process(settings) as converter:
        told = await failure_of_replay(history, [AGENT], converter)
    assert f"workflow '{again.id}' cannot be read: chunk " in told
    assert "is not stored" in told


async def _has_said(store: MongoStepStore, run_id: str) -> bool:
    return len(await store.list_tool_effects(run_id=run_id)) == 2


async def _swept(store: MongoStepStore, client: Client) -> int:
    async def is_needed(workflow_id: str) -> bool:
        return await is_known(client, workflow_id)

    swept = await store.sweep_payloads(
        grace=timedelta(), namespace=client.namespace, is_needed=is_needed, is_dry=False
    )
    return swept.chunks
