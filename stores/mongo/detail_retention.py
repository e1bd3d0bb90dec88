"""Removing what runs did, long after they ended: their events, effects and attempts.

What they said stays: messages, snapshots, the text of turns and what a search finds of it. So does
how they ended, and that their details were removed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from stores.mongo.client import MongoConnection
from stores.mongo.documents import Document
from stores.mongo.failures import store_errors
from stores.mongo.streaming import STREAMS
from stores.paging import microseconds

DETAILS: tuple[str, ...] = ("events", "tool_effects", "tool_attempts", STREAMS)
"""Collections with rows of one run, by `run_id` and `workspace_id`, that say how it went."""

_ENDED = ("completed", "failed", "cancelled")
_UNDER_WAY = "details_pruning"


@dataclass(frozen=True, kw_only=True)
class PrunedDetails:
    """What was removed, or would be: runs, and rows by collection."""

    runs: int
    rows: Mapping[str, int] = field(default_factory=dict[str, int])


async def prune_details(
    connection: MongoConnection,
    *,
    workspace_id: str | None,
    ended_before: datetime,
    now: datetime,
    is_dry: bool,
) -> PrunedDetails:
    """Remove the details of runs that ended before that time.

    A run that has a call whose outcome is open keeps all: somebody may still have to decide. First
    the run is marked, then its rows go; one that was left in between is finished the next time.

    Args:
        connection: of the database.
        workspace_id: `None`: all of them.
        ended_before: longer ago than Temporal keeps workflows, which may be reset until then.
        now: is kept with each run.
        is_dry: only count.
    """
    database = connection.database
    query: Document = {
        "live": True,
        "state": {"$in": _ENDED},
        "ended_at": {"$lt": microseconds(ended_before)},
        "$or": [{"details_pruned_at": {"$exists": False}}, {_UNDER_WAY: True}],
    }
    if workspace_id is not None:
        query["workspace_id"] = workspace_id
    runs, rows = 0, dict.fromkeys(DETAILS, 0)
    with store_errors("prune details of runs", connection.where):
        async for run in database["runs"].find(query, {"workspace_id": 1}):
            of_run = {"run_id": run["_id"], "workspace_id": run["workspace_id"]}
            if await database["tool_effects"].find_one({**of_run, "unresolved": True}, {"_id": 1}):
                continue
            runs += 1
            if is_dry:
                for name in DETAILS:
                    rows[name] += await database[name].count_documents(of_run)
                continue
            marked = {"details_pruned_at": microseconds(now), _UNDER_WAY: True}
            await database["runs"].update_one({"_id": run["_id"]}, {"$set": marked})
            for name in DETAILS:
                rows[name] += (await database[name].delete_many(of_run)).deleted_count
            await database["runs"].update_one({"_id": run["_id"]}, {"$unset": {_UNDER_WAY: ""}})
    return PrunedDetails(runs=runs, rows=rows)
