"""What the journal does when a commit is refused, stale or slow, and when an execution ends."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import RunContext, ToolDefinition
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError

from stores.commits import Commit, CommitPosition
from stores.faulty import Fault, FaultPlan, with_faults
from stores.operations import AppendEvent, RegisterRun
from stores.protocols import StepStore
from tests.helpers.eventually import eventually
from tests.helpers.evidence import stored_and_replayed
from tests.helpers.script import echo_steps, follow, script
from tests.helpers.user_agents import AGENTS
from tests.helpers.user_workflows import (
    USER_WORKFLOWS,
    ScriptedRun,
    ScriptedRunsInput,
    ScriptedRunsWorkflow,
)
from tests.helpers.workers import running_worker
from worker import build_replayer
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.durable import durable

pytestmark = pytest.mark.integration

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def start(
    client: Client, task_queue: str, prompt: str, *, agent: str = "script"
) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent=agent, prompt=prompt),
        id=f"run-{uuid4().hex}",
        task_queue=task_queue,
    )


async def failure_of(handle: WorkflowHandle[Any, Any]) -> BaseException | None:
    with pytest.raises(WorkflowFailureError) as caught:
        await asyncio.wait_for(handle.result(), 30)
    return caught.value.cause


async def kinds(store: StepStore, run_id: str) -> Counter[str]:
    return Counter(event.kind for event in await store.list_events(run_id=run_id))


# --- refused ---


AWAITED = "1:tool_call_started:0:0"
NOT_AWAITED = "1:model_request_completed::0"


@pytest.mark.parametrize("key", [AWAITED, NOT_AWAITED])
async def test_refused_operation_fails_its_run_by_name_with_run_failed(
    temporal: Client, mongo: StepStore, task_queue: str, key: str
) -> None:
    """Where nobody waits for it, the run fails at its next barrier."""
    handle = await start(temporal, task_queue, echo_steps(2, parallel=2))
    assert handle.first_execution_run_id is not None
    planted = AppendEvent(
        run_id=handle.id, sequence=1000, key=key, event="tool_call_failed", step_index=9
    )
    branch = handle.first_execution_run_id
    await mongo.commit(Commit(operations=(planted,), now=NOW, branch=branch))
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        failure = await failure_of(handle)
    assert isinstance(failure, ApplicationError)
    assert failure.type == "IdempotencyConflictError"
    assert handle.id in failure.message
    assert key in failure.message
    assert "append_event" in failure.message
    run = await mongo.get_run(run_id=handle.id)
    assert run is not None
    assert run.state == "failed"
    found = await kinds(mongo, handle.id)
    assert found["run_failed"] == 1
    assert found["run_completed"] == 0
    events = await mongo.list_events(run_id=handle.id)
    assert [each.kind for each in events if each.idempotency_key == key] == ["tool_call_failed"]
    await replay(handle)
    effects = await mongo.list_tool_effects(run_id=handle.id)
    assert "started" not in {each.status for each in effects}


async def replay(handle: WorkflowHandle[Any, Any], workflows: Sequence[type] = ()) -> None:
    await build_replayer(AGENTS, workflows=workflows).replay_workflow(await handle.fetch_history())


# --- stale ---


async def test_stale_commit_fails_its_task_and_the_run_goes_on(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    handle = await start(temporal, task_queue, echo_steps(1))
    execution_id = handle.first_execution_run_id
    assert execution_id is not None
    later = CommitPosition(
        execution_id=execution_id,
        branch=execution_id,
        branch_time=NOW,
        number=1,
        history_length=4,  # the first task sees three events, its repetition six
        queued_at=NOW,
    )
    of_another_attempt = RegisterRun(
        run_id=handle.id, sequence=0, registration_id=f"{execution_id}/{handle.id}", agent_name="x"
    )
    await mongo.commit(Commit(operations=(of_another_attempt,), now=NOW, position=later))
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        assert (await asyncio.wait_for(handle.result(), 30)).output == "done"
    history = await handle.fetch_history()
    failed = [
        event.workflow_task_failed_event_attributes.failure
        for event in history.events
        if event.HasField("workflow_task_failed_event_attributes")
    ]
    assert ["another attempt" in each.message.lower() for each in failed] == [True]
    head = await mongo.find_commit_head(execution_id=execution_id)
    assert head is not None
    assert head.stale_count == 1
    stored, path = await stored_and_replayed(mongo, history, AGENTS)
    assert stored == path
    run = await mongo.get_run(run_id=handle.id)
    assert run is not None
    assert run.agent_name == "script"


# --- cut short ---


class GivingUp(AbstractCapability[Any]):
    """Waits for calls of `wait_for` only so long."""

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - the core's signature
        *,
        call: ToolCallPart,  # noqa: ARG002 - the core's signature
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        if tool_def.name != "wait_for":
            return await handler(args)
        try:
            return await asyncio.wait_for(handler(args), PATIENCE.total_seconds())
        except TimeoutError:
            return "given up"


PATIENCE = timedelta(seconds=0.5)


def make_impatient_agent() -> Agent[None, str]:
    agent = Agent(FunctionModel(follow), name="impatient", capabilities=[GivingUp(), *durable()])

    @agent.tool_plain(metadata={"effect": "read"})
    async def echo(text: str) -> str:
        return text

    @agent.tool_plain(metadata={"effect": "idempotent"})
    async def wait_for(path: str, marker: str) -> str:
        Path(marker).touch()
        while not Path(path).exists():
            await asyncio.sleep(0.02)
        return "seen"

    return agent


async def test_one_of_two_calls_that_wait_for_one_commit_is_cancelled_and_the_other_goes_on(
    temporal: Client, mongo: StepStore, task_queue: str, tmp_path: Path
) -> None:
    agent = make_impatient_agent()
    started = tmp_path / "started"
    call = ("wait_for", {"path": str(tmp_path / "never"), "marker": str(started)})
    slow = [
        Fault(name=attempt, action="delay", seconds=3, holds="start_tool_effect")
        for attempt in ("local", "regular")
    ]
    store = with_faults(mongo, plan := FaultPlan(directory=tmp_path, faults=tuple(slow)))
    async with running_worker(temporal, store, [agent], task_queue):
        prompt = script([[call, ("echo", {"text": "b"})]])
        handle = await start(temporal, task_queue, prompt, agent="impatient")
        output = await asyncio.wait_for(handle.result(), 30)
    assert output.output == "done"
    assert plan.has_fired("regular")
    assert not started.exists()
    effects = await mongo.list_tool_effects(run_id=handle.id)
    statuses = {each.tool_name: each.status for each in effects}
    assert statuses == {"wait_for": "failed", "echo": "completed"}
    stored, path = await stored_and_replayed(mongo, await handle.fetch_history(), [agent])
    assert stored == path


# --- the drain ---


@pytest.mark.parametrize("then", ["return", "fail", "continue_as_new"])
async def test_what_is_queued_when_an_execution_ends_is_stored(
    temporal: Client, mongo: StepStore, task_queue: str, then: Any
) -> None:
    request = ScriptedRunsInput(runs=[ScriptedRun(prompt=echo_steps(1))], then=then)
    async with running_worker(temporal, mongo, AGENTS, task_queue, workflows=USER_WORKFLOWS):
        handle = await temporal.start_workflow(
            ScriptedRunsWorkflow.run, request, id=f"drain-{uuid4().hex}", task_queue=task_queue
        )
        if then == "fail":
            assert "as told" in str(await failure_of(handle))
        else:
            assert await asyncio.wait_for(handle.result(), 30) == ["done"]
    ends = ["return", "continue_as_new"] if then == "continue_as_new" else [then]
    for end in ends:
        assert (await kinds(mongo, f"{handle.id}-0-{end}"))["run_completed"] == 1
    first = temporal.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
    for each in (first, temporal.get_workflow_handle(handle.id)):
        history = await each.fetch_history()
        stored, path = await stored_and_replayed(mongo, history, AGENTS, USER_WORKFLOWS)
        assert stored == path


async def test_cancelled_while_a_commit_is_slow_stores_all_that_is_queued(
    temporal: Client, mongo: StepStore, task_queue: str, tmp_path: Path
) -> None:
    slow = Fault(name="slow", action="delay", seconds=3, holds="start_tool_effect")
    store = with_faults(mongo, plan := FaultPlan(directory=tmp_path, faults=(slow,)))
    async with running_worker(temporal, store, AGENTS, task_queue):
        handle = await start(temporal, task_queue, echo_steps(2, parallel=2))
        await eventually(lambda: plan.has_fired("slow"))
        await handle.cancel()
        assert isinstance(await failure_of(handle), CancelledError)
    run = await mongo.get_run(run_id=handle.id)
    assert run is not None
    assert run.state == "cancelled"
    events = await mongo.list_events(run_id=handle.id)
    assert (events[-1].kind, events[-1].error) == ("run_failed", "cancelled")
    effects = await mongo.list_tool_effects(run_id=handle.id)
    assert [each.status for each in effects] == ["failed", "failed"]
    stored, path = await stored_and_replayed(mongo, await handle.fetch_history(), AGENTS)
    assert stored == path
