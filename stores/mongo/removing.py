"""Removing a conversation: its rows, its runs, and the messages that nothing else refers to.

Media go when no message names them any more, those of the last hour with a sweep (`perdure gc`):
somebody may be about to name one that was put a moment ago.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any

from pymongo.asynchronous.client_session import AsyncClientSession

from stores.conversation_records import ConversationRecord, RemovedConversation
from stores.conversations import buried
from stores.errors import ConversationNotFoundError
from stores.mongo.client import Database, MongoConnection
from stores.mongo.conversation_documents import (
    conversation_document,
    conversation_key,
    record_of,
)
from stores.mongo.documents import Document
from stores.mongo.keyword_rows import ROWS, of_positions
from stores.mongo.keyword_upkeep import bury_rows
from stores.mongo.leftovers import View
from stores.mongo.media_sweeping import MediaSweeper
from stores.mongo.references import unreferred
from stores.mongo.search_log import LOG
from stores.mongo.streaming import STREAMS
from stores.mongo.transactions import run_transaction

_BATCH = 500

_ALWAYS = 2**62
"""A cutoff that keeps nothing; the sweeper has its own bound for media that are young."""

MARKED = ("events", "snapshots", "tool_effects")
"""Collections with rows of one run that may be live or not: an index serves either, none both."""

OF_RUNS = (*MARKED, "tool_attempts", STREAMS)
"""Collections whose rows belong to one run, by `run_id` and `workspace_id`."""

OF_CONVERSATIONS: dict[str, Document] = {
    "conversation_messages": {},
    LOG: {"sequence": {"$gt": 0}},
}
"""Collections whose rows belong to one conversation, by its id and `workspace_id`, and what names
their index."""


async def remove_conversation(
    connection: MongoConnection, workspace_id: str, conversation_id: str, *, now: datetime
) -> RemovedConversation:
    """Bury the head in one transaction, then remove what is left; may be begun again.

    Kept for forks: turns that they inherited, with variants, runs and messages. Searches find them
    by way of what a fork says from then on.

    Raises:
        ConversationNotFoundError: the workspace never had the conversation.
    """
    database = connection.database
    await _bury(connection, workspace_id, conversation_id, now)
    mine: Document = conversation_key(workspace_id, conversation_id)
    kept = await _inherited_positions(database, workspace_id, conversation_id)
    kept_runs = await _runs_at(database, mine, kept)
    counts: dict[str, int] = {}
    gone = {**mine, "live": True, "position": {"$not": {"$in": kept}}}
    for name in ("variants", "turns"):
        counts[name] = (await database[name].delete_many(gone)).deleted_count
    for name, also in OF_CONVERSATIONS.items():
        counts[name] = (await database[name].delete_many({**mine, **also})).deleted_count
    rows = await database[ROWS].delete_many(of_positions(workspace_id, conversation_id))
    counts[ROWS] = rows.deleted_count
    counts |= dict.fromkeys(("runs", *OF_RUNS, "positions", "messages", "media"), 0)
    runs: list[str] = []
    for is_live in (True, False):
        query = {**mine, "live": is_live, "_id": {"$not": {"$in": kept_runs}}}
        runs += [each["_id"] async for each in database["runs"].find(query, {"_id": 1})]
    for batch in _batches(runs):
        for name, count in (await remove_runs(connection, workspace_id, batch)).items():
            counts[name] += count
    return RemovedConversation(conversation_id=conversation_id, counts=counts)


async def _bury(
    connection: MongoConnection, workspace_id: str, conversation_id: str, now: datetime
) -> None:
    heads = connection.database["conversations"]
    key = conversation_key(workspace_id, conversation_id)

    async def bury(session: AsyncClientSession) -> None:
        found = await heads.find_one({"_id": key, **key}, session=session)
        if found is None:
            raise ConversationNotFoundError(conversation_id, "this workspace never had it")
        head = buried(record_of(ConversationRecord, found), now)
        await heads.replace_one({"_id": key, **key}, conversation_document(head), session=session)
        await bury_rows(connection.database, session, head)

    await run_transaction(connection.client(), bury)


async def _inherited_positions(
    database: Database, workspace_id: str, conversation_id: str
) -> list[int]:
    query = {"workspace_id": workspace_id, "source_conversation_id": conversation_id}
    return sorted(await database["turns"].distinct("position", query))


async def _runs_at(database: Database, mine: Document, positions: Sequence[int]) -> list[str]:
    query = {**mine, "live": True, "position": {"$in": list(positions)}}
    return list(await database["variants"].distinct("run_id", query))


async def remove_runs(
    connection: MongoConnection, workspace_id: str, runs: Sequence[str]
) -> dict[str, int]:
    """Remove rows of the runs first, the runs last: what was removed in part is found again."""
    database = connection.database
    of_runs: Document = {"run_id": {"$in": list(runs)}, "workspace_id": workspace_id}
    digests = {each["message"] for each in await positions_of(database, of_runs)}
    counts = {name: await _remove_rows(database, name, of_runs) for name in OF_RUNS}
    counts["positions"] = await _remove_rows(database, "positions", of_runs)
    counts |= {"messages": 0, "media": 0}
    for batch in _batches(sorted(digests)):
        media = await media_of(database, batch)
        counts["messages"] += await remove_messages(connection, batch)
        counts["media"] += await remove_media(connection, workspace_id, media)
    gone = {"_id": {"$in": list(runs)}, "workspace_id": workspace_id}
    counts["runs"] = (await database["runs"].delete_many(gone)).deleted_count
    return counts


async def positions_of(database: Database, of_runs: Document) -> list[Document]:
    """Run, position and message of all positions of runs, marked ones, too."""
    return [
        each
        for is_live in (True, False)
        async for each in database["positions"].find(
            {**of_runs, "live": is_live}, {"run_id": 1, "position": 1, "message": 1}
        )
        if "message" in each
    ]


async def _remove_rows(database: Database, collection: str, of_runs: Document) -> int:
    queries = [of_runs]
    if collection in {*MARKED, "positions"}:
        queries = [{**of_runs, "live": is_live} for is_live in (True, False)]
    return sum([(await database[collection].delete_many(each)).deleted_count for each in queries])


async def remove_messages(connection: MongoConnection, digests: Sequence[str]) -> int:
    """Remove those that nothing refers to, looked at again in the transaction that removes them."""
    database = connection.database

    async def remove(session: AsyncClientSession) -> int:
        view = View(database=database, cutoff=0, is_dry=False, session=session)
        free = await unreferred(view, digests)
        query: dict[str, Any] = {"_id": {"$in": free}}
        return (await database["messages"].delete_many(query, session=session)).deleted_count

    return await run_transaction(connection.client(), remove)


async def media_of(database: Database, digests: Sequence[str]) -> list[str]:
    """The media that these messages name."""
    found = await database["messages"].distinct("media", {"_id": {"$in": list(digests)}})
    return sorted(str(each) for each in found if each)


async def remove_media(connection: MongoConnection, workspace_id: str, media: Sequence[str]) -> int:
    """Remove those that no message names any more, and that nobody has put for an hour."""
    count = 0
    sweeper = MediaSweeper(connection, workspace_id=workspace_id, step=nullcontext)
    view = View(database=connection.database, cutoff=_ALWAYS, is_dry=False)
    for batch in _batches(media):
        count += (await sweeper.sweep(view, batch))[0]
    return count


def _batches(items: Sequence[str]) -> list[Sequence[str]]:
    return [items[start : start + _BATCH] for start in range(0, len(items), _BATCH)]
