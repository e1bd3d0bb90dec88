"""The rows of a conversation in one transaction, and what operations on them have in common."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from stores.conversation_records import (
    UNFINISHED,
    ArchivedFilter,
    ConversationRecord,
    MessageReceipt,
    SubmittedMessage,
    Turn,
    TurnRecord,
    VariantRecord,
)
from stores.errors import (
    ConversationClosedError,
    ConversationNotFoundError,
    MessageIdTakenError,
    TurnNotFoundError,
    TurnStateError,
)
from stores.public_ids import new_public_id

_SURROGATES = re.compile("[\ud800-\udfff]")


class ConversationRows(Protocol):
    """Rows of one workspace in an open transaction; each `put` inserts or replaces."""

    @property
    def workspace_id(self) -> str:
        """The workspace."""
        ...

    async def find_workspace_id(self) -> str | None:
        """The workspace's public id."""
        ...

    async def put_workspace_id(self, public_id: str) -> None:
        """Keep it."""
        ...

    async def find_conversation(self, conversation_id: str) -> ConversationRecord | None:
        """The head, also of a deleted conversation."""
        ...

    async def find_public_conversation(self, public_id: str) -> ConversationRecord | None:
        """The head with that public id; that of a deleted conversation, or `None`."""
        ...

    async def put_conversation(self, record: ConversationRecord) -> None:
        """Keep it."""
        ...

    async def find_turn(self, conversation_id: str, position: int) -> TurnRecord | None:
        """The turn's own row."""
        ...

    async def find_public_turn(self, conversation_id: str, public_id: str) -> TurnRecord | None:
        """The same by its public id, in this conversation alone."""
        ...

    async def put_turns(self, turns: Sequence[TurnRecord]) -> None:
        """Keep them."""
        ...

    async def list_turns(
        self,
        conversation_id: str,
        *,
        after: int | None,
        before: int | None,
        limit: int,
        newest_first: bool,
        only_visible: bool = False,
    ) -> list[TurnRecord]:
        """Own rows of turns between two positions, both exclusive; all, or the visible ones."""
        ...

    async def list_variants(
        self, conversation_id: str, positions: Sequence[int]
    ) -> list[VariantRecord]:
        """Own rows of variants of these turns, by position and number."""
        ...

    async def put_variants(self, variants: Sequence[VariantRecord]) -> None:
        """Keep them."""
        ...

    async def list_unfinished(self, conversation_id: str) -> list[VariantRecord]:
        """Variants that are pending or running, by their order."""
        ...

    async def find_receipt(self, conversation_id: str, message_id: str) -> MessageReceipt | None:
        """What became of a message."""
        ...

    async def put_receipt(self, receipt: MessageReceipt) -> None:
        """Keep it."""
        ...

    async def list_conversations(
        self, query: str, *, archived: ArchivedFilter, limit: int, offset: int
    ) -> list[ConversationRecord]:
        """Heads, newest activity first; see `ConversationStore.listing`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Which answer a message is to have. `is_new`: nobody had sent it before."""

    turn: TurnRecord
    variant: VariantRecord
    is_new: bool


def turn_run_id(workspace_id: str, conversation_id: str, message_id: str, number: int) -> str:
    """The id of a variant's run: the same message always finds the same run. Frozen."""
    place = json.dumps([workspace_id, conversation_id, message_id, number])
    return "turn-" + hashlib.sha256(place.encode()).hexdigest()


