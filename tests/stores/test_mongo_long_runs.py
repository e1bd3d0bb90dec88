"""Runs of 100,000 messages: no document of theirs comes near MongoDB's limit of 16 MiB."""

from collections.abc import AsyncIterator, Iterator

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from stores.digests import message_digest, message_text
from stores.histories import Range
from stores.mongo.documents import MAX_PLAIN_RANGES, row_document
from stores.mongo.indexes import COLLECTIONS
from stores.mongo.steps import MongoStepStore
from stores.operations import PositionedMessage
from stores.rows import PositionRow
from tests.stores.watching import Document
from tests.stores.writer import Execution, RunScript, new_run, request, text_of

pytestmark = pytest.mark.integration

MESSAGES = 100_000
STORED = 50

LARGEST_BYTES = 1_000_000


@pytest.fixture
def database(mongodb_uri: str, mongodb_database: str) -> Iterator[Database[Document]]:
    with MongoClient[Document](mongodb_uri) as client:
        yield client[mongodb_database]


@pytest.fixture
async def store(mongodb_uri: str, mongodb_database: str) -> AsyncIterator[MongoStepStore]:
    store = MongoStepStore(db_url=mongodb_uri, database=mongodb_database)
    await store.initialise()
    yield store
    await store.aclose()


def put_messages(database: Database[Document], run_id: str) -> None:
    """Every `STORED`th of the messages: the rest would take a minute, and no test reads them."""
    texts = {each: message_text(request(f"message {each}")) for each in range(0, MESSAGES, STORED)}
    digests = {each: message_digest("default", text) for each, text in texts.items()}
    rows = [
        PositionRow(
            workspace_id="default",
            run_id=run_id,
            branch="branch",
            number=1,
            position=position,
            message=digest,
        )
        for position, digest in digests.items()
    ]
    database["positions"].insert_many([row_document(each) for each in rows])
    database["messages"].insert_many(
        [{"_id": digests[each], "text": text} for each, text in texts.items()]
    )


async def save(
    store: MongoStepStore, execution: Execution, script: RunScript, *ranges: Range
) -> None:
    """Save a history of these positions with one new message at its end."""
    entry = PositionedMessage(
        position=MESSAGES + script.saves, message=request(f"new {script.saves}")
    )
    history = (*ranges, (entry.position, entry.position + 1))
    operation = script.snapshot(1, len(script.messages), ranges=history, entries=(entry,))
    execution.next_task()
    await store.commit(execution.commit(operation))


def largest_bytes(database: Database[Document]) -> dict[str, int]:
    """Of the largest document in each collection."""
    pipeline = [{"$group": {"_id": None, "largest": {"$max": {"$bsonSize": "$$ROOT"}}}}]
    found = ((each, list(database[each].aggregate(pipeline))) for each in COLLECTIONS)
    return {each: rows[0]["largest"] for each, rows in found if rows}


async def test_a_run_of_a_hundred_thousand_messages_has_small_documents(
    store: MongoStepStore, database: Database[Document]
) -> None:
    execution, script = new_run("long")
    await store.commit(execution.commit(script.register()))
    middle = MESSAGES // 2
    alternating: list[Range] = [
        (each, each + 1)
        for pair in zip(range(middle), range(middle, MESSAGES), strict=True)
        for each in pair
    ]
    histories: dict[str, list[Range]] = {
        "grown": [(0, MESSAGES)],
        "one message rewritten in the middle": [(0, middle), (middle + 1, MESSAGES)],
        "every other message rewritten": alternating,
    }
    for name, ranges in histories.items():
        await save(store, execution, script, *ranges)
        largest = largest_bytes(database)
        assert all(each < LARGEST_BYTES for each in largest.values()), (name, largest)
        stored = await store.list_snapshot_summaries(run_id=script.run_id)
        assert stored[-1].message_count >= MESSAGES, name


async def test_a_history_in_many_pieces_is_read_in_its_order(
    store: MongoStepStore, database: Database[Document]
) -> None:
    execution, script = new_run("pieces")
    await store.commit(execution.commit(script.register()))
    put_messages(database, script.run_id)
    pieces = [(each, each + 1) for each in range(0, MESSAGES, STORED)][::-1]
    assert len(pieces) > MAX_PLAIN_RANGES
    await save(store, execution, script, *pieces)
    latest = await store.latest_snapshot(run_id=script.run_id)
    assert latest is not None
    expected = [f"message {start}" for start, _ in pieces]
    assert [text_of(each) for each in latest.messages] == [*expected, "new 0"]
