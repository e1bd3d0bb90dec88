"""Making the search log anew, from the snapshots and messages that are stored.

Workers may go on meanwhile. While it lasts, and after one that was broken off, searches are
answered without the index and say so.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from stores.mongo.client import Database
from stores.mongo.documents import Document
from stores.mongo.search_indexer import SearchIndexer
from stores.mongo.search_log import COMPLETE, LOG, STATE, forget_outdated, of_conversation

_RUNS_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class Reindexed:
    """What was made anew so far."""

    conversations: int = 0
    runs: int = 0
    messages: int = 0


Tell = Callable[[Reindexed], None]


async def begin_index(database: Database) -> list[str]:
    """Say of a database without any snapshot that its index is whole; a line when that was new.

    One that has snapshots already needs `reindex` first.
    """
    if await database[STATE].find_one(COMPLETE | {"is_complete": {"$exists": True}}):
        return []
    is_empty = await database["snapshots"].find_one({}, {"_id": 1}) is None
    await database[STATE].update_one(
        {"_id": COMPLETE["_id"]}, {"$set": {"is_complete": is_empty}}, upsert=True
    )
    return ["began the search index"] if is_empty else ["search index: run `perdure reindex`"]


async def reindex(
    database: Database, indexer_of: Callable[[str], SearchIndexer], *, tell: Tell
) -> Reindexed:
    """Make the logs of all conversations anew.

    Args:
        database: where the store is.
        indexer_of: the indexer of a workspace.
        tell: hears of each conversation.
    """
    state = database[STATE]
    name = {"_id": COMPLETE["_id"]}
    await state.update_one(name, {"$set": {"is_complete": False}}, upsert=True)
    done = Reindexed()
    async for workspace_id, conversation_id in _conversations(database):
        indexer = indexer_of(workspace_id)
        run_ids = await reindex_conversation(database, indexer, workspace_id, conversation_id)
        messages = await _count(database, workspace_id, conversation_id)
        done = Reindexed(
            conversations=done.conversations + 1,
            runs=done.runs + len(run_ids),
            messages=done.messages + messages,
        )
        tell(done)
    await state.update_one(name, {"$set": {"is_complete": True}})
    return done


async def reindex_conversation(
    database: Database, indexer: SearchIndexer, workspace_id: str, conversation_id: str
) -> list[str]:
    """Make the log of one conversation anew; its runs. `""`: of the runs that have none."""
    run_ids = await _runs_of(database, workspace_id, conversation_id)
    await indexer.begin_again(conversation_id)
    for start in range(0, len(run_ids), _RUNS_AT_ONCE):
        await send_again(
            database, workspace_id, conversation_id, run_ids[start : start + _RUNS_AT_ONCE]
        )
    await indexer.catch_up(conversation_id)
    await forget_outdated(database, workspace_id, conversation_id)
    return run_ids


async def _conversations(database: Database) -> AsyncIterator[tuple[str, str]]:
    group: Document = {"w": "$workspace_id", "c": {"$ifNull": ["$conversation_id", ""]}}
    cursor = await database["runs"].aggregate([{"$group": {"_id": group}}], allowDiskUse=True)
    async for each in cursor:
        yield each["_id"]["w"], each["_id"]["c"]


async def _runs_of(database: Database, workspace_id: str, conversation_id: str) -> list[str]:
    query: Document = {"workspace_id": workspace_id, "live": True}
    query["conversation_id"] = conversation_id or {"$exists": False}
    found = database["runs"].find(query, {"_id": 1}).sort([("started_at", 1), ("_id", 1)])
    return [each["_id"] async for each in found]


async def send_again(
    database: Database, workspace_id: str, conversation_id: str, run_ids: list[str]
) -> None:
    """Let the snapshots of these runs be logged once more; pruned ones name their messages, too."""
    for run_id in run_ids:
        counts: Document = {"$or": [{"live": True}, {"mark": "pruned"}]}
        query = {"run_id": run_id, "workspace_id": workspace_id, "state": "complete", **counts}
        change = {"conversation_id": conversation_id, "unindexed": True}
        await database["snapshots"].update_many(query, {"$set": change})


async def _count(database: Database, workspace_id: str, conversation_id: str) -> int:
    count = {"$sum": {"$size": "$hashes"}}
    pipeline: list[Document] = [
        {"$match": of_conversation(workspace_id, conversation_id)},
        {"$group": {"_id": None, "count": count}},
    ]
    found = await (await database[LOG].aggregate(pipeline)).to_list()
    return int(found[0]["count"]) if found else 0
