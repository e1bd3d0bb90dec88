"""Media stores on one machine: in files and in SQLite."""

import errno
import gc
import json
import os
import sqlite3
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from stores.errors import MediaKeyError, MediaNotFoundError, StoreUnavailableError
from stores.media.addresses import parse_media_uri
from stores.media.disk import DiskMediaStore
from stores.media.protocols import MediaContext
from stores.sqlite.media import SqliteMediaStore
from tests.stores.media_conformance import (
    DATA,
    PNG,
    URI,
    MediaStoreConformance,
    StreamingConformance,
    overwrite,
)

DIGEST = parse_media_uri(URI)


@pytest.mark.spec("SP-77")
class TestDiskMediaStore(MediaStoreConformance, StreamingConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Any:
        def make(**options: Any) -> DiskMediaStore:
            return DiskMediaStore(tmp_path / "media", **options)

        return make

    @pytest.fixture
    def store(self, make: Callable[..., DiskMediaStore]) -> DiskMediaStore:
        return make()

    @pytest.fixture
    def damage(self, tmp_path: Path) -> Any:
        def damage(uri: str) -> None:
            overwrite(tmp_path / "media" / f"{parse_media_uri(uri)}.bin")

        return damage

    @pytest.mark.spec("SP-84")
    async def test_metadata_are_beside_the_blob_and_absent_without(
        self, store: DiskMediaStore, tmp_path: Path
    ) -> None:
        await store.put(DATA, context=MediaContext(media_type="image/png"))
        assert [each.name for each in (tmp_path / "media").iterdir()] == [f"{DIGEST}.bin"]
        await store.put(DATA, context=PNG)
        told = json.loads((tmp_path / "media" / f"{DIGEST}.bin.meta.json").read_text())
        assert told == {"media_type": "image/png", "metadata": dict(PNG.metadata)}

    @pytest.mark.spec("SP-85", "SP-86", "SP-87")
    async def test_a_strategy_chooses_paths_and_needs_the_same_context_to_read(
        self, make: Any, tmp_path: Path
    ) -> None:
        def by_type(uri: str, context: MediaContext) -> str:
            kind = "png" if context.media_type == "image/png" else "bin"
            return f"images/{parse_media_uri(uri)}.{kind}"

        def escape(_: str, __: MediaContext) -> str:
            return "../escaped"

        store = make(key_strategy=by_type)
        await store.put(DATA, context=PNG)
        assert (tmp_path / "media" / "images" / f"{DIGEST}.png").read_bytes() == DATA
        assert await store.get(URI, context=PNG) == DATA
        with pytest.raises(MediaNotFoundError):
            await store.get(URI)
        with pytest.raises(MediaKeyError):
            await make(key_strategy=escape).put(DATA)
        assert not (tmp_path / "escaped").exists()

    async def test_a_full_disk_is_an_outage_and_leaves_no_half_blob(
        self, store: DiskMediaStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(_: int) -> NoReturn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("stores.media.disk.os.fsync", full)
        for put in (store.put(DATA), store.put_stream(_pieces(1, 10))):
            with pytest.raises(StoreUnavailableError, match="No space left"):
                await put
        monkeypatch.undo()
        assert list((tmp_path / "media").iterdir()) == []
        assert await store.get(await store.put(DATA)) == DATA

    async def test_a_large_stream_needs_little_memory(self, store: DiskMediaStore) -> None:
        assert await peak_of_streaming(store) < 16_000_000


async def _pieces(count: int, size_bytes: int) -> AsyncIterator[bytes]:
    for number in range(count):
        yield bytes([number % 256]) * size_bytes


async def peak_of_streaming(store: Any) -> int:
    """Peak bytes of Python's memory while 64 MiB go into a store and come back."""
    gc.collect()
    tracemalloc.start()
    try:
        uri = await store.put_stream(_pieces(64, 1024 * 1024))
        size_bytes = 0
        async for piece in store.get_stream(uri):
            size_bytes += len(piece)
        assert size_bytes == 64 * 1024 * 1024
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.spec("SP-78")
class TestSqliteMediaStore(MediaStoreConformance):
    @pytest.fixture
    async def make(self, tmp_path: Path) -> AsyncIterator[Any]:
        made: list[SqliteMediaStore] = []

        def make(**options: Any) -> SqliteMediaStore:
            made.append(SqliteMediaStore(database=tmp_path / "media.db", **options))
            return made[-1]

        yield make
        for each in made:
            await each.aclose()

    @pytest.fixture
    def store(self, make: Callable[..., SqliteMediaStore]) -> SqliteMediaStore:
        return make()

    @pytest.fixture
    def damage(self, tmp_path: Path) -> Any:
        def damage(_: str) -> None:
            with sqlite3.connect(tmp_path / "media.db") as connection:
                connection.execute("UPDATE media SET bytes = x'00'")
            connection.close()

        return damage

    @pytest.mark.spec("SP-84", "SP-85")
    async def test_a_row_holds_all_of_a_blob_in_the_table_of_that_name(
        self, make: Any, tmp_path: Path
    ) -> None:
        store = make(table="pictures")
        await store.put(DATA, context=PNG)
        await store.put(DATA, context=MediaContext(metadata={"later": "no"}))
        with sqlite3.connect(tmp_path / "media.db") as connection:
            found = connection.execute("SELECT * FROM pictures").fetchall()
        connection.close()
        metadata = json.dumps(dict(PNG.metadata))
        assert found == [("default", DIGEST, "image/png", len(DATA), metadata, DATA)]
        with pytest.raises(ValueError, match="no name of a table"):
            make(table="a b")
        with pytest.raises(ValueError, match="exactly one"):
            SqliteMediaStore()

    async def test_a_shared_connection_is_left_open(self, tmp_path: Path) -> None:
        connection = sqlite3.connect(tmp_path / "shared.db", check_same_thread=False)
        store = SqliteMediaStore(connection=connection)
        await store.put(DATA)
        await store.aclose()
        assert connection.execute("SELECT count(*) FROM media").fetchone() == (1,)
        connection.close()
