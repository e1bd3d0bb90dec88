"""A run or a conversation as a file, and back: equal, whole, or refused."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from stores.conversation_records import ConversationSpec, SubmittedMessage, TurnText
from stores.errors import ExportFileError, ImportRefusedError
from stores.export_file import ExportWriter, check_export
from stores.keyword.queries import ConversationFilter, KeywordQuery
from stores.mongo.steps import MongoStepStore
from stores.records import ToolEffectResolution
from stores.redaction import Redaction
from stores.redactor import MASK, Redactor
from stores.search.answering import search_history
from stores.search.query import HistoryQuery
from stores.search.source import SnapshotHistorySource
from tests.stores.writer import Execution, RunScript, at, request

pytestmark = pytest.mark.integration

NOW = datetime(2026, 5, 1, tzinfo=UTC)

LARGE = "large " * 20_000


@pytest_asyncio.fixture
async def source(mongodb_uri: str, mongodb_database: str) -> AsyncGenerator[MongoStepStore]:
    store = MongoStepStore(db_url=mongodb_uri, database=mongodb_database)
    await store.initialise()
    yield store
    await store.aclose()


@pytest_asyncio.fixture
async def target(mongodb_uri: str, prepared_database: str) -> AsyncGenerator[MongoStepStore]:
    """Empty: each test imports into a workspace of its own."""
    store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
    yield store
    await store.aclose()


async def write_run(store: MongoStepStore, run_id: str, **registered: Any) -> None:
    """A run with tool calls, large content, and a decision by somebody."""
    execution = Execution(execution_id=f"e-{run_id}", branch=f"b-{run_id}")
    script = RunScript(run_id=run_id)
    metadata = {"of": run_id}
    await store.commit(execution.commit(script.register(metadata=metadata, **registered)))
    await store.commit(execution.commit(*script.before_tool(1)))
    await store.commit(execution.commit(*script.after_tool(1)))
    script.messages.append(request(f"{run_id} {LARGE}"))
    resolution = ToolEffectResolution(decision="completed", by="ann", why="seen")
    await store.commit(
        execution.commit(
            script.snapshot(2, len(script.messages) - 1),
            script.started(2),
            script.finished(2, status="unknown"),
            script.finished(2, status="resolved", ordinal=1, resolution=resolution),
            script.event("run_completed", 2, usage={"requests": 2}),
        )
    )


async def export(store: MongoStepStore, name: str, path: Path, **options: bool) -> Path:
    given = {"with_media": True, "tells_people": True, **options}
    with path.open("wb") as file:
        writer = ExportWriter(file, has_media=given["with_media"])
        async for line in store.exporter(**given).lines(name):
            writer.write(line)
        writer.finish()
    return path


async def everything(store: MongoStepStore, run_id: str) -> list[Any]:
    """All that a store says of a run, but for the workspace that it is in."""
    run = await store.get_run(run_id=run_id)
    assert run is not None
    effects = await store.list_tool_effects(run_id=run_id)
    return [
        replace(run, workspace_id=""),
        await store.list_events(run_id=run_id),
        [replace(each, workspace_id="") for each in effects],
        await store.list_snapshots(run_id=run_id),
        await store.list_snapshot_summaries(run_id=run_id),
    ]


async def test_a_run_with_its_delegate_comes_back_equal(
    source: MongoStepStore, target: MongoStepStore, tmp_path: Path
) -> None:
    await write_run(source, "parent", principal="ann", conversation_id="c")
    await write_run(source, "child", parent_run_id="parent", conversation_id="own")
    await write_run(source, "stranger")
    path = await export(source, "parent", tmp_path / "run.jsonl")
    here = target.for_workspace("round")

    assert await here.restorer(as_new=False).run(path, now=NOW) == {
        "parent": "parent",
        "child": "child",
    }
    for run_id in ("parent", "child"):
        assert await everything(here, run_id) == await everything(source, run_id)
    assert await here.get_run(run_id="stranger") is None
    again = await export(here, "parent", tmp_path / "again.jsonl")
    assert again.read_bytes() == path.read_bytes()


async def test_a_conversation_comes_back_with_its_turns_and_can_be_searched(
    source: MongoStepStore, target: MongoStepStore, tmp_path: Path
) -> None:
    talk = source.conversations
    await talk.open("c", ConversationSpec(agent="chatter"), now=at(0))
    message = SubmittedMessage(message_id="m", text="my passport", principal="ann")
    admitted = await talk.admit("c", message, now=at(1))
    await write_run(source, admitted.variant.run_id, conversation_id="c")
    await talk.begin_variant("c", 0, 1, now=at(2))
    said = TurnText(prompt="my passport", content="is green")
    await talk.finish_variant("c", 0, 1, status="completed", text=said, now=at(3))
    await talk.fork("c", at_position=0, into="fork", now=at(4))

    for name, workspace in (("c", "whole"), ("fork", "forked")):
        path = await export(source, name, tmp_path / f"{name}.jsonl")
        here = target.for_workspace(workspace)
        ids = await here.restorer(as_new=True).run(path, now=NOW)
        (run_id,) = ids.values()
        assert run_id != admitted.variant.run_id
        (head,) = await here.conversations.listing("passport")
        assert head.conversation_id.startswith(f"{name}-")
        keywords = KeywordQuery(text="passport")
        allowed = ConversationFilter(principal="ann", everything=True)
        page = await here.keywords.search_history(here.workspace_id, keywords, allowed)
        assert [each.field for each in page.matches] == ["prompt"]
        (turn,) = await here.conversations.list_turns(head.conversation_id)
        assert turn.record.prompt == "my passport"
        assert turn.active is not None
        assert (turn.active.content, turn.active.run_id) == ("is green", run_id)
        run = await here.get_run(run_id=run_id)
        assert run is not None
        assert run.metadata == {"of": admitted.variant.run_id}
        query = HistoryQuery(text="large", conversation_id=run.conversation_id)
        assert (await search_history(SnapshotHistorySource(here), query)).messages


async def test_people_and_known_secrets_stay_behind(
    source: MongoStepStore, tmp_path: Path, mongodb_uri: str, mongodb_database: str
) -> None:
    await write_run(source, "run-1", principal="ann@example")
    redaction = Redaction(redactor=Redactor(secrets=["look_up"]))
    store = MongoStepStore(db_url=mongodb_uri, database=mongodb_database, redaction=redaction)
    path = await export(store, "run-1", tmp_path / "run.jsonl", tells_people=False)
    await store.aclose()

    text = path.read_text()
    assert [each for each in ('"ann', "ann@example", "look_up") if each in text] == []
    assert MASK in text
    assert check_export(path).run_ids == ("run-1",)


async def test_without_media_the_messages_lack_it(
    source: MongoStepStore, target: MongoStepStore, tmp_path: Path
) -> None:
    await write_run(source, "run-1")
    path = await export(source, "run-1", tmp_path / "run.jsonl", with_media=False)
    here = target.for_workspace("lacking")
    await here.restorer(as_new=True).run(path, now=NOW)

    assert LARGE not in path.read_text()
    (run,) = await here.list_runs()
    assert len(await here.list_snapshots(run_id=run.run_id)) == 1
    assert len(await source.list_snapshots(run_id="run-1")) == 2


def _cut(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[:-1])


def _cut_within_a_line(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _edited(data: bytes) -> bytes:
    return data.replace(b'"step_index":1', b'"step_index":7', 1)


def _shorter(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join([*lines[:3], *lines[4:]])


def _newer(data: bytes) -> bytes:
    return data.replace(b'"version":1', b'"version":2', 1)


def _foreign(data: bytes) -> bytes:
    return b'{"a": 1}\n' + data


def _nothing(data: bytes) -> bytes:
    return data[:0]


def _longer(data: bytes) -> bytes:
    return data + b"{}\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_cut, "is cut"),
        (_cut_within_a_line, "is cut or was changed"),
        (_edited, "was changed: its digest"),
        (_shorter, "should have"),
        (_newer, "has version 2"),
        (_foreign, "is no export"),
        (_longer, "goes on behind"),
        (_nothing, "is empty"),
    ],
)
async def test_a_file_that_is_not_as_it_was_written_is_refused(
    source: MongoStepStore,
    target: MongoStepStore,
    tmp_path: Path,
    change: Callable[[bytes], bytes],
    words: str,
) -> None:
    await write_run(source, "run-1")
    path = await export(source, "run-1", tmp_path / "run.jsonl")
    path.write_bytes(change(path.read_bytes()))
    here = target.for_workspace("refusing")

    with pytest.raises(ExportFileError, match=words):
        await here.restorer(as_new=False).run(path, now=NOW)
    assert await here.list_runs() == []


async def test_runs_that_are_here_are_refused_and_get_new_ids_on_request(
    source: MongoStepStore, target: MongoStepStore, tmp_path: Path
) -> None:
    await write_run(source, "run-1")
    path = await export(source, "run-1", tmp_path / "run.jsonl")

    with pytest.raises(ImportRefusedError, match=r"'run-1'.*--as-new"):
        await source.restorer(as_new=False).run(path, now=NOW)
    ids = await source.restorer(as_new=True).run(path, now=NOW)
    first, second = await everything(source, "run-1"), await everything(source, ids["run-1"])
    here, there = first[0], second[0]
    assert here.public_id != there.public_id
    renamed = repr(second).replace(ids["run-1"], "run-1")
    assert renamed.replace(there.public_id, here.public_id) == repr(first)
    assert await target.for_workspace("other").list_runs() == []


async def test_an_import_that_was_cut_off_is_no_run_and_can_be_begun_again(
    source: MongoStepStore, target: MongoStepStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_run(source, "cut-off")
    path = await export(source, "cut-off", tmp_path / "run.jsonl")
    here = target.for_workspace("resumed")
    restorer = here.restorer(as_new=False)

    async def cut_off(*_: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(restorer, "_put_rows", cut_off)
    with pytest.raises(asyncio.CancelledError):
        await restorer.run(path, now=NOW)
    assert await here.list_runs() == []
    await here.restorer(as_new=False).run(path, now=NOW)
    assert await everything(here, "cut-off") == await everything(source, "cut-off")


def test_every_line_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    with path.open("wb") as file:
        ExportWriter(file, has_media=False).finish()

    assert [json.loads(each)["kind"] for each in path.read_text().splitlines()] == ["export", "end"]
    assert check_export(path).counts == {"export": 1}
