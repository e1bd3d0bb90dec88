"""Source databases of the harness, and the store that they are imported into."""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient

from stores.memory import InMemoryStepStore
from stores.mongo.harness import HarnessDatabase
from stores.mongo.indexes import COLLECTIONS
from stores.mongo.steps import MongoStepStore
from tests.interop.recording import load_recording
from tests.stores.conftest import prepared_database

__all__ = ["prepared_database"]


@pytest.fixture
def source(mongodb_uri: str) -> Iterator[str]:
    """The name of a database that holds what the recording holds."""
    name = f"harness_{uuid4().hex}"
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        for collection, documents in load_recording().collections.items():
            client[name][collection].insert_many(documents)
        yield name
        client.drop_database(name)


@pytest.fixture
async def reader(mongodb_uri: str, source: str) -> AsyncIterator[HarnessDatabase]:
    """Reads that database."""
    reader = HarnessDatabase(db_url=mongodb_uri, database=source)
    yield reader
    await reader.aclose()


@pytest.fixture
def store() -> InMemoryStepStore:
    """An empty store of ours; an import uses what all stores have alike."""
    return InMemoryStepStore()


@pytest.fixture
async def mongo(mongodb_uri: str, prepared_database: str) -> AsyncIterator[MongoStepStore]:
    """An empty store of ours in MongoDB."""
    store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
    yield store
    await store.aclose()
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        for collection in COLLECTIONS:
            client[prepared_database][collection].delete_many({})
