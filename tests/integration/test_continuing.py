"""Runs that continue or fork another one, on a real Temporal server."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pymongo import MongoClient
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy

from stores.continuing import find_continuation
from stores.decisions import RESOLVED_BY, settle_tool_effect
from stores.memory import InMemoryStepStore
from stores.mongo.documents import DEPARTS
from stores.mongo.steps import MongoStepStore
from stores.protocols import StepStore
from stores.records import ToolEffectResolution
from tests.helpers.eventually import eventually
from tests.helpers.script import Call, echo_steps, follow, make_agent, script
from tests.helpers.workers import count_scheduled_activities, replay, running_worker
from tests.integration.test_agent_run import failure_of, start
from workflows.agent_run_models import AgentRunInput
from workflows.durable import durable
from workflows.persistence import StepPersistence

pytestmark = pytest.mark.integration

AGENT = make_agent("script", activities={"retry_policy": RetryPolicy(maximum_attempts=1)})


def frontier_agent(
    name: str = "frontier", *, tools: Sequence[str] = ("mark", "hold")
) -> Agent[None, str]:
    """An agent whose responses are saved before their calls run; `hold` never ends."""
    recorder = StepPersistence[None](capture_frontier=True)
    agent = Agent(FunctionModel(follow), name=name, capabilities=[*durable(recorder)])

    async def mark(path: str) -> str:
        with Path(path).open("a") as file:
            file.write("x")
        return "marked"

    async def hold(path: str) -> str:
        with Path(path).open("a") as file:
            file.write("h")
        while not Path(f"{path}.go").exists():
            await asyncio.sleep(0.02)
        return "held"

    for tool in (mark, hold):
        if tool.__name__ in tools:
            agent.tool_plain(metadata={"effect": "idempotent"})(tool)
    return agent


FRONTIER = frontier_agent()
WITHOUT_HOLD = frontier_agent("poorer", tools=["mark"])
AGENTS = [AGENT, FRONTIER, WITHOUT_HOLD]


def returns_of(messages: Sequence[ModelMessage]) -> list[ToolReturnPart]:
    parts = [part for message in messages for part in message.parts]
    return [part for part in parts if isinstance(part, ToolReturnPart)]


async def run(
    client: Client, task_queue: str, **request: Any
) -> tuple[WorkflowHandle[Any, Any], Any]:
    given = AgentRunInput.model_validate({"agent": "script", **request})
    handle = await start(client, task_queue, given)
    return handle, await asyncio.wait_for(handle.result(), 30)


async def left_in_a_tool(
    client: Client, store: StepStore, task_queue: str, file: Path, calls: list[list[Call]]
) -> str:
    """The id of a run that was terminated in the middle of `hold`."""
    handle = await start(client, task_queue, AgentRunInput(agent="frontier", prompt=script(calls)))

    async def only_hold_is_open() -> bool:
        found = await store.list_unresolved_tool_effects(run_id=handle.id)
        return file.exists() and [each.tool_name for each in found] == ["hold"]

    await eventually(only_hold_is_open)
    await handle.terminate()
    return handle.id


@pytest.mark.spec("SP-7")
async def test_the_record_says_what_a_run_began_with(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    async with running_worker(temporal, memory, AGENTS, task_queue):
        source, _ = await run(temporal, task_queue, prompt=echo_steps(3))
        middle = (await memory.list_snapshots(run_id=source.id))[1]
        continued, output = await run(
            temporal, task_queue, prompt=echo_steps(1), continue_from=source.id
        )
        forked, fork = await run(
            temporal,
            task_queue,
            prompt=echo_steps(1),
            fork_from=source.id,
            at_snapshot=middle.sequence,
        )
        by_step, _ = await run(temporal, task_queue, fork_from=source.id, at_step=1)
        for each in (continued, forked, by_step):
            await replay(each, AGENTS)
    record = await memory.get_run(run_id=continued.id)
    assert record is not None
    newest = await memory.latest_snapshot(run_id=source.id)
    assert newest is not None
    assert (record.continued_from, record.from_snapshot) == (source.id, newest.sequence)
    assert output.message_count == 12
    record = await memory.get_run(run_id=forked.id)
    assert record is not None
    assert (record.forked_from, record.from_snapshot) == (source.id, middle.sequence)
    assert fork.message_count == len(middle.messages) + 4
    # With no prompt the script goes on where the fork left it.
    effects = await memory.list_tool_effects(run_id=by_step.id)
    assert [each.tool_name for each in effects] == ["echo", "echo"]


@pytest.mark.parametrize("place", [{"at_snapshot": 999}, {"at_step": 9}])
async def test_an_unknown_snapshot_fails_the_run_with_those_there_are(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, place: dict[str, Any]
) -> None:
    async with running_worker(temporal, memory, AGENTS, task_queue):
        source, _ = await run(temporal, task_queue, prompt=echo_steps(1))
        request = AgentRunInput(agent="script", prompt="x", fork_from=source.id, **place)
        fork = await start(temporal, task_queue, request)
        error = await failure_of(fork)
    assert error.type == "LookupError"
    assert "(step 1, complete)" in error.message
    assert await memory.get_run(run_id=fork.id) is None


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"prompt": "x", "at_snapshot": 1}, "need fork_from"),
        ({"continue_from": "a", "at_step": 1}, "need fork_from"),
        ({"fork_from": "a", "at_step": 1, "at_snapshot": 1}, "exclude each other"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(request_: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AgentRunInput(agent="script", **request_)


async def test_unresolved_effects_are_crossed_only_when_somebody_says_so(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Path
) -> None:
    marks, held = tmp_path / "marks", tmp_path / "held"
    calls: list[list[Call]] = [
        [("mark", {"path": str(marks)})],
        [("hold", {"path": str(held)})],
    ]
    async with running_worker(temporal, memory, AGENTS, task_queue):
        source = await left_in_a_tool(temporal, memory, task_queue, held, calls)
        places: list[dict[str, Any]] = [{"continue_from": source}, {"fork_from": source}]
        for place in places:
            request = AgentRunInput(agent="frontier", prompt=script([]), **place)
            refused = await start(temporal, task_queue, request)
            error = await failure_of(refused)
            history = await replay(refused, AGENTS)
            assert error.type == "UnresolvedEffectsError"
            assert "hold (call 'call-2-0') of step 2, started, since 20" in error.message
            assert count_scheduled_activities(history) == {"load_history": 1}
            assert await memory.get_run(run_id=refused.id) is None
        # Before the call there is nothing to accept; and what is accepted is crossed.
        before, _ = await run(
            *(temporal, task_queue),
            agent="frontier",
            prompt=script([]),
            fork_from=source,
            at_step=1,
        )
        _, output = await run(
            temporal,
            task_queue,
            agent="frontier",
            prompt=script([]),
            continue_from=source,
            accept_unresolved=True,
        )
    assert output.output == "done"
    assert marks.read_text() == "x"
    assert await memory.list_tool_effects(run_id=before.id) == []


@pytest.mark.spec("SP-34")
async def test_an_interrupted_history_without_a_prompt_executes_its_pending_calls(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    async with running_worker(temporal, memory, AGENTS, task_queue):
        source = await left_in_a_tool(
            temporal, memory, task_queue, held, [[("hold", {"path": str(held)})]]
        )
        Path(f"{held}.go").touch()
        handle, output = await run(
            temporal,
            task_queue,
            agent="frontier",
            continue_from=source,
            include_interrupted=True,
            accept_unresolved=True,
        )
        await replay(handle, AGENTS)
    assert output.output == "done"
    assert held.read_text() == "hh"
    (effect,) = await memory.list_tool_effects(run_id=handle.id)
    assert (effect.tool_name, effect.status, effect.step_index) == ("hold", "completed", 0)


async def test_decision_on_a_call_of_a_run_that_is_over_reaches_the_model_of_the_next(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    async with running_worker(temporal, memory, AGENTS, task_queue):
        source = await left_in_a_tool(
            temporal, memory, task_queue, held, [[("hold", {"path": str(held)})]]
        )
        (open_call,) = await memory.list_unresolved_tool_effects()
        said = ToolEffectResolution(decision="completed", by="ann", result='"held, says ann"')
        await settle_tool_effect(memory, open_call, said, now=open_call.started_at)
        # Without a prompt the call would be executed.
        handle, output = await run(
            *(temporal, task_queue),
            agent="frontier",
            continue_from=source,
            include_interrupted=True,
        )
        await replay(handle, AGENTS)
        Path(f"{held}.go").touch()
    assert output.output == "done"
    assert held.read_text() == "h"
    assert await memory.list_tool_effects(run_id=handle.id) == []
    snapshot = await memory.latest_snapshot(run_id=handle.id)
    assert snapshot is not None
    (told,) = returns_of(snapshot.messages)
    assert (told.content, told.tool_call_id) == ("held, says ann", "call-1-0")
    assert told.metadata == {RESOLVED_BY: {"by": "ann", "why": None}}


@pytest.mark.spec("SP-35")
async def test_a_prompt_after_calls_that_could_be_executed_is_refused_before_a_write(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    async with running_worker(temporal, memory, AGENTS, task_queue):
        source = await left_in_a_tool(
            temporal, memory, task_queue, held, [[("hold", {"path": str(held)})]]
        )
        request = AgentRunInput(
            agent="frontier",
            prompt=script([]),
            continue_from=source,
            include_interrupted=True,
            accept_unresolved=True,
        )
        refused = await start(temporal, task_queue, request)
        error = await failure_of(refused)
    assert error.type == "UserError"
    assert "hold (call 'call-1-0')" in error.message
    assert "repair_messages" in error.message
    assert await memory.get_run(run_id=refused.id) is None


@pytest.mark.spec("SP-35")
async def test_a_prompt_closes_out_a_batch_of_which_some_returned(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    calls: list[Call] = [("echo", {"text": "a"}), ("fail", {"text": "b"})]
    async with running_worker(temporal, memory, AGENTS, task_queue):
        request = AgentRunInput(agent="script", prompt=script([calls]))
        source = await start(temporal, task_queue, request)
        with pytest.raises(WorkflowFailureError):
            await source.result()
        handle, _ = await run(
            *(temporal, task_queue),
            prompt=script([], final="after"),
            continue_from=source.id,
            include_interrupted=True,
        )
    snapshot = await memory.latest_snapshot(run_id=handle.id)
    assert snapshot is not None
    contents = {part.tool_call_id: part for part in returns_of(snapshot.messages)}
    assert contents["call-1-0"].content == "a"
    assert contents["call-1-1"].metadata == {"pydantic_ai_synthesized_tool_return": True}
    assert await memory.list_tool_effects(run_id=handle.id) == []


async def test_a_run_that_has_only_interrupted_snapshots_is_not_forked_unasked(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    async with running_worker(temporal, memory, AGENTS, task_queue):
        request = AgentRunInput(agent="script", prompt=script([[("fail", {"text": "b"})]]))
        source = await start(temporal, task_queue, request)
        with pytest.raises(WorkflowFailureError):
            await source.result()
        fork = await start(
            temporal, task_queue, AgentRunInput(agent="script", prompt="x", fork_from=source.id)
        )
        error = await failure_of(fork)
    assert error.type == "LookupError"
    assert "no complete snapshot" in error.message
    assert "(step 1, interrupted)" in error.message
    assert "include_interrupted" in error.message
    assert await memory.get_run(run_id=fork.id) is None


async def test_pending_calls_of_a_tool_that_is_gone_fail_before_a_model_is_asked(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    async with running_worker(temporal, memory, AGENTS, task_queue):
        source = await left_in_a_tool(
            temporal, memory, task_queue, held, [[("hold", {"path": str(held)})]]
        )
        request = AgentRunInput(
            agent="poorer", continue_from=source, include_interrupted=True, accept_unresolved=True
        )
        refused = await start(temporal, task_queue, request)
        error = await failure_of(refused)
        history = await replay(refused, AGENTS)
    assert error.type == "MissingToolsError"
    assert "hold (call 'call-1-0'); its tools: mark" in error.message
    assert count_scheduled_activities(history) == {"load_history": 1}
    # It left nothing to go on from, so the source may be continued by an agent that has the tool.
    assert await memory.list_snapshots(run_id=refused.id) == []
    assert await find_continuation(memory, run_id=source) is None


async def test_answered_calls_of_a_tool_that_is_gone_are_history(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    Path(f"{held}.go").touch()
    async with running_worker(temporal, memory, AGENTS, task_queue):
        source, _ = await run(
            *(temporal, task_queue),
            agent="frontier",
            prompt=script([[("hold", {"path": str(held)})]]),
        )
        _, output = await run(
            temporal, task_queue, agent="poorer", prompt=script([]), continue_from=source.id
        )
    assert output.output == "done"


@pytest.mark.parametrize("kind", ["memory", "mongo"])
async def test_one_of_two_that_continue_a_run_at_once_wins_and_the_other_is_told(
    temporal: Client,
    memory: InMemoryStepStore,
    mongo: MongoStepStore,
    task_queue: str,
    kind: str,
) -> None:
    store: StepStore = memory if kind == "memory" else mongo
    async with running_worker(temporal, store, AGENTS, task_queue):
        source, _ = await run(temporal, task_queue, prompt=echo_steps(1))
        request = AgentRunInput(
            agent="script", prompt=echo_steps(2, delay=0.2), continue_from=source.id
        )
        names = [f"mine-{uuid4().hex}", f"yours-{uuid4().hex}"]
        both = [await start(temporal, task_queue, request, id=name) for name in names]
        ended = await asyncio.gather(*(each.result() for each in both), return_exceptions=True)
        lost = [
            each for each, end in zip(both, ended, strict=True) if isinstance(end, BaseException)
        ]
        assert len(lost) == 1
        error = await failure_of(lost[0])
        for each in both:
            await replay(each, AGENTS)
        (winner,) = [each for each in both if each is not lost[0]]
        # What it is told works.
        await run(temporal, task_queue, prompt=echo_steps(0), continue_from=winner.id)
        await run(temporal, task_queue, prompt=echo_steps(0), fork_from=source.id)
    assert error.type == "AlreadyContinuedError"
    assert f"continued by run {winner.id!r}" in error.message
    assert f"fork {source.id!r}" in error.message
    assert await store.get_run(run_id=lost[0].id) is None
    assert await store.list_events(run_id=lost[0].id) == []
    assert await store.list_tool_effects(run_id=lost[0].id) == []


@pytest.mark.parametrize("origin", ["continue_from", "fork_from"])
async def test_a_run_that_is_being_removed_is_no_beginning(
    temporal: Client,
    mongo: MongoStepStore,
    mongodb_uri: str,
    mongodb_database: str,
    task_queue: str,
    origin: str,
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        source, _ = await run(temporal, task_queue, prompt=echo_steps(1))
        with MongoClient[dict[str, Any]](mongodb_uri) as client:
            change = {"$set": {DEPARTS: 1}}
            client[mongodb_database]["runs"].update_one({"_id": source.id}, change)
        request = AgentRunInput.model_validate(
            {"agent": "script", "prompt": echo_steps(1), origin: source.id}
        )
        handle = await start(temporal, task_queue, request)
        error = await failure_of(handle)
        await replay(handle, AGENTS)
    assert error.type == "OriginRemovedError"
    assert f"from run {source.id!r} any more" in error.message
    assert await mongo.get_run(run_id=handle.id) is None
    assert await mongo.list_events(run_id=handle.id) == []


async def test_a_damaged_snapshot_is_named_with_another_one(
    temporal: Client,
    mongo: MongoStepStore,
    mongodb_uri: str,
    mongodb_database: str,
    task_queue: str,
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        source, _ = await run(temporal, task_queue, prompt=echo_steps(2))
        *_, earlier, newest = await mongo.list_snapshots(run_id=source.id)
        assert isinstance(newest.messages[-1], ModelResponse)
        with MongoClient[dict[str, Any]](mongodb_uri) as client:
            positions = client[mongodb_database]["positions"]
            positions.delete_one({"run_id": source.id, "position": len(newest.messages) - 1})
        request = AgentRunInput(agent="script", prompt=script([]), continue_from=source.id)
        refused = await start(temporal, task_queue, request)
        error = await failure_of(refused)
        fork, _ = await run(
            *(temporal, task_queue),
            prompt=script([]),
            fork_from=source.id,
            at_snapshot=earlier.sequence,
        )
    assert error.type == "DamagedSnapshotError"
    assert f"snapshot {newest.sequence} of run {source.id!r} is damaged" in error.message
    assert f"--at-snapshot {earlier.sequence}" in error.message
    assert await mongo.get_run(run_id=refused.id) is None
    assert await mongo.get_run(run_id=fork.id) is not None
