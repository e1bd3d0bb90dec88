"""Burying heads of conversations: their ids stay and are not used again, their words go."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from pymongo import ReplaceOne
from pymongo.asynchronous.client_session import AsyncClientSession

from stores.conversation_records import ConversationRecord
from stores.conversations import buried
from stores.mongo.client import MongoConnection
from stores.mongo.conversation_documents import (
    conversation_document,
    conversation_key,
    record_of,
)
from stores.mongo.documents import Document
from stores.mongo.keyword_upkeep import bury_rows
from stores.mongo.transactions import run_transaction

HEADS_AT_ONCE = 100
"""In one transaction."""


async def bury_heads(
    connection: MongoConnection,
    workspace_id: str,
    conversation_ids: Sequence[str],
    *,
    now: datetime,
    unchanged_since: int | None = None,
) -> int:
    """Bury those of these that have a head, and let searches pass over them; how many have one.

    Args:
        connection: the store's.
        workspace_id: of the conversations.
        conversation_ids: theirs.
        now: of the burial.
        unchanged_since: in microseconds; a head that was changed then or later is left alone.
    """
    heads = connection.database["conversations"]

    async def bury(session: AsyncClientSession, some: Sequence[str]) -> int:
        query: Document = {
            "_id": {"$in": [conversation_key(workspace_id, each) for each in some]},
            "workspace_id": workspace_id,
            "conversation_id": {"$in": list(some)},
        }
        if unchanged_since is not None:
            query["updated_at"] = {"$lt": unchanged_since}
        found = [
            buried(record_of(ConversationRecord, each), now)
            async for each in heads.find(query, session=session)
        ]
        if found:
            changes = [_replacement(conversation_document(each)) for each in found]
            await heads.bulk_write(changes, session=session)
            await bury_rows(connection.database, session, found)
        return len(found)

    count = 0
    for start in range(0, len(conversation_ids), HEADS_AT_ONCE):
        some = conversation_ids[start : start + HEADS_AT_ONCE]
        count += await run_transaction(connection.client(), partial(bury, some=some))
    return count


def _replacement(document: Document) -> ReplaceOne[Document]:
    key = document["_id"]
    return ReplaceOne({"_id": key, **key}, document)
