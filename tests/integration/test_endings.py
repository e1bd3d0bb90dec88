"""Every ending is stored: cancelled at an awkward moment, refused, reused, held up by a handler."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateStage
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, CancelledError

from stores.faulty import Fault, FaultPlan, with_faults
from stores.memory import InMemoryStepStore
from tests.helpers.eventually import eventually
from tests.helpers.script import echo_steps, make_agent, script
from tests.helpers.workers import running_worker
from worker import build_replayer
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

with workflow.unsafe.imports_passed_through():
    from workflows.agents import find_agent

pytestmark = pytest.mark.integration

AGENT = make_agent("script")


@workflow.defn(name="twice", sandboxed=False)
class TwiceWorkflow:
    """Runs the agent twice, and gives back what the second run ended with."""

    def __init__(self) -> None:
        self.is_told = False

    @workflow.run
    async def run(self, conversation_id: str, run_ids: list[str]) -> str:
        ended = ""
        for run_id in run_ids:
            try:
                await find_agent("script").run(
                    echo_steps(1), run_id=run_id, conversation_id=conversation_id
                )
                ended = "well"
            except ApplicationError as error:
                ended = str(error.type)
            conversation_id = "fine"
        return ended

    @workflow.update(unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def wait_to_be_told(self) -> None:
        await workflow.wait_condition(lambda: self.is_told)


@workflow.defn(name="held_up", sandboxed=False)
class HeldUpWorkflow(TwiceWorkflow):
    """Fails in its agent run while a handler waits for what the main method would do next."""

    @workflow.run
    async def run(self, conversation_id: str, run_ids: list[str]) -> str:
        await workflow.wait_condition(lambda: not workflow.all_handlers_finished())
        await find_agent("script").run("this is no script", conversation_id=conversation_id)
        self.is_told = True
        return str(run_ids)


USER_WORKFLOWS = (TwiceWorkflow, HeldUpWorkflow)


async def start(client: Client, task_queue: str, prompt: str) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="script", prompt=prompt),
        id=f"run-{uuid4().hex}",
        task_queue=task_queue,
    )


async def is_replayed(handle: WorkflowHandle[Any, Any]) -> None:
    replayer = build_replayer([AGENT], workflows=USER_WORKFLOWS)
    await replayer.replay_workflow(await handle.fetch_history())


async def test_cancel_before_a_tool_began_still_records_the_end(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Path
) -> None:
    go, ran = tmp_path / "go", tmp_path / "ran"
    local = Fault(name="local", action="wait", holds="start_tool_effect")
    regular = Fault(name="regular", action="wait", holds="start_tool_effect", until=go)
    plan = FaultPlan(directory=tmp_path, faults=(local, regular))
    async with running_worker(temporal, with_faults(memory, plan), [AGENT], task_queue):
        prompt = script([[("mark", {"path": str(ran), "text": "x"})]])
        handle = await start(temporal, task_queue, prompt)
        await eventually(lambda: plan.has_fired("regular"))
        await handle.cancel()

        async def knows_of_it() -> bool:
            kinds = [event.event_type for event in (await handle.fetch_history()).events]
            requested = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
            completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
            return requested in kinds and completed in kinds[kinds.index(requested) :]

        await eventually(knows_of_it)
        go.touch()
        with pytest.raises(WorkflowFailureError) as caught:
            await asyncio.wait_for(handle.result(), 30)
        await is_replayed(handle)
    assert isinstance(caught.value.cause, CancelledError)
    record = await memory.get_run(run_id=handle.id)
    assert record is not None
    assert record.state == "cancelled"
    events = await memory.list_events(run_id=handle.id)
    assert (events[-1].kind, events[-1].error) == ("run_failed", "cancelled")
    (effect,) = await memory.list_tool_effects(run_id=handle.id)
    assert (effect.status, ran.exists()) == ("failed", False)


async def test_cancel_during_the_last_commit_comes_too_late(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Path
) -> None:
    """Store and Temporal agree: the run had ended, and nothing queued was dropped."""
    away = Fault(name="away", action="fail", holds="run_completed")
    go = tmp_path / "go"
    slow = Fault(name="slow", action="wait", holds="run_completed", until=go)
    plan = FaultPlan(directory=tmp_path, faults=(away, slow))
    async with running_worker(temporal, with_faults(memory, plan), [AGENT], task_queue):
        handle = await start(temporal, task_queue, echo_steps(1))
        await eventually(lambda: plan.has_fired("slow"))
        await handle.cancel()
        go.touch()
        output = await asyncio.wait_for(handle.result(), 30)
        await is_replayed(handle)
    assert output.output == "done"
    record = await memory.get_run(run_id=handle.id)
    assert record is not None
    assert record.state == "completed"
    assert len(await memory.list_snapshots(run_id=handle.id)) == 2


async def test_second_run_of_one_id_in_an_execution_is_refused(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    run_id = f"run-{uuid4().hex}"
    async with running_worker(temporal, memory, [AGENT], task_queue, workflows=USER_WORKFLOWS):
        handle = await temporal.start_workflow(
            TwiceWorkflow.run,
            args=["fine", [run_id, run_id]],
            id=f"twice-{uuid4().hex}",
            task_queue=task_queue,
        )
        assert await handle.result() == "RunIdTakenError"
        await is_replayed(handle)
    events = await memory.list_events(run_id=run_id)
    assert [event.kind for event in events].count("run_started") == 1
    assert [event.kind for event in events].count("run_completed") == 1
    assert len({event.sequence for event in events}) == len(events)


async def test_malformed_conversation_id_fails_its_run_and_no_other(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    first, second = f"run-{uuid4().hex}", f"run-{uuid4().hex}"
    async with running_worker(temporal, memory, [AGENT], task_queue, workflows=USER_WORKFLOWS):
        handle = await temporal.start_workflow(
            TwiceWorkflow.run,
            args=[" padded", [first, second]],
            id=f"twice-{uuid4().hex}",
            task_queue=task_queue,
        )
        assert await handle.result() == "well"
        await is_replayed(handle)
    assert await memory.get_run(run_id=first) is None
    record = await memory.get_run(run_id=second)
    assert record is not None
    assert record.state == "completed"


async def test_failed_run_ends_the_workflow_although_a_handler_waits(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    agent = make_agent("script", activities={"retry_policy": RetryPolicy(maximum_attempts=1)})
    async with running_worker(temporal, memory, [agent], task_queue, workflows=USER_WORKFLOWS):
        handle = await temporal.start_workflow(
            HeldUpWorkflow.run,
            args=["fine", []],
            id=f"held-{uuid4().hex}",
            task_queue=task_queue,
        )
        untyped: Any = handle  # the SDK's overloads are too much for a type checker
        await untyped.start_update("wait_to_be_told", wait_for_stage=WorkflowUpdateStage.ACCEPTED)
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), 50)
    (record,) = await memory.list_runs(conversation_id="fine")
    assert record.state == "failed"
