"""The stores that a worker takes."""

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from settings import Settings
from stores.errors import StoreConfigurationError
from stores.opening import Backend, open_step_store
from worker import build_worker


@pytest.mark.parametrize(
    ("backend", "place", "name"),
    [("file", "directory", "FileStepStore"), ("sqlite", "database", "SqliteStepStore")],
)
async def test_a_worker_refuses_a_store_that_other_workers_could_not_see(
    tmp_path: Path, backend: Backend, place: str, name: str
) -> None:
    client = await Client.connect("127.0.0.1:1", lazy=True)
    arguments: dict[str, Any] = {place: tmp_path / "runs"}
    store = open_step_store(backend, **arguments)
    with pytest.raises(StoreConfigurationError, match=rf"{name}.*could not see.*Use MongoDB"):
        build_worker(client, store, [], Settings())
    assert list(tmp_path.iterdir()) == []
