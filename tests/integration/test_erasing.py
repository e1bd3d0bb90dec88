"""Erasing: no byte of what was said is left, wherever it was, and nothing else has changed."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import bson
import pytest
import pytest_asyncio
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.messages import UserContent
from pymongo import MongoClient
from temporalio.client import Client

from cli.erasing import erased
from cli.executions_removal import ExecutionsRemoval, OpenExecutionsError
from client import connect
from settings import Settings
from stores.access import Grant
from stores.erasing import Erasure
from stores.errors import ConversationConflict, ConversationNotFoundError
from stores.media.opening import open_media_store
from stores.mongo.removing import RunToRemove
from stores.mongo.steps import MongoStepStore
from tests.helpers.chatting import EchoModel
from tests.helpers.eventually import eventually
from tests.helpers.scanning import database_bytes, histories_with, places_with
from tests.helpers.script import make_agent, script
from tests.helpers.workers import running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.conversation_models import conversation_workflow_id
from workflows.durable_conversation import DurableConversation

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

AGENTS: list[Agent[Any, Any]] = [make_agent("script"), EchoModel().agent("chatter")]

NOT_OF_ONE = {"commit_heads", "erasures", "keyword_lanes", "keyword_rows", "payload_chunks"}
"""What changes although it is not of the conversation that goes: closed, written, touched."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A worker with its store, and where everything is."""

    client: Client
    store: MongoStepStore
    settings: Settings
    queue: str
    media: Path | None

    def places(self, word: str) -> list[str]:
        files = [each for each in self.media.rglob("*") if each.is_file()] if self.media else []
        named = ["media files" for each in files if word.encode() in each.read_bytes()]
        database = self.settings.mongodb_database
        return [*places_with(str(self.settings.mongodb_uri), database, word), *named[:1]]

    def documents(self) -> dict[tuple[str, bytes], bytes]:
        found: dict[tuple[str, bytes], bytes] = {}
        with MongoClient[dict[str, Any]](str(self.settings.mongodb_uri)) as client:
            database = client[self.settings.mongodb_database]
            for name in database.list_collection_names():
                for each in database[name].find():
                    found[name, bson.encode({"_id": each["_id"]})] = bson.encode(each)
        return found

    async def erase(self, erasure: Erasure, **options: Any) -> Any:
        given: dict[str, Any] = {"cancels": False, "is_dry": False, "grace": timedelta(0)}
        return await erased(self.settings, "default", erasure, **{**given, **options})

    async def run(
        self, conversation_id: str, prompt: str | Sequence[UserContent], **given: Any
    ) -> str:
        run_id = f"run-{uuid4().hex}"
        request = AgentRunInput(
            agent="script", prompt=prompt, conversation_id=conversation_id, stream=True, **given
        )
        await self.client.start_workflow(
            AgentRunWorkflow.run, request, id=run_id, task_queue=self.queue
        )
        return run_id

    async def talk(self, conversation_id: str, word: str) -> list[str]:
        """A conversation that has the word in all that can be kept of one; its run ids."""
        chat = DurableConversation.connect(
            self.client,
            agent="chatter",
            conversation_id=conversation_id,
            task_queue=self.queue,
            store=self.store,
        )
        await chat.say(f"My word is {word}.")
        await chat.rename(title=word, subtitle=f"of {word}", tags=(word,))
        long = f"{word} {'x' * 20_000}"
        calls = script([[("echo", {"text": word})], [("echo", {"text": long})]], f"So {word}.")
        runs = [
            await self.run(conversation_id, calls, metadata={"note": word}),
            await self.run(conversation_id, script([], f"{word} {conversation_id * 9000}")),
            await self.run(conversation_id, [f"Look at {word}.", file_named(word)]),
            await self.run(conversation_id, script([[("pay", {"path": f"/no/such/{word}"})]])),
        ]
        for each in runs:
            handle = self.client.get_workflow_handle(each)
            await eventually(partial(_is_closed, handle))
        return runs


def file_named(word: str) -> BinaryContent:
    """A file that has it in its name, and is too large for a message."""
    data = word.encode() * 2000
    return BinaryContent(data, media_type="application/pdf", identifier=f"{word}.pdf")


async def _are_gone(place: Place, word: str) -> bool:
    """Whether Temporal has deleted what it was asked to, which it does by and by."""
    return await histories_with(place.client, word) == []


async def _is_closed(handle: Any) -> bool:
    return (await handle.describe()).close_time is not None


@pytest.fixture(autouse=True)
def _one_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command has a process of its own, and sets up the SDK's core in it."""
    monkeypatch.setattr("cli.connections.silence_core", lambda: None)


@pytest_asyncio.fixture(params=["mongodb", "disk"])
async def place(
    request: pytest.FixtureRequest,
    temporal_address: str,
    mongodb_uri: str,
    mongodb_database: str,
    task_queue: str,
    tmp_path: Path,
) -> AsyncGenerator[Place]:
    media = tmp_path / "media" if request.param == "disk" else None
    settings = Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=mongodb_database,
        media="mongodb" if media is None else f"disk:{media}",
    )
    store = MongoStepStore(
        db_url=mongodb_uri,
        database=mongodb_database,
        media_store=open_media_store(settings.media),
    )
    await store.initialise()
    client = await connect(settings, chunks=store.chunks)
    async with running_worker(client, store, AGENTS, task_queue):
        yield Place(client=client, store=store, settings=settings, queue=task_queue, media=media)
    await store.aclose()


