"""The command line reads large content where the settings say it is."""

import asyncio
from pathlib import Path

import pytest

from stores.media.disk import DiskMediaStore
from stores.mongo.steps import MongoStepStore
from tests.cli.test_commands import NOWHERE, Perdure
from tests.stores.records import run_record, snapshot
from tests.stores.writer import request

pytestmark = pytest.mark.integration

LONG = "long " * 20_000


def test_messages_are_read_with_the_media_store_of_the_settings(
    mongodb_uri: str, mongodb_database: str, tmp_path: Path
) -> None:
    async def fill() -> None:
        media = DiskMediaStore(tmp_path)
        store = MongoStepStore(db_url=mongodb_uri, database=mongodb_database, media_store=media)
        await store.initialise()
        await store.register_run(run_record())
        await store.save_snapshot(snapshot([request(LONG)]))
        await store.aclose()

    asyncio.run(fill())
    settings = {"mongodb_uri": mongodb_uri, "mongodb_database": mongodb_database}
    perdure = Perdure({**settings, "temporal_address": NOWHERE})

    found = perdure("messages", "run-1", "--json", media=f"disk:{tmp_path}")
    assert found.returncode == 0, found.stderr
    assert LONG in found.stdout
    elsewhere = perdure("messages", "run-1")
    assert elsewhere.returncode == 1
    assert "name the media store that holds it" in elsewhere.stderr
    unknown = perdure("messages", "run-1", media="tape:1")
    assert unknown.returncode != 0
    assert "PERDURE_MEDIA=tape:1 names no media store" in unknown.stderr
    assert "Traceback" not in elsewhere.stderr + unknown.stderr
