"""What the commands say of delegates and their parents, with no worker."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient
from temporalio.client import Client, WorkflowFailureError

from client import connect
from settings import Settings
from stores.opening import open_step_store
from stores.protocols import StepStore
from tests.cli.test_commands import NOWHERE, Perdure
from tests.helpers.delegating import AGENTS, asking, waiting
from tests.helpers.eventually import eventually
from tests.helpers.script import echo_steps
from tests.helpers.workers import running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Family:
    """Run ids; `terminated` was terminated while its delegate was in a tool."""

    perdure: Perdure
    settled: str
    settled_delegates: list[str]
    terminated: str
    orphan: str
    foundling: str


@pytest.fixture(scope="module")
def family(
    temporal_address: str, mongodb_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Family]:
    """Their worker is gone."""
    settings = Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=f"test_{uuid4().hex}",
        task_queue=f"test-{uuid4().hex}",
        data_dir=tmp_path_factory.mktemp("family"),
    )
    yield asyncio.run(_leave(settings))
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        client.drop_database(settings.mongodb_database)


async def _leave(settings: Settings) -> Family:
    client = await connect(settings)
    store = open_step_store(
        "mongodb", db_url=str(settings.mongodb_uri), database=settings.mongodb_database
    )
    await store.initialise()
    try:
        async with running_worker(client, store, AGENTS, settings.task_queue):
            ids = await _run(client, store, settings.task_queue, settings.data_dir)
    finally:
        await store.aclose()
    told = settings.model_dump(mode="json", exclude_none=True)
    return Family(perdure=Perdure({name: str(value) for name, value in told.items()}), **ids)


async def _run(client: Client, store: StepStore, task_queue: str, directory: Path) -> Any:
    async def start(prompt: str, agent: str = "lead", **request: Any) -> Any:
        return await client.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent=agent, prompt=prompt, **request),
            id=f"{agent}-{uuid4().hex}",
            task_queue=task_queue,
        )

    marker = directory / "marker"
    terminated = await start(asking(waiting(directory / "never", marker)))
    settled = await start(asking(echo_steps(0), echo_steps(0)))
    foundling = await start(echo_steps(0), "script", parent_run_id="nobody-knows-it")
    await eventually(marker.exists)
    await terminated.terminate()
    (orphan,) = await store.list_runs(parent_run_id=terminated.id)
    with pytest.raises(WorkflowFailureError):
        await client.get_workflow_handle(orphan.run_id).result()
    await asyncio.gather(settled.result(), foundling.result())
    return {
        "settled": settled.id,
        "settled_delegates": [
            each.run_id for each in await store.list_runs(parent_run_id=settled.id)
        ],
        "terminated": terminated.id,
        "orphan": orphan.run_id,
        "foundling": foundling.id,
    }


def parent_line(page: str) -> str:
    (line,) = [line for line in page.splitlines() if line.startswith("Parent run")]
    return line


@pytest.mark.spec("SP-37")
def test_show_lists_the_delegates_of_a_run(family: Family) -> None:
    document = family.perdure.document("show", family.settled)
    page = family.perdure("show", family.settled)

    assert [each["run_id"] for each in document["delegates"]] == family.settled_delegates
    assert {each["joined_state"] for each in document["delegates"]} == {"completed"}
    assert document["parent_state"] is None
    assert "Delegates" in page.stdout
    for run_id in family.settled_delegates:
        assert run_id in page.stdout


def test_show_says_how_the_parent_stands(family: Family) -> None:
    lines = [
        parent_line(family.perdure("show", run_id).stdout)
        for run_id in (family.settled_delegates[0], family.orphan, family.foundling)
    ]
    assert lines[0].endswith(f"{family.settled} (completed)")
    assert lines[1].endswith(f"{family.terminated} (terminated)")
    assert lines[2].endswith("nobody-knows-it (gone: neither the store nor Temporal knows it)")
    document = family.perdure.document("show", family.terminated)
    assert [each["joined_state"] for each in document["delegates"]] == ["cancelled"]


def test_show_without_temporal_does_not_know_the_parent(family: Family) -> None:
    page = family.perdure("show", family.orphan, temporal_address=NOWHERE)

    assert page.returncode == 0, page.stderr
    assert parent_line(page.stdout).endswith("(unknown: Temporal does not answer)")


def test_runs_orphans_are_those_whose_parent_is_gone(family: Family) -> None:
    def ids(*options: str) -> list[str]:
        found = family.perdure.document("runs", "--orphans", *options)["runs"]
        return [each["run_id"] for each in found]

    assert sorted(ids()) == sorted([family.orphan, family.foundling])
    assert ids("--state", "cancelled") == [family.orphan]
    table = family.perdure("runs", "--orphans")
    assert family.terminated in table.stdout
    assert family.settled not in table.stdout


def test_runs_orphans_fill_their_pages(family: Family) -> None:
    first = family.perdure.document("runs", "--orphans", "--limit", "1")
    second = family.perdure.document("runs", "--orphans", "--limit", "1", "--after", first["after"])

    found = [each["run_id"] for page in (first, second) for each in page["runs"]]
    assert sorted(found) == sorted([family.orphan, family.foundling])


def test_runs_orphans_cannot_be_told_without_temporal(family: Family) -> None:
    done = family.perdure("runs", "--orphans", temporal_address=NOWHERE)

    assert done.returncode == 4
    assert "whether a parent was terminated" in done.stderr
    assert done.stdout == ""
    assert json.loads(family.perdure("runs", "--json", temporal_address=NOWHERE).stdout)["runs"]
