"""How a whole database stands, over all workspaces: what an operator has to look after."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stores.mongo.client import MongoConnection
from stores.mongo.documents import Document
from stores.mongo.failures import store_errors
from stores.paging import time_at


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """So many of something, the oldest since then; `None` when there are none."""

    count: int = 0
    oldest_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Tool effects of unknown outcome, those of them that wait for a decision, and index lag."""

    unresolved: Backlog
    parked: Backlog
    unindexed: Backlog


async def read_standing(connection: MongoConnection) -> Standing:
    """Count what is unresolved, parked and not indexed, each by an index that holds nothing else.

    Raises:
        StoreUnavailableError: no server could be reached. Retryable.
    """
    with store_errors("count what is unresolved", connection.where):
        unresolved = await _backlog(
            connection, "tool_effects", "started_at", [{"$match": {"unresolved": True}}]
        )
        parked = await _backlog(connection, "tool_effects", "started_at", _PARKED)
        unindexed = await _backlog(connection, "snapshots", "at", [{"$match": {"unindexed": True}}])
    return Standing(unresolved=unresolved, parked=parked, unindexed=unindexed)


_PARKED: list[Document] = [
    {"$match": {"unresolved": True, "status": "unknown"}},
    {"$lookup": {"from": "runs", "localField": "run_id", "foreignField": "_id", "as": "run"}},
    {"$match": {"run.state": "needs_attention"}},
]
"""A run that ended with an effect of unknown outcome waits for nobody."""


async def _backlog(
    connection: MongoConnection, collection: str, since: str, stages: list[Document]
) -> Backlog:
    group: Document = {"_id": None, "count": {"$sum": 1}, "oldest": {"$min": f"${since}"}}
    cursor = await connection.database[collection].aggregate([*stages, {"$group": group}])
    found: list[dict[str, Any]] = await cursor.to_list()
    if not found:
        return Backlog()
    oldest = found[0]["oldest"]
    return Backlog(count=found[0]["count"], oldest_at=None if oldest is None else time_at(oldest))
