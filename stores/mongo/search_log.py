"""The log of a conversation: what each append added to which run's record. Only ever appended to.

Terms of older appends move on to `stores.mongo.search_segments`.

A document is one append: messages of one run with their counted terms, references to messages that
other runs of the conversation had saved before, places that no longer count, messages that were
stamped. `sequence` counts the appends of a conversation from 1 without a gap, and a unique index
lets one writer take each: whoever was slower reads what the other wrote and tries again. So a
reader that knows `sequence` n misses nothing when it reads on from there.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bson import MaxKey

from stores.histories import positions_in
from stores.mongo.client import Database
from stores.mongo.documents import Document
from stores.mongo.search_terms import packed
from stores.planning import CommitPlan
from stores.search.counting import CountedTerms

LOG = "search_log"
STATE = "search_state"

COMPLETE: Document = {"_id": "index", "is_complete": True}
"""In the state: the log holds all that is stored. No index answers before that is so."""

MOST_MESSAGES = 200
"""Of one append: the largest is far below what a document may hold, and read in a moment."""

_SIGN = 1 << 63
_PLACE = ("conversation_id", "sequence")


def hash_number(message_hash: str) -> int:
    """The first 64 bits of a message's hash, signed: a number that MongoDB can keep in an index."""
    number = int(message_hash[:16], 16)
    return number - 2 * _SIGN if number >= _SIGN else number


@dataclass(frozen=True, slots=True)
class Address:
    """Where the log has a message: an append, and which of its messages."""

    sequence: int
    index: int


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A message to append. `own` counts the search's own calls in it, apart from the rest."""

    place: int
    digest: str
    hash: int
    changes: frozenset[str]
    terms: CountedTerms
    own: CountedTerms | None = None


