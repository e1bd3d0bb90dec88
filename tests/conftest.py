"""Real servers once a session, and for each test a database and a task queue of its own."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient

from cli.servers import LocalServers
from workflows.names import SEARCH_ATTRIBUTES


@pytest.fixture(scope="session")
def servers() -> Iterator[LocalServers]:
    """Temporal and MongoDB, started when the first test asks for them.

    A test that stops, kills or freezes one starts or thaws it again, whatever happens to the test.
    """
    # Not pytest's own directories: those are kept for three sessions, 50 MB each.
    with tempfile.TemporaryDirectory(prefix="perdure-tests-") as data_dir:
        started = LocalServers(Path(data_dir), search_attributes=SEARCH_ATTRIBUTES)
        asyncio.run(started.start())
        try:
            yield started
        finally:
            asyncio.run(started.kill())


@pytest.fixture(scope="session")
def temporal_address(servers: LocalServers) -> str:
    """`host:port` of the session's Temporal."""
    return servers.addresses.temporal_address


@pytest.fixture(scope="session")
def mongodb_uri(servers: LocalServers) -> str:
    """Connection string of the session's MongoDB, a replica set of one."""
    return servers.addresses.mongodb_uri


@pytest.fixture
def mongodb_database(mongodb_uri: str) -> Iterator[str]:
    """The name of a database that no other test has; dropped afterwards."""
    name = f"test_{uuid4().hex}"
    yield name
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        client.drop_database(name)


@pytest.fixture
def task_queue() -> str:
    """A task queue that no other test has."""
    return f"test-{uuid4().hex}"
