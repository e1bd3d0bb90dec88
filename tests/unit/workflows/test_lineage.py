"""Header, scope and identity of delegates, without a server."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage
from temporalio.api.common.v1 import Payload
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from activities.boundaries import BOUNDARIES, BoundaryActivities
from activities.worker_store import WorkerStore
from stores.commits import Commit, CommitResult
from stores.errors import RunIdTakenError, StoreUnavailableError
from stores.memory import InMemoryStepStore
from stores.records import ToolEffectRecord
from workflows.annotations import annotate_tool_effect
from workflows.direct import StaleAttemptError
from workflows.headers import LineageInterceptor
from workflows.lineage import (
    Lineage,
    Scope,
    ToolAttempt,
    current_scope,
    delegate_run_id,
    entered,
    lineage_in,
)
from workflows.names import LINEAGE_HEADER
from workflows.persistence import StepPersistence
from workflows.submission import current_run_id

CALL = Lineage(
    workspace_id="tenant",
    run_id="parent",
    conversation_id="talk",
    parent_run_id="grandparent",
    branch="execution",
    step_index=2,
    call_index=1,
    tool_call_id="call-1",
)


@pytest.fixture
def store() -> InMemoryStepStore:
    return InMemoryStepStore()


# --- the header ---


def test_a_header_is_read_as_it_was_written() -> None:
    payload = CALL.to_payload()
    assert payload.metadata == {"encoding": b"json/plain"}
    assert payload.data == (
        b'{"workspace_id":"tenant","run_id":"parent","conversation_id":"talk",'
        b'"parent_run_id":"grandparent","branch":"execution","step_index":2,"call_index":1,'
        b'"tool_call_id":"call-1"}'
    )
    assert lineage_in({LINEAGE_HEADER: payload}) == CALL
    assert (CALL.effect_key, CALL.outside_call().effect_key) == ("2/1", None)
    assert CALL.outside_call().in_call(2, 1, "call-1") == CALL


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"run_id": 7}', b'{"run_id": ""}', b'{"workspace_id": "a\\n"}', b"\xff"],
)
def test_a_header_that_cannot_be_read_is_as_none(data: bytes) -> None:
    assert lineage_in({LINEAGE_HEADER: Payload(data=data)}) is None
    assert lineage_in({}) is None
    assert lineage_in({"another": CALL.to_payload()}) is None


def test_a_header_of_a_later_release_is_read_as_far_as_it_is_known() -> None:
    payload = Payload(data=b'{"run_id": "r", "colour": "red"}')
    assert lineage_in({LINEAGE_HEADER: payload}) == Lineage(run_id="r")


def test_every_boundary_is_known_by_name() -> None:
    registered = BoundaryActivities(InMemoryStepStore()).activities
    names = {getattr(each, "__temporal_activity_definition").name for each in registered}
    assert names == BOUNDARIES


class Body(ActivityInboundInterceptor):
    """Stands for the activity's body: remembers where it ran."""

    def __init__(self) -> None:
        self.scope: Scope | None = None
        self.run_id: str | None = None

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ARG002 - the SDK's
        self.scope, self.run_id = current_scope.get(), current_run_id.get()


async def scope_of(store: InMemoryStepStore, headers: dict[str, Payload]) -> Body:
    body = Body()
    chain = LineageInterceptor(store).intercept_activity(body)
    request = ExecuteActivityInput(fn=len, args=[], executor=None, headers=headers)
    await ActivityEnvironment().run(chain.execute_activity, request)
    assert current_scope.get() is None
    return body


async def test_the_attempt_comes_from_the_server_and_the_call_from_the_header(
    store: InMemoryStepStore,
) -> None:
    body = await scope_of(store, {LINEAGE_HEADER: CALL.to_payload()})
    info = ActivityEnvironment.default_info()
    assert body.scope is not None
    assert body.scope.attempt == ToolAttempt(
        branch=str(info.workflow_run_id), number=info.attempt, started_at=info.started_time
    )
    assert (body.scope.lineage, body.run_id) == (CALL, "parent")
    assert isinstance(body.scope.store, WorkerStore)


