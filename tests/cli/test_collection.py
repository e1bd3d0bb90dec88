"""`perdure gc` as an operator runs it, on a MongoDB of its own and without Temporal."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from cli.collection import gc_command, size
from cli.failures import WrongUsageError
from stores.mongo.steps import MongoStepStore
from tests.cli.test_commands import NOWHERE, Perdure
from tests.stores.records import snapshot
from tests.stores.writer import request

pytestmark = pytest.mark.integration


@pytest.fixture
def database(mongodb_uri: str) -> Iterator[Database[dict[str, Any]]]:
    """In each of two workspaces a message of a snapshot, and one of a snapshot that was pruned."""
    name = f"test_{uuid4().hex}"

    async def fill() -> None:
        store = MongoStepStore(db_url=mongodb_uri, database=name, max_snapshots_per_run=1)
        await store.initialise()
        for each in (store, store.for_workspace("lab")):
            for number in range(2):
                await each.save_snapshot(snapshot([request(str(number))], str(number)))
        assert store.media_store is not None
        await store.media_store.put(b"nothing names it")
        await store.aclose()

    asyncio.run(fill())
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        yield client[name]
        client.drop_database(name)


@pytest.fixture
def perdure(mongodb_uri: str) -> Perdure:
    """Without Temporal, on a database without indexes."""
    return Perdure(
        {
            "mongodb_uri": mongodb_uri,
            "mongodb_database": f"test_{uuid4().hex}",
            "temporal_address": NOWHERE,
        }
    )


def test_what_is_young_stays(perdure: Perdure, database: Database[dict[str, Any]]) -> None:
    early = perdure("gc", mongodb_database=database.name)
    assert early.returncode == 0, early.stderr
    assert early.stdout == (
        "would remove 0 messages (0 B) and 0 positions of logs; looked at 4 messages\n"
    )
    assert early.stderr == ""


@pytest.mark.spec("SP-69")
def test_it_tells_what_would_go_and_removes_it_when_told_to(
    perdure: Perdure, database: Database[dict[str, Any]]
) -> None:
    perdure.settings["mongodb_database"] = database.name
    for each in ("messages", "media"):
        database[each].update_many({}, {"$set": {"touched_at": 1}})
    database["snapshots"].update_many({"mark": "pruned"}, {"$set": {"pruned_at": 1}})

    would = perdure("gc")
    assert "would remove 2 messages" in would.stdout
    assert "and 2 positions of logs" in would.stdout
    assert "would remove 1 media (16 B)" in would.stdout
    assert "the same command with --delete" in would.stderr
    assert database["messages"].count_documents({}) == 4

    document = perdure.document("gc", "--delete", "--workspace", "lab", "--grace-days", "1.5")
    size_bytes = document.pop("size_bytes")
    assert size_bytes > 100
    assert document == {
        "is_dry": False,
        "looked_at": 4,
        "stored": 4,
        "messages": 1,
        "positions": 1,
        "media": 0,
        "media_size_bytes": 0,
        "grace_days": 1.5,
        "payloads": None,
        "details": None,
        "workspace_id": "lab",
    }
    removed = perdure("gc", "--delete")
    assert removed.stdout.startswith("removed 1 messages (")
    assert "removed 1 media (16 B)" in removed.stdout
    assert database["media_chunks"].count_documents({}) == 0
    assert removed.stderr == ""
    assert database["messages"].count_documents({}) == 2
    details = perdure.document("gc", "--details-days", "1")["details"]
    assert details == {"runs": 0, "rows": 0, "open": 0}


@pytest.mark.parametrize("days", ["0", "-1", "0.04", "nan", "inf", "99999"])
def test_a_grace_period_out_of_range_is_wrong_usage(days: str) -> None:
    with pytest.raises(WrongUsageError, match="is out of range; pass an hour"):
        gc_command(grace_days=float(days), delete=True)
    with pytest.raises(WrongUsageError, match="--details-days"):
        gc_command(details_days=float(days), delete=True)


def test_a_database_without_the_indexes_is_not_swept(perdure: Perdure) -> None:
    done = perdure("gc")
    assert done.returncode == 1
    assert "index positions_message_v1 is missing; run `perdure init`" in done.stderr


def test_a_server_that_does_not_answer_has_its_own_exit_code(perdure: Perdure) -> None:
    done = perdure("gc", mongodb_uri=f"mongodb://{NOWHERE}")
    assert done.returncode == 4


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (1_250_000, "1.2 MB"),
        (2_000_000_000, "2.0 GB"),
        (3_000_000_000_000, "3000.0 GB"),
    ],
)
def test_sizes_are_in_a_unit_that_a_person_reads(size_bytes: int, words: str) -> None:
    assert size(size_bytes) == words
