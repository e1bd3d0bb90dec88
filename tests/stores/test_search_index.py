"""The index in MongoDB says what the reference says, whatever was saved and in whatever order."""

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    CompactionPart,
    InstructionDeltaPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pymongo import MongoClient
from pymongo.errors import AutoReconnect

from stores.commits import Commit
from stores.errors import StoreUnavailableError
from stores.media.protocols import NO_CONTEXT, MediaContext
from stores.mongo import search_segments, search_upkeep
from stores.mongo.media import MongoMediaStore, media_id
from stores.mongo.search_indexer import SearchIndexer
from stores.mongo.search_segments import SEGMENTS, put_together
from stores.mongo.search_texts import SearchTexts
from stores.mongo.search_writer import SearchLogWriter
from stores.mongo.steps import MongoStepStore
from stores.search.answering import search_history
from stores.search.query import HistoryQuery, SearchAnswer
from stores.search.source import SnapshotHistorySource
from tests.stores.records import run_record, snapshot
from tests.stores.search_conformance import save
from tests.stores.writer import Execution, RunScript, at, request

pytestmark = pytest.mark.integration

HISTORIES = int(os.environ.get("PERDURE_TEST_SEARCHES", "10"))
"""Random conversations; each is searched in several ways."""

WORDS = [*"abcdefgh", "user_id", "北京大学", "C++", "running"]


@pytest.fixture
async def other(mongodb_uri: str, prepared_database: str) -> AsyncIterator[MongoStepStore]:
    """The store as another process has it, which knows nothing of what the first one did."""
    other = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
    yield other
    await other.aclose()


@pytest.fixture
async def store(mongodb_uri: str, prepared_database: str) -> AsyncIterator[MongoStepStore]:
    store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
    yield store
    await store.aclose()


@pytest.fixture
async def streaming(
    mongodb_uri: str, prepared_database: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MongoStepStore]:
    """The store of a process that can keep no conversation in memory."""
    streaming = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
    views = streaming.history_index._views  # pyright: ignore[reportPrivateUsage] - made small
    monkeypatch.setattr(views, "memory_bytes", 1)
    yield streaming
    await streaming.aclose()


class WithoutIndex:
    """The same store, of which nobody can see that it has an index."""

    def __init__(self, store: MongoStepStore) -> None:
        self.list_runs = store.list_runs
        self.list_snapshots = store.list_snapshots
        self.list_snapshot_summaries = store.list_snapshot_summaries


async def both(
    store: MongoStepStore, query: HistoryQuery, other: MongoStepStore | None = None
) -> tuple[SearchAnswer, SearchAnswer]:
    indexed = await search_history(SnapshotHistorySource(store), query)
    assert indexed.note is None, indexed.note
    plain = await search_history(SnapshotHistorySource(WithoutIndex(other or store)), query)
    return indexed, plain


