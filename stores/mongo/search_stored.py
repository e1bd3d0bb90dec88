"""What is stored of a run and its log is to have: the messages that its snapshots name."""

from collections.abc import Sequence
from typing import Any

from stores.histories import positions_in
from stores.mongo.client import Database
from stores.mongo.documents import Document, ranges_in
from stores.mongo.search_log import LoggedRun
from stores.rows import SnapshotRow

_NAMED = {"ranges": 1, "state": 1}


async def digests_of(
    database: Database, workspace_id: str, run_id: str, row: SnapshotRow
) -> list[str] | None:
    """The digests of a snapshot's messages; `None` when one of its positions is missing."""
    start = min((each for each, _ in row.ranges), default=0)
    end = max((each for _, each in row.ranges), default=0)
    query: Document = {
        "run_id": run_id,
        "workspace_id": workspace_id,
        "live": True,
        "position": {"$gte": start, "$lt": end},
    }
    found = database["positions"].find(query, {"position": 1, "message": 1})
    digests = {each["position"]: each["message"] async for each in found}
    try:
        return [digests[each] for each in positions_in(row.ranges)]
    except KeyError:
        return None


async def without(
    database: Database,
    workspace_id: str,
    run_id: str,
    logged: LoggedRun,
    rows: Sequence[SnapshotRow],
) -> tuple[list[int], dict[int, str]]:
    """The places to drop once these snapshots do not count, and the digests at all others.

    A place goes when its message was taken back, or when none but these snapshots named it.
    """
    query: Document = {"run_id": run_id, "workspace_id": workspace_id}
    positions, snapshots = database["positions"], database["snapshots"]
    found = positions.find({**query, "live": True}, {"position": 1, "message": 1})
    live = {each["position"]: each["message"] async for each in found}
    counted: list[dict[str, Any]] = [
        {"live": True, "state": "complete"},
        {"pruned_at": {"$exists": True}},
    ]
    named = [await snapshots.find({**query, **each}, _NAMED).to_list() for each in counted]
    complete = (row for rows in named for row in rows if row["state"] == "complete")
    kept = {p for each in complete for p in positions_in(ranges_in(each["ranges"]))}
    lost = {p for row in rows for p in positions_in(row.ranges)}
    dropped = (lost - (kept & live.keys())) & logged.held.keys()
    return sorted(dropped), {
        place: digest
        for place, digest in live.items()
        if place in logged.held and place not in dropped
    }
