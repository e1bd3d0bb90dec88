"""The scripted agent as a workflow: what the demo shows, without the crash."""

from uuid import uuid4

import pytest

from agents.scripted import agent
from client import connect
from settings import Settings
from stores.opening import open_step_store
from tests.helpers.workers import replay, running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = pytest.mark.integration

ORDER = "3 brass lamps to Oslo"


async def test_a_durable_order_ends_as_a_plain_one_does(
    temporal_address: str, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_DEMO_PAUSE_SECONDS", "0")
    plain = await agent.run(ORDER)
    client = await connect(Settings(temporal_address=temporal_address))
    store = open_step_store("memory")

    async with running_worker(client, store, [agent], task_queue):
        handle = await client.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent="scripted", prompt=ORDER),
            id=f"run-{uuid4().hex}",
            task_queue=task_queue,
        )
        output = await handle.result()

    assert output.output == plain.output
    assert output.message_count == len(plain.all_messages())
    events = await store.list_events(run_id=handle.id)
    assert [event.kind for event in events].count("tool_call_completed") == 8
    assert await store.list_unresolved_tool_effects(run_id=handle.id) == []
    await replay(handle, [agent])
