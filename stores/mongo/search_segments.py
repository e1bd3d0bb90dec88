"""Appends of a log put together: what a first search reads in their place.

The terms of neighbouring appends are mostly the same words, and a document costs what it costs
however little is in it. So a number of appends becomes a segment, which has all that a reader needs
of them; the appends stay for writers, marked and without their terms. Both happens in one
transaction, so terms are in one place or in the other. A reader who knows an append in the middle
of a segment begins again.
"""

import asyncio
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pymongo.asynchronous.client_session import AsyncClientSession

from stores.mongo.client import Database, MongoConnection
from stores.mongo.documents import Document
from stores.mongo.search_log import LOG, numbers_in, of_conversation
from stores.mongo.search_terms import is_readable, joined
from stores.mongo.transactions import run_transaction

SEGMENTS = "search_segments"

APPENDS = 16
"""Of a segment, unless their terms are large."""

_MOST_BYTES = 1 << 20
"""Of packed terms, from which fewer appends are a segment: far below what a document may hold."""

DIGEST_BYTES = 32

_FIELDS_OF_ADDING = 3
"""In a segment, of an append that only adds messages: how many, and two that say of which run."""

_NOTHING: Mapping[str, Any] = {}

_OF_APPENDS = (
    *("run_id", "started_at", "changes", "inherited", "renewed", "dropped", "unreadable"),
    "is_reset",
)
"""What a segment keeps of each append as it is."""


class _OvertakenError(Exception):
    """Somebody else has put these appends together, or removed them."""


def is_due(head: int, done: int) -> bool:
    """Whether a log with so many appends, so many of them looked at, may have a segment to make."""
    return head - done >= APPENDS


async def put_together(connection: MongoConnection, workspace_id: str, conversation_id: str) -> int:
    """Make segments of the appends that are in none, as long as there are enough of them.

    Returns:
        The sequence of the last append that is in a segment, 0 when there is none.

    Raises:
        pymongo.errors.PyMongoError: MongoDB failed.
    """
    database = connection.database
    last = await _newest(database, workspace_id, conversation_id)
    while True:
        query = of_conversation(workspace_id, conversation_id, after=last)
        found = await database[LOG].find(query).sort("sequence", 1).limit(APPENDS).to_list()
        appends = _of_one_segment(found, last)
        if not appends:
            return last
        segment = await asyncio.to_thread(_segment, appends)
        try:
            await run_transaction(connection.client(), partial(_replace, database, segment))
        except _OvertakenError:
            return last
        last = segment["last"]


async def _newest(database: Database, workspace_id: str, conversation_id: str) -> int:
    place = of_segments(workspace_id, conversation_id)
    found = await database[SEGMENTS].find_one(place, {"last": 1}, sort=[("last", -1)])
    return int(found["last"]) if found else 0


def _of_one_segment(found: Sequence[Document], last: int) -> list[Document]:
    """Those of these appends that make a full segment behind `last`; empty when none do yet."""
    appends: list[Document] = []
    size = 0
    for append in found:
        begins_log = append.get("is_reset") and not last and not appends
        follows = append["sequence"] == last + len(appends) + 1 and not append.get("is_reset")
        is_like_others = not appends or append["analyzer"] == appends[0]["analyzer"]
        is_whole = is_readable(append["analyzer"]) and "is_merged" not in append
        if not (begins_log or follows) or not is_like_others or not is_whole:
            return []
        if begins_log:
            last = append["sequence"] - 1
        appends.append(append)
        size += len(append.get("terms", b"")) + len(append.get("own_terms", b""))
        if len(appends) == APPENDS or size >= _MOST_BYTES:
            return appends
    return []