async def test_nothing_is_left_of_a_conversation_and_another_one_is_as_it_was(
    place: Place,
) -> None:
    mine, other = f"mine-{uuid4().hex}", f"other-{uuid4().hex}"
    word, others = f"zebra{uuid4().hex}", f"okapi{uuid4().hex}"
    await place.talk(mine, word)
    await place.talk(other, others)
    assert set(place.places(word)) >= {"messages", "turns", "payload_chunks", "tool_effects"}
    assert len(await histories_with(place.client, word)) == 4
    access = place.store.conversations.access
    grants = [
        Grant(
            principal_id="ann",
            workspace_id="default",
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            conversation_id=each,
        )
        for each in (mine, other)
    ]
    for each in grants:
        await access.put_grant(each)
    await place.store.history_index.indexer.settle(None)  # it writes behind the commits
    before = place.documents()

    receipt = await place.erase(Erasure(conversation_id=mine), cancels=True)

    assert place.places(word) == []
    await eventually(lambda: _are_gone(place, word), within=timedelta(minutes=3))
    assert len(await histories_with(place.client, others)) == 4
    after = place.documents()
    changed = {name for name, key in after if before.get((name, key)) != after[name, key]}
    assert changed <= NOT_OF_ONE | {"conversations"}
    assert [key for key in after if others.encode() in after[key] != before.get(key)] == []
    gone = {(name, key): before[name, key] for name, key in before if (name, key) not in after}
    assert [each for each in gone.values() if others.encode() in each] == []
    rows: list[dict[str, Any]] = [
        bson.decode(each)  # pyright: ignore[reportUnknownMemberType] - the driver's
        for (name, _), each in after.items()
        if name == "keyword_rows"
    ]
    (title,) = (each for each in rows if each["conversation_id"] == mine)
    assert (title["field"], title["lexemes"]) == ("title", [])
    assert title["facts"]["is_deleted"]
    assert {each["field"] for each in rows if each["conversation_id"] == other} > {"prompt"}
    assert await access.list_grants("ann") == grants[1:]
    assert word not in repr(receipt)
    assert receipt.pending == {}
    assert receipt.counts["runs"] == 5
    assert receipt.counts["executions"] == 6
    assert receipt.counts["media" if place.media is None else "media_files"] == 3
    assert (await place.erase(Erasure(conversation_id=mine))).counts == receipt.counts
    assert await place.store.conversations.find(other) is not None
    assert set(place.places(others)) >= {"messages", "turns", "payload_chunks", "tool_effects"}


async def test_an_open_run_is_refused_or_cancelled_first(place: Place, tmp_path: Path) -> None:
    conversation, word = f"open-{uuid4().hex}", f"zebra{uuid4().hex}"
    never = str(tmp_path / "never")
    waits = script([[("wait_for", {"path": never, "marker": str(tmp_path / "begun")})]], word)
    run_id = await place.run(conversation, waits)
    await eventually((tmp_path / "begun").exists)
    await place.store.history_index.indexer.settle(None)  # it writes behind the commits
    before = place.documents()

    with pytest.raises(OpenExecutionsError, match=f"{run_id}.*--cancel"):
        await place.erase(Erasure(conversation_id=conversation))
    assert place.documents() == before
    receipt = await place.erase(Erasure(conversation_id=conversation), cancels=True)
    assert receipt.counts["runs"] == 1
    assert place.places(word) == []


async def test_an_erasure_that_was_cut_off_goes_on_where_it_was(place: Place) -> None:
    conversation, word = f"mine-{uuid4().hex}", f"zebra{uuid4().hex}"
    await place.talk(conversation, word)
    removal = ExecutionsRemoval(place.client, cancels=True)
    calls = 0

    async def cut_off(runs: Sequence[RunToRemove]) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            await removal(runs)
            raise TimeoutError
        return await removal(runs)

    eraser = place.store.eraser(
        namespace="default",
        before=cut_off,
        workflow_of=conversation_workflow_id,
        grace=timedelta(0),
    )
    erasure = Erasure(conversation_id=conversation)
    with pytest.raises(TimeoutError):
        await eraser.erase(erasure, now=datetime.now(UTC))
    receipt = await eraser.receipt(erasure)
    assert receipt.finished_at is None

    done = await place.erase(erasure)
    assert (done.begun_at, done.counts["runs"]) == (receipt.begun_at, 5)
    assert place.places(word) == []
    await eventually(lambda: _are_gone(place, word), within=timedelta(minutes=3))


async def test_a_workspace_goes_with_everything_and_a_fork_keeps_a_conversation(
    place: Place,
) -> None:
    conversation, word = f"mine-{uuid4().hex}", f"zebra{uuid4().hex}"
    await place.talk(conversation, word)
    now = datetime.now(UTC)
    fork = place.store.conversations.fork(conversation, at_position=0, into="fork", now=now)
    await fork

    with pytest.raises(ConversationConflict, match=r"'fork'.*--keep-inherited"):
        await place.erase(Erasure(conversation_id=conversation))
    with pytest.raises(ConversationNotFoundError):
        await place.erase(Erasure(conversation_id="never"))
    kept = await place.erase(
        Erasure(conversation_id=conversation, keeps_inherited=True), cancels=True
    )
    assert kept.counts["runs"] == 4
    (turn,) = await place.store.conversations.list_turns("fork")
    assert turn.record.prompt == f"My word is {word}."

    receipt = await place.erase(Erasure(), cancels=True)
    assert receipt.counts["runs"] == 1
    assert place.places(word) == []
    left = {
        name
        for name, _ in database_bytes(
            str(place.settings.mongodb_uri), place.settings.mongodb_database
        )
    }
    assert left <= {"commit_heads", "erasures", "search_state", "keyword_lanes", "keyword_state"}
