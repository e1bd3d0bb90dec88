"""A client as production connects, and stores."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
import pytest_asyncio
from temporalio.client import Client

from client import connect
from settings import Settings
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore

WITHIN = timedelta(seconds=30)
"""How long a test waits for a run that should end."""


@pytest_asyncio.fixture
async def temporal(temporal_address: str) -> Client:
    """Connected as worker and CLI do."""
    return await connect(Settings(temporal_address=temporal_address))


@pytest.fixture
def memory() -> InMemoryStepStore:
    """The verified fake."""
    return InMemoryStepStore()


@pytest_asyncio.fixture
async def mongo(mongodb_uri: str, mongodb_database: str) -> AsyncGenerator[MongoStepStore]:
    """A database of its own, with indexes."""
    store = MongoStepStore(db_url=mongodb_uri, database=mongodb_database)
    await store.initialise()
    yield store
    await store.aclose()
