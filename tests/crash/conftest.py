"""What every crash test needs: a client, the store that the workers write to, and the workers."""

import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from cli.servers import LocalServers
from client import connect
from converter import close_payloads
from settings import Settings
from stores.opening import open_step_store
from stores.protocols import StepStore
from workflows.names import SEARCH_ATTRIBUTES

AGENTS = "tests.helpers.user_agents:AGENTS"


@pytest_asyncio.fixture
async def own_servers() -> AsyncGenerator[LocalServers]:
    """Servers of the test's own, which it may stop."""
    with tempfile.TemporaryDirectory(prefix="perdure-outage-") as data_dir:
        servers = LocalServers(Path(data_dir), search_attributes=SEARCH_ATTRIBUTES)
        await servers.start()
        try:
            yield servers
        finally:
            await servers.kill()


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
async def temporal(settings: Settings) -> AsyncGenerator[Client]:
    """Connected as worker and CLI do."""
    client = await connect(settings)
    yield client
    await close_payloads(client.data_converter)


@pytest_asyncio.fixture
async def store(settings: Settings) -> AsyncGenerator[StepStore]:
    """The store that the workers write to, without their faults."""
    opened = open_step_store(
        "mongodb", db_url=settings.mongodb_uri, database=settings.mongodb_database
    )
    await opened.initialise()
    yield opened
    await opened.aclose()
