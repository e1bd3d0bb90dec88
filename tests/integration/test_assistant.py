"""The assistant on real servers: Temporal, and one that speaks OpenAI's chat format."""

from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.capabilities import ProcessEventStream
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, TextPart, ToolReturnPart
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError

from agents.assistant import INSTRUCTIONS, EnvironmentModel, agent, calculate
from client import connect
from settings import Settings
from stores.opening import open_step_store
from stores.protocols import StepStore
from tests.helpers.eventually import eventually
from tests.helpers.openai_server import MODEL, OpenAIServer, Reply
from tests.helpers.workers import count_scheduled_activities, replay, running_worker
from workflows import policies
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput, AgentRunOutput
from workflows.durable import durable

pytestmark = pytest.mark.integration

Serve = Callable[..., OpenAIServer]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server with these replies, and makes its model the one of the assistant."""
    with ExitStack() as servers:

        def start(*replies: Reply) -> OpenAIServer:
            server = servers.enter_context(OpenAIServer(*replies))
            monkeypatch.setenv("PERDURE_MODEL", f"openai-chat:{MODEL}")
            monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
            monkeypatch.setenv("OPENAI_API_KEY", "none")
            return server

        yield start


@pytest.fixture
async def client(temporal_address: str) -> Client:
    return await connect(Settings(temporal_address=temporal_address))


@pytest.fixture
def store() -> StepStore:
    return open_step_store("memory")


async def submit(
    client: Client, task_queue: str, prompt: str, agent: str = "assistant"
) -> WorkflowHandle[AgentRunWorkflow, AgentRunOutput]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent=agent, prompt=prompt),
        id=f"run-{uuid4().hex}",
        task_queue=task_queue,
        execution_timeout=timedelta(seconds=50),
    )


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__


def returns(messages: Sequence[ModelMessage]) -> list[ToolReturnPart]:
    """What the tools have returned, in the history's order."""
    parts = [part for message in messages for part in message.parts]
    return [part for part in parts if isinstance(part, ToolReturnPart)]


async def attempts_of_the_model_activity(handle: WorkflowHandle[Any, Any]) -> list[int]:
    """For each model activity of a run that asked nothing else of activities, how often it ran."""
    history = await handle.fetch_history()
    started = EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
    return [
        event.activity_task_started_event_attributes.attempt
        for event in history.events
        if event.event_type == started
    ]


# --- answers ---


async def test_a_plain_answer_is_one_request_and_is_stored(
    serve: Serve, client: Client, store: StepStore, task_queue: str
) -> None:
    server = serve(Reply(text="Oslo."))

    async with running_worker(client, store, [agent], task_queue):
        handle = await submit(client, task_queue, "What is the capital of Norway?")
        output = await handle.result()

    [request] = server.requests
    assert output.output == "Oslo."
    assert (output.usage.input_tokens, output.usage.output_tokens) == (11, 7)
    assert [message["role"] for message in request["messages"]] == ["system", "user"]
    assert request["messages"][0]["content"] == INSTRUCTIONS.strip()
    assert {tool["function"]["name"] for tool in request["tools"]} == {"calculate", "current_time"}
    assert not request.get("stream")
    run = await store.get_run(run_id=handle.id)
    assert run is not None
    assert run.agent_name == "assistant"
    snapshot = await store.latest_snapshot(run_id=handle.id)
    assert snapshot is not None
    assert snapshot.messages[-1].parts == [TextPart("Oslo.")]
    await replay(handle, [agent])


async def test_a_tool_call_is_run_and_its_result_sent_back(
    serve: Serve, client: Client, store: StepStore, task_queue: str
) -> None:
    server = serve(Reply(calls=[("calculate", {"expression": "6 * 7"})]), Reply(text="It is 42."))

    async with running_worker(client, store, [agent], task_queue):
        handle = await submit(client, task_queue, "What is six times seven?")
        output = await handle.result()

    assert output.output == "It is 42."
    assert [message["role"] for message in server.requests[1]["messages"]][-2:] == [
        "assistant",
        "tool",
    ]
    assert server.requests[1]["messages"][-1]["content"] == "42"
    effect = await store.get_tool_effect(run_id=handle.id, tool_call_id="call_0")
    assert effect is not None
    assert (effect.tool_name, effect.status) == ("calculate", "completed")


