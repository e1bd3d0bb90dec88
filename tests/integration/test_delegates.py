"""Delegates on a real Temporal server: runs of their own, tied to the run that asked for them."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.function import FunctionModel
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError

from stores.protocols import StepStore
from stores.records import RunRecord
from tests.helpers.delegating import AGENTS, ANYTHING, LEAD, asking, waiting
from tests.helpers.eventually import eventually
from tests.helpers.evidence import stored_and_replayed
from tests.helpers.script import Call, echo_steps, follow, script
from tests.helpers.user_workflows import (
    USER_WORKFLOWS,
    ScriptedRun,
    ScriptedRunsInput,
    ScriptedRunsWorkflow,
)
from tests.helpers.workers import count_events, running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput, AgentRunOutput
from workflows.agents import AgentSetupError
from workflows.delegates import delegate
from workflows.durable import durable

pytestmark = pytest.mark.integration

WITHIN = 30

COUNTED = Agent(FunctionModel(follow), name="counted", deps_type=int, capabilities=[*durable()])
DEPS: dict[str, object] = {"right": 7, "wrong": "seven", "odd": object()}


def make_deps(ctx: RunContext[Any]) -> object:
    return DEPS[str(ctx.tool_name)]


COUNTING = Agent(
    FunctionModel(follow),
    name="counting",
    capabilities=[*durable()],
    tools=[
        delegate(COUNTED, name=name, description=ANYTHING, on_failure="tell", deps=make_deps)
        for name in DEPS
    ],
)


async def start(
    client: Client, task_queue: str, prompt: str, *, agent: str = "lead", **request: Any
) -> WorkflowHandle[Any, AgentRunOutput]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent=agent, prompt=prompt, **request),
        id=f"lead-{uuid4().hex}",
        task_queue=task_queue,
    )


async def result(handle: WorkflowHandle[Any, AgentRunOutput]) -> AgentRunOutput:
    return await asyncio.wait_for(handle.result(), WITHIN)


async def failure(handle: WorkflowHandle[Any, Any]) -> BaseException | None:
    with pytest.raises(WorkflowFailureError) as caught:
        await asyncio.wait_for(handle.result(), WITHIN)
    return caught.value.cause


async def delegates(store: StepStore, run_id: str) -> list[RunRecord]:
    return await store.list_runs(parent_run_id=run_id)


async def only_delegate(store: StepStore, run_id: str) -> RunRecord:
    (record,) = await delegates(store, run_id)
    return record


async def agrees(client: Client, store: StepStore, *run_ids: str) -> None:
    """Store and history of each run say the same, and the history replays."""
    for run_id in run_ids:
        history = await client.get_workflow_handle(run_id).fetch_history()
        stored, path = await stored_and_replayed(store, history, AGENTS)
        assert stored == path


@pytest.mark.spec("SP-37", "SP-38")
async def test_delegate_is_a_run_of_its_own_that_knows_its_parent(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(
            temporal,
            task_queue,
            asking(echo_steps(2)),
            conversation_id="dialogue",
            workspace_id="acme",
            principal="alice",
        )
        output = await result(handle)
    store = mongo.for_workspace("acme")
    parent = await store.get_run(run_id=handle.id)
    child = await only_delegate(store, handle.id)
    assert parent is not None
    assert (child.agent_name, child.state) == ("script", "completed")
    assert (child.workspace_id, child.principal) == ("acme", "alice")
    assert child.conversation_id == child.run_id != parent.conversation_id
    assert await mongo.get_run(run_id=child.run_id) is None  # of another workspace
    snapshot = await store.latest_snapshot(run_id=handle.id)
    assert snapshot is not None
    (returned,) = snapshot.messages[2].parts
    assert returned.part_kind == "tool-return"
    assert returned.content == "done"
    assert child.usage is not None
    assert child.usage["requests"] == 3
    assert output.usage.requests == 2 + 3
    assert output.usage.tool_calls == 1 + 2
    own = child.usage["input_tokens"]
    assert output.usage.input_tokens > own > 0
    (effect,) = await store.list_tool_effects(run_id=handle.id)
    assert (effect.tool_name, effect.status, effect.effect) == ("ask_script", "completed", "once")
    await agrees(temporal, store, handle.id, child.run_id)


@pytest.mark.spec("SP-38")
async def test_delegate_may_share_the_conversation(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        prompt = asking(echo_steps(0), tool="tell")
        handle = await start(temporal, task_queue, prompt, conversation_id="dialogue")
        await result(handle)
    child = await only_delegate(mongo, handle.id)
    assert child.conversation_id == "dialogue"


async def test_delegates_of_one_step_run_side_by_side(
    temporal: Client, mongo: StepStore, task_queue: str, tmp_path: Path
) -> None:
    """Each waits for a file that the other one makes."""
    one, two = tmp_path / "one", tmp_path / "two"
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(temporal, task_queue, asking(waiting(one, two), waiting(two, one)))
        output = await result(handle)
    first, second = await delegates(mongo, handle.id)
    assert first.run_id != second.run_id
    assert output.usage.requests == 2 + 2 * 2
    await agrees(temporal, mongo, handle.id, first.run_id, second.run_id)


async def test_delegates_have_delegates(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        prompt = asking(asking(echo_steps(1)), tool="ask_lead")
        handle = await start(temporal, task_queue, prompt, agent="head")
        output = await result(handle)
    lead = await only_delegate(mongo, handle.id)
    leaf = await only_delegate(mongo, lead.run_id)
    assert (lead.agent_name, leaf.agent_name) == ("lead", "script")
    assert output.usage.requests == 2 + 2 + 2
    assert lead.usage is not None
    assert lead.usage["requests"] == 2 + 2


@pytest.mark.spec("SP-37")
async def test_run_in_a_workflow_of_a_user_delegates_too(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    request = ScriptedRunsInput(runs=[ScriptedRun(prompt=asking(echo_steps(1)), agent="lead")] * 2)
    async with running_worker(temporal, mongo, AGENTS, task_queue, workflows=USER_WORKFLOWS):
        handle = await temporal.start_workflow(
            ScriptedRunsWorkflow.run, request, id=f"runs-{uuid4().hex}", task_queue=task_queue
        )
        assert await asyncio.wait_for(handle.result(), WITHIN) == ["led", "led"]
    children = [
        (await only_delegate(mongo, f"{handle.id}-{number}-return")).run_id for number in (0, 1)
    ]
    assert len({*children}) == 2


async def test_delegate_that_fails_fails_the_run_that_asked(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(
            temporal, task_queue, asking(script([[("fail", {"text": "no luck"})]]))
        )
        cause = await failure(handle)
    child = await only_delegate(mongo, handle.id)
    assert isinstance(cause, ApplicationError)
    assert cause.type == "DelegateFailedError"
    assert f"delegate 'script' (run {child.run_id!r}) failed" in cause.message
    assert "no luck" in cause.message
    assert child.state == "failed"
    (effect,) = await mongo.list_tool_effects(run_id=handle.id)
    assert effect.status == "failed"
    parent = await mongo.get_run(run_id=handle.id)
    assert parent is not None
    assert (parent.state, parent.usage and parent.usage["requests"]) == ("failed", 1 + 1)
    await agrees(temporal, mongo, handle.id, child.run_id)


async def test_model_is_told_of_a_failed_delegate_where_it_is_declared_so(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        prompt = asking(script([[("fail", {"text": "no luck"})]]), tool="tell")
        handle = await start(temporal, task_queue, prompt)
        output = await result(handle)
    assert output.output == "led"
    assert output.usage.requests == 2 + 1
    (effect,) = await mongo.list_tool_effects(run_id=handle.id)
    assert effect.status == "failed"
    snapshot = await mongo.latest_snapshot(run_id=handle.id)
    assert snapshot is not None
    (told,) = snapshot.messages[2].parts
    assert "no luck" in str(getattr(told, "content", ""))


async def test_limits_of_the_parent_hold_for_its_delegates_too(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(
            temporal,
            task_queue,
            asking(echo_steps(9), tool="tell"),
            usage_limits={"request_limit": 4},
        )
        cause = await failure(handle)
    assert isinstance(cause, ApplicationError)
    assert cause.type == "UsageLimitExceeded"
    child = await only_delegate(mongo, handle.id)
    assert child.usage is not None
    assert child.usage["requests"] == 3
    assert "request_limit of 3" in str(child.error)


async def test_endless_delegation_is_refused(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    prompt = asking(echo_steps(0), tool="ask_mirror")
    for _ in range(8):
        prompt = asking(prompt, tool="ask_mirror")
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(temporal, task_queue, prompt, agent="mirror")
        cause = await failure(handle)
    assert "depth 9; 8 is the most" in str(cause)
    assert len(await mongo.list_runs()) == 1 + 8


async def test_cancel_ends_the_delegate_before_its_parent(
    temporal: Client, mongo: StepStore, task_queue: str, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        prompt = asking(waiting(tmp_path / "never", marker))
        handle = await start(temporal, task_queue, prompt)
        await eventually(marker.exists)
        await handle.cancel()
        assert isinstance(await failure(handle), CancelledError)
        child = await only_delegate(mongo, handle.id)
        described = await temporal.get_workflow_handle(child.run_id).describe()
        parent = await handle.describe()
    assert described.status is WorkflowExecutionStatus.CANCELED
    assert described.close_time is not None
    assert parent.close_time is not None
    assert described.close_time < parent.close_time
    for run_id in (handle.id, child.run_id):
        record = await mongo.get_run(run_id=run_id)
        assert record is not None
        assert record.state == "cancelled"
        (effect,) = await mongo.list_tool_effects(run_id=run_id)
        assert effect.status == "unknown"
    await agrees(temporal, mongo, handle.id, child.run_id)
    events = count_events(await handle.fetch_history())
    asked = "EVENT_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED"
    assert events[asked] == 1


async def test_parallel_delegate_is_cancelled_when_another_one_fails(
    temporal: Client, mongo: StepStore, task_queue: str, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    failing: list[list[Call]] = [
        [("wait_for", {"path": str(marker)})],
        [("fail", {"text": "no luck"})],
    ]
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        prompt = asking(script(failing), waiting(tmp_path / "never", marker))
        handle = await start(temporal, task_queue, prompt)
        cause = await failure(handle)
    assert "no luck" in str(cause)
    states = sorted(each.state for each in await delegates(mongo, handle.id))
    assert states == ["cancelled", "failed"]
    effects = await mongo.list_tool_effects(run_id=handle.id)
    assert [each.status for each in effects] == ["failed", "unknown"]
    await agrees(temporal, mongo, handle.id)


async def test_delegate_that_somebody_cancels_fails_its_parent(
    temporal: Client, mongo: StepStore, task_queue: str, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        prompt = asking(waiting(tmp_path / "never", marker))
        handle = await start(temporal, task_queue, prompt)
        await eventually(marker.exists)
        child = await only_delegate(mongo, handle.id)
        await temporal.get_workflow_handle(child.run_id).cancel()
        cause = await failure(handle)
    assert f"delegate 'script' (run {child.run_id!r}) was cancelled" in str(cause)
    parent = await mongo.get_run(run_id=handle.id)
    assert parent is not None
    assert parent.state == "failed"
    await agrees(temporal, mongo, handle.id, child.run_id)


async def test_delegate_of_a_terminated_parent_is_cancelled(
    temporal: Client, mongo: StepStore, task_queue: str, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        prompt = asking(waiting(tmp_path / "never", marker))
        handle = await start(temporal, task_queue, prompt)
        await eventually(marker.exists)
        child = await only_delegate(mongo, handle.id)
        await handle.terminate()
        cause = await failure(temporal.get_workflow_handle(child.run_id))
    assert isinstance(cause, CancelledError)
    record = await mongo.get_run(run_id=child.run_id)
    assert record is not None
    assert record.state == "cancelled"
    (effect,) = await mongo.list_tool_effects(run_id=child.run_id)
    assert effect.status == "unknown"


async def test_worker_refuses_a_delegate_that_it_does_not_serve(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    with pytest.raises(AgentSetupError, match="'lead' delegates to 'script', which this worker"):
        async with running_worker(temporal, mongo, [LEAD], task_queue):
            pass


async def test_agent_that_is_unknown_after_all_fails_the_run_by_name(
    temporal: Client, mongo: StepStore, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another build of the worker may take the child; no model can mend that."""
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        monkeypatch.setattr("workflows.agents._agents", {"lead": LEAD})
        handle = await start(temporal, task_queue, asking(echo_steps(0), tool="tell"))
        cause = await failure(handle)
    assert isinstance(cause, ApplicationError)
    assert cause.type == "DelegateFailedError"
    assert "agent 'script' is not known to this worker" in cause.message


