"""Reading and writing one conversation's log, and what this process remembers of it."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

from stores.mongo.client import Database
from stores.mongo.documents import Document
from stores.mongo.search_log import (
    LOG,
    Address,
    Append,
    Held,
    LoggedRun,
    append_document,
    newest_sequence,
    of_conversation,
    of_run,
)
from stores.mongo.search_segments import SEGMENTS, of_segments
from stores.mongo.search_upkeep import insert_where_free
from stores.paging import microseconds
from stores.records import RunRecord
from stores.threads import in_thread_if

MOST_REMEMBERED = 500_000
"""Messages in what is remembered of conversations, at some 200 bytes each."""

_AT_ONCE = 500
"""Hashes or appends that are looked up together."""

_MANY_TERMS = 5_000
"""Of an append that is packed in a thread: it takes some milliseconds."""

Free = dict[tuple[int, frozenset[str]], list[tuple[Address, str]]]
"""Where messages of other runs are and with which digest, by hash and changes of instructions.

Each serves once."""


Insert = Callable[[Document], Awaitable[bool]]
"""Inserts a document into the log; says whether its place was free."""


class OutdatedError(Exception):
    """Somebody else has written of this run: what is remembered of its record is not all."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What the log says of a run besides its messages. `""`: it has no conversation."""

    run_id: str
    conversation_id: str
    started_at: int

    @classmethod
    def of(cls, record: RunRecord) -> "RunFacts":
        """Of a run's record."""
        return cls(
            run_id=record.run_id,
            conversation_id=record.conversation_id or "",
            started_at=microseconds(record.started_at),
        )


@dataclass(kw_only=True)
class LoggedConversation:
    """What this process knows of a log: all of it up to `head`, of the runs that are here.

    A writer takes the next place behind `head`. When somebody else has, what they wrote is looked
    at, so whatever is remembered and no longer so is found out in time.
    """

    head: int | None = None
    segmented: int = 0
    """Up to where it was put together, or could not be."""
    runs: dict[str, LoggedRun] = field(default_factory=dict[str, LoggedRun])
    foreign: set[str] = field(default_factory=set[str])
    """Runs that others have written of since."""
    catch_ups: int = 0
    """How often a run was logged from what is stored: what a commit before that brought, and may
    have been taken back since, is logged then."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one that writes."""

    def forget(self) -> None:
        """Read all of it from the log the next time."""
        self.head, self.segmented = None, 0
        self.runs.clear()
        self.foreign.clear()

    def knows_nothing_of(self, run_id: str) -> bool:
        """Whether the log is known and holds nothing of a run that is new."""
        return self.head is not None and run_id not in self.foreign


class LoggedConversations:
    """The conversations that this process wrote last, the newest at the end."""

    def __init__(self) -> None:
        self._all: OrderedDict[tuple[str, str], LoggedConversation] = OrderedDict()
        self._sizes: dict[tuple[str, str], int] = {}

    def of(self, workspace_id: str, conversation_id: str) -> LoggedConversation:
        """What is known of a conversation's log."""
        place = workspace_id, conversation_id
        known = self._all.setdefault(place, LoggedConversation())
        self._all.move_to_end(place)
        self._sizes[place] = 1 + sum(len(each.held) for each in known.runs.values())
        if sum(self._sizes.values()) > MOST_REMEMBERED:
            self._forget_oldest()
        return known

    def _forget_oldest(self) -> None:
        for place in list(self._all)[:-1]:
            if not self._all[place].lock.locked():
                del self._all[place], self._sizes[place]
                return