async def test_a_model_that_streams_gives_what_one_that_does_not_gives(
    serve: Serve, client: Client, store: StepStore, task_queue: str
) -> None:
    async def look_at(_: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for _event in events:
            pass

    streamed = Agent(
        EnvironmentModel(),
        name="streamed",
        tools=[Tool(calculate, metadata={"effect": "read"})],
        capabilities=[*durable(ProcessEventStream(look_at))],
    )
    server = serve(
        Reply(calls=[("calculate", {"expression": "6 * 7"}), ("calculate", {"expression": "1"})]),
        Reply(text="It is 42."),
    )

    async with running_worker(client, store, [streamed], task_queue):
        handle = await submit(client, task_queue, "What is six times seven?", agent="streamed")
        output = await handle.result()

    assert [request["stream"] for request in server.requests] == [True, True]
    assert output.output == "It is 42."
    assert output.usage.output_tokens == 14
    snapshot = await store.latest_snapshot(run_id=handle.id)
    assert snapshot is not None
    assert [part.content for part in returns(snapshot.messages)] == ["42", "1"]
    history = await replay(handle, [streamed])
    scheduled = count_scheduled_activities(history)
    assert scheduled["agent__streamed__model_request_stream"] == 2


async def test_a_streamed_run_outside_a_workflow_shows_the_text_as_it_comes(serve: Serve) -> None:
    serve(Reply(text="The fjord is deep."))

    async with agent.run_stream("Tell me of the fjord.") as result:
        texts = [text async for text in result.stream_text(debounce_by=None)]

    assert texts[-1] == "The fjord is deep."
    assert len(texts) > 3
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


# --- failures ---


@pytest.mark.timeout(90)  # Temporal waits 1, 2, 4 and 8 s between the five attempts
async def test_a_server_that_fails_is_asked_as_often_as_the_activity_may_be_tried(
    serve: Serve, client: Client, store: StepStore, task_queue: str
) -> None:
    server = serve(Reply(status=500))

    async with running_worker(client, store, [agent], task_queue):
        handle = await submit(client, task_queue, "Are you there?")
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()

    retries = policies.MODEL_ACTIVITY.get("retry_policy")
    assert retries is not None
    assert len(server.requests) == retries.maximum_attempts
    assert "status_code: 500" in str(failure.value.cause)
    run = await store.get_run(run_id=handle.id)
    assert run is not None
    assert run.state == "failed"


@pytest.mark.parametrize(
    "refusal", [Reply(status=429, headers={"Retry-After": "1"}), Reply(status=503)]
)
async def test_a_passing_refusal_is_tried_again_by_temporal_alone(
    serve: Serve, client: Client, store: StepStore, task_queue: str, refusal: Reply
) -> None:
    server = serve(refusal, Reply(text="Here."))

    async with running_worker(client, store, [agent], task_queue):
        handle = await submit(client, task_queue, "Are you there?")
        output = await handle.result()

    assert output.output == "Here."
    assert len(server.requests) == 2
    assert await attempts_of_the_model_activity(handle) == [2]


async def test_a_run_that_is_cancelled_while_the_model_thinks_ends_at_once(
    serve: Serve, client: Client, store: StepStore, task_queue: str
) -> None:
    server = serve(Reply(text="Too late.", delay=40))

    async with running_worker(client, store, [agent], task_queue):
        handle = await submit(client, task_queue, "Think about it.")
        await eventually(lambda: server.requests)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()

    assert isinstance(failure.value.cause, CancelledError)
    run = await store.get_run(run_id=handle.id)
    assert run is not None
    assert run.state == "cancelled"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "PERDURE_MODEL is not set"),
        ({"PERDURE_MODEL": "nobody:nothing"}, "Unknown model: nobody:nothing"),
        ({"PERDURE_MODEL": "openai-chat:gpt-5"}, "OPENAI_API_KEY"),
    ],
)
async def test_a_worker_without_a_usable_model_runs_and_its_run_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
    client: Client,
    store: StepStore,
    task_queue: str,
    environment: dict[str, str],
    words: str,
) -> None:
    for name in ("PERDURE_MODEL", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    async with running_worker(client, store, [agent], task_queue):
        handle = await submit(client, task_queue, "Are you there?")
        with pytest.raises(WorkflowFailureError) as failure:
            await handle.result()

    told = next(each for each in causes(failure.value) if isinstance(each, ApplicationError))
    assert words in str(told)