async def test_deps_of_a_delegate_are_checked_before_it_runs(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    agents = [*AGENTS, COUNTING, COUNTED]
    async with running_worker(temporal, mongo, agents, task_queue):
        right = await start(
            temporal, task_queue, asking(echo_steps(0), tool="right"), agent="counting"
        )
        assert (await result(right)).output == "led"
        wrong = await start(
            temporal, task_queue, asking(echo_steps(0), tool="wrong"), agent="counting"
        )
        assert "deps do not fit deps_type int of agent 'counted'" in str(await failure(wrong))
        odd = await start(temporal, task_queue, asking(echo_steps(0), tool="odd"), agent="counting")
        assert "deps for delegate 'counted' cannot be encoded" in str(await failure(odd))
    assert await delegates(mongo, odd.id) == []
    for handle in (wrong, odd):
        (effect,) = await mongo.list_tool_effects(run_id=handle.id)
        assert effect.status == "failed"


async def reset(
    client: Client, handle: WorkflowHandle[Any, Any], event_id: int
) -> WorkflowHandle[Any, AgentRunOutput]:
    """Reset to the end of the last workflow task before that event; the new execution."""
    events = (await handle.fetch_history()).events
    completed = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ends = [e.event_id for e in events if e.event_type == completed and e.event_id < event_id]
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(
                workflow_id=handle.id, run_id=handle.first_execution_run_id or ""
            ),
            workflow_task_finish_event_id=ends[-1],
            request_id=uuid4().hex,
        )
    )
    return client.get_workflow_handle_for(AgentRunWorkflow.run, handle.id, run_id=answer.run_id)


