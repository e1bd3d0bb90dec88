"""A run that goes on in other executions is one run, as if nothing had happened."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage, UsageLimits
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.exceptions import ApplicationError, CancelledError

from cli.binaries import find_temporal
from cli.servers import TemporalServer, free_port
from client import connect
from settings import Settings
from stores.faulty import Fault, FaultPlan, with_faults
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from stores.protocols import StepStore
from tests.helpers.delegating import AGENTS as DELEGATING
from tests.helpers.delegating import asking
from tests.helpers.eventually import eventually
from tests.helpers.evidence import trail_of
from tests.helpers.script import Call, echo_steps, make_agent, script
from tests.helpers.workers import replay, running_worker
from tests.integration.conftest import WITHIN
from tests.integration.test_approvals import decide, effects, is_asked, refused
from tests.integration.test_reset import reset
from workflows import names
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.hops import HopState
from workflows.recording import RecordingState

pytestmark = pytest.mark.integration

STEPS = 20


def make_hopper(name: str = "script") -> Agent[None, str]:
    """With a tool that tells where it is, and one in the workflow that has something said later."""
    agent = make_agent(name)

    @agent.tool(metadata={"effect": "read"})
    async def where(ctx: RunContext[None]) -> str:
        return f"{ctx.run_id} {ctx.run_step} {ctx.usage.requests}"

    @agent.tool(metadata={"temporal": False, "effect": "read"})
    async def say_later(ctx: RunContext[None], text: str) -> str:
        ctx.enqueue(text, priority="when_idle")
        return "noted"

    return agent


AGENTS = [make_hopper()]


async def start(
    client: Client, task_queue: str, run_id: str | None = None, **request: Any
) -> WorkflowHandle[Any, Any]:
    given: dict[str, Any] = {"agent": "script", "prompt": echo_steps(STEPS), **request}
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(**given),
        id=run_id or f"hops-{uuid4().hex}",
        task_queue=task_queue,
        memo={"ticket": "7"},
    )


async def end(handle: WorkflowHandle[Any, Any]) -> Any:
    return await asyncio.wait_for(handle.result(), WITHIN.total_seconds())


async def failure_of(handle: WorkflowHandle[Any, Any]) -> BaseException | None:
    with pytest.raises(WorkflowFailureError) as caught:
        await end(handle)
    return caught.value.cause


async def branches_of(store: StepStore, run_id: str) -> list[str]:
    run = await store.get_run(run_id=run_id)
    assert run is not None
    return [each.branch for each in run.branches]


async def sequences_of(store: StepStore, run_id: str) -> list[int]:
    events = await store.list_events(run_id=run_id)
    effects = await store.list_tool_effects(run_id=run_id)
    snapshots = await store.list_snapshot_summaries(run_id=run_id)
    return sorted(
        [
            *(each.sequence for each in events),
            *(each.sequence for each in effects),
            *(each.sequence for each in snapshots),
        ]
    )


async def latest(store: StepStore, run_id: str) -> list[ModelMessage]:
    snapshot = await store.latest_snapshot(run_id=run_id)
    assert snapshot is not None
    return snapshot.messages


async def test_run_that_hops_every_5_steps_equals_one_that_never_does(
    temporal: Client, mongo: MongoStepStore, task_queue: str, tmp_path: Path
) -> None:
    queues = [f"{task_queue}-plain", f"{task_queue}-hopping"]
    known = tuple(key.name for key in names.SEARCH_ATTRIBUTES)
    # The save of step 5, after which the run hops, is refused a first time, as those before it.
    away = [Fault(name=f"away-{n}", action="fail", holds="save_snapshot") for n in range(5)]
    plan = FaultPlan(directory=tmp_path, faults=tuple(away))
    hopping = with_faults(mongo, plan)
    async with (
        running_worker(temporal, mongo, AGENTS, queues[0], search_attributes=known),
        running_worker(
            temporal, hopping, AGENTS, queues[1], search_attributes=known, hop_after_requests=5
        ),
    ):
        handles = [await start(temporal, queue, principal="alice") for queue in queues]
        outputs = [await end(handle) for handle in handles]
        branches = await branches_of(mongo, handles[1].id)
        for branch in branches:
            await replay(temporal.get_workflow_handle(handles[1].id, run_id=branch), AGENTS)
        last = await handles[1].describe()
    assert all(plan.has_fired(each.name) for each in away)
    assert outputs[0].usage == outputs[1].usage
    assert outputs[0].message_count == outputs[1].message_count
    trails = [await trail_of(mongo, handle.id) for handle in handles]
    assert trails[0] == trails[1]
    assert len(branches) == 5
    assert last.run_id == branches[-1]
    kinds = Counter(each.kind for each in await mongo.list_events(run_id=handles[1].id))
    assert (kinds["run_started"], kinds["run_completed"]) == (1, 1)
    assert kinds["model_request_started"] == kinds["model_request_completed"] == STEPS + 1
    assert await sequences_of(mongo, handles[0].id) == await sequences_of(mongo, handles[1].id)
    assert {each.run_id for each in await latest(mongo, handles[1].id)} == {handles[1].id}
    attributes = last.typed_search_attributes
    assert attributes.get(names.AGENT_ATTRIBUTE) == "script"
    assert attributes.get(names.STATE_ATTRIBUTE) == "completed"
    assert await last.memo() == {"ticket": "7"}


async def test_tools_and_limits_see_one_run(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Path
) -> None:
    retry: list[Call] = [("retry", {"path": str(tmp_path / "tries"), "times": 99})]
    other: list[Call] = [("echo", {"text": "x"})]
    steps: list[list[Call]] = [[("where", {})] for _ in range(4)]
    async with running_worker(temporal, memory, AGENTS, task_queue, hop_after_requests=1):
        handle = await start(temporal, task_queue, prompt=script(steps))
        await end(handle)
        limited = await start(
            temporal,
            task_queue,
            prompt=script(steps),
            usage_limits=UsageLimits(request_limit=3),
        )
        assert "UsageLimitExceeded" in str(await failure_of(limited))
        retrying = await start(temporal, task_queue, prompt=script([retry, other] * 4))
        assert "exceeded max retries count of 3" in str(await failure_of(retrying))
    said = [
        str(part.content)
        for message in await latest(memory, handle.id)
        for part in message.parts
        if part.part_kind == "tool-return"
    ]
    assert said == [f"{handle.id} {step} {step}" for step in (1, 2, 3, 4)]
    assert len(await branches_of(memory, handle.id)) == 5
    kinds = [each.kind for each in await memory.list_events(run_id=limited.id)]
    assert kinds.count("model_request_completed") == 3
    assert kinds[-1] == "run_failed"
    assert len(await branches_of(memory, retrying.id)) == 4, "a hop after each other call"


async def test_bounds_on_events_and_bytes_are_followed(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    queues = {bound: f"{task_queue}-{bound}" for bound in ("events", "bytes")}
    async with (
        running_worker(temporal, memory, AGENTS, queues["events"], hop_after_events=100),
        running_worker(temporal, memory, AGENTS, queues["bytes"], hop_after_bytes=100_000),
    ):
        events = await start(temporal, queues["events"], prompt=echo_steps(8))
        size = await start(temporal, queues["bytes"], prompt=echo_steps(3, size=60_000))
        await end(events)
        await end(size)
    assert len(await branches_of(memory, events.id)) == 2
    assert len(await branches_of(memory, size.id)) == 4, "each request goes beyond the bound"


async def test_bound_on_updates_counts_those_that_were_accepted(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    ask: Call = ("ask_first", {"text": "x"})
    steps: list[list[Call]] = [[ask, ask], [("echo", {"text": "x"})], [ask], [ask]]
    async with running_worker(temporal, memory, AGENTS, task_queue, hop_after_updates=2):
        handle = await start(temporal, task_queue, prompt=script(steps))
        for places in (["1/0", "1/1"], ["3/0"], ["4/0"]):
            await eventually(is_asked(memory, handle.id, *places))
            rows = await effects(memory, handle.id)
            for place in places:
                await refused(decide(handle, rows[place], arguments_digest="of another call"))
                await decide(handle, rows[place])
        await end(handle)
        branches = await branches_of(memory, handle.id)
        for branch in branches:
            await replay(temporal.get_workflow_handle(handle.id, run_id=branch), AGENTS)
    run = await memory.get_run(run_id=handle.id)
    assert run is not None
    events = await memory.list_events(run_id=handle.id)
    first = {each.sequence: each.step_index for each in events}
    # Two were accepted in step 1, none in step 2 and one each in steps 3 and 4.
    assert [first[each.first_sequence] for each in run.branches[1:]] == [2, 5]


async def test_suggestion_of_the_server_is_followed(
    memory: InMemoryStepStore, task_queue: str, tmp_path: Path
) -> None:
    """On a server of its own, which suggests to continue as new after 60 events."""
    server = TemporalServer(find_temporal(), tmp_path, port=free_port())
    suggests = "limit.historyCount.suggestContinueAsNew=60"
    server.command = (*server.command, "--dynamic-config-value", suggests)
    try:
        await server.start()
        client = await connect(Settings(temporal_address=server.address))
        async with running_worker(client, memory, AGENTS, task_queue):
            handle = await start(client, task_queue, prompt=echo_steps(8))
            await end(handle)
    finally:
        await server.stop()
    assert len(await branches_of(memory, handle.id)) > 1


async def test_open_retry_and_a_waiting_message_hold_up_the_hop(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Path
) -> None:
    retry: list[Call] = [("retry", {"path": str(tmp_path / "tries"), "times": 2})]
    tries: list[list[Call]] = [retry, retry, retry, [("echo", {"text": "x"})]]
    told: list[list[Call]] = [[("say_later", {"text": echo_steps(1)})], [("echo", {"text": "x"})]]
    async with running_worker(temporal, memory, AGENTS, task_queue, hop_after_requests=1):
        retrying = await start(temporal, task_queue, prompt=script(tries))
        telling = await start(temporal, task_queue, prompt=script(told))
        await end(retrying)
        await end(telling)
    run = await memory.get_run(run_id=retrying.id)
    assert run is not None
    starts = [each.first_sequence for each in run.branches]
    requests = [
        each.step_index
        for each in await memory.list_events(run_id=retrying.id)
        if each.kind == "model_request_started" and each.sequence in starts
    ]
    assert requests == [4, 5], "steps 2 and 3 begin with an open retry"
    run = await memory.get_run(run_id=telling.id)
    assert run is not None
    started = [
        each
        for each in await memory.list_events(run_id=telling.id)
        if each.kind == "model_request_started"
    ]
    assert len(started) == 5
    assert [each.branch for each in started[:3]] == [run.branches[0].branch] * 3


async def test_hop_that_a_submitter_hands_in_is_refused(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    recording = RecordingState(
        step_index=2,
        next_sequence=9,
        saves=1,
        next_position=3,
        snapshot_sequence=8,
        snapshot_key="0:1:complete",
        ranges=((0, 3),),
    )
    hop = HopState(count=1, registration_id="other/run", recording=recording, usage=RunUsage())
    async with running_worker(temporal, memory, AGENTS, task_queue):
        error = await failure_of(await start(temporal, task_queue, hop=hop))
    assert isinstance(error, ApplicationError)
    assert error.type == "InvalidInputError"
    assert "hop" in str(error)
    assert not await memory.list_runs()


async def test_cancelled_run_that_has_hopped_says_so_in_its_last_event(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    steps: list[list[Call]] = [[("echo", {"text": "a"})], [("echo", {"text": "b", "delay": 60})]]
    async with running_worker(temporal, memory, AGENTS, task_queue, hop_after_requests=1):
        handle = await start(temporal, task_queue, prompt=script(steps))
        await eventually(lambda: is_in_step(memory, handle.id, 2))
        await handle.cancel()
        assert isinstance(await failure_of(handle), CancelledError)
    events = await memory.list_events(run_id=handle.id)
    assert (events[-1].kind, events[-1].error) == ("run_failed", "cancelled")
    assert len(await branches_of(memory, handle.id)) == 2


async def is_in_step(store: StepStore, run_id: str, step_index: int) -> bool:
    effects = await store.list_tool_effects(run_id=run_id)
    return any(each.step_index == step_index for each in effects)


async def test_delegate_hops_and_its_parent_waits_for_it(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    async with running_worker(temporal, memory, DELEGATING, task_queue, hop_after_requests=1):
        prompt = asking(echo_steps(3), echo_steps(2), before=1, after=1)
        handle = await start(temporal, task_queue, agent="lead", prompt=prompt)
        output = await end(handle)
        stuck = asking(script([[("echo", {"text": "a"})], [("echo", {"text": "b", "delay": 60})]]))
        cancelled = await start(temporal, task_queue, agent="lead", prompt=stuck)
        (child,) = await eventually(lambda: memory.list_runs(parent_run_id=cancelled.id))
        await eventually(lambda: is_in_step(memory, child.run_id, 2))
        await cancelled.cancel()
        assert isinstance(await failure_of(cancelled), CancelledError)
    children = await memory.list_runs(parent_run_id=handle.id)
    assert {each.state for each in children} == {"completed"}
    assert sorted([len(each.branches) for each in children]) == [3, 4]
    assert output.usage.requests == 4 + 4 + 3
    assert len(await branches_of(memory, handle.id)) == 4
    gone = await memory.get_run(run_id=child.run_id)
    assert gone is not None
    assert (gone.state, len(gone.branches)) == ("cancelled", 2)


async def test_reset_of_a_hopping_run_leaves_one_live_path(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue, hop_after_requests=2):
        handle = await start(temporal, task_queue, prompt=echo_steps(6))
        await end(handle)
        undisturbed = await trail_of(mongo, handle.id), await sequences_of(mongo, handle.id)
        first = await branches_of(mongo, handle.id)
        assert len(first) == 4
        for execution in (2, 0):
            chain = await branches_of(mongo, handle.id)
            base = temporal.get_workflow_handle(handle.id, run_id=chain[execution])
            await end(await reset(temporal, base, task=-2))
            now = await trail_of(mongo, handle.id), await sequences_of(mongo, handle.id)
            assert now == undisturbed
            branches = await branches_of(mongo, handle.id)
            assert branches[: execution + 1] == chain[: execution + 1]
            assert not set(branches[execution + 1 :]) & set(chain)