@pytest.mark.parametrize("headers", [{}, {LINEAGE_HEADER: Payload(data=b"{")}])
async def test_without_a_header_that_can_be_read_there_is_a_store_and_no_call(
    store: InMemoryStepStore, headers: dict[str, Payload]
) -> None:
    body = await scope_of(store, headers)
    assert body.scope is not None
    assert (body.scope.lineage, body.scope.attempt, body.run_id) == (Lineage(), None, None)
    assert isinstance(body.scope.store, WorkerStore)


# --- identity of delegates ---


def test_the_id_of_a_delegate_is_its_place() -> None:
    first = delegate_run_id(CALL, order=0)
    assert first == "17a599fe3abeaf79ae2b86d88f3a0e87aab5778837c2010f829653a6f669fca9"
    others = {
        delegate_run_id(CALL, order=1),
        delegate_run_id(CALL.in_call(2, 0, "call-1"), order=0),
        delegate_run_id(CALL.outside_call(), order=0),
        delegate_run_id(CALL.model_copy(update={"run_id": "another"}), order=0),
        delegate_run_id(CALL.model_copy(update={"activity_index": 1}), order=0),
    }
    assert len(others | {first}) == 6
    same = {"branch": "after a reset", "tool_call_id": "another", "workspace_id": "any"}
    assert delegate_run_id(CALL.model_copy(update=same), order=0) == first


def attempt_scope(store: InMemoryStepStore, number: int, lineage: Lineage = CALL) -> Scope:
    started_at = datetime(2026, 3, 1, 12, number, tzinfo=UTC)
    attempt = ToolAttempt(branch="execution", number=number, started_at=started_at)
    return Scope(lineage=lineage, store=WorkerStore(store), attempt=attempt)


def helper(**options: Any) -> Agent[Any, str]:
    return Agent(TestModel(), name="helper", capabilities=[StepPersistence[Any](**options)])


async def test_an_attempt_takes_over_and_the_one_before_is_stale(
    store: InMemoryStepStore,
) -> None:
    agent, go = helper(), asyncio.Event()
    started = asyncio.Event()

    @agent.tool_plain
    async def wait() -> str:
        if not started.is_set():
            started.set()
            await go.wait()
        return "waited"

    with entered(attempt_scope(store, 1)):
        zombie = asyncio.create_task(agent.run("x"))
    await started.wait()
    with entered(attempt_scope(store, 2)):
        result = await agent.run("x")
    run_id = delegate_run_id(CALL, order=0)
    assert result.run_id == run_id
    before = await store.list_events(run_id=run_id), await store.list_tool_effects(run_id=run_id)
    go.set()
    with pytest.raises(StaleAttemptError) as caught:
        await zombie
    assert (caught.value.run_id, caught.value.attempt.number) == (run_id, 1)
    with entered(attempt_scope(store, 1)), pytest.raises(StaleAttemptError):
        await agent.run("x")
    after = await store.list_events(run_id=run_id), await store.list_tool_effects(run_id=run_id)
    assert after == before
    assert {event.branch for event in after[0]} == {f"execution/2/{run_id}"}
    (run,) = await store.list_runs()
    assert (run.parent_run_id, run.state) == ("parent", "completed")


async def test_delegates_of_a_call_are_told_apart_by_their_order(
    store: InMemoryStepStore,
) -> None:
    agent = helper()
    conversations: list[set[str]] = []
    for number in (1, 2):
        with entered(attempt_scope(store, number)):
            results = [await agent.run("x"), await agent.run("x")]
        assert [each.run_id for each in results] == [
            delegate_run_id(CALL, order=0),
            delegate_run_id(CALL, order=1),
        ]
        conversations.append({each.conversation_id for each in results})
    assert conversations[0] == conversations[1]
    assert len(conversations[0]) == 2


async def test_an_agent_that_a_hook_runs_is_the_child_of_the_run_whose_hook_it_is(
    store: InMemoryStepStore,
) -> None:
    inner, agent = helper(), helper()

    @agent.instructions
    async def look_it_up() -> str:
        return str((await inner.run("x")).output)

    with entered(attempt_scope(store, 1)):
        outer_id = (await agent.run("x")).run_id
    (child,) = await store.list_runs(parent_run_id=outer_id)
    assert child.run_id == delegate_run_id(Lineage(run_id=outer_id), order=0)


