"""Making the rows of the keyword index anew, from what conversations have stored.

Workers and searches go on meanwhile: each batch is a transaction, as any other that writes rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pymongo.asynchronous.client_session import AsyncClientSession

from stores.conversation_records import ConversationRecord
from stores.mongo.client import Database, MongoConnection
from stores.mongo.conversation_documents import record_of
from stores.mongo.conversations import MongoConversationRows
from stores.mongo.keyword_rows import ROWS, STATE, WHOLE, of_positions
from stores.mongo.keyword_settling import settle_pending
from stores.mongo.keyword_upkeep import KeywordUpkeep, bury_rows
from stores.mongo.transactions import run_transaction

_TURNS_AT_ONCE = 50


@dataclass(frozen=True, kw_only=True)
class ReindexedKeywords:
    """What was made anew so far."""

    conversations: int = 0
    turns: int = 0


Tell = Callable[[ReindexedKeywords], None]


async def begin_keywords(database: Database) -> list[str]:
    """Say of a database without conversations that its index is whole; a line when that was new.

    One that has conversations already, or lexemes of another lexer, needs `reindex_keywords` first.
    """
    state = database[STATE]
    found = await state.find_one({"_id": WHOLE["_id"]})
    if found is not None and found.get("lexer") == WHOLE["lexer"]:
        return []
    is_empty = await database["conversations"].find_one({}, {"_id": 1}) is None
    change = {"$set": {"lexer": WHOLE["lexer"], "is_complete": is_empty}}
    await state.update_one({"_id": WHOLE["_id"]}, change, upsert=True)
    if is_empty:
        return ["began the keyword index"]
    return ["keyword index: run `perdure reindex --keyword`"]


async def reindex_keywords(connection: MongoConnection, *, tell: Tell) -> ReindexedKeywords:
    """Make the rows of all workspaces anew.

    Args:
        connection: to the database.
        tell: hears of each conversation.
    """
    database = connection.database
    done = ReindexedKeywords()
    workspaces: set[str] = set()
    async for document in database["conversations"].find({}).sort("_id", 1):
        head = record_of(ConversationRecord, document)
        turns = await _make_anew(connection, head)
        workspaces.add(head.workspace_id)
        done = ReindexedKeywords(conversations=done.conversations + 1, turns=done.turns + turns)
        tell(done)
    for workspace_id in sorted(workspaces):
        await settle_pending(connection, workspace_id)
    change = {"$set": {"lexer": WHOLE["lexer"], "is_complete": True}}
    await database[STATE].update_one({"_id": WHOLE["_id"]}, change, upsert=True)
    return done


async def index_conversation(connection: MongoConnection, head: ConversationRecord) -> None:
    """Make the rows of one conversation, which nobody wrote turn by turn."""
    await _make_anew(connection, head)
    await settle_pending(connection, head.workspace_id)


async def _make_anew(connection: MongoConnection, head: ConversationRecord) -> int:
    """Make the rows of one conversation; how many turns it has."""
    database, workspace_id = connection.database, head.workspace_id
    conversation_id = head.conversation_id

    async def title(session: AsyncClientSession) -> ConversationRecord | None:
        rows = MongoConversationRows(database, session, workspace_id)
        found = await rows.find_conversation(conversation_id)
        if found is None:
            return None
        if found.state == "deleted":
            await bury_rows(database, session, [found])
        else:
            upkeep = _forced(database, session, workspace_id)
            upkeep.put_head(found)
            await upkeep.flush(rows)
        return found

    found = await run_transaction(connection.client(), title)
    if found is None or found.state == "deleted":
        await database[ROWS].delete_many(of_positions(workspace_id, conversation_id))
        return 0
    for start in range(0, found.turn_count, _TURNS_AT_ONCE):
        positions = range(start, min(start + _TURNS_AT_ONCE, found.turn_count))

        async def batch(session: AsyncClientSession, positions: range = positions) -> None:
            rows = MongoConversationRows(database, session, workspace_id)
            upkeep = _forced(database, session, workspace_id)
            upkeep.note_turns(conversation_id, positions)
            await upkeep.flush(rows)

        await run_transaction(connection.client(), batch)
    return found.turn_count


def _forced(database: Database, session: AsyncClientSession, workspace_id: str) -> KeywordUpkeep:
    return KeywordUpkeep(
        database=database, session=session, workspace_id=workspace_id, is_forced=True
    )
