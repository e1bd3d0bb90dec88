"""Claiming what is about to go as a whole, so that nothing begins with it any more.

Runs are marked first; then it is looked at what began with them meanwhile. A commit that registers
a continuation or a fork writes to the run that it begins with, too. So it comes before the mark,
and is seen, or after it, and is refused.

A mark stays on what was not removed after all, since that was cut off: another attempt removes it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from stores.mongo.burying import bury_heads
from stores.mongo.client import Database, MongoConnection
from stores.mongo.departing import ORIGINS, Unit, alive, portions
from stores.mongo.documents import DEPARTS, SERVER_TIME, Document

_AT_ONCE = 500

_SHOWN = {"conversation_id": 1, "parent_run_id": 1}


async def mark(database: Database, workspace_id: str, run_ids: Sequence[str]) -> None:
    """Let nothing begin with these runs any more."""
    change = [{"$set": {DEPARTS: SERVER_TIME}}]
    for some in portions(run_ids, _AT_ONCE):
        query: Document = {"_id": {"$in": some}, "workspace_id": workspace_id}
        await database["runs"].update_many(query, change)


async def release(database: Database, workspace_id: str, run_ids: Sequence[str]) -> None:
    """Let them stay as they were."""
    for some in portions(run_ids, _AT_ONCE):
        query: Document = {"_id": {"$in": some}, "workspace_id": workspace_id}
        await database["runs"].update_many(query, {"$unset": {DEPARTS: ""}})


class Claimer:
    """Claims units of one workspace.

    Args:
        connection: the store's.
        workspace_id: of the units.
        cutoff: in microseconds; what was changed later stays.
    """

    def __init__(self, connection: MongoConnection, workspace_id: str, cutoff: int) -> None:
        self._connection = connection
        self._database = connection.database
        self._workspace_id = workspace_id
        self._cutoff = cutoff

    async def claim(self, units: Sequence[Unit], *, now: datetime) -> list[Unit]:
        """Claim what these units consist of, and bury the heads of conversations.

        Args:
            units: of which none needs another one.
            now: of the burial.

        Returns:
            Those that may go. The rest was needed, or went on, since somebody looked.
        """
        parents: dict[str, set[Unit]] = {}
        owners = await self._owners(units, parents)
        await mark(self._database, self._workspace_id, list(owners))
        needed = await self._needed(owners, parents)
        needed |= await self._alive(units)
        going = [each.conversation_id for each in units if each not in needed]
        await bury_heads(
            self._connection,
            self._workspace_id,
            [each for each in going if each],
            now=now,
            unchanged_since=self._cutoff,
        )
        needed |= await self._alive(units)  # a head that was not buried
        kept = [run_id for run_id, unit in owners.items() if unit in needed]
        await release(self._database, self._workspace_id, kept)
        return [each for each in units if each not in needed]

    @property
    def _live(self) -> Document:
        return {"workspace_id": self._workspace_id, "live": True}

    async def _owners(
        self, units: Sequence[Unit], parents: dict[str, set[Unit]]
    ) -> dict[str, Unit]:
        """The runs that go with them, delegates and theirs as well; fills in who delegated."""
        lone = [each.run_id for each in units if each.run_id]
        named = [each.conversation_id for each in units if each.conversation_id]
        queries: list[Document] = [{"_id": {"$in": lone}}, {"conversation_id": {"$in": named}}]
        owners: dict[str, Unit] = {}
        for query in queries:
            async for each in self._database["runs"].find({**self._live, **query}, _SHOWN):
                owners[each["_id"]] = Unit.of(each)
                if "parent_run_id" in each:
                    parents.setdefault(each["parent_run_id"], set()).add(Unit.of(each))
        generation = list(owners)
        while generation:  # ends: a run is begun by an earlier one
            born: dict[str, Unit] = {}
            for some in portions(generation, _AT_ONCE):
                query = {**self._live, "parent_run_id": {"$in": some}}
                async for each in self._database["runs"].find(query, _SHOWN):
                    if each["_id"] not in owners:
                        born[each["_id"]] = owners[each["parent_run_id"]]
            owners |= born
            generation = list(born)
        return owners

    async def _needed(
        self, owners: Mapping[str, Unit], parents: Mapping[str, set[Unit]]
    ) -> set[Unit]:
        """The units with which something began that does not go with them."""
        needed: set[Unit] = set()
        runs = self._database["runs"]
        for origin in ORIGINS:
            for some in portions(list(owners), _AT_ONCE):
                query = {**self._live, origin: {"$in": some}}
                async for each in runs.find(query, {origin: 1}):
                    if each["_id"] not in owners:
                        needed.add(owners[each[origin]])
        for some in portions([each for each in parents if each not in owners], _AT_ONCE):
            async for each in runs.find({**self._live, "_id": {"$in": some}}, {"_id": 1}):
                needed |= parents[each["_id"]]
        return needed

    async def _alive(self, units: Sequence[Unit]) -> set[Unit]:
        named = sorted(each.conversation_id for each in units if each.conversation_id)
        if not named:
            return set()
        found = await alive(self._database, self._workspace_id, named, self._cutoff)
        return {Unit(conversation_id=each) for each in found}
