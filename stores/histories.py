"""Message histories by reference: positions in a run's message log, and ranges of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage

from stores.digests import load_messages, message_digest
from stores.errors import DamagedSnapshotError, MessageTooLargeError, StoreError
from stores.operations import PositionedMessage
from stores.rows import PositionRow, SnapshotRow

MAX_MESSAGE_BYTES = 16 * 1024 * 1024 - 16 * 1024
"""Of a message's JSON text: a MongoDB document less its envelope. One bound for every store, so
that a history that one of them took is valid in the others."""

Range = tuple[int, int]
"""Half-open: first position and the one after the last."""


def positions_in(ranges: Iterable[Range]) -> Iterator[int]:
    """The positions that ranges name, in their order."""
    for start, end in ranges:
        yield from range(start, end)


def ranges_of(positions: Iterable[int]) -> tuple[Range, ...]:
    """The fewest ranges that name these positions in this order."""
    ranges: list[Range] = []
    for position in positions:
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return tuple(ranges)


@dataclass(frozen=True, kw_only=True)
class StoredTexts:
    """Texts of messages by digest, and why others that are stored cannot be had."""

    found: Mapping[str, str]
    broken: Mapping[str, StoreError] = field(default_factory=dict[str, StoreError])


def assembled(snapshot: SnapshotRow, positions: Mapping[int, str], texts: StoredTexts) -> list[str]:
    """The texts of a snapshot's messages, from what its log and the stored messages hold.

    Raises:
        DamagedSnapshotError: a position or a message is missing. Not retryable.
    """
    try:
        return [texts.found[positions[each]] for each in positions_in(snapshot.ranges)]
    except KeyError as error:
        (missing,) = error.args
        what = "position" if isinstance(missing, int) else "message"
        broken = texts.broken.get(str(missing))
        problem = str(broken) if broken else f"{what} {missing!r} is missing"
        raise DamagedSnapshotError(snapshot.run_id, snapshot.sequence, problem) from broken or error


def history_of(
    snapshot: SnapshotRow, positions: Mapping[int, str], texts: StoredTexts
) -> list[ModelMessage]:
    """A snapshot's messages, from what its log and the stored messages hold.

    Raises:
        DamagedSnapshotError: one of them is missing or cannot be read. Not retryable.
    """
    try:
        return load_messages(assembled(snapshot, positions, texts))
    except ValidationError as error:
        problem = f"a message cannot be read: {error.error_count()} values do not fit"
        raise DamagedSnapshotError(snapshot.run_id, snapshot.sequence, problem) from error


@dataclass(frozen=True, kw_only=True)
class MessageLog:
    """What a run's log holds: the newest history as (position, digest), and the next position."""

    history: tuple[tuple[int, str], ...] = ()
    next_position: int = 0


def place(
    messages: Sequence[ModelMessage], texts: Sequence[str], log: MessageLog, *, workspace_id: str
) -> tuple[tuple[Range, ...], dict[int, str], tuple[PositionedMessage, ...]]:
    """Ranges for a history that names no positions, and what to add to the log for it.

    A message that the newest history holds keeps its position; the rest go to the end of the log.

    Args:
        messages: the history.
        texts: of each message, as it is to be stored.
        log: what the run's log holds.
        workspace_id: whose messages they are.
    """
    known: dict[str, list[int]] = {}
    for position, digest in log.history:
        known.setdefault(digest, []).append(position)
    positions: list[int] = []
    entries: list[PositionedMessage] = []
    added: dict[int, str] = {}
    for message, text in zip(messages, texts, strict=True):
        held = known.get(message_digest(workspace_id, text))
        if held:
            # The last one left serves every further repeat: a position may be named twice.
            positions.append(held.pop(0) if len(held) > 1 else held[0])
            continue
        position = log.next_position + len(entries)
        entries.append(PositionedMessage(position=position, message=message))
        added[position] = text
        positions.append(position)
    return ranges_of(positions), added, tuple(entries)


@dataclass(frozen=True, kw_only=True)
class Body:
    """A message's text on its way to the store.

    `owner` is the position that brings it, `None` when several do. A stored body that somebody else
    brings too loses its owner and is never dropped again.
    """

    text: str
    owner: str | None


@dataclass(kw_only=True)
class MessageChanges:
    """What a commit changes in message logs. Put `bodies` before dropping any.

    `dropped` holds digest and owner of messages of which a position got a newer version; one goes
    unless somebody else has claimed it.
    """

    positions: list[PositionRow] = field(default_factory=list[PositionRow])
    bodies: dict[str, Body] = field(default_factory=dict[str, Body])
    dropped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


def check_sizes(run_id: str, texts: Mapping[int, str]) -> None:
    """Return when each text, by position, can be stored.

    Raises:
        MessageTooLargeError: one is larger than `MAX_MESSAGE_BYTES`. Not retryable.
    """
    for position, text in texts.items():
        size_bytes = len(text.encode())
        if size_bytes > MAX_MESSAGE_BYTES:
            raise MessageTooLargeError(run_id, position, size_bytes, MAX_MESSAGE_BYTES)


class MessageWriter:
    """Puts messages at positions; a position that is taken gets the newer version in place."""

    def __init__(
        self,
        stored: dict[tuple[str, int], PositionRow],
        *,
        workspace_id: str,
        branch: str,
        number: int | None,
    ) -> None:
        self._stored = stored
        self._workspace_id = workspace_id
        self._branch = branch
        self._number = number
        self._newest: dict[tuple[str, int], PositionRow] = {}
        self._texts: dict[str, str] = {}

    def put(self, run_id: str, position: int, text: str) -> None:
        """Put one message."""
        digest = message_digest(self._workspace_id, text)
        self._texts[digest] = text
        stored = self._stored.get((run_id, position))
        if stored is None:
            stored = PositionRow(
                workspace_id=self._workspace_id,
                run_id=run_id,
                branch=self._branch,
                number=self._number,
                position=position,
                message=digest,
            )
        self._newest[run_id, position] = replace(stored, message=digest)

    def changes(self) -> MessageChanges:
        """What is left to write when all messages are put."""
        changes = MessageChanges()
        for key, row in self._newest.items():
            stored = self._stored.get(key)
            if stored is not None:
                if stored.message == row.message:
                    continue
                changes.dropped.append((stored.message, row.owner))
            changes.positions.append(row)
            is_shared = row.message in changes.bodies
            owner = None if is_shared else row.owner
            changes.bodies[row.message] = Body(text=self._texts[row.message], owner=owner)
        return changes