async def first_event(handle: WorkflowHandle[Any, Any], name: str) -> int:
    """Id of the first event of that type."""
    kind = EventType.Value(f"EVENT_TYPE_{name}")
    events = (await handle.fetch_history()).events
    return next(each.event_id for each in events if each.event_type == kind)


async def test_call_after_the_reset_point_starts_another_delegate(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(temporal, task_queue, asking(echo_steps(0), before=1))
        await result(handle)
        first = await only_delegate(mongo, handle.id)
        initiated = await first_event(handle, "START_CHILD_WORKFLOW_EXECUTION_INITIATED")
        again = await reset(temporal, handle, initiated - 1)
        output = await result(again)
    assert output.output == "led"
    runs = await delegates(mongo, handle.id)
    assert [each.state for each in runs] == ["completed", "completed"]
    assert runs[0].run_id == first.run_id != runs[1].run_id
    stored, path = await stored_and_replayed(mongo, await again.fetch_history(), AGENTS)
    assert stored == path


async def test_call_before_the_reset_point_keeps_its_delegate(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(temporal, task_queue, asking(echo_steps(0), after=2))
        first = await result(handle)
        ended = await first_event(handle, "CHILD_WORKFLOW_EXECUTION_COMPLETED")
        scheduled = [
            each.event_id
            for each in (await handle.fetch_history()).events
            if each.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
            and each.event_id > ended
        ]
        again = await reset(temporal, handle, scheduled[1])
        output = await result(again)
    assert output.usage == first.usage
    await only_delegate(mongo, handle.id)
    stored, path = await stored_and_replayed(mongo, await again.fetch_history(), AGENTS)
    assert stored == path


async def test_reset_to_before_the_end_of_a_delegate_hears_of_it_again(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(temporal, task_queue, asking(echo_steps(0), after=1))
        await result(handle)
        ended = await first_event(handle, "CHILD_WORKFLOW_EXECUTION_COMPLETED")
        again = await reset(temporal, handle, ended)
        output = await result(again)
    assert output.output == "led"
    await only_delegate(mongo, handle.id)
    stored, path = await stored_and_replayed(mongo, await again.fetch_history(), AGENTS)
    assert stored == path


@pytest.mark.parametrize("is_kept", [True, False], ids=["after its start", "before its start"])
async def test_reset_while_a_delegate_runs(
    temporal: Client, mongo: StepStore, task_queue: str, tmp_path: Path, *, is_kept: bool
) -> None:
    """After its start it is kept; before that a second one starts, and nobody ends the first."""
    marker, go = tmp_path / "marker", tmp_path / "go"
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(temporal, task_queue, asking(waiting(go, marker)))
        await eventually(marker.exists)
        started = await first_event(handle, "CHILD_WORKFLOW_EXECUTION_STARTED")
        knows_of_it = started + 3  # a workflow task was scheduled, started and completed

        async def has_heard() -> bool:
            return (await handle.fetch_history()).events[-1].event_id >= knows_of_it

        await eventually(has_heard)
        again = await reset(temporal, handle, knows_of_it + 1 if is_kept else started)
        await eventually(lambda: has_delegates(mongo, handle.id, 1 if is_kept else 2))
        go.touch()
        output = await result(again)
        await eventually(lambda: has_delegates(mongo, handle.id, 1 if is_kept else 2, "completed"))
    assert output.output == "led"
    stored, path = await stored_and_replayed(mongo, await again.fetch_history(), AGENTS)
    assert stored == path


async def has_delegates(
    store: StepStore, run_id: str, count: int, state: str | None = None
) -> bool:
    states = [each.state for each in await delegates(store, run_id)]
    return len([each for each in states if state in {None, each}]) == count


async def test_cancel_reaches_a_delegate_that_was_reset(
    temporal: Client, mongo: StepStore, task_queue: str, tmp_path: Path
) -> None:
    """Its first execution is closed, and one that is closed cannot be asked to cancel itself."""
    marker = tmp_path / "marker"
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(temporal, task_queue, asking(waiting(tmp_path / "never", marker)))
        await eventually(marker.exists)
        child = await only_delegate(mongo, handle.id)
        described = await temporal.get_workflow_handle(child.run_id).describe()
        first = temporal.get_workflow_handle(
            child.run_id, run_id=described.run_id, first_execution_run_id=described.run_id
        )
        marker.unlink()
        again = await reset(temporal, first, await first_event(first, "ACTIVITY_TASK_SCHEDULED"))
        await eventually(marker.exists)
        await handle.cancel()
        assert isinstance(await failure(handle), CancelledError)
        assert (await again.describe()).status is WorkflowExecutionStatus.CANCELED
    await agrees(temporal, mongo, handle.id, child.run_id)
