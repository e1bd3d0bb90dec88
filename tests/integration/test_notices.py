"""`SnapshotSaved` in a workflow: after the commit, and without a trace in the history."""

from collections import Counter
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Agent, CustomEvent
from pydantic_ai.capabilities import Hooks
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import RunContext
from temporalio import workflow
from temporalio.client import Client

from stores.memory import InMemoryStepStore
from tests.helpers.workers import count_events, replay, running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.durable import durable
from workflows.notices import SnapshotSaved
from workflows.persistence import StepPersistence

pytestmark = [pytest.mark.integration, pytest.mark.spec("SP-110")]


class NeverEvent(CustomEvent):
    """What nobody emits."""


def agent_with(hooks: Hooks[Any], name: str) -> Agent[None, str]:
    persistence = StepPersistence[Any](capture_frontier=True)
    agent = Agent(TestModel(), name=name, capabilities=[*durable(persistence, hooks)])

    @agent.tool_plain
    async def work() -> str:
        return "done"

    return agent


async def finished_run(client: Client, task_queue: str, agent: Agent[None, str]) -> Any:
    handle = await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent=str(agent.name), prompt="go", conversation_id="talk"),
        id=f"notices-{uuid4().hex}",
        task_queue=task_queue,
    )
    await handle.result()
    return handle


async def test_observers_are_told_after_the_commit_and_leave_no_command(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    told: list[SnapshotSaved] = []
    late: list[SnapshotSaved] = []
    told_again: Counter[bool] = Counter()
    observing, idle = Hooks[Any](), Hooks[Any]()

    @observing.on.event(SnapshotSaved)
    async def hear(_: RunContext[Any], event: SnapshotSaved) -> None:
        told_again[workflow.unsafe.is_replaying()] += 1
        if workflow.unsafe.is_replaying():
            return
        told.append(event)
        stored = await memory.list_snapshot_summaries(run_id=event.persistence_run_id)
        if len(stored) < len(told):
            late.append(event)

    @idle.on.event(NeverEvent)
    async def wait(_: RunContext[Any], event: NeverEvent) -> None:
        raise AssertionError(event)

    agents = [agent_with(observing, "observed"), agent_with(idle, "idle")]
    async with running_worker(temporal, memory, agents, task_queue):
        observed = await finished_run(temporal, task_queue, agents[0])
        idled = await finished_run(temporal, task_queue, agents[1])
        history = await replay(observed, agents)
    summaries = await memory.list_snapshot_summaries(run_id=observed.id)
    assert [(each.step_index, each.state) for each in told] == [
        (each.step_index, each.state) for each in summaries
    ]
    assert len(told) >= 6
    assert late == []
    assert {(each.persistence_run_id, each.conversation_id) for each in told} == {
        (observed.id, "talk")
    }
    assert count_events(history) == count_events(await idled.fetch_history())
    assert told_again == {False: len(told), True: len(told)}


async def test_an_observer_that_fails_or_takes_its_time_does_not_change_the_run(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    hooks = Hooks[Any]()
    ended: list[str] = []

    @hooks.on.event(SnapshotSaved)
    async def fail(_: RunContext[Any], event: SnapshotSaved) -> None:
        await workflow.sleep(0.05)
        ended.append(event.state)
        message = "observer"
        raise RuntimeError(message)

    agent = agent_with(hooks, "failing-observer")
    async with running_worker(temporal, memory, [agent], task_queue):
        handle = await finished_run(temporal, task_queue, agent)
        count = len(ended)
        await replay(handle, [agent])
    record = await memory.get_run(run_id=handle.id)
    assert record is not None
    assert record.state == "completed"
    assert count == len(await memory.list_snapshots(run_id=handle.id))
