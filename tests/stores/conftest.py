"""A MongoDB database with all indexes, for the tests of one module."""

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient

from stores.mongo.steps import MongoStepStore


@pytest.fixture(scope="module")
def prepared_database(mongodb_uri: str) -> Iterator[str]:
    """Made once for a module: making the indexes for each test would take longer than the tests."""
    name = f"test_{uuid4().hex}"

    async def initialise() -> None:
        store = MongoStepStore(db_url=mongodb_uri, database=name)
        await store.initialise()
        await store.aclose()

    asyncio.run(initialise())
    yield name
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        client.drop_database(name)
