"""Turns and variants: what each operation does to the rows of a conversation.

Every operation is one transaction, may be repeated, and never takes a status back. Each writes the
head, so two that meet come one after the other.
"""

from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from stores.conversation_records import (
    UNFINISHED,
    SubmittedMessage,
    Turn,
    TurnRecord,
    TurnText,
    VariantRecord,
    VariantStatus,
)
from stores.conversation_rows import (
    Admission,
    ConversationRows,
    append_turn,
    as_active,
    buried_turn,
    find_admission,
    get_head,
    known_turn,
    known_variant,
    moved,
    open_head,
    pending_variant,
    receipt_of,
    refuse_unfinished,
    spoken_turn,
    storable,
    variant_of,
    variants_of,
    with_variants,
)
from stores.errors import TurnStateError
from stores.redaction import NO_REDACTION, Redaction

Result = TypeVar("Result")


class TurnStore(ABC):
    """The part of a `ConversationStore` that is about turns."""

    _redaction: Redaction = NO_REDACTION

    @property
    @abstractmethod
    def workspace_id(self) -> str:
        """The workspace that this object is bound to."""

    @abstractmethod
    async def transact(
        self, attempt: str, work: Callable[[ConversationRows], Awaitable[Result]]
    ) -> Result:
        """Do the work in one transaction; it may be done several times.

        Args:
            attempt: what is tried, in words, for an error.
            work: reads and puts rows, and changes nothing else.
        """

    async def read(
        self, attempt: str, work: Callable[[ConversationRows], Awaitable[Result]]
    ) -> Result:
        """Do `work`, which writes nothing, on rows of one moment."""
        return await self.transact(attempt, work)

    async def admit(
        self, conversation_id: str, message: SubmittedMessage, *, now: datetime
    ) -> Admission:
        """Journal a message as a new turn whose answer is pending.

        Repeats: the same message id gives the same turn and variant.

        Raises:
            ConversationNotFoundError, ConversationClosedError, MessageIdTakenError: not retryable.
        """
        message = self._masked(message)

        async def work(rows: ConversationRows) -> Admission:
            head = await open_head(rows, conversation_id)
            known = await find_admission(rows, head, message)
            return known or await append_turn(rows, head, message, now)

        return await self.transact(f"admit a message to {conversation_id!r}", work)

    async def find_message(
        self, conversation_id: str, message: SubmittedMessage
    ) -> Admission | None:
        """What the message led to before; `None`: nobody has sent it.

        Raises:
            ConversationNotFoundError, ConversationClosedError, MessageIdTakenError: not retryable.
        """
        message = self._masked(message)

        async def work(rows: ConversationRows) -> Admission | None:
            return await find_admission(rows, await open_head(rows, conversation_id), message)

        return await self.transact(f"look for a message to {conversation_id!r}", work)

    async def regenerate(
        self, conversation_id: str, position: int, message: SubmittedMessage, *, now: datetime
    ) -> Admission:
        """Journal the wish for another answer to a turn; the message's text is not used.

        Repeats: as `admit`.

        Raises:
            TurnNotFoundError: no such turn. TurnStateError: it is not finished, was deleted, or is
                a summary. Not retryable.
        """
        message = self._masked(message)

        async def work(rows: ConversationRows) -> Admission:
            head = await open_head(rows, conversation_id)
            known = await find_admission(rows, head, message)
            if known:
                return known
            turn = await spoken_turn(rows, head, position)
            refuse_unfinished(turn, await variants_of(rows, turn))
            number = turn.variant_count + 1
            variant = pending_variant(head, turn, number, now)
            await rows.put_turns([replace(turn, variant_count=number)])
            await rows.put_variants([variant])
            await rows.put_receipt(receipt_of(head, message, position, number))
            await rows.put_conversation(moved(head, now, order_count=head.order_count + 1))
            return Admission(turn=turn, variant=variant, is_new=True)

        return await self.transact(f"regenerate turn {position} of {conversation_id!r}", work)

    async def add_steer(
        self,
        conversation_id: str,
        position: int,
        number: int,
        message: SubmittedMessage,
        *,
        now: datetime,
    ) -> Admission:
        """Journal what a user said to the run of a variant, which has it already.

        Repeats: as `admit`.
        """
        message = self._masked(message)

        async def work(rows: ConversationRows) -> Admission:
            head = await open_head(rows, conversation_id)
            known = await find_admission(rows, head, message)
            if known:
                return known
            turn = await known_turn(rows, head, position)
            variant = await known_variant(rows, turn, number)
            steered = variant
            if variant.status in UNFINISHED:  # else what its run says was taken from its history
                steered = replace(variant, steers=(*variant.steers, storable(message.text)))
                await rows.put_variants([steered])
            if number == turn.active_variant:
                await rows.put_turns([replace(turn, steers=steered.steers)])
            receipt = receipt_of(head, message, position, number)
            await rows.put_receipt(replace(receipt, is_steer=True))
            await rows.put_conversation(moved(head, now))
            return Admission(turn=turn, variant=steered, is_new=True)

        return await self.transact(f"steer turn {position} of {conversation_id!r}", work)

    def _masked(self, message: SubmittedMessage) -> SubmittedMessage:
        """The message as it is stored; what its run is to get is sealed beside it."""
        text = self._redaction.text(message.text)
        if text == message.text:
            return message
        sealed = self._redaction.seal(self.workspace_id, storable(message.text).encode())
        kept = None if sealed is None else b64encode(sealed).decode()
        return replace(message, text=text, sealed_text=kept)

    def prompt_of(self, turn: TurnRecord) -> str:
        """What the run of a turn is to be asked: the prompt as it was, if it was sealed.

        Raises:
            UnknownPayloadKeyError, UnsealedError: it cannot be read here. Not retryable.
        """
        if turn.sealed_prompt is None:
            return turn.prompt
        return self._redaction.unsealed(b64decode(turn.sealed_prompt)).decode()

    async def begin_variant(
        self, conversation_id: str, position: int, number: int, *, now: datetime
    ) -> Turn:
        """Mark a pending variant as running. Repeats: one that began or ended stays as it is."""

        async def work(rows: ConversationRows) -> Turn:
            head = await get_head(rows, conversation_id)
            turn = await known_turn(rows, head, position)
            (joined,) = await with_variants(rows, conversation_id, [turn])
            variant = variant_of(joined, number)
            if variant.status == "pending":
                variant = replace(variant, status="running", path_revision=head.path_revision)
                await rows.put_variants([variant])
                await rows.put_conversation(moved(head, now))
            return Turn(record=joined.record, variants=(variant,))

        return await self.transact(f"begin turn {position} of {conversation_id!r}", work)

    async def finish_variant(
        self,
        conversation_id: str,
        position: int,
        number: int,
        *,
        status: VariantStatus,
        text: TurnText | None,
        error: str | None = None,
        now: datetime,
    ) -> VariantRecord:
        """Record how an answer ended, and what it said.

        Repeats: the first end counts.
        """
        text = self._redaction.turn_text(text)

        async def work(rows: ConversationRows) -> VariantRecord:
            head = await get_head(rows, conversation_id)
            turn = await known_turn(rows, head, position)
            variant = await known_variant(rows, turn, number)
            if variant.status not in UNFINISHED:
                return variant
            ended = replace(
                variant,
                status=status,
                content=text.content if text and status == "completed" else None,
                steers=text.steers if text else variant.steers,
                error=None if error is None else self._redaction.text(error),
                ended_at=now,
            )
            await rows.put_variants([ended])
            if number == turn.active_variant:
                await rows.put_turns([as_active(turn, ended)])
            await rows.put_conversation(moved(head, now))
            return ended

        return await self.transact(f"finish turn {position} of {conversation_id!r}", work)

    async def select_variant(
        self, conversation_id: str, position: int, number: int, *, now: datetime
    ) -> TurnRecord:
        """Make a completed answer the one that is read and remembered. May be repeated.

        Raises:
            TurnNotFoundError: no such turn or variant. TurnStateError: it is not completed, or the
                turn was deleted.
        """

        async def work(rows: ConversationRows) -> TurnRecord:
            head = await open_head(rows, conversation_id)
            turn = await spoken_turn(rows, head, position)
            variant = await known_variant(rows, turn, number)
            if variant.status != "completed":
                problem = (
                    f"variant {number} of turn {position} is {variant.status}; only a completed "
                    "one can be selected"
                )
                raise TurnStateError(conversation_id, problem)
            if turn.active_variant == number:
                return turn
            selected = as_active(replace(turn, active_variant=number), variant)
            await rows.put_turns([selected])
            path = head.path_revision + 1
            await rows.put_conversation(moved(head, now, path_revision=path))
            return selected

        return await self.transact(f"select a variant in {conversation_id!r}", work)

    async def set_visibility(
        self,
        conversation_id: str,
        position: int,
        *,
        is_hidden: bool | None = None,
        is_concealed: bool | None = None,
        now: datetime,
    ) -> TurnRecord:
        """Hide, conceal or show a turn; `None` leaves that as it is. May be repeated.

        Raises:
            TurnNotFoundError: no such turn. TurnStateError: it is not finished. Not retryable.
        """

        async def work(rows: ConversationRows) -> TurnRecord:
            head = await open_head(rows, conversation_id)
            turn = await known_turn(rows, head, position)
            changed = replace(
                turn,
                is_hidden=turn.is_hidden if is_hidden is None else is_hidden,
                is_concealed=turn.is_concealed if is_concealed is None else is_concealed,
            )
            if changed == turn:
                return turn
            if turn.status == "running":
                problem = f"turn {position} is not finished; cancel it, or wait for its answer"
                raise TurnStateError(conversation_id, problem)
            await rows.put_turns([changed])
            path = head.path_revision + 1
            await rows.put_conversation(moved(head, now, path_revision=path))
            return changed

        return await self.transact(f"show or hide a turn of {conversation_id!r}", work)

    async def append_compaction(
        self, conversation_id: str, message: SubmittedMessage, *, now: datetime
    ) -> TurnRecord:
        """Note where a compaction took the place of what came before: a turn that is never read.

        Its text is the summary. No run gives it, and nothing of it reaches a model by way of the
        turns: what an agent made of its history is in the history.

        Repeats: the same message id gives the same turn.

        Raises:
            ConversationNotFoundError, ConversationClosedError, MessageIdTakenError: not retryable.
        """

        async def work(rows: ConversationRows) -> TurnRecord:
            head = await open_head(rows, conversation_id)
            known = await find_admission(rows, head, message)
            if known:
                return known.turn
            unnamed = replace(message, text="")
            added = await append_turn(rows, head, unnamed, now)
            turn = replace(added.turn, kind="compaction", role="agent", status="completed")
            summary = replace(
                added.variant, status="completed", content=storable(message.text), ended_at=now
            )
            await rows.put_turns([turn])
            await rows.put_variants([summary])
            await rows.put_receipt(receipt_of(head, message, turn.position, summary.number))
            return turn

        return await self.transact(f"note a compaction of {conversation_id!r}", work)

    async def bury_turn(
        self, conversation_id: str, position: int, *, now: datetime
    ) -> list[VariantRecord]:
        """Take every word out of a turn's rows; its position and ids stay. May be repeated.

        Returns the answers of its own that were given, for what their runs hold.

        Raises:
            ConversationNotFoundError: no such conversation. TurnNotFoundError: no such turn.
            TurnStateError: the conversation is being answered, and the answer sees the turn.
        """

        async def work(rows: ConversationRows) -> list[VariantRecord]:
            head = await get_head(rows, conversation_id)
            turn = await known_turn(rows, head, position)
            if await rows.list_unfinished(conversation_id):
                problem = "a turn is being answered; cancel it, or wait for its answer"
                raise TurnStateError(conversation_id, problem)
            own = await rows.list_variants(conversation_id, [position])
            if not turn.is_tombstone:
                await rows.put_turns([buried_turn(turn)])
                await rows.put_variants(
                    [replace(each, content=None, steers=(), error=None) for each in own]
                )
                path = head.path_revision + 1
                await rows.put_conversation(moved(head, now, path_revision=path))
            return own

        return await self.transact(f"delete turn {position} of {conversation_id!r}", work)

    async def list_unfinished(self, conversation_id: str) -> list[tuple[TurnRecord, VariantRecord]]:
        """The queue: answers that were asked for and have not ended, in order."""

        async def work(rows: ConversationRows) -> list[tuple[TurnRecord, VariantRecord]]:
            head = await get_head(rows, conversation_id)
            return [
                (await known_turn(rows, head, each.position), each)
                for each in await rows.list_unfinished(conversation_id)
            ]

        return await self.transact(f"read the queue of {conversation_id!r}", work)

    async def list_turns(
        self,
        conversation_id: str,
        *,
        after: int | None = None,
        before: int | None = None,
        limit: int = 50,
        newest_first: bool = False,
    ) -> list[Turn]:
        """Turns with their words, inherited ones included; callers drop those that are not visible.

        Args:
            conversation_id: of this workspace.
            after: only turns behind this position.
            before: only turns before this position.
            limit: most turns.
            newest_first: begin at the end.

        Raises:
            ConversationNotFoundError: no such conversation, or it was deleted. Not retryable.
        """

        async def work(rows: ConversationRows) -> list[Turn]:
            head = await get_head(rows, conversation_id)
            end = head.turn_count if before is None else min(before, head.turn_count)
            found = await rows.list_turns(
                conversation_id, after=after, before=end, limit=limit, newest_first=newest_first
            )
            return await with_variants(rows, conversation_id, found)

        return await self.transact(f"read turns of {conversation_id!r}", work)