@dataclass(kw_only=True)
class Talk:
    """A conversation that a random generator plays: several runs, saved a step at a time."""

    store: MongoStepStore
    dice: random.Random
    name: str = field(default_factory=lambda: f"talk-{uuid4().hex}")
    last: list[ModelMessage] = field(default_factory=list[ModelMessage])
    second: int = 0

    def words(self) -> str:
        return " ".join(self.dice.choices(WORDS, k=self.dice.randint(1, 6)))

    def message(self) -> ModelMessage:
        kind = self.dice.random()
        if kind < 0.5:
            parts: list[Any] = [UserPromptPart(self.words(), timestamp=at(0))]
            if self.dice.random() < 0.1:
                mark = {"perdure.compaction.summary.v1": True}
                parts.insert(0, CompactionPart(self.words(), metadata=mark))
            return ModelRequest(parts=parts)
        if kind < 0.6:
            call = ToolCallPart(
                "search_conversation_history", {"query": self.words()}, tool_call_id="1"
            )
            return ModelResponse(parts=[TextPart(self.words()), call], timestamp=at(0))
        return ModelResponse(parts=[TextPart(self.words())], timestamp=at(0))

    def summary(self) -> ModelMessage:
        mark = {"pydantic-ai-harness.compaction.summary.v1": True}
        return ModelRequest(parts=[CompactionPart(self.words(), metadata=mark)])

    def stamped(self, message: ModelMessage) -> ModelMessage:
        if not isinstance(message, ModelRequest):
            return replace(message, run_id="r")
        changed = replace(message, run_id="r", instructions="be brief", timestamp=at(1))
        if self.dice.random() < 0.2:
            change: Any = InstructionDeltaPart(id=None, content=self.words())
            return replace(changed, parts=[*changed.parts, change])
        return changed

    def begun(self) -> list[ModelMessage]:
        """What a run inherits: nothing, all, a window, or what it was before a change."""
        kind = self.dice.random()
        if kind < 0.3:
            return []
        history = list(self.last) if kind < 0.7 else self.last[-self.dice.randint(1, 4) :]
        if history and self.dice.random() < 0.2:
            history[-1] = self.stamped(history[-1])
        return history

    def next_history(self, history: list[ModelMessage]) -> list[ModelMessage]:
        """The history a step later: stamped, longer, and now and then without its beginning."""
        history = list(history)
        if history and self.dice.random() < 0.7:
            history[-1] = self.stamped(history[-1])
        if len(history) > 3 and self.dice.random() < 0.2:
            history = history[-self.dice.randint(1, 3) :]
            if self.dice.random() < 0.5:
                history.insert(0, self.summary())
        if history and self.dice.random() < 0.2:
            history += [replace(each) for each in history[-2:]]
        return history + [self.message() for _ in range(self.dice.randint(0, 3))]

    async def play(self) -> None:
        """Runs one after another or side by side, placed by their writer or not."""
        while self.dice.random() < 0.75:
            players: list[Talk] = []
            for _ in range(self.dice.choice([1, 1, 1, 2, 3])):
                # With dice of its own: what is said does not depend on who is quicker.
                own = random.Random(self.dice.random())  # noqa: S311 - histories
                players.append(replace(self, dice=own))
                self.second += 1
            runs = [
                each.placed_run() if self.dice.random() < 0.7 else each.plain_run()
                for each in players
            ]
            if self.dice.random() < 0.5:
                await asyncio.gather(*runs)
            else:
                for run in runs:
                    await run
            self.last = players[-1].last

    def next_run(self) -> tuple[str, dict[str, Any]]:
        self.second += 1
        second = self.second if self.dice.random() < 0.9 else 0
        return f"{self.name}-{self.second}", {
            "conversation_id": self.name,
            "started_at": at(second),
        }

    async def plain_run(self) -> None:
        run_id, values = self.next_run()
        await self.store.register_run(run_record(run_id, registration_id=run_id, **values))
        history = self.begun()
        for step in range(self.dice.randint(1, 4)):
            history = self.next_history(history)
            state = "interrupted" if self.dice.random() < 0.1 else "complete"
            saved = snapshot(history, f"{step}", run_id=run_id, step_index=step, state=state)
            await self.store.save_snapshot(saved)
        self.last = history

    async def placed_run(self) -> None:
        run_id, values = self.next_run()
        execution = Execution(execution_id=run_id, branch=f"{run_id}-a")
        script = RunScript(run_id=run_id)
        registration = script.register(**values)
        await self.commit(execution.commit(registration))
        log: dict[int, ModelMessage] = {}
        history: list[ModelMessage] = self.begun()
        places: list[int] = []
        for _ in range(self.dice.randint(1, 5)):
            execution.next_task()
            former = dict(zip(map(id, history), places, strict=False))
            known = list(zip(history, places, strict=False))
            history = self.next_history(history)
            places = []
            for message in history:
                place = former.get(id(message))
                if place is None and known and message.parts[:1] == known[-1][0].parts[:1]:
                    place = known[-1][1]  # the last one, stamped
                    known = []
                place = len(log) if place is None or place in places else place
                places.append(place)
                log[place] = message
            state = "interrupted" if self.dice.random() < 0.1 else "complete"
            pairs = dict(zip(places, history, strict=True))
            saved = execution.commit(save(script, pairs, state=state))
            await self.commit(saved)
            if self.dice.random() < 0.15:
                await self.commit(saved)  # a retry
            if self.dice.random() < 0.1 and execution.number > 1:
                self.lose(execution, script)
        self.last = history

    def lose(self, execution: Execution, script: RunScript) -> None:
        """The next commit comes in place of the last one: a task was lost, or the run reset."""
        if self.dice.random() < 0.5:
            execution.next_task(number=execution.number - 1)
            script.saves -= 1
        else:
            execution.branch += "b"
            execution.branch_time = at(execution.queued_seconds + 100 * len(execution.branch))
            execution.next_task(number=execution.number - 1)

    async def commit(self, commit: Commit) -> None:
        result = await self.store.commit(commit)
        assert result.verdict in {"apply", "suppress", "supersede", "adopt"}, result

    def queries(self) -> list[HistoryQuery]:
        runs = [None, f"{self.name}-{self.dice.randint(1, max(1, self.second))}", "nobody"]
        return [
            HistoryQuery(
                text=" ".join(self.dice.choices(WORDS, k=self.dice.randint(1, 3))),
                conversation_id=self.name,
                run_id=run,
                context_lines=self.dice.randint(0, 2),
                max_matches=self.dice.choice([1, 5, 100]),
                includes_own=self.dice.random() < 0.3,
            )
            for run in runs
        ]