def _segment(appends: Sequence[Document]) -> Document:
    first, last = appends[0], appends[-1]
    place = {name: last[name] for name in ("workspace_id", "conversation_id")}
    hashes = [each for append in appends for each in append["hashes"]]
    document: Document = {
        "_id": {**place, "last": last["sequence"]},
        **place,
        "first": first["sequence"],
        "last": last["sequence"],
        "last_id": last["_id"],
        "analyzer": last["analyzer"],
        "appends": [
            {
                "entries": len(append["hashes"]),
                **{name: append[name] for name in _OF_APPENDS if name in append},
            }
            for append in appends
        ],
        "places": b"".join(append["places"] for append in appends),
        "hashes": struct.pack(f"<{len(hashes)}q", *hashes),
        "messages": bytes.fromhex("".join("".join(append["messages"]) for append in appends)),
    }
    for name in ("terms", "own_terms"):
        if any(name in append for append in appends):
            document[name] = joined((each.get(name), len(each["hashes"])) for each in appends)
    return document


async def _replace(database: Database, segment: Document, session: AsyncClientSession) -> None:
    covered = of_conversation(segment["workspace_id"], segment["conversation_id"])
    covered["sequence"] = {"$gte": segment["first"], "$lte": segment["last"]}
    covered["is_merged"] = {"$exists": False}
    change = {"$set": {"is_merged": True}, "$unset": {"terms": "", "own_terms": ""}}
    done = await database[LOG].update_many(covered, change, session=session)
    if done.matched_count != len(segment["appends"]):
        raise _OvertakenError
    await database[SEGMENTS].insert_one(segment, session=session)


class AppendsOfRun(NamedTuple):
    """One append, or neighbours of one run that only add messages, as a reader takes them.

    Args:
        conversation_id: whose log.
        run_id: whose record.
        started_at: of the run, in microseconds.
        sequence: of the first of them.
        sizes: how many messages each has.
        places: of all their messages.
        hashes: likewise.
        digests: likewise, 32 bytes each, and behind them those of `renewed`.
        further: what else the append says, by the names of `Append`; of several nothing.
    """

    conversation_id: str
    run_id: str
    started_at: int
    sequence: int
    sizes: Sequence[int]
    places: Sequence[int]
    hashes: Sequence[int]
    digests: bytes
    further: Mapping[str, Any]

    @property
    def last(self) -> int:
        """The sequence of the last of them."""
        return self.sequence + len(self.sizes) - 1


def appends_in(document: Mapping[str, Any]) -> Iterator[AppendsOfRun]:
    """The appends of a segment in their order, those of a run together; an append is itself."""
    if "appends" not in document:
        yield AppendsOfRun(
            conversation_id=document["conversation_id"],
            run_id=document["run_id"],
            started_at=document["started_at"],
            sequence=document["sequence"],
            sizes=[len(document["hashes"])],
            places=numbers_in(document["places"]),
            hashes=document["hashes"],
            digests=bytes.fromhex("".join(document["messages"])),
            further=document,
        )
        return
    conversation_id, sequence = document["conversation_id"], document["first"]
    places = numbers_in(document["places"])
    hashes = struct.unpack(f"<{len(places)}q", document["hashes"])
    digests: bytes = document["messages"]
    entry = message = 0
    for neighbours in _neighbours(document["appends"]):
        first = neighbours[0]
        sizes = [each["entries"] for each in neighbours]
        end = entry + sum(sizes)
        last = message + (end - entry + len(first.get("renewed", ()))) * DIGEST_BYTES
        yield AppendsOfRun(
            conversation_id=conversation_id,
            run_id=first["run_id"],
            started_at=first["started_at"],
            sequence=sequence,
            sizes=sizes,
            places=places[entry:end],
            hashes=hashes[entry:end],
            digests=digests[message:last],
            further=_NOTHING if len(first) == _FIELDS_OF_ADDING else first,
        )
        entry, message, sequence = end, last, sequence + len(sizes)


def _neighbours(appends: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """One after the other, but together where a run only adds messages."""
    together: list[Mapping[str, Any]] = []
    for append in appends:
        only_adds = len(append) == _FIELDS_OF_ADDING
        if together and not (only_adds and append["run_id"] == together[0]["run_id"]):
            yield together
            together = []
        together.append(append)
        if not only_adds:
            yield together
            together = []
    if together:
        yield together


def of_segments(workspace_id: str, conversation_id: str) -> Document:
    """A query for the segments of a conversation."""
    return {"workspace_id": workspace_id, "conversation_id": conversation_id, "last": {"$gt": 0}}
