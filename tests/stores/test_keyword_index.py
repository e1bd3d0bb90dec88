"""The keyword index in MongoDB gives what reading everything gives, whatever was done before."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient

from stores.conversation_records import ConversationSpec
from stores.conversations import ConversationName
from stores.errors import StoreConfigurationError
from stores.keyword.queries import ConversationFilter, KeywordQuery, KeywordReads
from stores.keyword.scanning import ScanningKeywords
from stores.mongo.keyword_index import KeywordMemory
from stores.mongo.keyword_rows import ROWS
from stores.mongo.steps import MongoStepStore
from tests.stores.conversation_conformance import NOW, finish, message
from tests.stores.keyword_conformance import KeywordConformance
from tests.stores.keyword_player import KeywordPlayer, Paging

pytestmark = pytest.mark.integration

HISTORIES = int(os.environ.get("PERDURE_TEST_SEARCHES", "3"))
"""Random workspaces; each is searched in several ways."""


class TestMongoKeywords(KeywordConformance):
    """From memory."""

    @pytest.fixture
    def store(self, store: MongoStepStore) -> MongoStepStore:
        return store


class TestStoredPostings(KeywordConformance):
    """From the multikey index."""

    @pytest.fixture
    def store(self, others: list[MongoStepStore], workspace: str) -> MongoStepStore:
        return others[0].for_workspace(workspace)


EVERYTHING = ConversationFilter(principal="reader", everything=True)


@pytest.fixture
def workspace() -> str:
    return f"workspace-{uuid4().hex}"


@pytest.fixture
def documents(mongodb_uri: str, prepared_database: str) -> Iterator[Any]:
    client: MongoClient[dict[str, Any]] = MongoClient(mongodb_uri)
    yield client[prepared_database]
    client.close()


@pytest.fixture
async def store(
    mongodb_uri: str, prepared_database: str, workspace: str
) -> AsyncIterator[MongoStepStore]:
    store = MongoStepStore(db_url=mongodb_uri, database=prepared_database, workspace_id=workspace)
    yield store
    await store.aclose()


@pytest.fixture
async def others(mongodb_uri: str, prepared_database: str) -> AsyncIterator[list[MongoStepStore]]:
    """As other processes have it: one keeps nothing in memory, one reads a few rows a search."""
    memories = (KeywordMemory(memory_bytes=0), KeywordMemory(rows_a_search=30))
    stores = [
        MongoStepStore(db_url=mongodb_uri, database=prepared_database, keyword_memory=each)
        for each in memories
    ]
    yield stores
    for each in stores:
        await each.aclose()


async def scanning(store: MongoStepStore, documents: Any) -> ScanningKeywords:
    """Reading everything, with the cursors of the database."""
    nothing = KeywordQuery(text="nothing")
    await store.keywords.search_history(store.workspace_id, nothing, EVERYTHING)
    key = documents["keyword_state"].find_one({"_id": "cursors"})["key"]
    return ScanningKeywords(
        conversations_of=lambda each: store.for_workspace(each).conversations, key=key
    )


@pytest.mark.spec("HS-3", "HS-4", "HS-8", "HS-16", "HS-21", "HS-22", "HS-23")
@pytest.mark.parametrize("seed", range(HISTORIES))
async def test_paging_gives_what_reading_everything_gives(
    store: MongoStepStore, others: list[MongoStepStore], documents: Any, seed: int
) -> None:
    dice = random.Random(seed)  # noqa: S311 - no secret
    player = KeywordPlayer(store=store.conversations, dice=dice)
    reference = await scanning(store, documents)
    reads: list[KeywordReads] = [store.keywords, *(each.keywords for each in others)]
    found = 0
    for _ in range(6):
        for _ in range(12):
            await player.act()
        for _ in range(4):
            query, allowed = player.query(), player.allowed()
            expected = await Paging(
                reads=reference, workspace_id=store.workspace_id, query=query
            ).all(allowed, 50)
            found += len(expected)
            for each in reads:
                paging = Paging(reads=each, workspace_id=store.workspace_id, query=query)
                assert await paging.all(allowed, dice.randint(1, 7)) == expected
    assert found > 0


@pytest.mark.spec("HS-3", "HS-22")
@pytest.mark.parametrize("seed", range(HISTORIES))
async def test_a_page_is_current_when_rows_and_rights_change_between_pages(
    store: MongoStepStore, others: list[MongoStepStore], documents: Any, seed: int
) -> None:
    dice = random.Random(1000 + seed)  # noqa: S311 - no secret
    player = KeywordPlayer(store=store.conversations, dice=dice)
    reference = await scanning(store, documents)
    reads: list[KeywordReads] = [store.keywords, *(each.keywords for each in others)]
    for _ in range(40):
        await player.act()
    continued = 0
    for _ in range(3):
        query = KeywordQuery(text="run", archived="include", include_auxiliary=True)
        after, shown = None, list[object]()
        for _ in range(10):  # pages of one walk
            allowed, page_size = player.allowed(), dice.randint(1, 4)
            ask = (store.workspace_id, query, allowed)
            expected = await reference.search_history(*ask, page_size=page_size, after=after)
            for each in reads:
                page = await each.search_history(*ask, page_size=page_size, after=after)
                assert page == expected
            shown += [
                (each.conversation_id, each.position, each.field) for each in expected.matches
            ]
            after = expected.next_after
            if after is None:
                break
            continued += 1
            for _ in range(3):
                await player.act()
        assert len(set(shown)) == len(shown)
    assert continued > 0


async def texts(
    reads: KeywordReads, workspace: str, text: str, **options: Any
) -> list[tuple[str, str]]:
    query = KeywordQuery(text=text, **options)
    found = await Paging(reads=reads, workspace_id=workspace, query=query).all(EVERYTHING, 50)
    return [(each.field, each.excerpt) for each in found]


async def index_of(documents: Any, workspace: str) -> list[dict[str, Any]]:
    """What searches see of the rows: nothing of who wrote them when."""
    found = documents[ROWS].find(
        {"workspace_id": workspace, "$or": [{"live": True}, {"pending": True}]},
        {"lane": 0, "sequence": 0},
    )
    return list(found.sort("_id", 1))


@pytest.mark.spec("HS-66")
async def test_rebuilt_rows_equal_maintained_ones(
    store: MongoStepStore, documents: Any, workspace: str
) -> None:
    player = KeywordPlayer(store=store.conversations, dice=random.Random(7))  # noqa: S311 - no secret
    for _ in range(80):
        await player.act()
    maintained = await index_of(documents, workspace)
    documents[ROWS].update_many({"workspace_id": workspace}, {"$set": {"lexemes": [1]}})
    documents[ROWS].delete_many({"workspace_id": workspace, "field": "prompt"})

    done = await store.keywords.reindex()

    assert await index_of(documents, workspace) == maintained
    assert len(maintained) > 40
    assert done.conversations >= len(player.ids)


@pytest.mark.spec("HS-18", "HS-19")
async def test_a_long_text_is_indexed_to_its_end_whoever_asks_first(
    store: MongoStepStore, others: list[MongoStepStore], documents: Any, workspace: str
) -> None:
    conversations = store.conversations
    await conversations.open("c", ConversationSpec(agent="a"), now=NOW)
    words = " ".join(f"word{number}x" for number in range(25_000))
    admission = await conversations.admit("c", message("m", f"{words} the end"), now=NOW)
    await finish(conversations, admission.variant, "", "short")

    for each in (store, *others):
        assert len(await texts(each.keywords, workspace, "word24999x end")) == 1
    assert [each["parts"] for each in await index_of(documents, workspace)] == [1, 1, 2, 2]
    for each in (store, *others):
        assert await texts(each.keywords, workspace, "word24999x word25000x") == []

    await conversations.set_visibility("c", 0, is_hidden=True, now=NOW)
    for each in (store, *others):
        assert await texts(each.keywords, workspace, "end") == []
    await conversations.set_visibility("c", 0, is_hidden=False, now=NOW)
    documents[ROWS].update_many(  # as if the writer had died before it came to the lexemes
        {"workspace_id": workspace, "field": "prompt", "part": 0},
        {"$set": {"pending": True}, "$unset": {"live": "", "lexemes": "", "parts": ""}},
    )
    documents[ROWS].delete_many({"workspace_id": workspace, "part": 1})
    for each in (*others, store):
        assert len(await texts(each.keywords, workspace, "word24999x end")) == 1


@pytest.mark.spec("HS-4", "HS-66")
async def test_words_that_a_rebuild_corrects_are_found_in_forks_too(
    store: MongoStepStore, workspace: str
) -> None:
    conversations = store.conversations
    await conversations.open("c", ConversationSpec(agent="a"), now=NOW)
    admission = await conversations.admit("c", message("m", "question"), now=NOW)
    variant = await finish(conversations, admission.variant, "", "wrong")
    await conversations.fork("c", at_position=0, into="d", now=NOW)

    async def correct(rows: Any) -> None:
        await rows.put_variants([replace(variant, content="right")])

    await conversations.transact("correct", correct)

    assert await texts(store.keywords, workspace, "wrong") == []
    assert await texts(store.keywords, workspace, "right") == [("content", "right")] * 2


async def test_what_changes_no_words_writes_no_rows(
    store: MongoStepStore, documents: Any, workspace: str
) -> None:
    conversations = store.conversations
    await conversations.open("c", ConversationSpec(agent="a"), now=NOW)
    admission = await conversations.admit("c", message("m", "question"), now=NOW)
    await finish(conversations, admission.variant, "", "answer")
    rows = list(documents[ROWS].find({"workspace_id": workspace}).sort("_id", 1))
    assert [each["sequence"] for each in rows] == [1, 3, 2]

    again = await conversations.regenerate("c", 0, message("r", ""), now=NOW)
    await finish(conversations, again.variant, "", "another")
    await conversations.select_variant("c", 0, 1, now=NOW)
    await conversations.set_visibility("c", 0, is_hidden=False, now=NOW)
    await conversations.find("c")

    assert list(documents[ROWS].find({"workspace_id": workspace}).sort("_id", 1)) == rows


async def test_writers_of_one_lane_wait_for_each_other_and_nothing_is_missed(
    store: MongoStepStore, others: list[MongoStepStore], workspace: str
) -> None:
    async def talk(name: str) -> None:
        conversations = store.conversations
        await conversations.open(name, ConversationSpec(agent="a"), now=NOW)
        for number in range(3):
            await conversations.admit(name, message(f"m{number}", f"said {name}"), now=NOW)

    async def search(each: MongoStepStore) -> None:
        while len(await texts(each.keywords, workspace, "said")) < 60:
            await asyncio.sleep(0.05)  # writers and searchers share one loop

    async with asyncio.timeout(45), asyncio.TaskGroup() as group:
        for each in (store, *others):
            group.create_task(search(each))
        for number in range(20):
            group.create_task(talk(f"talk{number}"))


@pytest.mark.spec("HS-11", "HS-25")
async def test_a_deleted_conversation_is_gone_from_index_and_results_and_forks_stay(
    store: MongoStepStore, others: list[MongoStepStore], documents: Any, workspace: str
) -> None:
    conversations = store.conversations
    await conversations.open("c", ConversationSpec(agent="a"), now=NOW)
    admission = await conversations.admit("c", message("m", "kept words"), now=NOW)
    await finish(conversations, admission.variant, "", "reply")
    await conversations.name("c", ConversationName(title="Kept title"), source="manual")
    await conversations.fork("c", at_position=0, into="d", now=NOW)
    for each in (store, *others):
        assert len(await texts(each.keywords, workspace, "kept")) == 4

    await conversations.delete("c", now=NOW)

    for each in (store, *others):
        left = {name for name, _ in await texts(each.keywords, workspace, "kept")}
        assert left == {"title", "prompt"}
    rows = documents[ROWS].find({"workspace_id": workspace, "conversation_id": "c"})
    assert [each["field"] for each in rows] == ["title"]


async def test_an_index_that_is_not_whole_refuses_and_says_what_to_do(
    mongodb_uri: str, mongodb_database: str
) -> None:
    client: MongoClient[dict[str, Any]] = MongoClient(mongodb_uri)
    store = MongoStepStore(db_url=mongodb_uri, database=mongodb_database)
    assert "began the keyword index" in await store.initialise()
    await store.conversations.open("c", ConversationSpec(agent="a"), now=NOW)
    await store.conversations.admit("c", message("m", "hello"), now=NOW)
    client[mongodb_database]["keyword_state"].delete_many({})  # as before there was one
    client[mongodb_database][ROWS].delete_many({})
    assert "keyword index: run `perdure reindex --keyword`" in await store.initialise()

    with pytest.raises(StoreConfigurationError, match="perdure reindex --keyword"):
        await texts(store.keywords, "default", "hello")

    assert (await store.keywords.reindex()).turns == 1
    assert await texts(store.keywords, "default", "hello") == [("prompt", "hello")]
    await store.aclose()
    client.close()
