"""Searching from the command line, and making the index anew. Neither needs a worker."""

import asyncio
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage
from pymongo import MongoClient

from stores.conversation_records import ConversationSpec, SubmittedMessage
from stores.mongo.steps import MongoStepStore
from tests.cli.test_commands import NOWHERE, Perdure
from tests.stores.records import run_record, snapshot
from tests.stores.writer import at, request, response

pytestmark = pytest.mark.integration


async def fill(uri: str, database: str) -> None:
    """A conversation of two runs; the second begins with what the first one ended with."""
    store = MongoStepStore(db_url=uri, database=database)
    await store.initialise()
    history: list[ModelMessage] = []
    for number, text in enumerate(["the blue whale", "a grey seal"]):
        run_id = f"run-{number}"
        history = [*history, request(text), response(f"about {text}")]
        record = run_record(run_id, conversation_id="sea", started_at=at(number))
        await store.register_run(record)
        await store.save_snapshot(snapshot(history, run_id=run_id, timestamp=at(number)))
    await store.aclose()


def test_a_conversation_is_searched_and_its_index_made_anew(
    mongodb_uri: str, mongodb_database: str
) -> None:
    asyncio.run(fill(mongodb_uri, mongodb_database))
    settings = {"mongodb_uri": mongodb_uri, "mongodb_database": mongodb_database}
    perdure = Perdure({**settings, "temporal_address": NOWHERE})

    shown = perdure("search", "sea", "WHALES", "--context", "0")
    assert shown.returncode == 0, shown.stderr
    assert "Found 2 match(es) for 'WHALES' in 4 persisted messages of 2 run(s)" in shown.stdout
    assert "run: run-0 | conversation: sea]\n[0] User: the blue whale\n" in shown.stdout
    one = perdure.document("search", "sea", "seal", "--run", "run-1", "--matches", "1")
    (match,) = one["matches"]
    assert (match["run_id"], match["index"], one["messages"]) == ("run-1", 2, 4)
    assert "[2] User: a grey seal" in match["excerpt"]
    empty = perdure("search", "sea", "?!")
    assert (empty.returncode, "no word to search for" in empty.stdout) == (0, True)
    for arguments, words in (
        (("lake", "whale"), "no saved messages of conversation 'lake'"),
        (("sea", "whale", "--run", "run-9"), "no saved messages of run 'run-9'"),
    ):
        missing = perdure("search", *arguments)
        assert (missing.returncode, words in missing.stderr) == (3, True), missing.stderr

    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        client[mongodb_database].search_log.delete_many({})
        client[mongodb_database].search_state.delete_many({})
        unindexed = perdure("search", "sea", "whale")
        assert "[0] User: the blue whale" in unindexed.stdout
        assert "`perdure reindex` completes it" in unindexed.stdout
        assert perdure.document("reindex") == {"conversations": 1, "runs": 2, "messages": 4}
        found = perdure.document("search", "sea", "whale")
        assert (len(found["matches"]), found["note"]) == (1, None)


@pytest.mark.spec("HS-66")
def test_the_keyword_index_is_made_anew(mongodb_uri: str, mongodb_database: str) -> None:
    async def talk() -> None:
        store = MongoStepStore(db_url=mongodb_uri, database=mongodb_database)
        await store.initialise()
        spec = ConversationSpec(agent="conversation")
        await store.conversations.open("sea", spec, now=at(0))
        said = SubmittedMessage(message_id="m", text="the blue whale")
        await store.conversations.admit("sea", said, now=at(0))
        await store.aclose()

    asyncio.run(talk())
    client: MongoClient[dict[str, Any]] = MongoClient(mongodb_uri)
    rows = client[mongodb_database]["keyword_rows"]
    rows.delete_many({})
    settings = {"mongodb_uri": mongodb_uri, "mongodb_database": mongodb_database}
    perdure = Perdure({**settings, "temporal_address": NOWHERE})

    assert perdure.document("reindex", "--keyword") == {"conversations": 1, "turns": 1}
    told = perdure("reindex", "--keyword").stdout
    assert told == "indexed 1 turns in 1 conversations\n"
    assert rows.count_documents({"field": "prompt", "live": True}) == 1
    client.close()
