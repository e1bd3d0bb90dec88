"""Positions of runs' message logs that nothing but pruned snapshots names.

They go only when nobody can come back to them: the run has ended, and so has the time in which it
may be reset to before a snapshot was pruned. A run that has not ended keeps its whole log.
"""

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass

from pymongo.asynchronous.client_session import AsyncClientSession

from stores.histories import Range
from stores.mongo.client import Database
from stores.mongo.documents import Document, ranges_in
from stores.ranges import difference, portion, union

RunPlace = tuple[str, str]
"""Workspace and run: a run that is not registered may have its id in several workspaces."""

POSITIONS_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True)
class View:
    """Where a sweep looks, and as of when.

    Attributes:
        cutoff: microseconds since 1970 by the server's clock; what came later stays.
        now: when the sweep began, by that clock.
        session: of an open transaction; `None` looks at what is committed.
        is_dry: nothing is removed, so a look has to leave out what would have been by now.
    """

    database: Database
    cutoff: int
    now: int = 0
    session: AsyncClientSession | None = None
    is_dry: bool = True


async def runs_with_leftovers(view: View, workspace_id: str | None) -> AsyncGenerator[RunPlace]:
    """The runs that had a snapshot pruned before the cutoff; of all workspaces for `None`."""
    query: Document = {"pruned_at": {"$exists": True, "$lt": view.cutoff}}
    if workspace_id is not None:
        query["workspace_id"] = workspace_id
    found = view.database["snapshots"].find(
        query, {"_id": 0, "run_id": 1, "workspace_id": 1}, batch_size=POSITIONS_AT_ONCE
    )
    last: RunPlace | None = None
    async for each in found.sort([("run_id", 1), ("workspace_id", 1)]):
        place = (each["workspace_id"], each["run_id"])
        if place != last:
            yield place
        last = place


async def leftovers_of(view: View, places: Collection[RunPlace]) -> dict[RunPlace, list[Range]]:
    """What only snapshots name that were pruned before the cutoff; runs without are left out."""
    run_ids = sorted({run_id for _, run_id in places})
    pruned: dict[RunPlace, list[Range]] = {}
    query: Document = {"run_id": {"$in": run_ids}, "pruned_at": {"$exists": True}}
    query["pruned_at"]["$lt"] = view.cutoff
    await _join_ranges(view, query, pruned)
    if not pruned:
        return {}
    unsettled = await _unsettled(view, run_ids)
    run_ids = sorted({run_id for _, run_id in pruned})
    named: dict[RunPlace, list[Range]] = {}
    of_runs: Document = {"run_id": {"$in": run_ids}}
    await _join_ranges(view, {**of_runs, "live": True}, named)
    # Superseded and abandoned snapshots count: a lost task or a reset may take them back.
    marked: Document = {**of_runs, "mark": {"$exists": True}}
    not_swept: Document = {"pruned_at": {"$not": {"$lt": view.cutoff}}}
    await _join_ranges(view, {**marked, **not_swept}, named)
    left = {
        place: difference(ranges, named.get(place, ()))
        for place, ranges in pruned.items()
        if place in places and place not in unsettled
    }
    return {place: ranges for place, ranges in left.items() if ranges}


async def _join_ranges(view: View, query: Document, ranges: dict[RunPlace, list[Range]]) -> None:
    found = view.database["snapshots"].find(
        query, {"_id": 0, "run_id": 1, "workspace_id": 1, "ranges": 1}, session=view.session
    )
    async for document in found:
        place = (document["workspace_id"], document["run_id"])
        ranges[place] = union([*ranges.get(place, ()), *ranges_in(document["ranges"])])


async def _unsettled(view: View, run_ids: Collection[str]) -> set[RunPlace]:
    """The runs that may still go back to what retention has taken out."""
    query: Document = {
        "_id": {"$in": list(run_ids)},
        "$or": [
            {"ended_at": {"$exists": False}},
            {"ended_at": {"$gte": view.cutoff}},
            {"live": False},  # a lost task may register it again
        ],
    }
    found = view.database["runs"].find(query, {"workspace_id": 1}, session=view.session)
    return {(each["workspace_id"], each["_id"]) async for each in found}


async def count_leftovers(view: View, place: RunPlace) -> int:
    """How many positions a sweep of this run would remove."""
    ranges = (await leftovers_of(view, [place])).get(place, [])
    count, start = 0, 0
    while piece := portion(ranges, start=start, count=POSITIONS_AT_ONCE):
        count += await view.database["positions"].count_documents(_rows(place, piece))
        start = piece[-1][1]
    return count


async def delete_leftovers(view: View, place: RunPlace, start: int) -> tuple[int, int | None]:
    """Remove some positions of a run, from `start` on, in the view's transaction.

    Returns how many were removed, and where to go on; `None` when the run is done.
    """
    workspace_id, run_id = place
    # A reset writes the run, too: it and this transaction cannot both succeed.
    await view.database["runs"].update_one(
        {"_id": run_id, "workspace_id": workspace_id},
        {"$inc": {"sweeps": 1}},
        session=view.session,
    )
    ranges = (await leftovers_of(view, [place])).get(place, [])
    piece = portion(ranges, start=start, count=POSITIONS_AT_ONCE)
    if piece:
        done = await view.database["positions"].delete_many(
            _rows(place, piece), session=view.session
        )
        return done.deleted_count, piece[-1][1]
    if place not in await _unsettled(view, [run_id]):
        await view.database["snapshots"].update_many(
            {"run_id": run_id, "workspace_id": workspace_id}
            | {"pruned_at": {"$exists": True, "$lt": view.cutoff}},
            {"$set": {"ranges": []}, "$unset": {"pruned_at": True}},
            session=view.session,
        )
    return 0, None


def _rows(place: RunPlace, ranges: Collection[Range]) -> Document:
    workspace_id, run_id = place
    wanted = [{"position": {"$gte": start, "$lt": end}} for start, end in ranges]
    return {"run_id": run_id, "workspace_id": workspace_id, "live": True, "$or": wanted}
