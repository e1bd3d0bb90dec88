"""`StepPersistence` from a serialised spec."""

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from stores.file.steps import FileStepStore
from stores.memory import InMemoryStepStore
from stores.sqlite.steps import SqliteStepStore
from tests.stores.records import snapshot
from workflows.persistence import StepPersistence


@pytest.mark.spec("SP-120")
@pytest.mark.parametrize(
    ("backend", "place", "kind"),
    [("file", "directory", FileStepStore), ("sqlite", "database", SqliteStepStore)],
)
async def test_an_agent_from_a_spec_keeps_its_runs_where_the_spec_says(
    tmp_path: Path, backend: str, place: str, kind: type[Any]
) -> None:
    spec = {
        "name": "plain",
        "capabilities": [
            {"StepPersistence": {"backend": backend, place: str(tmp_path / "runs")}},
        ],
    }
    agent = Agent.from_spec(spec, custom_capability_types=[StepPersistence], model=TestModel())
    result = await agent.run("go")
    made: list[StepPersistence[Any]] = []
    agent.root_capability.apply(
        lambda each: made.append(each) if isinstance(each, StepPersistence) else None
    )
    assert made[0].store is not None
    await made[0].store.aclose()
    store = kind(**{place: tmp_path / "runs"})
    record = await store.get_run(run_id=result.run_id)
    assert record is not None
    assert (record.state, record.agent_name) == ("completed", "plain")
    latest = await store.latest_snapshot(run_id=result.run_id)
    assert latest is not None
    assert latest.messages == result.all_messages()
    await store.aclose()


def test_the_default_is_a_fresh_store_in_memory() -> None:
    assert StepPersistence.from_spec().store is None
    assert StepPersistence.from_spec("memory") == StepPersistence()


def test_other_arguments_go_to_the_class() -> None:
    made = StepPersistence.from_spec(agent_name="a", metadata={"k": "v"}, capture_frontier=True)
    assert (made.agent_name, made.metadata, made.capture_frontier) == ("a", {"k": "v"}, True)
    with pytest.raises(TypeError, match="colour"):
        StepPersistence.from_spec(colour="red")


@pytest.mark.spec("SP-66", "SP-68", "SP-120")
@pytest.mark.parametrize(
    ("backend", "place", "kind"),
    [
        ("memory", {}, InMemoryStepStore),
        ("file", {"directory": "runs"}, FileStepStore),
        ("sqlite", {"database": "runs.db"}, SqliteStepStore),
    ],
)
async def test_the_bound_goes_to_the_store(
    backend: Any, place: dict[str, str], kind: type[Any], tmp_path: Path
) -> None:
    place = {name: str(tmp_path / value) for name, value in place.items()}
    made = StepPersistence.from_spec(backend, max_snapshots_per_run=3, **place)
    assert made.store is not None
    assert isinstance(made.store, kind)
    for number in range(5):
        await made.store.save_snapshot(snapshot([], str(number)))
    assert len(await made.store.list_snapshots(run_id="run-1")) == 3
    await made.store.aclose()
    with pytest.raises(ValueError, match="max_snapshots_per_run is 0"):
        StepPersistence.from_spec(backend, max_snapshots_per_run=0, **place)


@pytest.mark.spec("SP-120")
@pytest.mark.parametrize("backend", ["mongodb", "files", "", "MEMORY", None])
def test_another_backend_is_refused_rather_than_kept_in_memory(backend: Any) -> None:
    with pytest.raises(ValueError, match=f"backend {backend!r} is none of"):
        StepPersistence.from_spec(backend=backend)


@pytest.mark.spec("SP-120")
def test_an_argument_that_is_missing_or_of_another_backend_is_named() -> None:
    with pytest.raises(ValueError, match="pass directory="):
        StepPersistence.from_spec("file")
    with pytest.raises(ValueError, match="pass database="):
        StepPersistence.from_spec("sqlite")
    with pytest.raises(ValueError, match="backend 'memory' takes no directory="):
        StepPersistence.from_spec(directory="runs")
    with pytest.raises(ValueError, match="backend 'sqlite' takes no directory="):
        StepPersistence.from_spec("sqlite", database="runs.db", directory="runs")
