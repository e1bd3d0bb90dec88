"""The harness itself, in an environment of its own, with our source tree on its path."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient

from stores.importing import Importer
from stores.mongo.harness import HarnessDatabase
from stores.mongo.steps import MongoStepStore
from stores.opening import Backend, open_step_store
from stores.search.answering import search_history
from stores.search.query import HistoryQuery
from stores.search.source import SnapshotHistorySource
from tests.interop import searched
from tests.interop.reads import reads_of
from tests.interop.recording import load_recording
from tests.interop.reference import harness_side
from tests.stores.records import run_record, snapshot

pytestmark = [
    pytest.mark.integration,
    pytest.mark.reference,
    pytest.mark.timeout(300),  # the first of them makes the environment
]

_MATCH = re.compile(r"\[score: ([\d.]+) \| run: ([\w-]+)[^\]]*\]\n\[(\d+)\]")
"""Of an answer's excerpt: score, run, and the number of its first message."""

PLAYED = ("whole", "whole-helper", "broken")
"""The runs of `harness_side.play`."""


@dataclass(frozen=True, kw_only=True)
class Used:
    """A store of ours after the harness has used it, and what it told meanwhile."""

    backend: Backend
    place: str
    told: dict[str, Any]

    def reads_of(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.told["reads"]["of_runs"][run_id]
        return found


@pytest.fixture
def harness_database(mongodb_uri: str) -> Iterator[str]:
    """A database for the harness to fill."""
    name = f"harness_{uuid4().hex}"
    yield name
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        client.drop_database(name)


@pytest.fixture(scope="module", params=["memory", "file", "sqlite", "mongodb"])
def used(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, mongodb_uri: str
) -> Iterator[Used]:
    """A store of each kind, used by the harness's capability and helpers."""
    database = f"used_{uuid4().hex}"
    local = tmp_path_factory.mktemp("used") / "runs"
    place = f"{mongodb_uri} {database}" if request.param == "mongodb" else str(local)
    told = harness_side("use", request.param, place)
    yield Used(backend=request.param, place=place, told=told)
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        client.drop_database(database)


def outline(reads: dict[str, Any]) -> dict[str, Any]:
    """What the same run gives again: no times, no generated ids, calls of a step in any order."""
    run = dict(reads["run"])
    for name in ("started_at", "registration_id", "conversation_id"):
        run[name] = bool(run[name])
    return {
        "run": run,
        "events": sorted(map(_event, reads["events"]), key=str),
        "snapshots": [_snapshot(each) for each in reads["snapshots"]],
        "tool_effects": [_effect(each) for each in reads["tool_effects"]],
        "unresolved": reads["unresolved"],
    }


def _event(read: dict[str, Any]) -> list[Any]:
    names = ("kind", "step_index", "tool_call_id", "tool_name", "error", "metadata", "agent_name")
    return [read[name] for name in (*names, "parent_run_id")]


def _snapshot(read: dict[str, Any]) -> list[Any]:
    names = ("step_index", "state", "idempotency_key", "agent_name", "parent_run_id")
    return [len(read["messages"]), *(read[name] for name in names)]


def _effect(read: dict[str, Any]) -> list[Any]:
    names = ("tool_call_id", "tool_name", "status", "idempotency_key", "effect_summary")
    return [read[name] for name in names]


@pytest.mark.spec("SP-51", "SP-53", "SP-132")
async def test_an_import_reads_as_the_harness_reads(
    mongodb_uri: str, harness_database: str, mongo: MongoStepStore
) -> None:
    expected = await asyncio.to_thread(harness_side, "write", mongodb_uri, harness_database)
    source = HarnessDatabase(db_url=mongodb_uri, database=harness_database)

    await Importer(source, mongo).run()
    await source.aclose()

    assert await reads_of(mongo) == expected


@pytest.mark.spec("CS-22", "CS-25")
async def test_a_search_ranks_as_the_harness_ranks(
    mongodb_uri: str, harness_database: str, mongodb_database: str
) -> None:
    expected = await asyncio.to_thread(harness_side, "search", mongodb_uri, harness_database)
    store = MongoStepStore(db_url=mongodb_uri, database=mongodb_database, search_analyzer="regex")
    await store.initialise()
    for number, histories in enumerate(searched.runs()):
        run_id, at = f"run-{number}", searched.START + timedelta(minutes=number)
        record = run_record(run_id, conversation_id=searched.CONVERSATION, started_at=at)
        await store.register_run(record)
        for step, history in enumerate(histories):
            saved = snapshot(history, f"{step}", run_id=run_id, step_index=step, timestamp=at)
            await store.save_snapshot(saved)
    for query in searched.QUERIES:
        answer = await search_history(
            SnapshotHistorySource(store),
            HistoryQuery(
                text=query,
                conversation_id=searched.CONVERSATION,
                max_matches=searched.MATCHES,
                context_lines=0,
                analyzer="regex",
            ),
        )
        assert answer.note is None
        ours = [(f"{each.score:.1f}", each.run_id, each.index) for each in answer.matches]
        found = _MATCH.findall(expected[query])
        assert ours == [(score, run_id, int(index)) for score, run_id, index in found], query
        assert bool(ours) == (query != "none"), expected[query]
    await store.aclose()


@pytest.mark.spec("SP-2", "SP-50")
def test_the_harness_takes_our_store_for_one_of_its_own(used: Used) -> None:
    assert used.told["is_a_store"]


@pytest.mark.spec("SP-2", "SP-132")
@pytest.mark.parametrize("run_id", PLAYED)
def test_its_capability_leaves_in_our_store_what_it_leaves_in_its_own(
    used: Used, run_id: str
) -> None:
    assert outline(used.reads_of(run_id)) == outline(load_recording().reads["of_runs"][run_id])


async def test_what_it_wrote_is_read_in_another_process(used: Used) -> None:
    uri, _, database = used.place.partition(" ")
    places: dict[Backend, dict[str, Any]] = {
        "file": {"directory": used.place},
        "sqlite": {"database": used.place},
        "mongodb": {"db_url": uri, "database": database},
    }
    if used.backend not in places:
        pytest.skip("memory is gone with its process")
    store = open_step_store(used.backend, **places[used.backend])

    assert await reads_of(store) == used.told["reads"]
    await store.aclose()


def test_a_delegate_of_its_knows_its_parent(used: Used) -> None:
    assert used.reads_of("whole-helper")["run"]["parent_run_id"] == "whole"


def test_its_continue_and_fork_take_our_snapshots(used: Used) -> None:
    assert used.told["continued"] == "go on: done"
    assert used.told["forked"] == used.reads_of("broken")["newest"]["messages"]


def test_its_inspection_finds_what_we_recorded(used: Used) -> None:
    found, reads = used.told["recovery"], used.reads_of("broken")

    assert (found["latest"], found["settled"]) == (reads["newest"], reads["settled"])
    assert (found["completed_tools"], found["failed_tools"]) == (
        ["look_up", "set_label"],
        ["explode"],
    )
    assert found["unresolved"] == []


@pytest.mark.spec("SP-54")
def test_a_run_id_is_single_shot_for_it_too(used: Used) -> None:
    assert "'whole'" in used.told["taken"]
