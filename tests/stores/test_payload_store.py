"""Payloads in each store of chunks: what is written, what is read, what is damaged."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from pymongo import MongoClient
from pymongo.database import Database

from stores.errors import DamagedPayloadError, UnknownPayloadKeyError
from stores.memory_chunks import InMemoryChunkStore
from stores.mongo.steps import MongoStepStore
from stores.payload_keys import Keyring, PayloadKey
from stores.payload_store import ChunkStore, PayloadClaim, PayloadOwners, PayloadStore
from tests.unit.stores.test_chunks import conversation

pytestmark = pytest.mark.integration

OWNERS = PayloadOwners("default", ("run-1",))
KEYS = {each: PayloadKey(each, each.encode().ljust(32)) for each in ("old", "new")}
RING = Keyring(keys=KEYS, current="new", workspaces={"acme": "old"})

LONG = conversation(300)
"""0.9 MB."""


@pytest_asyncio.fixture
async def mongo(mongodb_uri: str, prepared_database: str) -> AsyncGenerator[MongoStepStore]:
    store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
    yield store
    await store.aclose()
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        client[prepared_database]["payload_chunks"].delete_many({})
        client[prepared_database]["payload_manifests"].delete_many({})


@pytest.fixture
def database(mongodb_uri: str, prepared_database: str) -> Iterator[Database[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        yield client[prepared_database]


@pytest.fixture(params=["memory", "mongodb"])
def chunks(request: pytest.FixtureRequest, mongo: MongoStepStore) -> ChunkStore:
    return InMemoryChunkStore() if request.param == "memory" else mongo.chunks


async def put(
    store: PayloadStore, data: bytes = LONG, *, owners: PayloadOwners = OWNERS, workspace: str = "x"
) -> PayloadClaim:
    return await store.put(data, owners=owners, workspace_id=workspace)


@pytest.mark.parametrize("keys", [Keyring(keys={}), RING], ids=["plain", "encrypted"])
@pytest.mark.parametrize("data", [b"", b"\xff\x00", LONG], ids=["empty", "bytes", "long"])
async def test_another_process_reads_what_one_has_written(
    chunks: ChunkStore, keys: Keyring, data: bytes
) -> None:
    claim = await put(PayloadStore(chunks, keys=keys), data)
    for cache_bytes in (0, 10_000_000):
        reader = PayloadStore(chunks, keys=keys, cache_bytes=cache_bytes)
        assert await reader.get(claim) == data


@pytest.mark.parametrize("keys", [Keyring(keys={}), RING], ids=["plain", "encrypted"])
async def test_a_chunk_is_written_once_and_by_each_process_that_knows_it_not_at_all(
    chunks: ChunkStore, keys: Keyring
) -> None:
    store = PayloadStore(chunks, keys=keys)
    for count in range(300, 320):
        await put(store, conversation(count))
    assert store.counts.bytes_given > 20 * len(LONG)
    assert store.counts.bytes_new < 1.2 * len(conversation(320))
    other = PayloadStore(chunks, keys=keys)
    await put(other, conversation(319))
    assert other.counts.bytes_new == 0


async def test_under_two_keys_nothing_is_shared_and_nothing_is_readable(
    chunks: ChunkStore,
) -> None:
    store = PayloadStore(chunks, keys=RING)
    await put(store, workspace="acme")
    written = store.counts.bytes_new
    claim = await put(store, workspace="other")
    assert store.counts.bytes_new == 2 * written
    with pytest.raises(UnknownPayloadKeyError, match="'new' is not known here"):
        await PayloadStore(chunks, keys=Keyring(keys={"old": KEYS["old"]})).get(claim)
    found = await chunks.find_chunks([claim.root])
    swapped = Keyring(keys={"new": PayloadKey("new", b"another".ljust(32))})
    assert found[claim.root].kind == "ids"
    with pytest.raises(DamagedPayloadError, match=r"'run-1'.*key 'new' is not the one"):
        await PayloadStore(chunks, keys=swapped).get(claim)


async def test_many_writers_of_the_same_chunks_all_succeed(mongo: MongoStepStore) -> None:
    stores = [PayloadStore(mongo.chunks) for _ in range(8)]
    claims = await asyncio.gather(*(put(store, LONG[:100_000]) for store in stores))
    assert len(set(claims)) == 1


async def test_a_chunk_that_is_missing_or_changed_is_named_with_its_workflow(
    mongo: MongoStepStore, database: Database[dict[str, Any]]
) -> None:
    claim = await put(PayloadStore(mongo.chunks))
    victim = database["payload_chunks"].find_one({"kind": "bytes"})
    assert victim is not None
    name = bytes(victim["_id"]).hex()
    database["payload_chunks"].update_one({"_id": victim["_id"]}, {"$set": {"data": b"else"}})
    with pytest.raises(DamagedPayloadError, match=f"'run-1'.*{name} was changed"):
        await PayloadStore(mongo.chunks).get(claim)
    database["payload_chunks"].delete_one({"_id": victim["_id"]})
    with pytest.raises(DamagedPayloadError, match=f"'run-1'.*{name} is not stored"):
        await PayloadStore(mongo.chunks).get(claim)


# Sweeping


async def sweep(
    mongo: MongoStepStore, *needed: str, grace: timedelta = timedelta(), is_dry: bool = False
) -> tuple[int, int]:
    """Manifests and chunks that went, when Temporal knows these workflows."""

    async def is_needed(workflow_id: str) -> bool:
        return workflow_id in needed

    swept = await mongo.sweep_payloads(
        grace=grace, namespace="default", is_needed=is_needed, is_dry=is_dry
    )
    return swept.manifests, swept.chunks


async def test_payloads_stay_while_a_workflow_needs_them(
    mongo: MongoStepStore, database: Database[dict[str, Any]]
) -> None:
    store = PayloadStore(mongo.chunks)
    shared = await put(store, owners=PayloadOwners("default", ("child", "parent")))
    alone = await put(store, b"mine " * 5000, owners=PayloadOwners("default", ("child",)))
    foreign = await put(store, b"theirs" * 5000, owners=PayloadOwners("other", ("x",)))

    assert await sweep(mongo, grace=timedelta(hours=1)) == (0, 0)
    dry = await sweep(mongo, "parent", is_dry=True)
    assert await sweep(mongo, "parent") == dry == (2, 1)

    fresh = PayloadStore(mongo.chunks)
    assert await fresh.get(shared) == LONG
    assert await fresh.get(foreign) == b"theirs" * 5000
    with pytest.raises(DamagedPayloadError, match=alone.root.hex()):
        await fresh.get(alone)
    await sweep(mongo)
    assert database["payload_chunks"].count_documents({}) == 1


async def test_a_sweep_beside_writers_who_believe_that_chunks_are_stored(
    mongo: MongoStepStore, database: Database[dict[str, Any]]
) -> None:
    """The writer sends nothing again, and its new manifest comes after the sweep has marked."""
    store = PayloadStore(mongo.chunks)
    await put(store, owners=PayloadOwners("default", ("ended",)))
    written = store.counts.bytes_new
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def is_needed(_: str) -> bool:
        reached.set()
        await go_on.wait()
        return False

    # As old as the writer may believe, and a sweep whose grace period is the shortest allowed.
    minutes = {"$dateSubtract": {"startDate": "$$NOW", "unit": "minute", "amount": 61}}
    database["payload_manifests"].update_many({}, [{"$set": {"touched_at": minutes}}])
    minutes["$dateSubtract"]["amount"] = 25
    database["payload_chunks"].update_many({}, [{"$set": {"touched_at": minutes}}])
    sweeping = asyncio.create_task(
        mongo.sweep_payloads(
            grace=timedelta(hours=1), namespace="default", is_needed=is_needed, is_dry=False
        )
    )
    await reached.wait()
    claim = await put(store, owners=PayloadOwners("default", ("new",)))
    go_on.set()
    swept = await sweeping

    assert (swept.manifests, swept.chunks) == (1, 0)
    assert store.counts.bytes_new == written
    assert await PayloadStore(mongo.chunks).get(claim) == LONG