@pytest.mark.parametrize("appends", [search_segments.APPENDS, 2])
async def test_index_and_reference_say_the_same_of_random_histories(
    store: MongoStepStore,
    other: MongoStepStore,
    streaming: MongoStepStore,
    monkeypatch: pytest.MonkeyPatch,
    appends: int,
) -> None:
    monkeypatch.setattr(search_segments, "APPENDS", appends)
    seed = int(os.environ.get("PERDURE_TEST_SEED", "0"))
    found = 0
    for number in range(seed, seed + HISTORIES):
        dice = random.Random(number)  # noqa: S311 - histories
        talk = Talk(store=store, dice=dice)
        await talk.play()
        for query in talk.queries():
            indexed, plain = await both(store, query)
            assert indexed.text == plain.text, (number, query)
            assert indexed == plain, (number, query)
            found += len(indexed.matches)
        query = talk.queries()[0]
        plain = (await both(store, query))[1]
        for each in (other, streaming):  # processes that have seen nothing of it
            assert await search_history(SnapshotHistorySource(each), query) == plain, number
        if dice.random() < 0.3:  # then more is said there
            talk.store = other
            await talk.play()
            for query in talk.queries():
                indexed, plain = await both(store, query)
                assert indexed.text == plain.text, (number, query)
                assert indexed == plain, (number, query)
    assert found > HISTORIES


def text_query(text: str, talk: str, **options: Any) -> HistoryQuery:
    return HistoryQuery(text=text, conversation_id=talk, context_lines=0, **options)


async def said(store: MongoStepStore, run_id: str, *texts: str, talk: str) -> None:
    """A run of messages, each saved by a commit of its own."""
    execution, script = Execution(execution_id=run_id, branch=run_id), RunScript(run_id=run_id)
    await store.commit(execution.commit(script.register(conversation_id=talk)))
    history: dict[int, ModelMessage] = {}
    for text in texts:
        known = len(history)
        history[known] = request(text)
        execution.next_task()
        await store.commit(execution.commit(save(script, history, known=known)))


async def test_made_anew_it_is_as_it_was(store: MongoStepStore, other: MongoStepStore) -> None:
    talk = Talk(store=store, dice=random.Random(5))  # noqa: S311 - histories
    await talk.play()
    queries = [*talk.queries(), *talk.queries()]
    before = [(await both(store, each))[0] for each in queries]
    done = await other.history_index.reindex()
    assert done.conversations >= 1
    assert [(await both(store, each))[0] for each in queries] == before
    assert [(await both(other, each))[0] for each in queries] == before
    await talk.play()  # the store that was not told goes on writing
    for each in talk.queries():
        indexed, plain = await both(store, each)
        assert indexed == plain


