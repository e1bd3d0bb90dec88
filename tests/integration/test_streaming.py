"""Runs that stream, on real servers: what a reader is told is what the run stores."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, DeltaToolCalls, FunctionModel
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityConfig

from stores.following import StreamEvent, follow_run, joined
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from stores.protocols import StepStore
from tests.helpers.script import make_agent, script
from tests.helpers.speaking import SPEAKING, make_speaker, speak, speech, words
from tests.helpers.workers import count_events, replay, running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput, AgentRunOutput

pytestmark = pytest.mark.integration

AT_ONCE = ActivityConfig(retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=50)))
SPEAKER = make_speaker(activities=AT_ONCE)
FINAL = " ".join(f"word-{number}" for number in range(40))


async def start(
    client: Client, task_queue: str, agent: Agent[Any, Any], prompt: str, *, stream: bool = True
) -> WorkflowHandle[Any, AgentRunOutput]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent=agent.name or "", prompt=prompt, stream=stream),
        id=f"streamed-{uuid4().hex}",
        task_queue=task_queue,
    )


async def followed(
    store: StepStore, run_id: str, *, leaves_after: int | None = None
) -> list[StreamEvent]:
    """All events; with `leaves_after` the reader goes and comes back after so many, every time."""
    events: list[StreamEvent] = []
    while not events or not events[-1].kind.startswith("run_"):
        after = events[-1].offset if events else None
        stream = follow_run(store, run_id, after=after, appears_within=timedelta(seconds=10))
        async for event in stream:
            events.append(event)
            if leaves_after and len(events) % leaves_after == 0:
                break
        await stream.aclose()
    return events


def texts(events: list[StreamEvent], kind: str = "text") -> list[str]:
    return [event.text for event in events if event.kind == kind]


def reply_of(events: list[StreamEvent]) -> str:
    reply = ""
    for event in events:
        reply = joined(reply, event)
    return reply


async def test_every_reader_sees_each_delta_once_and_the_history_holds_none(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    prompt = speech(FINAL, steps=["Let me look."], pause=0.005)
    async with running_worker(temporal, mongo, [SPEAKER], task_queue):
        handle = await start(temporal, task_queue, SPEAKER, prompt)
        live, restless = await asyncio.gather(
            followed(mongo, handle.id), followed(mongo, handle.id, leaves_after=7)
        )
        output = (await handle.result()).output
        silent = await start(temporal, task_queue, SPEAKER, prompt, stream=False)
        assert (await silent.result()).output == output
        unstreamed = await followed(mongo, silent.id)
    assert live == restless == await followed(mongo, handle.id)
    kinds = [event.kind for event in live]
    assert texts(live) == [*words("Let me look."), *words(FINAL)]
    assert kinds[3:6] == ["step_text", "tool_call_started", "tool_call_completed"]
    assert kinds[-1] == "run_completed"
    assert reply_of(live) == reply_of(unstreamed) == output == FINAL
    assert texts(unstreamed) == [FINAL]
    history = await replay(handle, [SPEAKER])
    assert count_events(history) == count_events(await silent.fetch_history())


async def test_attempt_that_fails_in_mid_stream_leaves_the_text_of_the_next(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Path
) -> None:
    prompt = speech(FINAL, pause=0.005, stop_at=20, marker=tmp_path / "failed")
    async with running_worker(temporal, memory, [SPEAKER], task_queue):
        handle = await start(temporal, task_queue, SPEAKER, prompt)
        live = await followed(memory, handle.id)
        assert (await handle.result()).output == FINAL
    again = [event.kind for event in live].index("retry")
    assert texts(live[:again]) == words(FINAL)[:20]
    assert texts(live[again:]) == words(FINAL)
    assert reply_of(live) == FINAL
    assert texts(await followed(memory, handle.id)) == words(FINAL)


async def breaks_off(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | DeltaToolCalls]:
    async for word in speak(messages, info):
        yield word
        break
    message = "overloaded"
    raise ConnectionError(message)


async def test_other_models_stream_what_they_can(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    models = FallbackModel(
        FunctionModel(stream_function=breaks_off),
        SPEAKING,
        fallback_on=(ConnectionError,),
    )
    fallback, script_agent = make_speaker("fallback", model=models), make_agent()
    async with running_worker(temporal, memory, [fallback, script_agent], task_queue):
        of_two = await start(temporal, task_queue, fallback, speech("Good day"))
        whole = await start(temporal, task_queue, script_agent, script([], final="in one piece"))
        first, second = await asyncio.gather(
            followed(memory, of_two.id), followed(memory, whole.id)
        )
    kinds = [event.kind for event in first]
    assert kinds == ["text", "retry", "text", "text", "run_completed"]
    assert (reply_of(first), reply_of(second)) == ("Good day", "in one piece")
    takes = await memory.streams.list_takes(run_id=whole.id, request=2)
    assert [item.text for item in await memory.streams.list_items(takes[0])] == [
        "",
        "in one piece",
        "",
    ]
