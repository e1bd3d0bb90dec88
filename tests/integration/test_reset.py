"""A workflow that is reset: the new branch is live, what it left behind is not."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle

from stores.faulty import Fault, FaultPlan, with_faults
from stores.protocols import StepStore
from tests.helpers.eventually import eventually
from tests.helpers.evidence import stored_and_replayed
from tests.helpers.script import echo_steps
from tests.helpers.user_agents import AGENTS
from tests.helpers.workers import running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = pytest.mark.integration

WITHIN_SECONDS = 30


async def start(client: Client, task_queue: str) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="script", prompt=echo_steps(2)),
        id=f"reset-{uuid4().hex}",
        task_queue=task_queue,
    )


async def ends_of_tasks(handle: WorkflowHandle[Any, Any]) -> list[int]:
    return [
        event.event_id
        for event in (await handle.fetch_history()).events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]


async def reset(
    client: Client, handle: WorkflowHandle[Any, Any], *, task: int
) -> WorkflowHandle[Any, Any]:
    """Reset to the end of the `task`-th workflow task; the new execution."""
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(
                workflow_id=handle.id, run_id=handle.first_execution_run_id or ""
            ),
            workflow_task_finish_event_id=(await ends_of_tasks(handle))[task],
            request_id=uuid4().hex,
        )
    )
    return client.get_workflow_handle(handle.id, run_id=answer.run_id)


async def test_reset_run_is_read_along_its_new_branch(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(temporal, task_queue)
        await asyncio.wait_for(handle.result(), WITHIN_SECONDS)
        first = await mongo.list_events(run_id=handle.id)
        again = await reset(temporal, handle, task=2)
        await asyncio.wait_for(again.result(), WITHIN_SECONDS)
    events = await mongo.list_events(run_id=handle.id)
    assert [each.kind for each in events] == [each.kind for each in first]
    assert {each.branch for each in events} == {handle.first_execution_run_id, again.run_id}
    stored, path = await stored_and_replayed(mongo, await again.fetch_history(), AGENTS)
    assert stored == path


async def has_ended_tasks(handle: WorkflowHandle[Any, Any], count: int) -> bool:
    return len(await ends_of_tasks(handle)) >= count


async def test_commit_that_was_pending_at_a_reset_is_made_once(
    temporal: Client, mongo: StepStore, task_queue: str, tmp_path: Path
) -> None:
    """The server runs the pending activity for the new execution, with the old one's input."""
    go = tmp_path / "go"
    slow = [
        Fault(name=attempt, action="wait", until=go, holds="start_tool_effect")
        for attempt in ("local", "regular", "again")
    ]
    store = with_faults(mongo, plan := FaultPlan(directory=tmp_path, faults=tuple(slow)))
    async with running_worker(temporal, store, AGENTS, task_queue):
        handle = await start(temporal, task_queue)
        await eventually(lambda: plan.has_fired("regular"))
        await handle.signal("nothing")  # for one more task, to which the run can be reset
        await eventually(partial(has_ended_tasks, handle, 3))
        again = await reset(temporal, handle, task=2)
        await eventually(lambda: plan.has_fired("again"))
        go.touch()
        await asyncio.wait_for(again.result(), WITHIN_SECONDS)
    stored, path = await stored_and_replayed(mongo, await again.fetch_history(), AGENTS)
    assert stored == path
