"""Which id a run gets, and what else it is called."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RunUsage

from stores.errors import InvalidIdentifierError
from stores.file.steps import FileStepStore
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from stores.protocols import StepStore
from stores.sqlite.steps import SqliteStepStore
from workflows.persistence import StepPersistence

NOWHERE = "mongodb://127.0.0.1:1/"


@pytest.fixture
def store() -> InMemoryStepStore:
    return InMemoryStepStore()


def context(run_id: str | None) -> RunContext[None]:
    return RunContext(deps=None, model=TestModel(), usage=RunUsage(), run_id=run_id)


async def run_id_of(persistence: StepPersistence[Any], run_id: str | None) -> str:
    made = await persistence.for_run(context(run_id))
    assert isinstance(made, StepPersistence)
    return made.recorder.run_id


@pytest.mark.spec("SP-9", "SP-14")
async def test_without_a_name_the_id_is_that_of_the_context(store: InMemoryStepStore) -> None:
    agent = Agent(TestModel(), capabilities=[StepPersistence(store=store)])
    results = [await agent.run("go"), await agent.run("go", run_id="chosen")]
    assert [run.run_id for run in await store.list_runs()] == [each.run_id for each in results]
    assert results[1].run_id == "chosen"
    with pytest.raises(RuntimeError, match="needs a run id, and the run's context has none"):
        await run_id_of(StepPersistence(store=store), None)


@pytest.mark.spec("SP-12")
async def test_a_derived_id_is_safe_in_a_path_and_always_the_same() -> None:
    persistence = StepPersistence[Any](agent_name="größe/../\\ name")
    derived = await run_id_of(persistence, "ключ:1")
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,200}", derived)
    assert await run_id_of(persistence, "ключ:1") == derived
    assert await run_id_of(StepPersistence(agent_name="größe/../\\ nameк"), "люч:1") != derived
    with pytest.raises(RuntimeError, match="context has none"):
        await run_id_of(persistence, None)


@pytest.mark.spec("SP-12")
async def test_a_derived_id_may_name_a_directory(tmp_path: Path) -> None:
    store = FileStepStore(tmp_path / "runs")
    agent = Agent(TestModel(), capabilities=[StepPersistence(store=store, agent_name="a b/c")])
    await agent.run("go", run_id="tenant/1")
    assert [run.agent_name for run in await store.list_runs()] == ["a b/c"]


@pytest.mark.spec("SP-13")
async def test_an_id_that_is_too_long_is_refused_before_any_store_is_touched(
    tmp_path: Path,
) -> None:
    stores: list[StepStore] = [
        InMemoryStepStore(),
        FileStepStore(tmp_path / "runs"),
        SqliteStepStore(database=tmp_path / "runs.db"),
        MongoStepStore(db_url=NOWHERE, database="d"),
    ]
    for store in stores:
        persistence = StepPersistence[Any](store=store, agent_name="n" * 160)
        agent = Agent(TestModel(), capabilities=[persistence])
        with pytest.raises(InvalidIdentifierError, match="characters when derived") as caught:
            await agent.run("go")
        assert isinstance(caught.value, ValueError)
        await store.aclose()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spec("SP-13")
async def test_the_longest_derived_id_is_200_characters() -> None:
    longest = await run_id_of(StepPersistence(agent_name="n" * 142), "r")
    assert len(longest) == 199  # base64 has no 200
    with pytest.raises(InvalidIdentifierError, match="has 202 characters"):
        await run_id_of(StepPersistence(agent_name="n" * 143), "rr")


@pytest.mark.spec("SP-15")
async def test_the_running_agents_name_is_recorded_and_not_in_the_id(
    store: InMemoryStepStore,
) -> None:
    librarian = Agent(TestModel(), capabilities=[StepPersistence(store=store)])
    result = await librarian.run("go")
    record = await store.get_run(run_id=result.run_id)
    assert record is not None
    assert record.agent_name == "librarian"
    assert {each.agent_name for each in await store.list_events(run_id=result.run_id)} == {
        "librarian"
    }
    assert [each.agent_name for each in await store.list_snapshots(run_id=result.run_id)] == [
        "librarian"
    ]


@pytest.mark.spec("SP-16")
async def test_several_on_one_agent_need_ids_of_their_own() -> None:
    one, other = InMemoryStepStore(), InMemoryStepStore()
    assert StepPersistence[Any]().id == "step_persistence"
    agent = Agent(
        TestModel(),
        capabilities=[StepPersistence(store=one), StepPersistence(store=other, id="second")],
    )
    result = await agent.run("go")
    for store in (one, other):
        assert [run.run_id for run in await store.list_runs()] == [result.run_id]
        assert await store.list_unresolved_tool_effects() == []


@pytest.mark.spec("SP-23")
async def test_a_conversation_is_named_or_that_of_the_history_or_new(
    store: InMemoryStepStore,
) -> None:
    agent = Agent(TestModel(), capabilities=[StepPersistence(store=store)])
    named = await agent.run("a", conversation_id="talk")
    followed = await agent.run("b", message_history=named.all_messages())
    moved = await agent.run("c", message_history=named.all_messages(), conversation_id="other")
    fresh = [await agent.run("d"), await agent.run("d")]
    found: list[str | None] = []
    for result in (named, followed, moved, *fresh):
        record = await store.get_run(run_id=result.run_id)
        assert record is not None
        found.append(record.conversation_id)
    assert found[:3] == ["talk", "talk", "other"]
    assert None not in found
    assert len(set(found)) == 4


@pytest.mark.spec("SP-44")
async def test_the_handle_for_a_compaction_is_the_run_id(store: InMemoryStepStore) -> None:
    persistence = StepPersistence[Any](store=store)
    handles: list[str | None] = []
    agent = Agent(TestModel(), capabilities=[persistence])

    @agent.tool
    async def look(ctx: RunContext[Any]) -> str:
        found = ctx.capabilities["step_persistence"]
        assert isinstance(found, StepPersistence)
        handles.append(found.compaction_transcript_handle())
        return "seen"

    result = await agent.run("go")
    assert handles == [result.run_id]
    assert persistence.compaction_transcript_handle() is None
