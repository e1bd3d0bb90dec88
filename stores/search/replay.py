"""A run's record: every message that its complete snapshots ever held, each once, in order.

Snapshots hold whole histories, and a compaction takes messages out of later ones. What they all
held together is found by replaying them in the order in which they were written.
"""

from collections.abc import Hashable, Iterable, Sequence

from pydantic_ai.messages import ModelMessage

from stores.histories import positions_in
from stores.records import ContinuableSnapshot
from stores.search.identity import message_hash, without_summary

Placed = tuple[int, ModelMessage]
"""A message with its place in the run's record."""


def overlap_length(history: Sequence[Hashable], snapshot: Sequence[Hashable]) -> int:
    """Length of the longest end of `history` that `snapshot` begins with.

    Knuth, Morris, Pratt: `borders[i]` is the longest proper beginning of `snapshot[: i + 1]` that
    it ends with, so no message is compared twice.
    """
    borders = [0] * len(snapshot)
    for index in range(1, len(snapshot)):
        borders[index] = _grown(borders, snapshot, borders[index - 1], snapshot[index])
    matched = 0
    for each in history[max(0, len(history) - len(snapshot)) :]:
        matched = _grown(borders, snapshot, matched, each)
    return matched


def _grown(
    borders: Sequence[int], pattern: Sequence[Hashable], matched: int, following: Hashable
) -> int:
    """How much of the pattern is matched after one more, when `matched` was before."""
    while matched and (matched == len(pattern) or pattern[matched] != following):
        matched = borders[matched - 1]
    return matched + (matched < len(pattern) and pattern[matched] == following)


def places_by_hash(held: Sequence[str], snapshot: Sequence[str]) -> range:
    """Places in the record of a snapshot's messages, by their hashes: it goes on at the overlap."""
    start = len(held) - overlap_length(held, snapshot)
    return range(start, start + len(snapshot))


def searchable(snapshot: ContinuableSnapshot) -> list[tuple[int | None, ModelMessage]]:
    """A snapshot's messages without summaries, each with the position that its writer gave it."""
    positions: Iterable[int | None] = positions_in(snapshot.ranges)
    if not snapshot.ranges:
        positions = [None] * len(snapshot.messages)
    found = zip(positions, map(without_summary, snapshot.messages), strict=True)
    return [(position, message) for position, message in found if message is not None]


def replayed(snapshots: Iterable[ContinuableSnapshot]) -> list[ModelMessage]:
    """The record of a run, from its snapshots in the order in which they were written.

    Interrupted snapshots hold unsettled work and are passed over. Of the copies of a message the
    latest is kept: it carries what the core added. A writer that names positions says itself which
    messages are the same, so an exchange that is repeated right after a prefix was dropped counts
    twice; of histories without positions the overlap alone can tell, and takes it for the same.
    """
    record: dict[int, ModelMessage] = {}
    hashes: list[str] = []
    for snapshot in snapshots:
        if snapshot.state != "complete":
            continue
        found = searchable(snapshot)
        if snapshot.ranges:
            record |= {position: message for position, message in found if position is not None}
            continue
        own = [message_hash(message) for _, message in found]
        places = places_by_hash(hashes, own)
        hashes[places.start :] = own
        record |= zip(places, (message for _, message in found), strict=True)
    return [record[place] for place in sorted(record)]
