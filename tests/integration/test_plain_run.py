"""The capability in a plain run, over every store: the same run leaves the same."""

import inspect
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from stores.file.steps import FileStepStore
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from stores.protocols import StepStore
from stores.sqlite.steps import SqliteStepStore
from tests.stores.records import ODD_KEYS
from workflows.persistence import StepPersistence

pytestmark = pytest.mark.integration

STORES: list[type[StepStore]] = [
    InMemoryStepStore,
    FileStepStore,
    SqliteStepStore,
    MongoStepStore,
]


@pytest_asyncio.fixture(params=["memory", "file", "sqlite", "mongodb"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, mongo: MongoStepStore
) -> AsyncGenerator[StepStore]:
    stores: dict[str, StepStore] = {
        "memory": InMemoryStepStore(),
        "file": FileStepStore(tmp_path / "runs"),
        "sqlite": SqliteStepStore(database=tmp_path / "runs.db"),
        "mongodb": mongo,
    }
    yield stores[request.param]
    for each in stores.values():
        await each.aclose()


@pytest.mark.spec("SP-2", "SP-27", "SP-50", "SP-64", "SP-65", "SP-119")
async def test_the_same_run_leaves_the_same_in_every_store(store: StepStore) -> None:
    persistence = StepPersistence[Any](
        store=store, agent_name="librarian", parent_run_id="desk", metadata=ODD_KEYS
    )
    agent = Agent(TestModel(), capabilities=[persistence])

    @agent.tool_plain
    async def look() -> str:
        return "seen"

    result = await agent.run("go", run_id="visit", conversation_id="talk")
    (record,) = await store.list_runs(conversation_id="talk", parent_run_id="desk")
    assert (record.agent_name, record.state, record.metadata) == (
        "librarian",
        "completed",
        ODD_KEYS,
    )
    events = await store.list_events(run_id=record.run_id)
    assert [(each.step_index, each.kind, each.tool_name) for each in events] == [
        (0, "run_started", None),
        (1, "model_request_started", None),
        (1, "model_request_completed", None),
        (1, "tool_call_started", "look"),
        (1, "tool_call_completed", "look"),
        (2, "model_request_started", None),
        (2, "model_request_completed", None),
        (2, "run_completed", None),
    ]
    lineage = {
        (each.conversation_id, each.parent_run_id, each.agent_name, str(each.metadata))
        for each in events
    }
    assert lineage == {("talk", "desk", "librarian", str(ODD_KEYS))}
    snapshots = await store.list_snapshots(run_id=record.run_id)
    assert [(each.step_index, each.state, len(each.messages)) for each in snapshots] == [
        (1, "complete", 3),
        (2, "complete", 4),
    ]
    latest = await store.latest_snapshot(run_id=record.run_id)
    assert latest is not None
    assert latest == snapshots[-1]
    assert latest.messages == result.all_messages()
    (effect,) = await store.list_tool_effects(run_id=record.run_id)
    assert (effect.tool_name, effect.status, effect.step_index) == ("look", "completed", 1)
    assert await store.list_unresolved_tool_effects(run_id=record.run_id) == []


@pytest.mark.spec("SP-50")
@pytest.mark.parametrize("implementation", STORES)
def test_every_store_has_the_methods_of_the_protocol(implementation: type[StepStore]) -> None:
    methods = {
        name: member
        for name, member in inspect.getmembers(StepStore, inspect.isfunction)
        if not name.startswith("_")
    }
    assert len(methods) >= 15
    for name, member in methods.items():
        found = getattr(implementation, name)
        assert inspect.iscoroutinefunction(found) == inspect.iscoroutinefunction(member), name
        assert list(inspect.signature(found).parameters) == list(
            inspect.signature(member).parameters
        ), name