class WatchedMedia(MongoMediaStore):
    """The media store of the database, which says what was read of it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.read: list[str | None] = []

    async def get(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bytes:
        self.read.append(context.media_type)
        return await super().get(uri, context=context)


@pytest.mark.spec("CS-35", "CS-37", "CS-64")
async def test_large_texts_are_found_and_files_are_not_read(
    mongodb_uri: str, prepared_database: str
) -> None:
    media = WatchedMedia(db_url=mongodb_uri, database=prepared_database)
    store, fresh = (
        MongoStepStore(db_url=mongodb_uri, database=prepared_database, media_store=media)
        for _ in range(2)
    )
    talk = f"talk-{uuid4().hex}"
    image = BinaryContent(data=bytes(range(256)) * 400, media_type="image/png")
    result = ToolReturnPart("read", "word " * 20_000 + "needle", tool_call_id="1", timestamp=at(0))
    picture = UserPromptPart([image, "a picture"], timestamp=at(0))
    shown = ToolReturnPart("see", [image], tool_call_id="2", timestamp=at(0))
    history: dict[int, ModelMessage] = {0: ModelRequest(parts=[result])}
    history[1] = ModelRequest(parts=[picture, shown])
    execution, script = Execution(execution_id=talk, branch=talk), RunScript(run_id=talk)
    await store.commit(execution.commit(script.register(conversation_id=talk)))
    execution.next_task()
    await store.commit(execution.commit(save(script, history)))
    # A history without positions that begins with the same is one with it.
    again = run_record(f"{talk}-2", conversation_id=talk, started_at=at(9))
    await store.register_run(again)
    plain = snapshot([*history.values(), request("last")], run_id=again.run_id, timestamp=at(9))
    await store.save_snapshot(plain)
    assert set(media.read) == {"text/plain"}
    for searched in (store, fresh):
        for text in ("needle", "picture", "image png " + image.identifier, "perdure_media version"):
            query = text_query(text, talk)
            media.read.clear()
            found = await search_history(SnapshotHistorySource(searched), query)
            assert set(media.read) <= {"text/plain"}
            expected = await search_history(SnapshotHistorySource(WithoutIndex(searched)), query)
            assert found == expected
            assert found.messages == 3
        assert "needle" in (await both(searched, text_query("needle", talk)))[0].text
        media.read.clear()
        await searched.history_index.reindex()
        assert "image/png" not in media.read
    # A text that is lost costs its message, and where positions have no names its snapshot.
    digest = hashlib.sha256(str(result.content).encode()).hexdigest()
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        manifest = {"_id": media_id(digest, store.workspace_id)}
        assert client[prepared_database].media.delete_one(manifest).deleted_count == 1
    await fresh.history_index.reindex()
    found = await search_history(SnapshotHistorySource(fresh), text_query("picture", talk))
    assert (len(found.matches), found.messages, found.skipped) == (1, 1, 2)
    await media.aclose()
    await store.aclose()
    await fresh.aclose()


class AbsentMedia(WatchedMedia):
    """The same, which may be away."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.is_away = asyncio.Event()  # one for all copies

    async def get(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bytes:
        if self.is_away.is_set():
            message = "the media store is away"
            raise StoreUnavailableError(message)
        return await super().get(uri, context=context)


@pytest.mark.spec("CS-64")
async def test_a_text_that_cannot_be_read_now_fails_the_search_and_not_the_next_one(
    mongodb_uri: str, prepared_database: str
) -> None:
    media = AbsentMedia(db_url=mongodb_uri, database=prepared_database)
    searched = MongoStepStore(db_url=mongodb_uri, database=prepared_database, media_store=media)
    talk, run_id = f"talk-{uuid4().hex}", uuid4().hex
    large = ToolReturnPart("read", "word " * 20_000 + "needle", tool_call_id="1", timestamp=at(0))
    execution, script = Execution(execution_id=run_id, branch=run_id), RunScript(run_id=run_id)
    await searched.commit(execution.commit(script.register(conversation_id=talk)))
    execution.next_task()
    history: dict[int, ModelMessage] = {0: request("hay"), 1: ModelRequest(parts=[large])}
    await searched.commit(execution.commit(save(script, history)))
    hay, needle = (text_query(each, talk) for each in ("hay", "needle"))
    source = SnapshotHistorySource(searched)
    assert len((await search_history(source, hay)).matches) == 1  # the log is known from here on
    media.is_away.set()
    with pytest.raises(StoreUnavailableError, match="away"):
        await search_history(source, needle)
    assert len((await search_history(source, hay)).matches) == 1
    media.is_away.clear()
    await said(searched, f"{run_id}-b", "needle too", talk=talk)
    expected = await search_history(SnapshotHistorySource(WithoutIndex(searched)), needle)
    assert await search_history(source, needle) == expected
    assert len(expected.matches) == 2
    media.read.clear()
    assert await search_history(source, needle) == expected
    assert media.read == []  # what was shown is not read again
    await searched.aclose()
    await media.aclose()


async def test_a_log_that_is_known_answers_while_the_index_is_made_again(
    mongodb_uri: str, prepared_database: str, store: MongoStepStore, other: MongoStepStore
) -> None:
    talk, run_id = f"talk-{uuid4().hex}", uuid4().hex
    await said(store, run_id, "needle", *["hay"] * 2 * search_segments.APPENDS, talk=talk)
    query = text_query("needle", talk)
    expected, _ = await both(store, query)
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        assert client[prepared_database][SEGMENTS].count_documents({"conversation_id": talk}) == 2
        state = client[prepared_database].search_state
        state.update_one({}, {"$set": {"is_complete": False}})
        known = await search_history(SnapshotHistorySource(store), query)
        unknown = await search_history(SnapshotHistorySource(other), query)
        await store.history_index.indexer.begin_again(talk)  # now nothing of it is there
        begun = await search_history(SnapshotHistorySource(store), query)
        state.update_one({}, {"$set": {"is_complete": True}})
    assert known == expected
    for each in (unknown, begun):
        assert each.matches == expected.matches
        assert "perdure reindex" in each.text
    await store.history_index.reindex()
    assert (await both(store, query))[0] == expected


@pytest.mark.spec("CS-59", "CS-64")
async def test_what_was_pruned_is_found_by_the_index_and_kept_by_a_sweep(
    mongodb_uri: str, prepared_database: str, store: MongoStepStore
) -> None:
    talk, run_id = f"talk-{uuid4().hex}", uuid4().hex
    bounded = MongoStepStore(
        db_url=mongodb_uri, database=prepared_database, max_snapshots_per_run=1
    )
    await bounded.register_run(run_record(run_id, registration_id=run_id, conversation_id=talk))
    await bounded.save_snapshot(snapshot([request("needle")], "1", run_id=run_id))
    await bounded.save_snapshot(snapshot([request("other")], "2", run_id=run_id))
    query = text_query("needle", talk)
    indexed, plain = await both(bounded, query)
    assert [each.index for each in indexed.matches] == [0]
    assert plain.matches == ()
    await bounded.sweep(grace=timedelta(), is_dry=False)
    swept = await search_history(SnapshotHistorySource(store), query)
    assert "User: needle" in swept.text
    await bounded.aclose()


async def test_what_the_index_could_not_take_is_made_up_by_the_search(
    store: MongoStepStore, other: MongoStepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, run_id = f"talk-{uuid4().hex}", uuid4().hex

    async def broken(*_: object) -> None:
        message = "not now"
        raise AutoReconnect(message)

    with monkeypatch.context() as patch:
        patch.setattr(SearchLogWriter, "append", broken)
        await said(store, run_id, "one", "two", "three", talk=talk)
        await store.history_index.indexer.settle(talk)
    for searched in (store, other):
        indexed, plain = await both(searched, text_query("two three", talk))
        assert indexed == plain
        assert len(indexed.matches) == 2
    await said(store, f"{run_id}-b", "four", talk=talk)
    assert (await both(other, text_query("four", talk)))[0].messages == 4


async def test_a_snapshot_that_took_the_place_of_a_logged_one_is_not_taken_for_logged(
    store: MongoStepStore, other: MongoStepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = run_id = f"talk-{uuid4().hex}"
    execution, script = Execution(execution_id=run_id, branch=run_id), RunScript(run_id=run_id)
    await store.commit(execution.commit(script.register(conversation_id=talk)))
    execution.next_task()
    first = execution.commit(save(script, {0: request("lost")}))
    execution.next_task(number=execution.number - 1)
    script.saves -= 1
    second = execution.commit(save(script, {0: request("kept")}))
    original = SearchLogWriter.append

    async def superseded_meanwhile(*args: Any) -> None:
        """The log entries of the first commit are written when the second one is stored already."""
        with monkeypatch.context() as patch:
            patch.setattr(SearchIndexer, "begin_after_commit", nothing)
            assert (await other.commit(second)).verdict == "supersede"
        await original(*args)

    def nothing(*_: object) -> None:
        pass

    with monkeypatch.context() as patch:
        patch.setattr(SearchLogWriter, "append", superseded_meanwhile)
        await store.commit(first)
        await store.history_index.indexer.settle(talk)
    for searched in (store, other):
        indexed, plain = await both(searched, text_query("kept lost", talk))
        assert indexed == plain
        assert "kept" in indexed.text


async def test_what_was_taken_back_before_it_was_logged_stays_away(
    store: MongoStepStore, other: MongoStepStore
) -> None:
    talk = run_id = f"talk-{uuid4().hex}"
    execution, script = Execution(execution_id=run_id, branch="a"), RunScript(run_id=run_id)
    await store.commit(execution.commit(script.register(conversation_id=talk)))
    execution.next_task()
    await store.commit(execution.commit(save(script, {0: request("first")})))
    indexer = store.history_index.indexer
    await indexer.settle(talk)
    known = indexer._known.of(store.workspace_id, talk)  # pyright: ignore[reportPrivateUsage] - held up
    async with known.lock:
        execution.next_task(number=execution.number - 1)  # a lost task: it is made up from rows
        script.saves -= 1
        again = execution.commit(save(script, {0: request("second")}))
        assert (await store.commit(again)).verdict == "supersede"
        execution.next_task()
        saved = execution.commit(save(script, {0: request("second"), 1: request("lost")}, known=1))
        assert (await store.commit(saved)).verdict == "apply"
        execution.branch += "b"
        execution.branch_time = at(execution.queued_seconds + 100)
        execution.next_task(number=execution.number - 1)  # a reset: it takes the last one back
        script.saves -= 1
        kept = execution.commit(save(script, {0: request("second")}, state="interrupted"))
        assert (await store.commit(kept)).verdict == "adopt"
    for searched in (store, other):
        indexed, plain = await both(searched, text_query("second lost", talk))
        assert indexed == plain
        assert indexed.messages == 1
        assert "lost" not in indexed.matches[0].excerpt


async def test_a_commit_does_not_wait_for_the_log_and_a_search_does(
    store: MongoStepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = f"talk-{uuid4().hex}"
    original, is_open = SearchLogWriter.append, asyncio.Event()

    async def held_up(*args: Any) -> None:
        await is_open.wait()
        await original(*args)

    monkeypatch.setattr(SearchLogWriter, "append", held_up)
    await said(store, uuid4().hex, "one", "two", talk=talk)
    search = asyncio.create_task(both(store, text_query("two", talk)))
    done, _ = await asyncio.wait([search], timeout=0.2)
    assert not done
    is_open.set()
    indexed, plain = await search
    assert indexed == plain
    assert len(indexed.matches) == 1


async def test_more_than_can_wait_is_made_up_by_the_search(
    store: MongoStepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = f"talk-{uuid4().hex}"
    monkeypatch.setattr(search_upkeep, "MOST_WAITING", 1)
    await asyncio.gather(
        *(said(store, uuid4().hex, f"one{n}", f"two{n}", "end", talk=talk) for n in range(4))
    )
    indexed, plain = await both(store, text_query("two3 one1", talk))
    assert indexed == plain
    assert indexed.messages == 12


async def test_a_store_that_is_closed_has_logged_what_was_committed(
    mongodb_uri: str, prepared_database: str
) -> None:
    talk, run_id = f"talk-{uuid4().hex}", uuid4().hex
    store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
    await said(store, run_id, "one", "two", talk=talk)
    await store.aclose()
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        database = client[prepared_database]
        assert database.snapshots.count_documents({"run_id": run_id, "unindexed": True}) == 0
        assert database.search_log.count_documents({"conversation_id": talk}) == 2


@pytest.mark.parametrize("appends", [search_segments.APPENDS, 1])
async def test_nothing_is_logged_of_a_run_that_was_removed_meanwhile(
    mongodb_uri: str,
    prepared_database: str,
    store: MongoStepStore,
    monkeypatch: pytest.MonkeyPatch,
    appends: int,
) -> None:
    monkeypatch.setattr(search_segments, "APPENDS", appends)
    talk, run_id = f"talk-{uuid4().hex}", uuid4().hex
    original = SearchLogWriter.append
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        database = client[prepared_database]

        async def removed_meanwhile(*args: Any) -> None:
            for name, key in [("snapshots", {"run_id": run_id}), ("runs", {"_id": run_id})]:
                database[name].delete_many(key)
            await original(*args)
            # By another process.
            await put_together(store._connection, NO_CONTEXT.workspace_id, talk)  # pyright: ignore[reportPrivateUsage]

        execution, script = Execution(execution_id=run_id, branch=run_id), RunScript(run_id=run_id)
        await store.commit(execution.commit(script.register(conversation_id=talk)))
        await store.history_index.indexer.settle(talk)
        monkeypatch.setattr(SearchLogWriter, "append", removed_meanwhile)
        execution.next_task()
        await store.commit(execution.commit(save(script, {0: request("erased")})))
        await store.history_index.indexer.settle(talk)
        assert database.snapshots.count_documents({"run_id": run_id}) == 0
        for name in ("search_log", SEGMENTS):
            assert database[name].count_documents({"conversation_id": talk}) == 0


async def test_neighbouring_appends_are_put_together_once(
    mongodb_uri: str,
    prepared_database: str,
    store: MongoStepStore,
    other: MongoStepStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search_segments, "APPENDS", 4)
    talk = f"talk-{uuid4().hex}"
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        log, segments = (client[prepared_database][each] for each in ("search_log", SEGMENTS))
        mine = {"conversation_id": talk}
        await said(store, uuid4().hex, "one", "two one", talk=talk)
        query = text_query("one", talk)
        assert len((await both(other, query))[0].matches) == 2  # and knows the first two
        monkeypatch.setattr(search_segments, "APPENDS", 100)
        await said(store, uuid4().hex, *(f"one{n} one" for n in range(7)), talk=talk)
        await store.history_index.indexer.settle(talk)
        monkeypatch.setattr(search_segments, "APPENDS", 4)
        assert segments.count_documents(mine) == 0
        workspace = NO_CONTEXT.workspace_id
        connections = [each._connection for each in (store, other, store)]  # pyright: ignore[reportPrivateUsage]
        await asyncio.gather(*(put_together(each, workspace, talk) for each in connections))
        made = list(segments.find(mine).sort("last", 1))
        assert [(each["first"], each["last"]) for each in made] == [(1, 4), (5, 8)]
        left = list(log.find(mine).sort("sequence", 1))
        assert ["terms" in each for each in left] == [False] * 8 + [True]
        for each in (store, other):  # one that knew all of it, and one in the middle of a segment
            indexed, plain = await both(each, replace(query, max_matches=20))
            assert indexed == plain
            assert len(indexed.matches) == 9
        await store.history_index.indexer.begin_again(talk)
        assert segments.count_documents(mine) == 0
        assert log.count_documents(mine) == 1


async def test_a_segment_that_is_lost_is_no_wrong_answer(
    mongodb_uri: str, prepared_database: str, store: MongoStepStore, other: MongoStepStore
) -> None:
    talk = f"talk-{uuid4().hex}"
    await said(store, uuid4().hex, *(f"needle {n}" for n in range(20)), talk=talk)
    await store.history_index.indexer.settle(talk)
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        lost = client[prepared_database][SEGMENTS].delete_many({"conversation_id": talk})
    assert lost.deleted_count == 1
    answer = await search_history(SnapshotHistorySource(other), text_query("needle", talk))
    assert len(answer.matches) == 10
    assert "perdure reindex" in answer.text
    await other.history_index.reindex()
    indexed, plain = await both(other, text_query("needle", talk))
    assert indexed == plain


async def test_what_cannot_be_read_while_it_is_replaced_is_read_again(
    store: MongoStepStore, other: MongoStepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, run_id = f"talk-{uuid4().hex}", uuid4().hex
    load, loads = SearchTexts.load, 0

    async def gone_at_first(texts: SearchTexts, digests: Sequence[str]) -> dict[str, str]:
        nonlocal loads
        loads += 1
        return {} if loads == 1 else await load(texts, digests)

    def nothing(*_: object) -> None:
        pass

    with monkeypatch.context() as patch:
        patch.setattr(SearchIndexer, "begin_after_commit", nothing)
        await said(store, run_id, "one", "two", talk=talk)
    with monkeypatch.context() as patch:
        patch.setattr(SearchTexts, "load", gone_at_first)
        await other.history_index.indexer.catch_up(talk)
    assert loads > 1
    indexed, plain = await both(other, text_query("one two", talk))
    assert indexed == plain
    assert (len(indexed.matches), indexed.skipped) == (2, 0)


async def test_a_message_inherited_from_a_run_that_took_it_back_is_shown(
    store: MongoStepStore, other: MongoStepStore
) -> None:
    talk = f"talk-{uuid4().hex}"
    first = request(f"needle {talk}")  # nobody else has it
    stamped = replace(first, run_id="stamped")
    executions = [Execution(execution_id=f"{talk}-{n}", branch=f"{talk}-{n}") for n in range(2)]
    scripts = [RunScript(run_id=f"{talk}-{n}") for n in range(2)]
    for execution, script, second in zip(executions, scripts, (0, 9), strict=True):
        registration = script.register(conversation_id=talk, started_at=at(second))
        await store.commit(execution.commit(registration))
        execution.next_task()
    await store.commit(executions[0].commit(save(scripts[0], {0: first})))
    executions[0].next_task(number=executions[0].number - 1)
    scripts[0].saves -= 1
    interrupted = save(scripts[0], {0: stamped}, state="interrupted")
    await store.commit(executions[0].commit(interrupted))
    executions[0].next_task()
    await store.commit(executions[0].commit(save(scripts[0], {0: stamped, 1: request("more")})))
    history: dict[int, ModelMessage] = {0: stamped, 1: request("hay")}
    await store.commit(executions[1].commit(save(scripts[1], history)))
    for searched in (store, other):
        for run in (None, scripts[1].run_id):
            indexed, plain = await both(searched, text_query("needle", talk, run_id=run))
            assert indexed == plain
            assert f"User: needle {talk}" in indexed.text


async def test_eight_runs_of_one_conversation_in_two_processes_lose_nothing(
    store: MongoStepStore, other: MongoStepStore
) -> None:
    talk, name = f"talk-{uuid4().hex}", uuid4().hex
    stores = [store, other] * 4
    await asyncio.gather(
        *(
            said(each, f"{name}-{n}", *(f"word{n} number{m}" for m in range(6)), talk=talk)
            for n, each in enumerate(stores)
        )
    )
    for each in (store, other):
        indexed, plain = await both(each, text_query("number3 word5", talk, max_matches=50))
        assert indexed == plain
        assert indexed.messages == 48


async def test_a_conversation_that_is_too_large_and_all_of_them_are_streamed(
    store: MongoStepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = workspace = f"talk-{uuid4().hex}"
    store = store.for_workspace(workspace)
    await said(store, uuid4().hex, "alpha", "beta alpha", "gamma", talk=talk)
    views = store.history_index._views  # pyright: ignore[reportPrivateUsage] - made small
    monkeypatch.setattr(views, "memory_bytes", 1)
    for _ in range(2):
        indexed, plain = await both(store, text_query("alpha gamma", talk))
        assert indexed == plain
        assert len(indexed.matches) == 3
    assert len(views.slot((workspace, talk, False)).view.digests) == 0
    indexed, plain = await both(store, text_query("gamma alpha", talk, scope="all"))
    assert indexed == plain


async def test_an_index_that_cannot_answer_says_so_and_the_answer_is_right(
    mongodb_uri: str, prepared_database: str, store: MongoStepStore
) -> None:
    talk = f"talk-{uuid4().hex}"
    await said(store, uuid4().hex, "needle", "hay", talk=talk)
    source = SnapshotHistorySource(store)
    other_terms = await search_history(source, text_query("needle", talk, analyzer="regex"))
    assert len(other_terms.matches) == 1
    assert "Searched without the index" in other_terms.text
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        state = client[prepared_database].search_state
        state.update_one({}, {"$set": {"is_complete": False}})
        half = await search_history(source, text_query("needle", talk))
        state.update_one({}, {"$set": {"is_complete": True}})
        log = client[prepared_database].search_log
        log.update_many({"conversation_id": talk}, {"$set": {"analyzer": "standard-2"}})
        fresh = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
        old = await search_history(SnapshotHistorySource(fresh), text_query("needle", talk))
        await fresh.aclose()
    for answer in (half, old):
        assert len(answer.matches) == 1
        assert "perdure reindex" in answer.text
        assert answer.text.count("needle") >= 2


async def test_a_damaged_snapshot_in_the_middle_is_counted_and_the_rest_is_found(
    mongodb_uri: str, prepared_database: str, store: MongoStepStore
) -> None:
    talk, run_id = f"talk-{uuid4().hex}", uuid4().hex
    await store.register_run(run_record(run_id, registration_id=run_id, conversation_id=talk))
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        database = client[prepared_database]
        database.search_state.update_one({}, {"$set": {"is_complete": False}})
        for number, text in enumerate(["first", "second", "third"]):
            saved = snapshot([request(text)], f"{number}", run_id=run_id)
            await store.save_snapshot(saved)
        ranges = database.snapshots.find_one({"run_id": run_id, "key": "1"}) or {}
        database.positions.delete_many({"run_id": run_id, "position": ranges["ranges"][0][0]})
        answer = await search_history(SnapshotHistorySource(store), text_query("third", talk))
        database.search_state.update_one({}, {"$set": {"is_complete": True}})
    assert len(answer.matches) == 1
    assert (answer.messages, answer.skipped) == (2, 1)
    assert "Skipped 1 snapshot(s) that cannot be read" in answer.text
    await store.history_index.reindex()
    again = await search_history(SnapshotHistorySource(store), text_query("third", talk))
    assert (len(again.matches), again.messages, again.skipped) == (1, 2, 1)