class SearchLogWriter:
    """The log of one conversation, to one who holds its lock."""

    def __init__(
        self,
        database: Database,
        known: LoggedConversation,
        *,
        workspace_id: str,
        conversation_id: str,
        terms_id: str,
    ) -> None:
        self.insert: Insert = self._insert_at_once
        self._log = database[LOG]
        self._database = database
        self._known = known
        self._workspace_id = workspace_id
        self._conversation_id = conversation_id
        self._terms_id = terms_id

    async def run(self, run_id: str, *, is_new: bool = False) -> LoggedRun:
        """A run's record as the log has it."""
        known = self._known
        if run_id in known.runs:
            return known.runs[run_id]
        is_unheard = is_new and known.knows_nothing_of(run_id)
        await self.head()  # before reading: what is written later is behind it
        logged = LoggedRun() if is_unheard else await self._read(run_id)
        known.runs[run_id] = logged
        known.foreign.discard(run_id)
        return logged

    async def _read(self, run_id: str) -> LoggedRun:
        logged = LoggedRun()
        fields = dict.fromkeys(
            ("sequence", "places", "hashes", "messages", "changes", "inherited", "renewed"), 1
        )
        fields |= dict.fromkeys(("dropped", "unreadable", "overlapped", "is_reset"), 1)
        place = {"workspace_id": self._workspace_id, "conversation_id": self._conversation_id}
        query = {**of_run(run_id), **place}  # which finds the shard
        async for document in self._log.find(query, fields).sort("sequence", 1):
            logged.take(document)
        inherited = [each for each in logged.held.values() if each.is_inherited]
        sequences = sorted({each.at.sequence for each in inherited})
        for start in range(0, len(sequences), _AT_ONCE):
            query = of_conversation(self._workspace_id, self._conversation_id)
            query["sequence"] = {"$in": sequences[start : start + _AT_ONCE]}
            shown = {"sequence": 1, "hashes": 1, "messages": 1, "changes": 1}
            found = await self._log.find(query, shown).to_list()
            by_sequence = {each["sequence"]: each for each in found}
            for held in inherited:
                if held.at.sequence in by_sequence:
                    held.complete(by_sequence[held.at.sequence])
        return logged

    async def head(self) -> int:
        """The newest append."""
        if self._known.head is None:
            self._known.runs.clear()
            self._known.head = await newest_sequence(
                self._database, self._workspace_id, self._conversation_id
            )
        return self._known.head

    async def find_hashes(self, run_id: str, hashes: AbstractSet[int], free: Free) -> None:
        """Add to `free` where messages of other runs with these hashes are."""
        query = of_conversation(self._workspace_id, self._conversation_id)
        del query["sequence"]
        query["hashes"] = {"$in": sorted(hashes)}
        shown = {"sequence": 1, "hashes": 1, "messages": 1, "changes": 1, "run_id": 1, "_id": 0}
        for document in await self._log.find(query, shown).sort("sequence", 1).to_list():
            changes = document.get("changes", {})
            for index, hashed in enumerate(document["hashes"]):
                if hashed in hashes and document["run_id"] != run_id:
                    changed = frozenset(changes.get(str(index), ()))
                    at = Address(document["sequence"], index)
                    free.setdefault((hashed, changed), []).append((at, document["messages"][index]))

    async def inherit(self, append: Append, logged: LoggedRun) -> None:
        """Let a new run's leading messages be those that other runs of the conversation hold."""
        if await self.head() == 0:
            return
        free: Free = {}
        count = 0
        for start in range(0, len(append.entries), _AT_ONCE):
            asked = append.entries[start : start + _AT_ONCE]
            await self.find_hashes(append.run_id, {each.hash for each in asked}, free)
            for each in asked:
                found = free.get((each.hash, each.changes))
                if not found:
                    break
                at, digest = found.pop(0)
                append.inherited[each.place] = at
                if digest != each.digest:
                    append.renewed[each.place] = each.digest
                logged.held[each.place] = Held(
                    at, each.digest, each.hash, each.changes, is_inherited=True
                )
                count += 1
            if count < start + len(asked):
                break
        append.entries = append.entries[count:]

    async def append(self, append: Append, logged: LoggedRun) -> None:
        """Append it, behind whatever others have appended meanwhile.

        Raises:
            OutdatedError: they have written of this run, or begun the log anew.
        """
        if append.is_empty:
            return
        for part in append.parts():
            logged.took(part, await self._insert(part, logged.ordinal))

    async def begin_again(self) -> None:
        """Let everything before count no more, for every reader and writer; then remove it."""
        while True:  # ends: each time another writer got on
            reset = Append(run_id="", branch="", started_at=0, is_reset=True)
            try:
                sequence = await self._insert(reset, 0)
            except OutdatedError:
                self._known.forget()
            else:
                break
        before = of_conversation(self._workspace_id, self._conversation_id)
        before["sequence"] = {"$lt": sequence}
        await self._log.delete_many(before)
        segments = of_segments(self._workspace_id, self._conversation_id)
        await self._database[SEGMENTS].delete_many({**segments, "last": {"$lt": sequence}})

    async def _insert(self, append: Append, ordinal: int) -> int:
        while True:  # ends: each time another writer got on
            sequence = await self.head() + 1
            make = partial(
                append_document,
                append,
                workspace_id=self._workspace_id,
                conversation_id=self._conversation_id,
                sequence=sequence,
                ordinal=ordinal,
                terms_id=self._terms_id,
            )
            terms = sum(len(each.terms.counts) for each in append.entries)
            document = await in_thread_if(terms > _MANY_TERMS, make)
            if await self.insert(document):
                self._known.head = sequence
                return sequence
            await self._look_at_others(append.run_id)

    async def _insert_at_once(self, document: Document) -> bool:
        return (await insert_where_free(self._log, [document]))[0]

    async def _look_at_others(self, run_id: str) -> None:
        after = await self.head()
        query = of_conversation(self._workspace_id, self._conversation_id, after=after)
        shown = {"sequence": 1, "run_id": 1, "is_reset": 1, "_id": 0}
        others = await self._log.find(query, shown).to_list()
        written: Sequence[str] = [each["run_id"] for each in others]
        if run_id in written or any(each.get("is_reset") for each in others):
            raise OutdatedError
        for other in written:
            self._known.runs.pop(other, None)
            self._known.foreign.add(other)
        self._known.head = max((each["sequence"] for each in others), default=after)
