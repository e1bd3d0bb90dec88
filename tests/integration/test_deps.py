"""Deps by reference: a factory on the worker makes them of the run's input."""

import asyncio
from dataclasses import dataclass
from uuid import uuid4

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from stores.memory import InMemoryStepStore
from tests.helpers.workers import replay, running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.durable import durable

pytestmark = pytest.mark.integration

CALLS = 20
LARGE = "x" * 200_000


class Customer(BaseModel):
    name: str
    notes: str = ""


@dataclass
class Session:
    """A live object that no payload could hold."""

    customer: Customer
    lock: asyncio.Lock


async def open_session(customer: Customer) -> Session:
    return Session(customer, asyncio.Lock())


def call_all(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    if any(isinstance(message, ModelResponse) for message in messages):
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(
        parts=[ToolCallPart("look_up", {}, tool_call_id=f"call-{each}") for each in range(CALLS)]
    )


AGENT = Agent(
    FunctionModel(call_all),
    name="with-session",
    deps_type=Session,
    capabilities=[*durable(deps_factory=open_session)],
)


@AGENT.tool(metadata={"effect": "read"})
async def look_up(ctx: RunContext[Session]) -> str:
    async with ctx.deps.lock:
        return f"{ctx.deps.customer.name}, {len(ctx.deps.customer.notes)}"


async def test_20_parallel_calls_with_200_kb_of_deps_carry_references(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    async with running_worker(temporal, memory, [AGENT], task_queue):
        handle = await temporal.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent="with-session", prompt="all", deps={"name": "Ada", "notes": LARGE}),
            id=f"deps-{uuid4().hex}",
            task_queue=task_queue,
        )
        await handle.result()
        history = await replay(handle, [AGENT])
    latest = await memory.latest_snapshot(run_id=handle.id)
    assert latest is not None
    (results,) = [m for m in latest.messages if isinstance(m, ModelRequest) and len(m.parts) > 1]
    assert {str(part.content) for part in results.parts} == {"Ada, 200000"}
    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    ]
    tools = [each for each in scheduled if each.activity_type.name.endswith("call_tool")]
    assert len(tools) == CALLS
    inputs = {each.activity_id: sum(len(p.data) for p in each.input.payloads) for each in scheduled}
    assert max(inputs[each.activity_id] for each in tools) < 4096, inputs
    markers = [
        len(payload.data)
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED
        for payloads in event.marker_recorded_event_attributes.details.values()
        for payload in payloads.payloads
    ]
    assert max(markers) < 4096
    assert sum(event.ByteSize() for event in history.events) < 200_000 * 2
