import os
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    BinaryImage,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from stores.errors import (
    ConversationConflict,
    ConversationNotFoundError,
    StoreConfigurationError,
)
from stores.saved_conversations import ConversationSummary
from stores.sqlite.conversations import SqliteConversationStore
from stores.sqlite.steps import SqliteStepStore
from tests.stores.records import event, run_record, snapshot

PICTURE = BinaryImage(data=b"\x89PNG", media_type="image/png")
MESSAGES: list[ModelMessage] = [
    ModelRequest(parts=[UserPromptPart(["Die Straße", PICTURE])]),
    ModelResponse(parts=[ThinkingPart("secretly"), ToolCallPart("look", {}, tool_call_id="1")]),
    ModelRequest(parts=[ToolReturnPart("look", "output", tool_call_id="1")]),
    ModelResponse(parts=[TextPart("A road")]),
]


def summary(**given: Any) -> ConversationSummary:
    return replace(ConversationSummary(workspace="w"), **given)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "conversations.db"


@pytest.fixture
async def store(database: Path) -> AsyncIterator[SqliteConversationStore]:
    store = SqliteConversationStore(database=database)
    yield store
    await store.aclose()


@pytest.mark.spec("SP-90", "SP-91", "SP-92")
async def test_a_conversation_comes_back_and_a_stale_writer_is_refused(
    store: SqliteConversationStore,
) -> None:
    first = await store.save(summary=summary(id="c"), messages=MESSAGES)
    assert (first.revision, first.message_count) == (1, 4)
    second = await store.save(summary=first, messages=MESSAGES[:2])
    with pytest.raises(ConversationConflict, match="revision 2"):
        await store.save(summary=first, messages=MESSAGES)
    saved = await store.get(conversation_id="c")
    assert (saved.summary, len(saved.messages)) == (second, 2)
    assert saved.messages[1] == MESSAGES[1]
    prompt = saved.messages[0].parts[0]
    assert isinstance(prompt, UserPromptPart)
    picture = prompt.content[1]
    assert isinstance(picture, BinaryContent)
    assert picture.data == PICTURE.data
    await store.delete(source=second)
    with pytest.raises(ConversationConflict, match="deleted"):
        await store.save(summary=second, messages=MESSAGES)
    with pytest.raises(ConversationNotFoundError):
        await store.get(conversation_id="c")


@pytest.mark.spec("SP-93")
async def test_listing_finds_what_was_said_and_nothing_else(
    store: SqliteConversationStore,
) -> None:
    kept = await store.save(summary=summary(id="a"), messages=MESSAGES)
    await store.save(summary=summary(id="b", title="Roads"), messages=[])

    async def found(query: str = "", **options: object) -> list[str]:
        return [each.id for each in await store.listing(query=query, **options)]  # type: ignore[arg-type]

    assert await found() == ["b", "a"]
    assert await found(limit=1, offset=1) == ["a"]
    assert await found("STRASSE") == ["a"]
    assert await found("road") == ["b", "a"]
    for unsaid in ("output", "secretly", "%"):
        assert await found(unsaid) == []
    await store.save(summary=kept, messages=MESSAGES[3:])  # compacted
    assert await found("STRASSE") == []
    await store.set_archived(conversation_id="b", archived=True)
    assert await found() == ["a"]
    assert await found(archived=True) == ["b"]
    assert await found(archived=None) == ["a", "b"]


@pytest.mark.spec("SP-95", "SP-102")
async def test_a_name_never_replaces_what_is_newer_or_a_persons(
    store: SqliteConversationStore,
) -> None:
    first = await store.save(summary=summary(id="c"), messages=MESSAGES)
    named = await store.name(source=first, title="Road", tags=["t"], tokens=5)
    assert (named.title, named.updated_at, named.revision) == ("Road", first.updated_at, 1)
    with pytest.raises(ConversationConflict):
        await store.name(source=first, title="Older", tokens=3)
    second = await store.save(summary=first, messages=MESSAGES)
    assert (second.title, second.naming_tokens) == ("Road", 8)
    with pytest.raises(ConversationConflict):
        await store.name(source=named, title="Stale", tokens=3)
    mine = await store.name(source=second, title="Mine", is_manual=True)
    with pytest.raises(ConversationConflict):
        await store.name(source=mine, title="Generated", tokens=3)
    assert (await store.get(conversation_id="c")).summary.naming_tokens == 14


@pytest.mark.spec("SP-94")
async def test_metadata_of_an_unknown_version_are_refused(
    store: SqliteConversationStore, database: Path
) -> None:
    await store.save(summary=summary(id="c"), messages=[])
    with sqlite3.connect(database) as connection:
        connection.execute(
            "UPDATE saved_conversations SET summary = json_set(summary, '$.schema_version', 2)"
        )
    connection.close()
    with pytest.raises(StoreConfigurationError, match="schema version 2"):
        await store.get(conversation_id="c")


@pytest.mark.spec("SP-96")
async def test_deleting_takes_the_runs_of_the_conversation_along(
    store: SqliteConversationStore, database: Path
) -> None:
    steps = SqliteStepStore(database=database)
    for run_id, conversation_id in (("mine", "c"), ("other", "d")):
        await steps.register_run(run_record(run_id=run_id, conversation_id=conversation_id))
        await steps.append_event(event(run_id=run_id, kind="run_started"))
        await steps.save_snapshot(snapshot(MESSAGES, run_id=run_id))
    saved = await store.save(summary=summary(id="c"), messages=MESSAGES)
    await store.save(summary=saved, messages=MESSAGES)
    with pytest.raises(ConversationConflict):
        await store.delete(source=saved)
    assert await steps.get_run(run_id="mine") is not None

    await store.delete(source=(await store.get(conversation_id="c")).summary)
    assert await steps.get_run(run_id="mine") is None
    assert await steps.list_events(run_id="mine") == []
    assert await steps.list_snapshots(run_id="mine") == []
    assert len(await steps.list_snapshots(run_id="other")) == 1
    await steps.aclose()


@pytest.mark.spec("SP-97")
async def test_a_conversation_whose_process_lives_is_busy(store: SqliteConversationStore) -> None:
    running = summary(id="c", outcome="running", owner_pid=os.getppid())
    held = await store.save(summary=running, messages=[])
    with pytest.raises(ConversationConflict, match=f"process {os.getppid()}"):
        await store.save(summary=held, messages=[])
    with pytest.raises(ConversationConflict, match="holds it"):
        await store.delete(source=held)
    gone = summary(id="d", outcome="running", owner_pid=2**22 + 1)  # above any process id
    left = await store.save(summary=gone, messages=[])
    assert (await store.save(summary=left, messages=[])).revision == 2


@pytest.mark.spec("SP-98")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such mode")
async def test_the_file_is_its_owners_alone(store: SqliteConversationStore, database: Path) -> None:
    await store.save(summary=summary(id="c"), messages=[])
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
