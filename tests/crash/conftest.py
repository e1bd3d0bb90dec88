"""What every crash test needs: a client, the store that the workers write to, and the workers."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from temporalio.client import Client

from client import connect
from settings import Settings
from stores.opening import open_step_store
from stores.protocols import StepStore

AGENTS = "tests.helpers.user_agents:AGENTS"


@pytest.fixture
def settings(
    temporal_address: str, mongodb_uri: str, mongodb_database: str, task_queue: str
) -> Settings:
    """Of workers and client."""
    return Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=mongodb_database,
        task_queue=task_queue,
        agents=AGENTS,
    )


@pytest_asyncio.fixture
async def temporal(settings: Settings) -> Client:
    """Connected as worker and CLI do."""
    return await connect(settings)


@pytest_asyncio.fixture
async def store(settings: Settings) -> AsyncGenerator[StepStore]:
    """The store that the workers write to, without their faults."""
    opened = open_step_store(
        "mongodb", db_url=settings.mongodb_uri, database=settings.mongodb_database
    )
    await opened.initialise()
    yield opened
    await opened.aclose()
