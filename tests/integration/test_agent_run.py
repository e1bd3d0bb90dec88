"""`agent_run` on a real Temporal server: what a run leaves, and how it fails."""

import asyncio
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, CancelledError

from stores.memory import InMemoryStepStore
from stores.protocols import StepStore
from tests.helpers.eventually import eventually
from tests.helpers.script import echo_steps, follow, make_agent, script
from tests.helpers.workers import count_events, count_scheduled_activities, replay, running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput, AgentRunOutput, AgentRunStatus
from workflows.durable import durable

pytestmark = pytest.mark.integration

AGENT = make_agent("script")
NUMBERS = Agent(FunctionModel(follow), name="numbers", deps_type=int, capabilities=[*durable()])


async def start(
    client: Client, task_queue: str, request: AgentRunInput, **options: Any
) -> WorkflowHandle[AgentRunWorkflow, AgentRunOutput]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        request,
        id=options.pop("id", f"run-{uuid4().hex}"),
        task_queue=task_queue,
        **options,
    )


async def failure_of(handle: WorkflowHandle[Any, Any]) -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as caught:
        await asyncio.wait_for(handle.result(), 30)
    assert isinstance(caught.value.cause, ApplicationError), caught.value.cause
    return caught.value.cause


async def kinds(store: StepStore, run_id: str) -> Counter[str]:
    return Counter(event.kind for event in await store.list_events(run_id=run_id))


