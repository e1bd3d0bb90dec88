"""Writing the lexemes of long texts, which no transaction waits for.

A row that is pending becomes whole in a transaction of its own, after its parts: whoever dies
between leaves it pending, and parts that count for nothing.
"""

import asyncio
import logging

from bson import Int64
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from stores.keyword.fields import fields_of
from stores.mongo.client import MongoConnection
from stores.mongo.documents import Document
from stores.mongo.keyword_rows import MOST_LEXEMES, ROWS, keys_of, parts_of, text_version
from stores.mongo.keyword_texts import KeywordTexts
from stores.mongo.keyword_upkeep import lexemes_of, next_in_lane
from stores.mongo.transactions import run_transaction

_LOGGER = logging.getLogger(__name__)

DEADLINE_SECONDS = 2.0
"""Of what a writer or a search waits for pending rows: some 100,000 different words."""

_KEPT = ("workspace_id", "conversation_id", "position", "field", "version", "number", "order_id")


async def settle_soon(connection: MongoConnection, workspace_id: str) -> None:
    """Settle what is pending within a deadline. Raises nothing: the rest is lag, and logged."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await settle_pending(connection, workspace_id)
    except (PyMongoError, TimeoutError) as error:
        _LOGGER.warning(
            "the keyword index of workspace %s lags behind a long text, until the next search: %s",
            workspace_id,
            type(error).__name__,
        )


async def settle_pending(connection: MongoConnection, workspace_id: str) -> int:
    """Make whole what is pending in a workspace; how many rows that were."""
    count = 0
    query = {"workspace_id": workspace_id, "pending": True}
    async for row in connection.database[ROWS].find(query):
        count += await _settle(connection, row)
    return count


async def _settle(connection: MongoConnection, row: Document) -> bool:
    texts = KeywordTexts(database=connection.database, workspace_id=row["workspace_id"])
    answer = row["conversation_id"], row["position"], row["number"]
    turn = (await texts.turns([answer])).get(answer)
    shown = fields_of(turn) if turn else []
    text = next((each.text for each in shown if each.field == row["field"]), "")
    if text_version(text) != row["version"]:
        return False  # it is about to be replaced, by whoever changed the turn
    keys = keys_of(await lexemes_of(text))
    parts = [keys[start : start + MOST_LEXEMES] for start in range(0, len(keys), MOST_LEXEMES)]
    for index, part in enumerate(parts[1:], start=1):
        document = {name: row[name] for name in _KEPT}
        shared = {"part": index, "parts": len(parts), "live": True, "lexemes": part}
        at = _at(row, part=index)
        await connection.database[ROWS].replace_one(at, document | at | shared, upsert=True)
    if await _complete(connection, row, parts):
        return True
    rows = connection.database[ROWS]
    settled = {**_at(row), "version": row["version"], "live": True}
    if await rows.find_one(settled, {"_id": 1}) is None:  # else another one was faster
        await rows.delete_many({**parts_of(row["_id"], 1), "version": row["version"]})
    return False


def _at(row: Document, **key: object) -> Document:
    """A query for a row, or another part of it, that names its shard key, too."""
    return {"_id": {**row["_id"], **key}, "workspace_id": row["workspace_id"]}


async def _complete(connection: MongoConnection, row: Document, parts: list[list[Int64]]) -> bool:
    """Let the row count, if it is pending still and of the same text."""
    database = connection.database
    expected = {**_at(row), "version": row["version"], "pending": True}

    async def complete(session: AsyncClientSession) -> bool:
        if await database[ROWS].find_one(expected, {"_id": 1}, session=session) is None:
            return False
        lane = await next_in_lane(database, session, row["workspace_id"], row["conversation_id"])
        change: Document = {
            "$set": {
                "live": True,
                "parts": max(1, len(parts)),
                "lexemes": parts[0] if parts else [],
                "sequence": Int64(lane.sequence),
            },
            "$unset": {"pending": ""},
        }
        await database[ROWS].update_one(expected, change, session=session)
        return True

    return await run_transaction(connection.client(), complete)
