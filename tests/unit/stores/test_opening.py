from pathlib import Path
from typing import cast

import pytest

from stores.errors import InvalidIdentifierError, StoreConfigurationError
from stores.file.steps import FileStepStore
from stores.media.disk import DiskMediaStore
from stores.media.opening import open_media_store
from stores.media.s3 import S3MediaStore
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from stores.opening import Backend, open_step_store
from stores.sqlite.steps import SqliteStepStore


def test_memory_is_opened() -> None:
    store = open_step_store("memory", workspace_id="w")
    assert isinstance(store, InMemoryStepStore)
    assert store.workspace_id == "w"


def test_mongodb_is_opened_without_connecting() -> None:
    store = open_step_store("mongodb", db_url="mongodb://127.0.0.1:1", database="d")
    assert isinstance(store, MongoStepStore)
    assert store.workspace_id == "default"


def test_files_and_sqlite_are_opened_without_making_anything(tmp_path: Path) -> None:
    store = open_step_store("file", directory=tmp_path / "runs", workspace_id="w")
    assert isinstance(store, FileStepStore)
    assert store.workspace_id == "w"
    assert isinstance(open_step_store("sqlite", database=tmp_path / "db"), SqliteStepStore)
    assert list(tmp_path.iterdir()) == []


def test_what_files_and_sqlite_need_is_named() -> None:
    with pytest.raises(ValueError, match="pass directory="):
        open_step_store("file")
    with pytest.raises(ValueError, match="pass database="):
        open_step_store("sqlite")


def test_an_argument_of_another_backend_is_named() -> None:
    with pytest.raises(ValueError, match="backend 'memory' takes no database=, directory="):
        open_step_store("memory", directory="runs", database="runs.db")
    with pytest.raises(ValueError, match="'mongodb' takes no directory="):
        open_step_store("mongodb", db_url="mongodb://x", database="d", directory="runs")


@pytest.mark.spec("SP-75")
def test_the_media_store_of_settings_is_opened_by_its_name(tmp_path: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": "http://x"}
    assert open_media_store("mongodb") == "auto"
    assert open_media_store("none") is None
    assert isinstance(open_media_store(f"disk:{tmp_path}"), DiskMediaStore)
    assert isinstance(open_media_store("s3://bucket/a/b", keys), S3MediaStore)
    with pytest.raises(StoreConfigurationError, match="needs AWS_SECRET_ACCESS_KEY in the"):
        open_media_store("s3://bucket", {"AWS_ACCESS_KEY_ID": "a"})
    for name in ("", "disk:", "s3://", "s3:bucket", "redis", "Mongodb"):
        with pytest.raises(StoreConfigurationError, match="names no media store; pass mongodb"):
            open_media_store(name, keys)
    with pytest.raises(ValueError, match="takes no media_store="):
        open_step_store("memory", media_store=None)


def test_what_mongodb_needs_is_named() -> None:
    with pytest.raises(ValueError, match="db_url="):
        open_step_store("mongodb", database="d")
    with pytest.raises(ValueError, match="database="):
        open_step_store("mongodb", db_url="mongodb://x")


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"'redis'; known are 'memory', 'file', 'sqlite', 'mongodb'"
    ):
        open_step_store(cast("Backend", "redis"))


def test_a_malformed_workspace_is_refused() -> None:
    with pytest.raises(InvalidIdentifierError, match="workspace_id"):
        open_step_store("memory", workspace_id="")