@pytest.mark.spec("SP-9", "SP-31", "SP-119", "SP-128")
async def test_run_leaves_events_effects_and_snapshots_in_order(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    async with running_worker(temporal, memory, [AGENT], task_queue):
        handle = await start(
            temporal,
            task_queue,
            AgentRunInput(
                agent="script",
                prompt=echo_steps(2, parallel=2),
                conversation_id="conversation",
                metadata={"team": "blue"},
                principal="alice",
            ),
        )
        output = await handle.result()
        history = await replay(handle, [AGENT])

    assert output.output == "done"
    assert output.run_id == handle.id
    assert output.conversation_id == "conversation"
    assert output.message_count == 6
    assert output.usage.requests == 3
    record = await memory.get_run(run_id=handle.id)
    assert record is not None
    assert (record.state, record.agent_name, record.principal) == ("completed", "script", "alice")
    assert record.metadata == {"team": "blue"}
    assert record.usage is not None
    assert record.usage["requests"] == 3
    events = await memory.list_events(run_id=handle.id)
    assert [event.sequence for event in events] == sorted(event.sequence for event in events)
    assert await kinds(memory, handle.id) == {
        "run_started": 1,
        "run_completed": 1,
        "model_request_started": 3,
        "model_request_completed": 3,
        "tool_call_started": 4,
        "tool_call_completed": 4,
    }
    effects = await memory.list_tool_effects(run_id=handle.id)
    assert [(e.step_index, e.call_index, e.status, e.effect) for e in effects] == [
        (1, 0, "completed", "read"),
        (1, 1, "completed", "read"),
        (2, 0, "completed", "read"),
        (2, 1, "completed", "read"),
    ]
    snapshots = await memory.list_snapshots(run_id=handle.id)
    assert [len(snapshot.messages) for snapshot in snapshots] == [3, 5, 6]
    assert {snapshot.state for snapshot in snapshots} == {"complete"}
    # 9; one more for each of two pairs of calls that do not end in one workflow task.
    assert count_events(history)["EVENT_TYPE_MARKER_RECORDED"] <= 11


@pytest.mark.spec("SP-23")
async def test_conversation_of_an_unnamed_dialogue_is_found_on_the_record(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    async with running_worker(temporal, memory, [AGENT], task_queue):
        handle = await start(
            temporal, task_queue, AgentRunInput(agent="script", prompt=echo_steps(0))
        )
        output = await handle.result()
    record = await memory.get_run(run_id=handle.id)
    assert record is not None
    assert output.conversation_id == record.conversation_id
    assert record.conversation_id


@pytest.mark.spec("SP-4", "SP-33", "SP-125")
async def test_tool_that_raises_fails_the_run_by_name(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    quick = make_agent("quick", activities={"retry_policy": RetryPolicy(maximum_attempts=1)})
    async with running_worker(temporal, memory, [quick], task_queue):
        prompt = script([[("echo", {"text": "a"})], [("fail", {"text": "no luck"})]])
        handle = await start(temporal, task_queue, AgentRunInput(agent="quick", prompt=prompt))
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        await replay(handle, [quick])

    assert "no luck" in repr(caught.value.cause) + repr(caught.value.cause.__cause__)
    record = await memory.get_run(run_id=handle.id)
    assert record is not None
    assert record.state == "failed"
    assert await kinds(memory, handle.id) == {
        "run_started": 1,
        "run_failed": 1,
        "model_request_started": 2,
        "model_request_completed": 2,
        "tool_call_started": 2,
        "tool_call_completed": 1,
        "tool_call_failed": 1,
    }
    effects = await memory.list_tool_effects(run_id=handle.id)
    assert [effect.status for effect in effects] == ["completed", "failed"]
    latest = await memory.latest_snapshot(run_id=handle.id)
    interrupted = await memory.latest_snapshot(run_id=handle.id, include_interrupted=True)
    assert latest is not None
    assert interrupted is not None
    assert latest.state == "complete"
    assert interrupted.state == "interrupted"
    assert interrupted.messages[:4] != latest.messages
    assert len(interrupted.messages) > len(latest.messages)


async def test_model_asked_to_retry_is_no_failed_attempt(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Any
) -> None:
    call = ("retry", {"path": str(tmp_path / "tries"), "times": 2})
    async with running_worker(temporal, memory, [AGENT], task_queue):
        prompt = script([[call], [call], [call]])
        handle = await start(temporal, task_queue, AgentRunInput(agent="script", prompt=prompt))
        await handle.result()
        history = await replay(handle, [AGENT])
    effects = await memory.list_tool_effects(run_id=handle.id)
    assert [effect.status for effect in effects] == ["failed", "failed", "completed"]
    assert "ToolRetryError" in str(effects[0].error)
    attempts = [
        event.activity_task_started_event_attributes.attempt
        for event in history.events
        if event.HasField("activity_task_started_event_attributes")
    ]
    assert set(attempts) == {1}


@pytest.mark.spec("SP-6", "SP-112")
async def test_cancelled_run_ends_cancelled_with_what_was_finished(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Any
) -> None:
    started = tmp_path / "started"
    call = ("wait_for", {"path": str(tmp_path / "never"), "marker": str(started)})
    async with running_worker(temporal, memory, [AGENT], task_queue):
        prompt = script([[("echo", {"text": "a"})], [("echo", {"text": "b"}), call]])
        handle = await start(temporal, task_queue, AgentRunInput(agent="script", prompt=prompt))
        await eventually(started.exists)

        async def quick_sibling_has_ended() -> bool:
            effects = await memory.list_tool_effects(run_id=handle.id)
            return effects[1].status == "completed"

        await eventually(quick_sibling_has_ended)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await asyncio.wait_for(handle.result(), 30)
        await replay(handle, [AGENT])
    assert isinstance(caught.value.cause, CancelledError)
    record = await memory.get_run(run_id=handle.id)
    assert record is not None
    assert record.state == "cancelled"
    events = await memory.list_events(run_id=handle.id)
    assert (events[-1].kind, events[-1].error) == ("run_failed", "cancelled")
    effects = await memory.list_tool_effects(run_id=handle.id)
    assert [effect.status for effect in effects] == ["completed", "completed", "unknown"]


async def test_query_tells_state_and_calls_in_flight(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Any
) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    call = ("wait_for", {"path": str(go), "marker": str(started)})
    async with running_worker(temporal, memory, [AGENT], task_queue):
        handle = await start(
            temporal, task_queue, AgentRunInput(agent="script", prompt=script([[call]]))
        )
        await eventually(started.exists)
        status = await handle.query(AgentRunWorkflow.status)
        open_calls = await handle.query(AgentRunWorkflow.unresolved_tool_effects)
        go.touch()
        await handle.result()
        ended = await handle.query(AgentRunWorkflow.status)
        none_left = await handle.query(AgentRunWorkflow.unresolved_tool_effects)
    assert status == AgentRunStatus(run_id=handle.id, agent="script", state="running")
    assert [(each.tool_name, each.step_index) for each in open_calls] == [("wait_for", 1)]
    assert ended.state == "completed"
    assert none_left == []


@pytest.mark.parametrize(
    ("request_", "type_", "words"),
    [
        ({"agent": "nobody", "prompt": "x"}, "UnknownAgentError", "known agents: numbers, script"),
        ({"agent": "script"}, "InvalidInputError", "prompt is missing"),
        (
            {"agent": "script", "prompt": "x", "metadata": {"a": {"b": 1}}},
            "InvalidInputError",
            "metadata.a",
        ),
        (
            {"agent": "script", "prompt": "x", "conversation_id": " padded"},
            "InvalidInputError",
            "white space",
        ),
        (
            {"agent": "script", "prompt": "x", "workspace_id": "a\u0000b"},
            "InvalidInputError",
            "control character",
        ),
        (
            {"agent": "numbers", "prompt": "x", "deps": {"a": 1}},
            "InvalidDepsError",
            "deps_type int",
        ),
        (
            {"agent": "script", "prompt": "x", "continue_from": "a", "fork_from": "b"},
            "InvalidInputError",
            "exclude each other",
        ),
        ({"agent": "script", "continue_from": "nothing"}, "LookupError", "'nothing'"),
        ({"agent": "script", "prompt": "x", "model": "no:such"}, "UserError", "no"),
    ],
)
async def test_bad_input_fails_the_run_in_words_and_writes_nothing(
    temporal: Client,
    memory: InMemoryStepStore,
    task_queue: str,
    request_: dict[str, Any],
    type_: str,
    words: str,
) -> None:
    async with running_worker(temporal, memory, [AGENT, NUMBERS], task_queue):
        handle: WorkflowHandle[Any, Any] = await temporal.start_workflow(
            "agent_run", request_, id=f"bad-{uuid4().hex}", task_queue=task_queue
        )
        error = await failure_of(handle)
        await replay(handle, [AGENT, NUMBERS])
    assert error.type == type_
    assert words in error.message
    if type_ != "UserError":
        assert await memory.get_run(run_id=handle.id) is None


@pytest.mark.parametrize(
    "options", [{"retry_policy": RetryPolicy(maximum_attempts=2)}, {"cron_schedule": "0 0 1 1 *"}]
)
async def test_repetition_by_the_server_is_refused(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, options: dict[str, Any]
) -> None:
    async with running_worker(temporal, memory, [AGENT], task_queue):
        handle = await start(
            temporal, task_queue, AgentRunInput(agent="script", prompt="x"), **options
        )
        if "cron_schedule" in options:
            await handle.signal("nothing")  # starts the first execution at once
            await temporal.get_workflow_handle(handle.id).terminate()
            return
        error = await failure_of(handle)
    assert error.type == "RepetitionRefusedError"


@pytest.mark.spec("SP-11", "SP-19")
async def test_run_id_of_another_registration_is_refused_and_records_nothing(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    """The same words whether the id is taken in one's own workspace or in another."""
    texts: list[str] = []
    async with running_worker(temporal, memory, [AGENT], task_queue):
        first = await start(
            temporal, task_queue, AgentRunInput(agent="script", prompt=echo_steps(1))
        )
        await first.result()
        before = await memory.list_events(run_id=first.id)
        for workspace in ("default", "other"):
            second = await start(
                temporal,
                task_queue,
                AgentRunInput(agent="script", prompt=echo_steps(1), workspace_id=workspace),
                id=first.id,
            )
            error = await failure_of(second)
            await replay(second, [AGENT])
            assert error.type == "RunIdTakenError"
            texts.append(error.message)
    assert texts[0] == texts[1]
    assert await memory.list_events(run_id=first.id) == before
    assert await memory.for_workspace("other").get_run(run_id=first.id) is None


async def test_workspaces_do_not_see_each_other(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    async with running_worker(temporal, memory, [AGENT], task_queue):
        handle = await start(
            temporal,
            task_queue,
            AgentRunInput(agent="script", prompt=echo_steps(1), workspace_id="tenant"),
        )
        await handle.result()
    assert await memory.get_run(run_id=handle.id) is None
    assert await memory.list_events(run_id=handle.id) == []
    tenant = memory.for_workspace("tenant")
    assert (await kinds(tenant, handle.id))["run_completed"] == 1


async def test_continued_run_goes_on_in_its_conversation(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    async with running_worker(temporal, memory, [AGENT], task_queue):
        first = await start(
            temporal,
            task_queue,
            AgentRunInput(agent="script", prompt=echo_steps(1), conversation_id="talk"),
        )
        await first.result()
        second = await start(
            temporal,
            task_queue,
            AgentRunInput(agent="script", prompt=echo_steps(1), continue_from=first.id),
        )
        output = await second.result()
        fork = await start(
            temporal,
            task_queue,
            AgentRunInput(agent="script", prompt=echo_steps(0), fork_from=first.id),
        )
        forked = await fork.result()
        await replay(second, [AGENT])
    assert (output.conversation_id, output.message_count) == ("talk", 8)
    assert forked.conversation_id != "talk"
    assert [run.run_id for run in await memory.list_runs(conversation_id="talk")] == [
        first.id,
        second.id,
    ]


@pytest.mark.parametrize("kind", ["surrogate", "object"])
async def test_tool_result_that_json_cannot_hold_fails_the_run_at_the_first_attempt(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, kind: str
) -> None:
    async with running_worker(temporal, memory, [AGENT], task_queue):
        handle = await start(
            temporal,
            task_queue,
            AgentRunInput(agent="script", prompt=script([[("odd", {"kind": kind})]])),
        )
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), 10)
        history = await replay(handle, [AGENT])
    (effect,) = await memory.list_tool_effects(run_id=handle.id)
    assert effect.status == "failed"
    assert "UnserializableValueError" in str(effect.error)
    assert count_scheduled_activities(history)["agent__script__toolset__<agent>__call_tool"] == 1


async def test_prompt_over_the_payload_limit_is_refused_at_submit(
    temporal: Client, task_queue: str
) -> None:
    with pytest.raises(ApplicationError, match=r"PayloadTooLargeError.*2097152"):
        await start(temporal, task_queue, AgentRunInput(agent="script", prompt="x" * 3_000_000))


async def test_history_over_the_payload_limit_fails_the_run_with_its_size(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    async with running_worker(temporal, memory, [AGENT], task_queue):
        big = echo_steps(9, size=200_000)
        assert len(big) < 2_000_000
        handle = await start(temporal, task_queue, AgentRunInput(agent="script", prompt=big))
        error = await failure_of(handle)
    assert "PayloadTooLargeError" in repr(error) or "limit is 2097152" in repr(error)
    record = await memory.get_run(run_id=handle.id)
    assert record is not None
    assert record.state == "failed"
