"""What a run's tools and delegates know of it, in activities of whatever worker."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from stores.commits import CommitHead
from stores.mongo.steps import MongoStepStore
from stores.protocols import StepStore
from stores.records import RunRecord
from tests.helpers.delegating_agents import AGENTS, outliving
from tests.helpers.eventually import eventually
from tests.helpers.helping_workflows import (
    CALLING_OUT,
    INNER,
    AsksForHelp,
    RunsAnAgent,
    help_out,
)
from tests.helpers.script import Call, echo_steps, script
from tests.helpers.workers import replay, running_worker
from tests.integration.test_reset import reset
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.direct import StaleAttemptError
from workflows.lineage import Lineage, delegate_run_id
from workflows.names import LINEAGE_HEADER

pytestmark = pytest.mark.integration

WITHIN_SECONDS = 30


async def start(
    client: Client,
    task_queue: str,
    steps: list[list[Call]],
    agent: str = "parent",
    **request: Any,
) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent=agent, prompt=script(steps), **request),
        id=f"lineage-{uuid4().hex}",
        task_queue=task_queue,
    )


async def run_to_end(
    client: Client, task_queue: str, steps: list[list[Call]], **request: Any
) -> WorkflowHandle[Any, Any]:
    handle = await start(client, task_queue, steps, **request)
    await asyncio.wait_for(handle.result(), WITHIN_SECONDS)
    return handle


def child_id(run_id: str, step: int, call: int, order: int) -> str:
    return delegate_run_id(Lineage(run_id=run_id).in_call(step, call, "any"), order=order)


async def only_child(store: StepStore, run_id: str) -> RunRecord:
    (child,) = await store.list_runs(parent_run_id=run_id)
    return child


async def head_of(store: StepStore, run: RunRecord) -> CommitHead:
    head = await store.find_commit_head(execution_id=run.branches[-1].execution_id)
    assert head is not None
    return head


async def kinds_of(store: StepStore, run_id: str) -> list[str]:
    return [each.kind for each in await store.list_events(run_id=run_id)]


UNDISTURBED = [
    "run_started",
    *("model_request_started", "model_request_completed"),
    *("tool_call_started", "tool_call_completed"),
    *("model_request_started", "model_request_completed"),
    "run_completed",
]


@pytest.mark.spec("SP-36", "SP-37", "SP-38")
async def test_a_delegate_in_a_tool_activity_is_kept_and_names_its_parent(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    steps: list[list[Call]] = [[("delegate", {"prompts": [echo_steps(1)]})]]
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await run_to_end(
            temporal, task_queue, steps, workspace_id="tenant", conversation_id="talk"
        )
        await replay(handle, AGENTS)
    store = mongo.for_workspace("tenant")
    child = await only_child(store, handle.id)
    assert child.run_id == child_id(handle.id, 1, 0, 0)
    assert (child.agent_name, child.state, child.workspace_id) == ("helper", "completed", "tenant")
    assert child.conversation_id not in {None, "talk"}
    assert await kinds_of(store, child.run_id) == UNDISTURBED
    snapshot = await store.latest_snapshot(run_id=child.run_id)
    assert snapshot is not None
    assert {message.run_id for message in snapshot.messages} == {child.run_id}
    assert await mongo.list_runs() == []


@pytest.mark.spec("SP-36")
async def test_each_activity_has_a_header_and_no_boundary_has(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    steps: list[list[Call]] = [[("echo", {"text": "secret"}), ("echo", {"text": "words"})]]
    async with running_worker(temporal, mongo, AGENTS, task_queue, boundary_mode="regular"):
        handle = await run_to_end(temporal, task_queue, steps)
        history = await replay(handle, AGENTS)
    found: dict[str, list[dict[str, Any]]] = {}
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            fields = dict(scheduled.header.fields)
            name = scheduled.activity_type.name
            found.setdefault(name, [])
            if fields:
                assert set(fields) == {LINEAGE_HEADER}
                found[name].append(json.loads(fields[LINEAGE_HEADER].data))
    told = {name: each for name, each in found.items() if each}
    run = {
        "run_id": handle.id,
        "conversation_id": handle.id,
        "branch": handle.first_execution_run_id,
    }
    tools = [each for name, each in told.items() if "call_tool" in name]
    assert tools == [
        [
            {
                **run,
                "step_index": 1,
                "call_index": index,
                "tool_call_id": f"call-1-{index}",
                "tool_name": "echo",
                "effect": "read",
            }
            for index in range(2)
        ]
    ]
    models = [each for name, each in told.items() if "model_request" in name]
    assert models == [[run, run]]
    assert len(told) == 2
    assert {"commit_boundaries"} <= set(found)


@pytest.mark.spec("SP-36", "SP-37")
async def test_parallel_tools_with_delegates_each_know_their_own_call(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    calls: list[Call] = [
        ("delegate", {"prompts": [echo_steps(1, size=8 * call + 1)] * 2}) for call in range(1, 4)
    ]
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await run_to_end(temporal, task_queue, [calls, calls[:1]])
    children = await mongo.list_runs(parent_run_id=handle.id)
    expected = [(1, call) for call in range(3)] + [(2, 0)]
    places = {
        child_id(handle.id, step, call, order): (step, call)
        for step, call in expected
        for order in range(2)
    }
    assert {child.run_id for child in children} == set(places)
    for child in children:
        _, call = places[child.run_id]
        (effect,) = await mongo.list_tool_effects(run_id=child.run_id)
        arguments = json.loads(str(effect.arguments_summary))
        assert len(arguments["text"]) == max(3, 8 * (call + 1) + 1)


@pytest.mark.spec("SP-36", "SP-122")
async def test_a_delegate_of_a_delegate_names_the_delegate(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    inner = script([[("ask", {"prompt": script([])}), ("ask", {"prompt": script([])})]])
    steps: list[list[Call]] = [[("delegate", {"prompts": [inner], "fail_until": 1})]]
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await run_to_end(temporal, task_queue, steps)
    child = await only_child(mongo, handle.id)
    grandchildren = await mongo.list_runs(parent_run_id=child.run_id)
    assert {each.run_id for each in grandchildren} == {
        child_id(child.run_id, 1, call, 0) for call in range(2)
    }
    assert {each.state for each in grandchildren} == {"completed"}
    effects = await mongo.list_tool_effects(run_id=child.run_id)
    assert [each.effect_summary for each in effects] == ["asks grandchild"] * 2
    assert len(await mongo.list_runs()) == 4


@pytest.mark.spec("SP-36", "SP-37")
async def test_three_attempts_of_a_tool_are_three_branches_of_one_child_run(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    steps: list[list[Call]] = [[("delegate", {"prompts": [echo_steps(1)], "fail_until": 2})]]
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await run_to_end(temporal, task_queue, steps)
    child = await only_child(mongo, handle.id)
    head = await head_of(mongo, child)
    execution = handle.first_execution_run_id
    branches = [f"{execution}/{attempt}/{child.run_id}" for attempt in (1, 2, 3)]
    assert [*head.former_branches, head.branch] == branches
    assert child.state == "completed"
    assert await kinds_of(mongo, child.run_id) == UNDISTURBED
    events = await mongo.list_events(run_id=child.run_id)
    assert {event.branch for event in events} == {branches[-1]}
    (effect,) = await mongo.list_tool_effects(run_id=child.run_id)
    assert (effect.status, effect.branch) == ("completed", branches[-1])
    assert len(await mongo.list_snapshots(run_id=child.run_id)) == 2


@pytest.mark.spec("SP-36")
async def test_what_is_left_of_an_earlier_attempt_is_ended_and_changes_nothing(
    temporal: Client, mongo: MongoStepStore, task_queue: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    outliving.clear()
    prompt = script([[("wait_in_first_attempt", {"path": str(go)})]])
    steps: list[list[Call]] = [[("stubborn", {"prompt": prompt})]]
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await run_to_end(temporal, task_queue, steps, agent="hasty")
        child = await only_child(mongo, handle.id)
        before = await mongo.list_events(run_id=child.run_id)
        effects = await mongo.list_tool_effects(run_id=child.run_id)
        go.touch()
        with pytest.raises(StaleAttemptError, match=r"attempt 1 .* a later attempt has begun"):
            await asyncio.wait_for(outliving[1], WITHIN_SECONDS)
    assert await mongo.list_events(run_id=child.run_id) == before
    assert await mongo.list_tool_effects(run_id=child.run_id) == effects
    assert [event.kind for event in before] == UNDISTURBED
    head = await head_of(mongo, child)
    assert head.stale_count >= 1
    assert (await only_child(mongo, handle.id)).state == "completed"


@pytest.mark.spec("SP-36")
async def test_after_a_reset_the_delegate_goes_on_as_a_branch_of_the_new_execution(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    steps: list[list[Call]] = [[("delegate", {"prompts": [echo_steps(1)]})]]
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await run_to_end(temporal, task_queue, steps)
        first = await only_child(mongo, handle.id)
        again = await reset(temporal, handle, task=0)
        await asyncio.wait_for(again.result(), WITHIN_SECONDS)
    child = await only_child(mongo, handle.id)
    assert (child.run_id, child.state) == (first.run_id, "completed")
    assert await kinds_of(mongo, child.run_id) == UNDISTURBED
    head = await head_of(mongo, child)
    assert head.branch.startswith(f"{again.run_id}/1/")
    assert [each.partition("/")[0] for each in head.former_branches] == [
        handle.first_execution_run_id
    ]


async def test_a_delegate_in_a_thread_is_written_by_the_workers_own_loop(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    steps: list[list[Call]] = [[("delegate_in_a_thread", {"prompt": echo_steps(1)})]]
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await run_to_end(temporal, task_queue, steps)
    child = await only_child(mongo, handle.id)
    assert child.run_id == child_id(handle.id, 1, 0, 0)
    assert await kinds_of(mongo, child.run_id) == UNDISTURBED


@pytest.mark.spec("SP-36", "SP-121")
async def test_ids_that_a_delegate_names_itself_win(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    mine = f"mine-{task_queue}"
    steps: list[list[Call]] = [
        [("delegate_as", {"run_ids": [mine], "parent_run_id": "somebody"})],
        [("delegate_as", {"run_ids": [f"{mine}-2"]})],
    ]
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await run_to_end(temporal, task_queue, steps)
    assert (await only_child(mongo, "somebody")).run_id == mine
    assert (await only_child(mongo, handle.id)).run_id == f"{mine}-2"


@pytest.mark.parametrize("is_other_call", [True, False])
async def test_a_run_id_that_is_taken_is_refused_to_a_delegate_at_once(
    temporal: Client, mongo: MongoStepStore, task_queue: str, *, is_other_call: bool
) -> None:
    mine = f"mine-{task_queue}"
    one: list[Call] = [("delegate_as", {"run_ids": [mine]})]
    twice: list[Call] = [("delegate_as", {"run_ids": [mine, mine]})]
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(temporal, task_queue, [one, one] if is_other_call else [twice])
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), WITHIN_SECONDS)
    run = await mongo.get_run(run_id=handle.id)
    assert run is not None
    assert str(run.error).startswith(f"RunIdTakenError: run_id {mine!r} is taken")
    child = await only_child(mongo, handle.id)
    assert (child.run_id, child.state) == (mine, "completed")


# --- annotate ---


@pytest.mark.spec("SP-40", "SP-41", "SP-42")
async def test_an_annotation_is_seen_while_the_tool_runs_and_kept_when_it_has_ended(
    temporal: Client, mongo: MongoStepStore, task_queue: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    calls: list[Call] = [("set_label", {"label": label, "go": str(go)}) for label in "ab"]
    calls.append(("echo", {"text": "c"}))

    async def said() -> list[tuple[str | None, str | None]]:
        effects = await mongo.list_tool_effects(run_id=handle.id)
        return [(each.idempotency_key, each.effect_summary) for each in effects]

    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(temporal, task_queue, [calls])
        expected = [("label::a", "set a"), ("label::b", "set b"), (None, None)]

        async def is_said() -> bool:
            return await said() == expected

        await eventually(is_said)
        unresolved = await mongo.list_unresolved_tool_effects(run_id=handle.id)
        assert [each.idempotency_key for each in unresolved][:2] == ["label::a", "label::b"]
        go.touch()
        await asyncio.wait_for(handle.result(), WITHIN_SECONDS)
    assert await said() == expected
    effects = await mongo.list_tool_effects(run_id=handle.id)
    assert {each.status for each in effects} == {"completed"}


@pytest.mark.spec("SP-40", "SP-42")
async def test_a_tool_in_the_workflow_annotates_by_the_record_of_its_end(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    steps: list[list[Call]] = [[("label_in_workflow", {"label": "a"}), ("echo", {"text": "b"})]]
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await run_to_end(temporal, task_queue, steps)
        await replay(handle, AGENTS)
    first, second = await mongo.list_tool_effects(run_id=handle.id)
    assert (first.idempotency_key, first.effect_summary) == ("label::a", "set a")
    assert (first.status, second.idempotency_key) == ("completed", None)


# --- a user's own workflows and activities ---


async def test_a_delegate_in_an_activity_of_no_run_is_kept_under_its_own_id(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    async with running_worker(
        temporal, mongo, AGENTS, task_queue, workflows=[AsksForHelp], activities=[help_out]
    ):
        run_id = await temporal.execute_workflow(
            AsksForHelp.run, echo_steps(1), id=f"help-{task_queue}", task_queue=task_queue
        )
    (run,) = await mongo.list_runs()
    assert (run.run_id, run.parent_run_id, run.state) == (run_id, None, "completed")
    assert await kinds_of(mongo, run_id) == UNDISTURBED


@pytest.mark.spec("SP-36", "SP-37")
async def test_activities_and_child_workflows_of_a_tool_in_the_workflow_know_the_run(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    agents = [CALLING_OUT, INNER]
    workflows = [AsksForHelp, RunsAnAgent]
    async with running_worker(
        temporal, mongo, agents, task_queue, workflows=workflows, activities=[help_out]
    ):
        handle = await run_to_end(
            temporal,
            task_queue,
            [[("echo", {"text": "a"}), ("call_out", {"prompt": echo_steps(1)})]],
            agent="calling-out",
            workspace_id="tenant",
        )
    store = mongo.for_workspace("tenant")
    snapshot = await store.latest_snapshot(run_id=handle.id)
    assert snapshot is not None
    (content,) = [
        part.content
        for message in snapshot.messages
        for part in message.parts
        if part.part_kind == "tool-return" and part.tool_name == "call_out"
    ]
    returned = cast("list[str]", content)
    children = await store.list_runs(parent_run_id=handle.id)
    assert {each.run_id for each in children} == set(returned)
    assert len(children) == 4
    place = Lineage(run_id=handle.id).in_call(1, 1, "any")
    second = place.model_copy(update={"activity_index": 1})
    assert returned[:2] == [delegate_run_id(place, order=0), delegate_run_id(second, order=0)]
    assert {each.state for each in children} == {"completed"}