@dataclass(kw_only=True)
class Append:
    """What one append says of a run.

    Args:
        run_id: whose record.
        branch: of the commit that brought it; for people who look at the log.
        started_at: of the run, in microseconds.
        entries: new messages, and new versions of messages at places that are taken.
        inherited: places that hold messages of other runs, with their addresses.
        renewed: places whose message was stamped, and the digest that it has since. At an inherited
            place it is that of the run's own copy, for when the other run's is gone.
        dropped: places that no longer count.
        unreadable: sequences of snapshots that could not be read.
        overlapped: sequence of the last snapshot that was placed by its overlap: that of an older
            one with what came since would be another.
        is_reset: all appends before this one count no more.
    """

    run_id: str
    branch: str
    started_at: int
    entries: list[LogEntry] = field(default_factory=list[LogEntry])
    inherited: dict[int, Address] = field(default_factory=dict[int, Address])
    renewed: dict[int, str] = field(default_factory=dict[int, str])
    dropped: list[int] = field(default_factory=list[int])
    unreadable: list[int] = field(default_factory=list[int])
    overlapped: int | None = None
    is_reset: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing."""
        said = (self.entries, self.inherited, self.renewed, self.dropped, self.unreadable)
        return not any(said) and self.overlapped is None and not self.is_reset

    def parts(self) -> "Iterable[Append]":
        """The same as several appends, none of which is too large."""
        if len(self.entries) <= MOST_MESSAGES:
            yield self
            return
        entries = self.entries
        self.entries = entries[:MOST_MESSAGES]
        yield self
        for start in range(MOST_MESSAGES, len(entries), MOST_MESSAGES):
            yield Append(
                run_id=self.run_id,
                branch=self.branch,
                started_at=self.started_at,
                entries=entries[start : start + MOST_MESSAGES],
            )


def append_document(
    append: Append,
    *,
    workspace_id: str,
    conversation_id: str,
    sequence: int,
    ordinal: int,
    terms_id: str,
) -> Document:
    """The document of an append: the `ordinal`-th of its run, the `sequence`-th of all.

    `terms_id` is that of `stores.mongo.search_terms`.
    """
    entries = append.entries
    first = min((*(each.place for each in entries), *append.inherited, *append.renewed), default=-1)
    document: Document = {
        "_id": {
            "run_id": append.run_id,
            "branch": append.branch,
            "position": first,
            "append": ordinal,
            "sequence": sequence,
        },
        "workspace_id": workspace_id,
        "conversation_id": conversation_id,
        "sequence": sequence,
        "run_id": append.run_id,
        "started_at": append.started_at,
        "analyzer": terms_id,
        "places": _small_numbers(each.place for each in entries),
        "hashes": [each.hash for each in entries],
        "messages": [*(each.digest for each in entries), *append.renewed.values()],
    }
    changed = {str(i): sorted(each.changes) for i, each in enumerate(entries) if each.changes}
    own = [each.own or CountedTerms.of(()) for each in entries]
    optional: Document = {
        "terms": packed([each.terms for each in entries]) if entries else b"",
        "own_terms": packed(own) if any(each.length for each in own) else b"",
        "changes": changed,
        "inherited": _references(append.inherited),
        "renewed": list(append.renewed),
        "dropped": append.dropped,
        "unreadable": append.unreadable,
        "overlapped": append.overlapped,
        "is_reset": append.is_reset or None,
    }
    document |= {
        name: value for name, value in optional.items() if value not in (None, [], {}, b"", False)
    }
    if append.is_reset:  # it is of no run, whose id would tell it from those of other conversations
        document["_id"] = {name: document[name] for name in ("workspace_id", *_PLACE)}
    return document


def _small_numbers(numbers: Iterable[int]) -> bytes:
    numbers = list(numbers)
    return struct.pack(f"<{len(numbers)}I", *numbers)


def _references(inherited: Mapping[int, Address]) -> bytes:
    """Runs of neighbours as (place, sequence, index, how many), four numbers of 4 bytes each."""
    ranges: list[list[int]] = []
    for place, at in sorted(inherited.items()):
        last = ranges[-1] if ranges else None
        if last and (place, at.sequence, at.index) == (
            last[0] + last[3],
            last[1],
            last[2] + last[3],
        ):
            last[3] += 1
        else:
            ranges.append([place, at.sequence, at.index, 1])
    return _small_numbers(number for each in ranges for number in each)


def references_in(data: bytes) -> Iterable[tuple[int, Address]]:
    """What `_references` was given."""
    for place, sequence, index, count in reference_ranges_in(data):
        for offset in range(count):
            yield place + offset, Address(sequence, index + offset)


def reference_ranges_in(data: bytes) -> Iterable[tuple[int, int, int, int]]:
    """The same as runs of neighbours: first place, sequence, index in there, and how many."""
    return struct.iter_unpack("<4I", data)


def numbers_in(data: bytes) -> Sequence[int]:
    """The numbers of 4 bytes in a field of a log document."""
    return struct.unpack(f"<{len(data) // 4}I", data)


def of_run(run_id: str) -> Document:
    """A query for the appends of a run, by `_id`."""
    return {"_id": {"$gte": {"run_id": run_id}, "$lt": {"run_id": run_id, "branch": MaxKey()}}}


def of_conversation(workspace_id: str, conversation_id: str, *, after: int = 0) -> Document:
    """A query for the appends of a conversation behind `after`."""
    return {
        "workspace_id": workspace_id,
        "conversation_id": conversation_id,
        "sequence": {"$gt": after},
    }


async def note_outdated(database: Database, workspace_id: str, conversation_id: str) -> None:
    """Note that a log names runs that are about to go; before they do, or it would be forgotten."""
    key = _outdated_key(workspace_id, conversation_id)
    await database[STATE].update_one({"_id": key}, {"$set": {"is_outdated": True}}, upsert=True)


async def forget_outdated(database: Database, workspace_id: str, conversation_id: str) -> None:
    """The log has been made anew, or is gone."""
    await database[STATE].delete_one({"_id": _outdated_key(workspace_id, conversation_id)})


async def outdated_logs(database: Database, workspace_id: str) -> list[str]:
    """The conversations of which that was noted."""
    key = {"outdated_in": workspace_id}
    query = {"_id": {"$gte": key, "$lt": {**key, "conversation_id": MaxKey()}}}
    found = database[STATE].find(query, {"_id": 1})
    return [each["_id"]["conversation_id"] async for each in found]


def _outdated_key(workspace_id: str, conversation_id: str) -> Document:
    return {"outdated_in": workspace_id, "conversation_id": conversation_id}


async def newest_sequence(database: Database, workspace_id: str, conversation_id: str) -> int:
    """The last append's sequence, 0 when there is none."""
    found = await database[LOG].find_one(
        of_conversation(workspace_id, conversation_id),
        {"sequence": 1, "_id": 0},
        sort=[("sequence", -1)],
    )
    return int(found["sequence"]) if found else 0