async def test_a_run_id_is_used_once_in_an_attempt_and_again_in_the_next(
    store: InMemoryStepStore,
) -> None:
    agent = helper(run_id="mine")
    with entered(attempt_scope(store, 1)):
        await agent.run("x")
        with pytest.raises(ValueError, match="'mine' is taken") as caught:
            await agent.run("x")
    assert isinstance(caught.value, RunIdTakenError)
    with entered(attempt_scope(store, 2)):
        await agent.run("x")
    with (
        entered(attempt_scope(store, 3, CALL.in_call(3, 0, "call-2"))),
        pytest.raises(RunIdTakenError),
    ):
        await agent.run("x")
    (run,) = await store.list_runs()
    assert (run.run_id, run.state) == ("mine", "completed")
    assert {event.branch for event in await store.list_events(run_id="mine")} == {
        "execution/2/mine"
    }


async def test_a_run_id_given_to_the_run_itself_is_kept(store: InMemoryStepStore) -> None:
    with entered(attempt_scope(store, 1)):
        assert (await helper().run("x", run_id="given")).run_id == "given"
    (run,) = await store.list_runs(parent_run_id="parent")
    assert run.run_id == "given"


async def test_a_delegate_with_a_store_of_its_own_writes_there(store: InMemoryStepStore) -> None:
    own = InMemoryStepStore()
    with entered(attempt_scope(store, 1)):
        result = await helper(store=own).run("x")
    assert await store.list_runs() == []
    (run,) = await own.list_runs(parent_run_id="parent")
    assert run.run_id == result.run_id != delegate_run_id(CALL, order=0)


# --- the worker's store ---


class AwayForAWhile(InMemoryStepStore):
    """Refuses the first commits."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    async def commit(self, commit: Commit) -> CommitResult:
        if self.refusals:
            self.refusals -= 1
            message = "away"
            raise StoreUnavailableError(message)
        return await super().commit(commit)


async def test_a_delegate_waits_for_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.worker_store.FIRST_PAUSE_SECONDS", 0.001)
    store = AwayForAWhile(3)

    async def body() -> None:
        with entered(attempt_scope(store, 1)):
            await helper().run("x")

    await ActivityEnvironment().run(body)
    (run,) = await store.list_runs()
    assert run.state == "completed"


async def test_a_cancelled_activity_waits_for_no_store() -> None:
    environment = ActivityEnvironment()
    store = AwayForAWhile(10**6)

    async def body() -> None:
        environment.cancel()
        with entered(attempt_scope(store, 1)):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                await helper().run("x")

    with pytest.raises(StoreUnavailableError):
        await environment.run(body)


# --- annotate ---


def one_call(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    if any(isinstance(message, ModelResponse) for message in messages):
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart("set_label", {}, tool_call_id="c")])


@pytest.mark.spec("SP-40", "SP-41", "SP-42")
async def test_a_tool_of_a_plain_run_annotates_its_effect(store: InMemoryStepStore) -> None:
    agent: Agent[Any, str] = Agent(
        FunctionModel(one_call), capabilities=[StepPersistence[Any](store=store, run_id="plain")]
    )
    seen: list[ToolEffectRecord] = []

    @agent.tool
    async def set_label(ctx: RunContext[Any]) -> str:
        await annotate_tool_effect(store, ctx, idempotency_key="issue-1::label")
        await annotate_tool_effect(None, ctx, effect_summary="set a label")
        seen.extend(await store.list_unresolved_tool_effects(run_id="plain"))
        other = RunContext[None](
            deps=None, model=TestModel(), usage=RunUsage(), tool_call_id="another"
        )
        await annotate_tool_effect(store, other, idempotency_key="of no call")
        return "ok"

    await agent.run("go")
    (after,) = await store.list_tool_effects(run_id="plain")
    for each in (*seen, after):
        assert (each.idempotency_key, each.effect_summary) == ("issue-1::label", "set a label")
    assert [each.status for each in (*seen, after)] == ["started", "completed"]


@pytest.mark.spec("SP-41")
async def test_outside_a_call_nothing_is_annotated(store: InMemoryStepStore) -> None:
    context = RunContext[None](deps=None, model=TestModel(), usage=RunUsage())
    await annotate_tool_effect(store, context, idempotency_key="key")
    context.tool_call_id = "c"
    await annotate_tool_effect(store, context, idempotency_key="key")
    assert await store.list_unresolved_tool_effects() == []
