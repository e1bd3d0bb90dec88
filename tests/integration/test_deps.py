"""Deps by reference: a factory on the worker makes them of the run's input."""

import asyncio
from collections.abc import Awaitable
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.boundaries import CommitBoundariesRequest
from stores.memory import InMemoryStepStore
from stores.operations import SaveSnapshot
from tests.helpers.greeter import GREETER, Customer, open_session
from tests.helpers.script import Call, script
from tests.helpers.user_workflows import (
    USER_WORKFLOWS,
    ScriptedRun,
    ScriptedRunsInput,
    ScriptedRunsWorkflow,
)
from tests.helpers.workers import replay, running_worker
from tests.integration.conftest import WITHIN
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = pytest.mark.integration

CALLS = 20
LARGE = "x" * 200_000
STEP: list[Call] = [("greet", {})] * CALLS
PROMPT = script([STEP])

SMALL_BYTES = 4096
"""Of an activity's input; of a group of operations for each of them."""


async def test_20_parallel_calls_with_200_kb_of_deps_carry_references(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    options: dict[str, Any] = {"boundary_mode": "regular", "hop_after_requests": 1}
    async with running_worker(temporal, memory, [GREETER], task_queue, **options):
        deps = {"name": "Ada", "notes": LARGE}
        handle = await temporal.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent="greeter", prompt=PROMPT, deps=deps),
            id=f"deps-{uuid4().hex}",
            task_queue=task_queue,
        )
        await handle.result()
        first = temporal.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
        history = await replay(first, [GREETER])
        await replay(handle, [GREETER])
    latest = await memory.latest_snapshot(run_id=handle.id)
    assert latest is not None
    returned = [
        str(part.content)
        for message in latest.messages
        for part in message.parts
        if part.part_kind == "tool-return"
    ]
    assert returned == ["Ada, 200000"] * CALLS
    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]
    assert sum(each.activity_type.name.endswith("call_tool") for each in scheduled) == CALLS
    for each in scheduled:
        name = each.activity_type.name
        size_bytes = sum(len(payload.data) for payload in each.input.payloads)
        if name == "commit_boundaries":
            (group,) = await temporal.data_converter.decode(
                each.input.payloads, [CommitBoundariesRequest]
            )
            kept = tuple(one for one in group.operations if not isinstance(one, SaveSnapshot))
            size_bytes = len(group.model_copy(update={"operations": kept}).model_dump_json())
            size_bytes //= max(len(kept), 1)
        assert name == "save_snapshot" or size_bytes < SMALL_BYTES, (name, size_bytes)
    # The input of the workflow, and its copy for the execution that it goes on in.
    assert sum(event.ByteSize() for event in history.events) < 3 * len(LARGE)


async def test_deps_that_a_factory_cannot_take_fail_the_run(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    async with running_worker(temporal, memory, [GREETER], task_queue, workflows=USER_WORKFLOWS):
        starting = temporal.execute_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent="greeter", prompt=PROMPT, deps={"name": 7}),
            id=f"deps-{uuid4().hex}",
            task_queue=task_queue,
        )
        error = await failure_of(starting)
        own = temporal.execute_workflow(
            ScriptedRunsWorkflow.run,
            ScriptedRunsInput(runs=[ScriptedRun(prompt=PROMPT, agent="greeter")]),
            id=f"deps-{uuid4().hex}",
            task_queue=task_queue,
        )
        elsewhere = await failure_of(own)
    assert (error.type, elsewhere.type) == ("InvalidDepsError", "InvalidDepsError")
    assert "name: " in str(error)
    assert "agent_run" in str(elsewhere)
    assert not await memory.list_runs()


async def failure_of(running: Awaitable[Any]) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as caught:
        await asyncio.wait_for(running, WITHIN.total_seconds())
    assert isinstance(caught.value.cause, ApplicationError)
    return caught.value.cause


async def test_outside_a_workflow_deps_are_what_the_caller_passes() -> None:
    result = await GREETER.run(PROMPT, deps=await open_session(Customer(name="Eve")))
    assert result.output == "done"
