"""Step stores and the media stores that they are given, or make."""

import asyncio
import logging
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stores.errors import DamagedSnapshotError, StoreUnavailableError
from stores.file.steps import FileStepStore
from stores.media.addresses import media_uri_for, parse_media_uri
from stores.media.disk import DiskMediaStore
from stores.media.protocols import NO_CONTEXT, MediaContext, MediaStore
from stores.memory import InMemoryStepStore
from stores.sqlite.media import SqliteMediaStore
from stores.sqlite.steps import SqliteStepStore
from tests.stores.records import snapshot
from tests.stores.step_media_conformance import LARGE, LOOKALIKE, MESSAGES, as_loaded, returned
from tests.stores.writer import request, text_of

URI = media_uri_for(LARGE.encode())
URI_A = media_uri_for(b"a" * 100)


class Shelf:
    """A media store of one's own: five methods."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.seen: list[MediaContext] = []
        self.is_away = False

    async def put(self, data: bytes, *, context: MediaContext = NO_CONTEXT) -> str:
        if self.is_away:
            raise StoreUnavailableError("the shelf is away")  # noqa: EM101, TRY003 - as a store
        self.seen.append(context)
        self.blobs[media_uri_for(data)] = data
        return media_uri_for(data)

    async def get(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bytes:
        if self.is_away:
            raise StoreUnavailableError("the shelf is away")  # noqa: EM101, TRY003
        self.seen.append(context)
        if uri not in self.blobs:
            raise FileNotFoundError(uri)
        return self.blobs[uri]

    async def exists(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bool:  # noqa: ARG002
        return uri in self.blobs

    async def public_url(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> str | None:  # noqa: ARG002
        return None

    async def get_metadata(
        self,
        uri: str,  # noqa: ARG002
        *,
        context: MediaContext = NO_CONTEXT,  # noqa: ARG002
    ) -> Mapping[str, str]:
        return {}


@pytest.mark.spec("SP-75")
async def test_each_store_has_the_media_store_that_suits_it(tmp_path: Path) -> None:
    assert not hasattr(InMemoryStepStore(), "media_store")
    files, rows = FileStepStore(tmp_path / "runs"), SqliteStepStore(database=tmp_path / "runs.db")
    assert isinstance(files.media_store, DiskMediaStore)
    assert isinstance(rows.media_store, SqliteMediaStore)
    for store in (files, rows):
        await store.save_snapshot(snapshot([request(LARGE)]))
    path = tmp_path / "runs" / "media" / f"{parse_media_uri(URI)}.bin"
    assert path.read_text() == LARGE
    await rows.aclose()
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        found = connection.execute("SELECT bytes FROM media").fetchall()
        (text,) = connection.execute("SELECT text FROM messages").fetchone()
    connection.close()
    assert found == [(LARGE.encode(),)]
    assert len(text) < 500
    assert URI in text


@pytest.mark.spec("SP-89")
async def test_a_media_store_of_ones_own_holds_the_content(tmp_path: Path) -> None:
    shelf: Any = Shelf()
    checked: MediaStore = shelf
    store = SqliteStepStore(
        database=tmp_path / "a.db", media_store=checked, media_threshold_bytes=100
    )
    await store.save_snapshot(snapshot([request("a" * 100), request("b" * 99)]))
    assert list(shelf.blobs.values()) == [b"a" * 100]
    latest = await store.latest_snapshot(run_id="run-1")
    assert latest is not None
    assert latest.messages == [request("a" * 100), request("b" * 99)]
    assert shelf.seen == [MediaContext(media_type="text/plain")] * 2  # the same to put and get
    for blobs, words in (({URI_A: b"changed"}, "damaged: its 7"), ({}, "is lost")):
        shelf.blobs = blobs
        with pytest.raises(DamagedSnapshotError, match=words):
            await store.latest_snapshot(run_id="run-1")
    shelf.is_away = True
    for call in (
        store.list_snapshots(run_id="run-1"),
        store.latest_snapshot(run_id="run-1"),
        store.save_snapshot(snapshot([request("c" * 100)], step_index=2)),
    ):
        with pytest.raises(StoreUnavailableError, match="shelf is away"):
            await call
    assert len(await store.list_snapshot_summaries(run_id="run-1")) == 1
    await store.aclose()


@pytest.mark.spec("SP-72", "SP-73")
async def test_what_was_saved_without_a_media_store_is_read_with_one(tmp_path: Path) -> None:
    database = tmp_path / "a.db"
    plain = SqliteStepStore(database=database, media_store=None)
    await plain.save_snapshot(snapshot([*MESSAGES[:4], returned(LOOKALIKE)], "key"))
    await plain.aclose()
    with sqlite3.connect(database) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
    connection.close()
    assert ("media",) not in tables
    store = SqliteStepStore(database=database)
    # Equal content is the same save, wherever it lies.
    await store.save_snapshot(snapshot([*MESSAGES[:4], returned(LOOKALIKE)], "key"))
    latest = await store.latest_snapshot(run_id="run-1")
    assert latest is not None
    assert latest.messages == as_loaded([*MESSAGES[:4], returned(LOOKALIKE)])
    await store.save_snapshot(snapshot(MESSAGES[:4], "later", step_index=2))
    await store.aclose()
    plain = SqliteStepStore(database=database, media_store=None)
    with pytest.raises(DamagedSnapshotError, match="opened with media_store=None"):
        await plain.latest_snapshot(run_id="run-1")
    await plain.aclose()


@pytest.mark.spec("SP-74")
async def test_what_cannot_be_restored_hides_no_other_snapshot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = tmp_path / "a.db"
    store = SqliteStepStore(database=database)
    await store.save_snapshot(snapshot([request("short")], "1"))
    await store.save_snapshot(snapshot([request(LARGE)], "2", step_index=2))
    changes = {
        "version 9, and this version": "UPDATE messages SET text = "
        "replace(text, '\"version\":1', '\"version\":9')",
        "is damaged: its 1 bytes": "UPDATE media SET bytes = x'00'",
        "is not in SQLite": "DELETE FROM media",
    }
    for words, change in changes.items():
        with sqlite3.connect(database) as connection:
            connection.execute(change)
        connection.close()
        with pytest.raises(ValueError, match=f"snapshot 2 of run 'run-1' is damaged.*{words}"):
            await store.latest_snapshot(run_id="run-1")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = await store.list_snapshots(run_id="run-1")
        assert [text_of(each.messages[0]) for each in found] == ["short"]
        assert words in caplog.text
        with sqlite3.connect(database) as connection:
            connection.execute("UPDATE messages SET text = replace(text, 'n\":9', 'n\":1')")
        connection.close()
    await store.aclose()


async def test_a_run_may_have_the_name_of_the_media_directory(tmp_path: Path) -> None:
    store = FileStepStore(tmp_path)
    await store.save_snapshot(snapshot([request(LARGE)], run_id="run-1"))
    await store.verify()
    assert await store.list_runs() == []
    await store.save_snapshot(snapshot([request(LARGE)], run_id="media"))
    latest = await store.latest_snapshot(run_id="media")
    assert latest is not None
    assert latest.messages == [request(LARGE)]
    await store.verify()


async def test_an_upload_goes_on_when_its_caller_gives_up_and_the_next_one_joins(
    tmp_path: Path,
) -> None:
    may_end, begun = asyncio.Event(), 0

    class Slow(Shelf):
        async def put(self, data: bytes, *, context: MediaContext = NO_CONTEXT) -> str:
            nonlocal begun
            begun += 1
            await may_end.wait()
            return await super().put(data, context=context)

    shelf: Any = Slow()
    store = SqliteStepStore(database=tmp_path / "a.db", media_store=shelf)
    saved = snapshot([request(LARGE)])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(store.save_snapshot(saved), 0.05)
    again = asyncio.create_task(store.save_snapshot(saved))
    may_end.set()
    await again
    assert begun == 1
    assert await store.latest_snapshot(run_id="run-1") is not None
    await store.aclose()
