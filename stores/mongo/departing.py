"""Which conversations, and which runs without one, may go as a whole: a page of them at a time.

Questions are asked about a whole page at once, and what they find is kept by unit: a page holds a
few hundred units, however many runs they have.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stores.mongo.client import Database
from stores.mongo.conversation_documents import conversation_key
from stores.mongo.documents import Document

_RUNS_AT_ONCE = 500

_MOST_REMEMBERED = 10_000

ORIGINS = ("continued_from", "forked_from")
"""Fields of a run that name the one with which it began."""

_SHOWN = {"conversation_id": 1, "parent_run_id": 1}


@dataclass(frozen=True, kw_only=True, order=True)
class Unit:
    """A conversation with all of its runs, or a run that has none."""

    conversation_id: str = ""
    run_id: str = ""

    @classmethod
    def of(cls, run: Document) -> "Unit":
        """The one that a run's document belongs to."""
        conversation_id: str | None = run.get("conversation_id")
        if conversation_id is None:
            return cls(run_id=run["_id"])
        return cls(conversation_id=conversation_id)


class Departing:
    """Of pages of runs, what may go, and in which order.

    Args:
        database: of the runs.
        workspace_id: theirs.
        cutoff: in microseconds; nothing may go that ended, or was changed, later.
    """

    def __init__(self, database: Database, workspace_id: str, cutoff: int) -> None:
        self._database = database
        self._workspace_id = workspace_id
        self._cutoff = cutoff
        self._kept: set[Unit] = set()
        self._needed_by: dict[Unit, set[Unit]] = {}
        self._staying: set[str] = set()
        self.unresolved: set[str] = set()
        """Runs of the last page that keep their unit: nobody knows what a call of theirs did."""

    async def layers(self, page: Sequence[Document]) -> list[list[Unit]]:
        """The units that may go: those of a layer together, once the layers before it are gone.

        Args:
            page: runs that ended before the cutoff. A conversation is looked at with all of its
                runs, and passed over on later pages when it has to stay, as long as a few thousand
                of those are remembered.
        """
        self._kept, self.unresolved = set(), set()
        units = {Unit.of(each) for each in page}
        named = {each.conversation_id for each in units} - {"", *self._staying}
        living = await alive(self._database, self._workspace_id, sorted(named), self._cutoff)
        old = sorted(named - living)
        self._needed_by = {Unit(conversation_id=each): set() for each in old}
        lone = [each.run_id for each in units if each.run_id]
        # One that went with another run since the page was read is no unit any more.
        async for some in self._pages({"_id": {"$in": lone}}):
            self._needed_by |= {Unit(run_id=each["_id"]): set() for each in some}
            await self._look_at(some)
        async for some in self._pages({"conversation_id": {"$in": old}}):
            await self._look_at(some)
        layers = self._peeled()
        if len(self._staying) > _MOST_REMEMBERED:
            self._staying.clear()
        self._staying |= named - {each.conversation_id for layer in layers for each in layer}
        return layers

    def _peeled(self) -> list[list[Unit]]:
        """What nothing needs; then what nothing needs but that; and so on."""
        layers: list[list[Unit]] = []
        gone: set[Unit] = set()
        left = {each: by for each, by in self._needed_by.items() if each not in self._kept}
        while layer := sorted(each for each, by in left.items() if by <= gone):
            layers.append(layer)
            gone.update(layer)
            left = {each: by for each, by in left.items() if each not in gone}
        return layers

    # Runs

    @property
    def _live(self) -> Document:
        return {"workspace_id": self._workspace_id, "live": True}

    async def _pages(self, query: Document) -> AsyncGenerator[list[Document]]:
        found = self._database["runs"].find({**self._live, **query}, _SHOWN)
        page: list[Document] = []
        async for each in found:
            page.append(each)
            if len(page) == _RUNS_AT_ONCE:
                yield page
                page = []
        if page:
            yield page

    async def _look_at(self, runs: Sequence[Document]) -> None:
        """At what keeps the units that these runs belong to."""
        parents: dict[str, list[Unit]] = {}
        for each in runs:
            if "parent_run_id" in each:
                parents.setdefault(each["parent_run_id"], []).append(Unit.of(each))
        found = self._database["runs"].find({**self._live, "_id": {"$in": [*parents]}}, _SHOWN)
        async for parent in found:  # a delegate goes with the run that it belongs to
            for unit in parents[parent["_id"]]:
                self._note(unit, Unit.of(parent))
        await self._look_at_what_came({each["_id"]: Unit.of(each) for each in runs})

    async def _look_at_what_came(self, owners: Mapping[str, Unit]) -> None:
        """Of these runs, each with the unit that it would go with."""
        ids = {"$in": list(owners)}
        unresolved = {"workspace_id": self._workspace_id, "run_id": ids, "unresolved": True}
        for run_id in await self._database["tool_effects"].distinct("run_id", unresolved):
            self.unresolved.add(run_id)
            self._kept.add(owners[run_id])
        for origin in ORIGINS:
            found = self._database["runs"].find(
                {**self._live, origin: ids}, {"conversation_id": 1, origin: 1}
            )
            async for each in found:
                owner = owners[each[origin]]
                if owners.get(each["_id"]) != owner:
                    self._note(owner, Unit.of(each))
        await self._look_at_delegates(owners, ids)

    async def _look_at_delegates(self, owners: Mapping[str, Unit], ids: Document) -> None:
        """A conversation of their own goes with them; and so on with what those delegated to."""
        shown = {**_SHOWN, "ended_at": 1}
        delegates: dict[str, Unit] = {}
        async for each in self._database["runs"].find({**self._live, "parent_run_id": ids}, shown):
            owner = owners[each["parent_run_id"]]
            if Unit.of(each) == owner:
                continue
            if each.get("ended_at", self._cutoff) >= self._cutoff:
                self._kept.add(owner)
            delegates[each["_id"]] = owner
        for some in portions(list(delegates), _RUNS_AT_ONCE):
            await self._look_at_what_came({each: delegates[each] for each in some})

    def _note(self, unit: Unit, needed_by: Unit) -> None:
        if needed_by != unit:
            self._needed_by[unit].add(needed_by)


async def alive(
    database: Database, workspace_id: str, conversations: Sequence[str], cutoff: int
) -> set[str]:
    """Those with a young run or head, or that owe answers, or of which forks hold turns.

    Args:
        database: of the conversations.
        workspace_id: theirs.
        conversations: a few hundred ids.
        cutoff: in microseconds; what was changed later is young.
    """
    mine: Document = {"workspace_id": workspace_id}
    named = {"$in": list(conversations)}
    running = [{"ended_at": {"$exists": False}}, {"ended_at": {"$gte": cutoff}}]
    young: Document = {
        **mine,
        "_id": {"$in": [conversation_key(workspace_id, each) for each in conversations]},
        "conversation_id": named,
        "state": {"$ne": "deleted"},
        "updated_at": {"$gte": cutoff},
    }
    due = {**mine, "conversation_id": named, "is_unfinished": True}
    inherited = {**mine, "source_conversation_id": named}
    going_on: Document = {**mine, "live": True, "conversation_id": named, "$or": running}
    return {
        *await database["runs"].distinct("conversation_id", going_on),
        *await database["conversations"].distinct("conversation_id", young),
        *await database["variants"].distinct("conversation_id", due),
        *await database["turns"].distinct("source_conversation_id", inherited),
    }


def portions(items: Sequence[str], size: int) -> Iterable[Sequence[str]]:
    """All of them in order, a few at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))
