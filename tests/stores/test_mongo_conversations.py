"""What conversations ask of MongoDB: every query has an index, however much else is there."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import pytest
from pymongo import AsyncMongoClient

from stores.conversation_records import ConversationSpec, SubmittedMessage, TurnText
from stores.conversations import ConversationStore
from stores.mongo.steps import MongoStepStore
from stores.rebuilding import rebuild_conversation
from tests.stores.watching import Document, Watcher, explained, stages, work

pytestmark = pytest.mark.integration

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TALK = "talk-7"
CONVERSATIONS, TURNS = 20, 10


def said(message_id: str) -> SubmittedMessage:
    return SubmittedMessage(message_id=message_id, text=f"question {message_id}")


async def fill(conversations: ConversationStore) -> None:
    """Many conversations, each with its number in what was said."""
    for number in range(CONVERSATIONS):
        name = f"talk-{number}"
        await conversations.open(name, ConversationSpec(agent="chat"), now=NOW)
        for turn in range(TURNS):
            await conversations.admit(name, said(f"{number}-{turn}"), now=NOW)
            text = TurnText(prompt="", content=f"answer {number}-{turn}.")
            await conversations.finish_variant(
                name, turn, 1, status="completed", text=text, now=NOW
            )


Ask = Callable[[ConversationStore], Awaitable[object]]

READS: list[Ask] = [
    lambda c: c.find(TALK),
    lambda c: c.listing(limit=5),
    lambda c: c.listing(archived="include", limit=5),
    lambda c: c.list_turns(TALK, limit=5),
    lambda c: c.list_turns(TALK, before=8, limit=5, newest_first=True),
    lambda c: c.list_turns(TALK, after=3, limit=2),
    lambda c: c.find_message(TALK, said("7-3")),
]
"""Each of which finds something, and looks at hardly more than that."""

WRITES: list[Ask] = [
    lambda c: c.listing("answer 3-9."),
    lambda c: c.admit(TALK, said("new"), now=NOW),
    lambda c: c.list_unfinished(TALK),
    lambda c: c.begin_variant(TALK, TURNS, 1, now=NOW),
    lambda c: c.add_steer(TALK, TURNS, 1, said("steer"), now=NOW),
    lambda c: c.finish_variant(TALK, TURNS, 1, status="failed", text=None, now=NOW),
    lambda c: c.regenerate(TALK, 2, said("again"), now=NOW),
    lambda c: c.finish_variant(
        TALK, 2, 2, status="completed", text=TurnText(prompt="", content="anew"), now=NOW
    ),
    lambda c: c.select_variant(TALK, 2, 2, now=NOW),
    lambda c: c.set_visibility(TALK, 1, is_hidden=True, now=NOW),
    lambda c: c.fork(TALK, at_position=4, into="fork", now=NOW),
    lambda c: c.list_turns("fork", limit=5),
    lambda c: c.append_compaction(TALK, said("summary"), now=NOW),
    lambda c: c.delete_turn(TALK, 3, now=NOW),
    lambda c: c.delete(TALK, now=NOW),
]
"""What changes something, and the search through what was said, each once and in this order."""


class TestIndexUse:
    @pytest.fixture
    def watcher(self, prepared_database: str) -> Watcher:
        return Watcher(prepared_database)

    @pytest.fixture
    async def store(self, mongodb_uri: str, watcher: Watcher) -> AsyncIterator[MongoStepStore]:
        async with AsyncMongoClient[Document](mongodb_uri, event_listeners=[watcher]) as client:
            yield MongoStepStore(client=client, database=watcher.database)

    async def test_no_operation_scans_a_collection_and_reads_look_at_what_they_return(
        self, store: MongoStepStore, watcher: Watcher, mongodb_uri: str
    ) -> None:
        conversations = store.conversations
        await fill(conversations)
        async with AsyncMongoClient[Document](mongodb_uri) as client:
            for number, read in enumerate(READS):
                watcher.commands.clear()
                assert await read(conversations), number
                for query, account in await explained(client, watcher.database, watcher.commands):
                    keys, documents, returned = work(account)
                    assert not {"COLLSCAN", "SORT"} & {*stages(account)}, query
                    assert documents <= 2 * returned + 1, (query, work(account))
                    assert keys <= 2 * returned + 2, (query, work(account))
            for number, write in enumerate(WRITES):
                watcher.commands.clear()
                await write(conversations)
                commands = list(watcher.commands)
                for query, account in await explained(client, watcher.database, commands):
                    assert "COLLSCAN" not in stages(account), (number, query)
            watcher.commands.clear()
            await rebuild_conversation(store, "talk-8", now=NOW)
            for query, account in await explained(client, watcher.database, watcher.commands):
                assert "COLLSCAN" not in stages(account), query

    async def test_a_message_and_its_answer_cost_nine_questions_each(
        self, store: MongoStepStore, watcher: Watcher
    ) -> None:
        conversations = store.for_workspace("counted").conversations
        await conversations.open(TALK, ConversationSpec(agent="assistant"), now=NOW)
        watcher.commands.clear()
        admission = await conversations.admit(TALK, said("m"), now=NOW)
        admitted = watcher.names()
        variant = admission.variant
        place = (TALK, variant.position, variant.number)
        await conversations.begin_variant(*place, now=NOW)
        watcher.commands.clear()
        text = TurnText(prompt="question m", content="an answer")
        await conversations.finish_variant(*place, status="completed", text=text, now=NOW)
        finished = watcher.names()
        keywords = ["findAndModify", "update", "commitTransaction"]  # a lane, and all rows together
        assert admitted == ["find", "find", *["update"] * 4, *keywords]
        assert finished == ["find", "find", "find", *["update"] * 3, *keywords]

    async def test_a_search_through_what_was_said_stops_with_the_page(
        self, store: MongoStepStore, watcher: Watcher
    ) -> None:
        conversations = store.for_workspace("other").conversations
        await fill(conversations)
        watcher.commands.clear()
        found = await conversations.listing("ANSWER 3-9.", limit=1)
        assert [each.conversation_id for each in found] == ["talk-3"]
        assert await conversations.listing("answer", limit=3, offset=CONVERSATIONS - 1) != []
        assert await conversations.listing("answer", limit=3, offset=CONVERSATIONS) == []
        named = await conversations.listing("question 1", limit=2, offset=1)
        assert len(named) == 2
        assert "commitTransaction" not in watcher.names()
