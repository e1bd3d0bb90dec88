"""Many parallel tool calls of an agent whose deps are large: what each activity is given."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio.client import Client, WorkflowHistory

from activities.boundaries import CommitBoundariesRequest
from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.side import LONGEST_RUN
from client import connect
from settings import Settings
from stores.mongo.steps import MongoStepStore
from stores.operations import SaveSnapshot
from worker import build_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.durable import durable

AGENT = "parallel"
CALLS = 20
DEPS_BYTES = 200_000
BUDGET_BYTES = 4096
"""Of the input of a store activity, for each operation of a group, snapshots left out."""


class Customer(BaseModel):
    """What is submitted."""

    notes: str


@dataclass(frozen=True)
class Session:
    """What a tool gets."""

    customer: Customer


async def open_session(customer: Customer) -> Session:
    """The factory of the deps."""
    return Session(customer)


def _follow(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    if len(messages) > 1:
        return ModelResponse(parts=[TextPart("done")])
    calls = [ToolCallPart("count", {}, tool_call_id=f"call-{each}") for each in range(CALLS)]
    return ModelResponse(parts=calls)


agent = Agent(
    FunctionModel(_follow),
    name=AGENT,
    deps_type=Session,
    capabilities=[*durable(deps_factory=open_session)],
)


@agent.tool(metadata={"effect": "read"})
async def count(ctx: RunContext[Session]) -> int:
    """Give the length of the notes."""
    return len(ctx.deps.customer.notes)


async def measure_parallel(bench: Bench) -> Sequence[Figure]:
    """A run whose 20 calls run at once, with 200 KB of deps; commits as regular activities."""
    settings = Settings(
        temporal_address=bench.client.service_client.config.target_host,
        mongodb_uri=bench.mongodb_uri,
        mongodb_database=f"parallel_{uuid4().hex}",
        task_queue=f"parallel-{uuid4().hex}",
        boundary_mode="regular",
        graceful_shutdown_seconds=1,
    )
    store = MongoStepStore(db_url=bench.mongodb_uri, database=settings.mongodb_database)
    try:
        await store.initialise()
        client = await connect(settings, chunks=store.chunks)
        async with build_worker(client, store, [agent], settings):
            handle = await client.start_workflow(
                AgentRunWorkflow.run,
                AgentRunInput(agent=AGENT, prompt="go", deps={"notes": "x" * DEPS_BYTES}),
                id=f"parallel-{uuid4().hex}",
                task_queue=settings.task_queue,
                execution_timeout=LONGEST_RUN,
            )
            await handle.result()
        inputs = await _inputs(client, await handle.fetch_history())
        effects = await store.list_tool_effects(run_id=handle.id)
    finally:
        await store.aclose()
    name = f"{CALLS} parallel calls with {DEPS_BYTES // 1000} KB of deps"
    return [
        Figure(
            name=f"calls that did not complete, {name}",
            unit="",
            measured=CALLS - sum(each.status == "completed" for each in effects),
            budget=0,
        ),
        Figure(
            name=f"largest input of a store activity, an operation, {name}",
            unit="bytes",
            measured=max(size for is_store, size in inputs if is_store),
            budget=BUDGET_BYTES,
            detail=f"{sum(is_store for is_store, _ in inputs)} store activities",
        ),
        Figure(
            name=f"largest input of another activity, {name}",
            unit="bytes",
            measured=max(size for is_store, size in inputs if not is_store),
        ),
    ]


async def _inputs(client: Client, history: WorkflowHistory) -> list[tuple[bool, int]]:
    """Of each activity: whether it is the store's, and the bytes that it was given."""
    found: list[tuple[bool, int]] = []
    for event in history.events:
        scheduled = event.activity_task_scheduled_event_attributes
        payloads = scheduled.input.payloads
        if not scheduled.activity_type.name:
            continue
        if scheduled.activity_type.name != "commit_boundaries":
            found.append((False, sum(len(each.data) for each in payloads)))
            continue
        (group,) = await client.data_converter.decode(payloads, [CommitBoundariesRequest])
        kept = tuple(each for each in group.operations if not isinstance(each, SaveSnapshot))
        text = group.model_copy(update={"operations": kept}).model_dump_json()
        found.append((True, len(text) // max(len(kept), 1)))
    return found
