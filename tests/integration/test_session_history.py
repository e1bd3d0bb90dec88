"""Agents that search and read conversations, in workflows as production runs them."""

import json
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from temporalio.client import Client

from stores.conversation_rows import turn_run_id
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from stores.reading.reader import Library
from tests.helpers.delegating import asking
from tests.helpers.reading import NOW, Said, admit, opened_api, put_conversation
from tests.helpers.script import Call, follow, make_agent, script
from tests.helpers.workers import count_scheduled_activities, replay, running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.delegates import delegate
from workflows.session_history import PlainReading, SessionHistory

AGENT = make_agent("reader", also=[SessionHistory()])
LEAD = make_agent("lead", tools=[delegate("reader", name="ask_script", description="Reads.")])


async def run(client: Client, queue: str, run_id: str, prompt: str, **values: Any) -> Any:
    fields: dict[str, Any] = {"agent": "reader", **values}
    request = AgentRunInput(prompt=prompt, **fields)
    handle = await client.start_workflow(AgentRunWorkflow.run, request, id=run_id, task_queue=queue)
    await handle.result()
    return handle


async def answers(store: MongoStepStore, run_id: str) -> list[dict[str, Any]]:
    """What the tools answered, in order."""
    snapshot = await store.latest_snapshot(run_id=run_id)
    assert snapshot is not None
    return [
        json.loads(str(part.content))
        for message in snapshot.messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


@pytest.mark.integration
@pytest.mark.spec("HS-2", "HS-63", "HS-64", "HS-65")
async def test_a_run_reads_what_its_principal_may_and_a_replay_reads_nothing(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    head = await put_conversation(mongo, "mine", [Said(prompt="the vault is 7413")])
    other = await put_conversation(mongo, "hers", [Said(prompt="the vault is 9999")])
    token = await admit(mongo, "ann", reach="own")
    await mongo.conversations.access.grant("ann", "default", conversation_id="mine", now=NOW)
    steps: list[list[Call]] = [
        [("session_search", {"query": "vault"})],
        [("session_read", {"session_id": head.public_id, "include_execution": True})],
        [("session_read", {"session_id": other.public_id})],
        [("session_read", {"session_id": head.public_id, "around_turn_id": "x"})],
        [("session_search", {"query": "vault", "limit": 51})],
        [("session_search", {"query": "vault", "after": "x"})],
    ]
    async with running_worker(temporal, mongo, [AGENT, LEAD], task_queue):
        handle = await run(
            temporal, task_queue, f"{task_queue}-ann", script(steps), principal="ann"
        )
        found = await answers(mongo, f"{task_queue}-ann")
        await run(temporal, task_queue, f"{task_queue}-none", script(steps[:2]))
        nothing = await answers(mongo, f"{task_queue}-none")
        counts = count_scheduled_activities(await replay(handle, [AGENT, LEAD]))
        assert (counts["session_search"], counts["session_read"]) == (3, 3)
        # A delegate reads for the principal of the run that asks it.
        lead: dict[str, Any] = {"agent": "lead", "principal": "ann", "conversation_id": "hers"}
        led = turn_run_id("default", "hers", "m0", 1)
        await run(temporal, task_queue, led, asking(script(steps[:1])), **lead)

    async with opened_api(mongo, token) as api:
        assert found[0] == (await api.search(query="vault")).json()
        assert found[1] == (await api.history(head.public_id, include_execution="true")).json()
        await mongo.conversations.access.grant("ann", "default", now=NOW)
        branch = {"include_execution": "true", "execution_prefix": "1/0"}
        wide = (await api.history(other.public_id, **branch)).json()
    assert [each["key"] for each in wide["execution"]["rounds"]] == ["1/0/1", "1/0/2"]
    assert "7413" in wide["execution"]["rounds"][0]["calls"][0]["output"]
    assert "9999" not in json.dumps(found)
    errors = [each["error"] for each in found[2:]]
    assert [(each["code"], each["parameter"]) for each in errors] == [
        ("not_found", "session_id"),
        ("parameter_invalid", "around_turn_id"),
        ("parameter_invalid", "limit"),
        ("parameter_invalid", "after"),
    ]
    assert {each["error"]["code"] for each in nothing} == {"not_found"}


@pytest.mark.spec("HS-63", "HS-64", "HS-65")
async def test_a_plain_run_reads_for_whom_it_is_told() -> None:
    store = InMemoryStepStore()
    head = await put_conversation(store, "c", [Said(prompt="the vault is 7413")])
    await admit(store, "ann")
    plain = PlainReading(library=Library(store=store), principal="ann")
    steps: list[list[Call]] = [
        [("session_search", {"query": "vault", "archived": "include"})],
        [("session_read", {"session_id": head.public_id, "limit": 1})],
    ]
    reading: list[Any] = [SessionHistory[None](plain)]
    agent: Agent[None, str] = Agent(FunctionModel(follow), name="r", capabilities=reading)
    result = await agent.run(script(steps))
    told = str(result.all_messages())
    assert told.count("7413") >= 2
    nothing: list[Any] = [SessionHistory[None]()]
    unsaid: Agent[None, str] = Agent(FunctionModel(follow), name="r", capabilities=nothing)
    with pytest.raises(UserError, match="has nothing to read outside a workflow"):
        await unsaid.run(script(steps))