def text_digest(text: str) -> str:
    """SHA-256 of a message's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def storable(text: str) -> str:
    """The text with lone surrogates replaced, which no database and no JSON can hold."""
    return _SURROGATES.sub("\ufffd", text)


async def get_head(rows: ConversationRows, conversation_id: str) -> ConversationRecord:
    """The head of a conversation that exists.

    Raises:
        ConversationNotFoundError: there is none, or it was deleted.
    """
    return _existing(await rows.find_conversation(conversation_id), conversation_id)


def _existing(head: ConversationRecord | None, conversation_id: str) -> ConversationRecord:
    if head is None or head.state == "deleted":
        problem = "this workspace has no such conversation"
        raise ConversationNotFoundError(conversation_id, problem)
    return head


async def open_head(rows: ConversationRows, conversation_id: str) -> ConversationRecord:
    """The head of a conversation that goes on.

    Raises:
        ConversationNotFoundError: there is none. ConversationClosedError: it was closed or deleted.
    """
    head = await rows.find_conversation(conversation_id)
    if head is not None and head.state != "open":
        problem = f"it was {head.state} and takes nothing more; begin another one, or fork it"
        raise ConversationClosedError(conversation_id, problem)
    return _existing(head, conversation_id)


async def with_variants(
    rows: ConversationRows, conversation_id: str, turns: Sequence[TurnRecord]
) -> list[Turn]:
    """The turns with words and variants; what they inherit comes from their sources.

    Costs one question for each fork that lies between a turn and its first conversation.
    """
    own: dict[int, list[VariantRecord]] = {}
    for variant in await rows.list_variants(conversation_id, [each.position for each in turns]):
        own.setdefault(variant.position, []).append(variant)
    inherited = await _inherited(rows, turns)
    return [
        _joined(each, inherited.get(each.position), own.get(each.position, [])) for each in turns
    ]


async def _inherited(rows: ConversationRows, turns: Sequence[TurnRecord]) -> dict[int, Turn]:
    """By position, what the sources of inherited turns have; all have the same source."""
    found: dict[int, Turn] = {}
    for source in {each.source_conversation_id for each in turns} - {None}:
        positions = [each.position for each in turns if each.source_conversation_id == source]
        first, last = min(positions), max(positions)
        kept = await rows.list_turns(
            str(source),
            after=first - 1,
            before=last + 1,
            limit=last - first + 1,
            newest_first=False,
        )
        for turn in await with_variants(rows, str(source), kept):
            found[turn.record.position] = turn
    return found


def _joined(turn: TurnRecord, source: Turn | None, own: Sequence[VariantRecord]) -> Turn:
    if not turn.is_inherited:
        return Turn(record=turn, variants=tuple(own))
    if source is None or source.record.is_tombstone:
        return Turn(record=replace(turn, is_tombstone=True), variants=tuple(own))
    shared = [each for each in source.variants if each.number <= turn.source_variant_count]
    joined = Turn(record=turn, variants=(*shared, *own))
    steers = joined.active.steers if joined.active else ()
    record = replace(turn, prompt=source.record.prompt, steers=steers)
    return replace(joined, record=record)


async def append_turn(
    rows: ConversationRows, head: ConversationRecord, message: SubmittedMessage, now: datetime
) -> Admission:
    """A new turn at the end, its answer pending."""
    position = head.turn_count
    turn = TurnRecord(
        conversation_id=head.conversation_id,
        workspace_id=rows.workspace_id,
        position=position,
        public_id=new_public_id(now, after=head.last_turn_public_id),
        message_id=message.message_id,
        prompt=storable(message.text),
        sealed_prompt=message.sealed_text,
        principal=message.principal,
        created_at=now,
    )
    variant = pending_variant(head, turn, 1, now)
    await rows.put_turns([turn])
    await rows.put_variants([variant])
    await rows.put_receipt(receipt_of(head, message, position, 1))
    grown = moved(head, now, order_count=head.order_count + 1, turn_count=position + 1)
    await rows.put_conversation(replace(grown, last_turn_public_id=turn.public_id))
    return Admission(turn=turn, variant=variant, is_new=True)


async def find_admission(
    rows: ConversationRows, head: ConversationRecord, message: SubmittedMessage
) -> Admission | None:
    """What the message led to before; `None`: it is new."""
    receipt = await rows.find_receipt(head.conversation_id, message.message_id)
    if receipt is None:
        return None
    if receipt.text_digest != text_digest(storable(message.text)):
        problem = (
            f"message id {message.message_id!r} was used for another text; give each message an "
            "id of its own"
        )
        raise MessageIdTakenError(head.conversation_id, problem)
    turn = await known_turn(rows, head, receipt.position)
    variant = await known_variant(rows, turn, receipt.number)
    return Admission(turn=turn, variant=variant, is_new=False)


def receipt_of(
    head: ConversationRecord, message: SubmittedMessage, position: int, number: int
) -> MessageReceipt:
    """The receipt of a message."""
    return MessageReceipt(
        conversation_id=head.conversation_id,
        workspace_id=head.workspace_id,
        message_id=message.message_id,
        text_digest=text_digest(storable(message.text)),
        position=position,
        number=number,
    )


def pending_variant(
    head: ConversationRecord, turn: TurnRecord, number: int, now: datetime
) -> VariantRecord:
    """An answer at the end of the queue."""
    run_id = turn_run_id(head.workspace_id, head.conversation_id, turn.message_id, number)
    return VariantRecord(
        conversation_id=head.conversation_id,
        workspace_id=head.workspace_id,
        position=turn.position,
        number=number,
        public_id=new_public_id(now),
        run_id=run_id,
        order=head.order_count,
        created_at=now,
    )


def moved(
    head: ConversationRecord,
    now: datetime,
    *,
    order_count: int | None = None,
    turn_count: int | None = None,
    path_revision: int | None = None,
) -> ConversationRecord:
    """The head after a change of the content."""
    return replace(
        head,
        revision=head.revision + 1,
        updated_at=max(now, head.updated_at),
        order_count=head.order_count if order_count is None else order_count,
        turn_count=head.turn_count if turn_count is None else turn_count,
        path_revision=head.path_revision if path_revision is None else path_revision,
    )


def as_active(turn: TurnRecord, variant: VariantRecord) -> TurnRecord:
    """The turn as its selected answer says."""
    status = "running" if variant.status == "pending" else variant.status
    return replace(turn, status=status, steers=variant.steers)


async def known_turn(rows: ConversationRows, head: ConversationRecord, position: int) -> TurnRecord:
    """The turn at a position."""
    turn = await rows.find_turn(head.conversation_id, position)
    if turn is None:
        problem = f"there is no turn {position}; it has {head.turn_count}, counted from 0"
        raise TurnNotFoundError(head.conversation_id, problem)
    return turn


async def variants_of(rows: ConversationRows, turn: TurnRecord) -> tuple[VariantRecord, ...]:
    """The variants of a turn."""
    (found,) = await with_variants(rows, turn.conversation_id, [turn])
    return found.variants


async def known_variant(rows: ConversationRows, turn: TurnRecord, number: int) -> VariantRecord:
    """A variant of a turn."""
    (found,) = await with_variants(rows, turn.conversation_id, [turn])
    return variant_of(found, number)


def variant_of(turn: Turn, number: int) -> VariantRecord:
    """A variant of a turn that was read with them.

    Raises:
        TurnNotFoundError: it has none of that number.
    """
    for variant in turn.variants:
        if variant.number == number:
            return variant
    record = turn.record
    problem = f"turn {record.position} has no variant {number}; it has {record.variant_count}"
    raise TurnNotFoundError(record.conversation_id, problem)


async def spoken_turn(
    rows: ConversationRows, head: ConversationRecord, position: int
) -> TurnRecord:
    """The turn at a position whose answers can still be chosen from.

    Raises:
        TurnNotFoundError: there is none. TurnStateError: it was deleted, or nobody said it.
    """
    turn = await known_turn(rows, head, position)
    (joined,) = await with_variants(rows, head.conversation_id, [turn])
    if joined.record.is_tombstone:
        raise TurnStateError(head.conversation_id, f"turn {position} was deleted")
    if turn.kind != "message":
        problem = f"turn {position} is the summary of a {turn.kind}, which nobody asked for"
        raise TurnStateError(head.conversation_id, problem)
    return turn


def buried_turn(turn: TurnRecord) -> TurnRecord:
    """What stays of a deleted turn: its place and its ids, and no word of it."""
    return replace(turn, prompt="", steers=(), sealed_prompt=None, is_tombstone=True)


def refuse_unfinished(turn: TurnRecord, variants: Sequence[VariantRecord]) -> None:
    """Refuse a turn that is being answered."""
    if any(each.status in UNFINISHED for each in variants):
        problem = f"turn {turn.position} is being answered; wait for it, or cancel it"
        raise TurnStateError(turn.conversation_id, problem)