@dataclass(slots=True)
class Held:
    """What the log has at a place of a run's record."""

    at: Address
    digest: str
    hash: int
    changes: frozenset[str]
    is_inherited: bool = False

    def complete(self, document: Mapping[str, Any]) -> None:
        """Fill in what only the append says that the message was logged with."""
        self.digest = self.digest or document["messages"][self.at.index]
        self.hash = document["hashes"][self.at.index]
        self.changes = frozenset(document.get("changes", {}).get(str(self.at.index), ()))


@dataclass(kw_only=True)
class LoggedRun:
    """A run's record as the log has it, by place.

    `ordinal` counts the appends of the run; `empty` and `summaries` have digests and places of
    messages that are summaries alone, `unreadable` sequences of snapshots that cannot be read.
    """

    held: dict[int, Held] = field(default_factory=dict[int, Held])
    ordinal: int = 0
    empty: set[str] = field(default_factory=set[str])
    summaries: set[int] = field(default_factory=set[int])
    unreadable: set[int] = field(default_factory=set[int])
    overlapped: int | None = None

    def take(self, document: Mapping[str, Any]) -> None:
        """Take in one of the run's appends, in their order. References are completed later."""
        if document.get("is_reset"):
            self.held.clear()
        self.ordinal += 1
        sequence, digests = document["sequence"], document["messages"]
        changes = document.get("changes", {})
        for place, at in references_in(document.get("inherited", b"")):
            self.held[place] = Held(at, "", 0, frozenset(), is_inherited=True)
        places = numbers_in(document["places"])
        for index, (place, hashed) in enumerate(zip(places, document["hashes"], strict=True)):
            changed = frozenset(changes.get(str(index), ()))
            self.held[place] = Held(Address(sequence, index), digests[index], hashed, changed)
        for place, digest in zip(document.get("renewed", ()), digests[len(places) :], strict=True):
            self.held[place].digest = digest
        for place in document.get("dropped", ()):
            self.held.pop(place, None)
        self.unreadable.update(document.get("unreadable", ()))
        self.overlapped = document.get("overlapped", self.overlapped)

    def took(self, append: Append, sequence: int) -> None:
        """The same of an append that was just written."""
        self.ordinal += 1
        for index, each in enumerate(append.entries):
            self.held[each.place] = Held(
                Address(sequence, index), each.digest, each.hash, each.changes
            )
        for place, digest in append.renewed.items():
            self.held[place].digest = digest
        for place in append.dropped:
            self.held.pop(place, None)
        self.unreadable.update(append.unreadable)
        if append.overlapped is not None:
            self.overlapped = append.overlapped

    def placed_by(self, run_id: str, plan: CommitPlan) -> list[tuple[int, str]] | None:
        """Place and digest of what a commit brought for the log.

        Messages of complete snapshots of the run, and later versions of those that are logged;
        `None` when a complete snapshot holds one that neither the commit nor the log has.
        """
        own = (each for each in plan.snapshots if each.run_id == run_id)
        complete = [each for each in own if each.state == "complete"]
        rows = (each for each in plan.messages.positions if each.run_id == run_id)
        brought = {each.position: each.message for each in rows}
        places = {place for each in complete for place in positions_in(each.ranges)}
        if not places - brought.keys() <= self.held.keys() | self.summaries:
            return None
        wanted = (places | self.held.keys()) & brought.keys()
        return [(place, brought[place]) for place in sorted(wanted)]
