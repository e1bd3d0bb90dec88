"""`StepPersistence` in a plain `agent.run`: no Temporal, any store."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from stores.errors import InvalidIdentifierError, RunIdTakenError
from stores.memory import InMemoryStepStore
from workflows.agents import AgentSetupError, find_agent, register_agents
from workflows.durable import StableTemporalDurability, durable
from workflows.persistence import StepPersistence


@pytest.fixture
def store() -> InMemoryStepStore:
    return InMemoryStepStore()


def one_tool(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    if any(isinstance(message, ModelResponse) for message in messages):
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart("work", {"n": 10**30}, tool_call_id="c")])


def agent_with(persistence: StepPersistence[Any], name: str | None = "plain") -> Agent[Any, str]:
    return Agent(FunctionModel(one_tool), name=name, capabilities=[persistence])


@pytest.mark.spec("SP-3", "SP-24", "SP-31", "SP-119", "SP-123", "SP-128", "SP-129")
async def test_plain_run_is_recorded_whole(store: InMemoryStepStore) -> None:
    agent = agent_with(StepPersistence(store=store, metadata={"a.b": "$1"}))

    @agent.tool_plain
    async def work(n: int) -> str:
        return str(n)

    result = await agent.run("go", conversation_id="talk")
    run_id = result.run_id
    record = await store.get_run(run_id=run_id)
    assert record is not None
    assert (record.state, record.agent_name, record.conversation_id) == (
        "completed",
        "plain",
        "talk",
    )
    assert record.metadata == {"a.b": "$1"}
    events = await store.list_events(run_id=run_id)
    assert [event.kind for event in events] == [
        "run_started",
        "model_request_started",
        "model_request_completed",
        "tool_call_started",
        "tool_call_completed",
        "model_request_started",
        "model_request_completed",
        "run_completed",
    ]
    assert all(event.metadata == {"a.b": "$1"} for event in events)
    latest = await store.latest_snapshot(run_id=run_id)
    assert latest is not None
    assert latest.messages == result.all_messages()
    (effect,) = await store.list_tool_effects(run_id=run_id)
    assert (effect.status, effect.arguments_summary) == ("completed", f'{{"n": {10**30}}}')


@pytest.mark.spec("SP-4", "SP-33", "SP-125", "SP-129")
async def test_failing_tool_leaves_an_interrupted_snapshot(store: InMemoryStepStore) -> None:
    agent = agent_with(StepPersistence(store=store, run_id="fails"))

    @agent.tool_plain
    async def work(n: int) -> str:
        message = f"cannot do {n}"
        raise ValueError(message)

    with pytest.raises(ValueError, match="cannot do"):
        await agent.run("go")
    record = await store.get_run(run_id="fails")
    assert record is not None
    assert record.state == "failed"
    assert "cannot do" in str(record.error)
    assert await store.latest_snapshot(run_id="fails") is None
    latest = await store.latest_snapshot(run_id="fails", include_interrupted=True)
    assert latest is not None
    assert latest.state == "interrupted"
    (effect,) = await store.list_tool_effects(run_id="fails")
    assert (effect.status, "cannot do" in str(effect.error)) == ("failed", True)


async def test_cancelled_run_ends_with_run_failed(store: InMemoryStepStore) -> None:
    agent = agent_with(StepPersistence(store=store, run_id="cancelled"))
    started = asyncio.Event()

    @agent.tool_plain
    async def work(n: int) -> str:
        started.set()
        await asyncio.Event().wait()
        return str(n)

    task = asyncio.create_task(agent.run("go"))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    events = await store.list_events(run_id="cancelled")
    assert (events[-1].kind, events[-1].error) == ("run_failed", "cancelled")
    record = await store.get_run(run_id="cancelled")
    assert record is not None
    assert record.state == "cancelled"
    assert [each.status for each in await store.list_unresolved_tool_effects()] == ["unknown"]


async def test_retry_signal_is_recorded_as_not_completed(store: InMemoryStepStore) -> None:
    agent = agent_with(StepPersistence(store=store, run_id="retries"))

    @agent.tool_plain(retries=1)
    async def work(n: int) -> str:
        message = f"not {n}"
        raise ModelRetry(message)

    await agent.run("go")
    (effect,) = await store.list_tool_effects(run_id="retries")
    assert effect.status == "failed"
    assert "ToolRetryError" in str(effect.error)


@pytest.mark.spec("SP-10", "SP-11")
async def test_run_id_is_single_shot(store: InMemoryStepStore) -> None:
    agent = Agent(TestModel(), capabilities=[StepPersistence(store=store, run_id="once")])
    await agent.run("a")
    before = await store.list_events(run_id="once")
    with pytest.raises(ValueError, match="'once' is taken") as caught:
        await agent.run("b")
    assert isinstance(caught.value, RunIdTakenError)
    assert await store.list_events(run_id="once") == before


@pytest.mark.spec("SP-12")
async def test_agent_name_goes_into_an_injective_run_id(store: InMemoryStepStore) -> None:
    ids: set[str] = set()
    for name, run_id in (("a", "b:c"), ("a:b", "c"), ("a", "b"), ("", "ab")):
        persistence = StepPersistence[Any](store=store, agent_name=name or None)
        agent = Agent(TestModel(), capabilities=[persistence])
        await agent.run("x", run_id=run_id)
        await agent.run("x", run_id=f"{run_id}2")
    runs = await store.list_runs()
    ids = {run.run_id for run in runs}
    assert len(ids) == 8
    assert all(run.run_id.startswith("sp-") for run in runs if run.agent_name in {"a", "a:b"})


async def test_run_id_too_long_is_refused_before_anything_is_written(
    store: InMemoryStepStore,
) -> None:
    agent = Agent(TestModel(), capabilities=[StepPersistence(store=store, agent_name="n" * 160)])
    with pytest.raises(InvalidIdentifierError, match="characters when derived"):
        await agent.run("x")
    assert await store.list_runs() == []


@pytest.mark.spec("SP-7", "SP-36", "SP-37", "SP-38", "SP-121", "SP-122")
async def test_delegate_names_its_parent(store: InMemoryStepStore) -> None:
    delegate = Agent(TestModel(), name="delegate", capabilities=[StepPersistence(store=store)])
    parent = agent_with(StepPersistence(store=store, run_id="parent"))

    @parent.tool_plain
    async def work(n: int) -> str:
        return str((await delegate.run(f"help with {n}")).output)

    await parent.run("go")
    (child,) = await store.list_runs(parent_run_id="parent")
    assert child.agent_name == "delegate"
    explicit = StepPersistence[Any](store=store, parent_run_id="somebody")
    await Agent(TestModel(), capabilities=[explicit]).run("x")
    assert len(await store.list_runs(parent_run_id="somebody")) == 1


@pytest.mark.spec("SP-9", "SP-25")
async def test_three_runs_of_a_conversation_are_found_in_order(store: InMemoryStepStore) -> None:
    agent = Agent(TestModel(), capabilities=[StepPersistence(store=store)])
    ids = [(await agent.run(text, conversation_id="talk")).run_id for text in "abc"]
    assert [run.run_id for run in await store.list_runs(conversation_id="talk")] == ids


@pytest.mark.spec("SP-103", "SP-104", "SP-106")
async def test_frontier_keeps_prompt_and_calls_of_a_run_that_is_lost(
    store: InMemoryStepStore,
) -> None:
    agent = agent_with(StepPersistence(store=store, run_id="front", capture_frontier=True))
    seen: list[tuple[str, int]] = []

    @agent.tool_plain
    async def work(n: int) -> str:
        snapshots = await store.list_snapshots(run_id="front")
        seen.extend((each.state, len(each.messages)) for each in snapshots)
        return str(n)

    await agent.run("go")
    assert seen == [("complete", 1), ("interrupted", 2)]


@pytest.mark.spec("SP-119")
async def test_without_a_store_each_capability_has_one_in_memory() -> None:
    one, other = StepPersistence[Any](), StepPersistence[Any]()
    await Agent(TestModel(), capabilities=[one]).run("x")
    assert Counter([len(await one.outside_store.list_runs())]) == {1: 1}
    assert await other.outside_store.list_runs() == []
    assert one.store is None


@pytest.mark.spec("SP-119")
@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"a": 1}, r"metadata\['a'\] must be a string, found int"),
        ({1: "a"}, "metadata key 1 must be a string"),
        ([], "metadata must be a dict of strings, found list"),
    ],
)
def test_metadata_that_is_no_dict_of_strings_is_named(metadata: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        StepPersistence(metadata=metadata)


@pytest.mark.parametrize("run_id", ["", " a", "a\n", "\ud800", "x" * 201])
def test_malformed_ids_are_refused_when_the_capability_is_made(run_id: str) -> None:
    with pytest.raises(InvalidIdentifierError, match="run_id"):
        StepPersistence(run_id=run_id)
    with pytest.raises(InvalidIdentifierError, match="parent_run_id"):
        StepPersistence(parent_run_id=run_id)


# --- durable() and the registry of agents ---


def test_durable_lets_one_step_persistence_take_the_defaults_place() -> None:
    mine = StepPersistence[Any](metadata={"a": "b"})
    capabilities = durable(mine)
    assert [type(each) for each in capabilities] == [StableTemporalDurability, StepPersistence]
    assert capabilities[1] is mine
    with pytest.raises(ValueError, match="one StepPersistence, found 2"):
        durable(mine, StepPersistence())
    with pytest.raises(ValueError, match="brings its own TemporalDurability"):
        durable(StableTemporalDurability())


def test_agents_that_no_worker_can_run_are_refused_by_name() -> None:
    from pydantic_ai.durable_exec.temporal import TemporalDurability  # noqa: PLC0415

    good = Agent(TestModel(), name="good", capabilities=[*durable()])
    refused = {
        "has no name": Agent(TestModel(), capabilities=[StepPersistence()]),
        "pydantic-ai's own": Agent(TestModel(), name="x", capabilities=[TemporalDurability()]),
        "its durability is none": Agent(TestModel(), name="x"),
        "no StepPersistence": Agent(
            TestModel(), name="x", capabilities=[StableTemporalDurability()]
        ),
        "a store of its own": Agent(
            TestModel(),
            name="x",
            capabilities=[*durable(StepPersistence(store=InMemoryStepStore()))],
        ),
        "Two agents are named 'good'": Agent(TestModel(), name="good", capabilities=[*durable()]),
    }
    for words, agent in refused.items():
        with pytest.raises(AgentSetupError, match=words):
            register_agents([good, agent])
    register_agents([good, good])
    assert find_agent("good") is good
