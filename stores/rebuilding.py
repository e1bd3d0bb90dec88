"""Rows of a conversation, made again from what its runs recorded of themselves.

A run of a turn carries the place of its answer in its metadata, and its snapshot what was said.
What members chose (selection, visibility, name) is in the rows alone, and stays where a row is
left.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from stores.conversation_records import (
    ConversationRecord,
    ConversationSpec,
    MessageReceipt,
    TurnRecord,
    TurnText,
    VariantRecord,
    VariantStatus,
)
from stores.conversation_rows import ConversationRows, as_active, text_digest
from stores.conversations import begin_conversation
from stores.errors import ConversationNotFoundError
from stores.protocols import StepStore
from stores.records import RunRecord
from stores.turn_histories import text_of_run

TURN_METADATA = "turn"
"""Key in a run's metadata: JSON that says which answer it gives. Frozen: runs hold it."""

PATH_METADATA = "turn_path"
"""Key in a run's metadata: the path revision that it began with. Frozen, as above."""

_STATUS: dict[str, VariantStatus] = {
    "running": "running",
    "needs_attention": "running",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """What was made again, and how much of it differed from what was there."""

    conversation_id: str
    turns: int
    variants: int
    changed_rows: int


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What a run says of the answer that it gave."""

    run: RunRecord
    place: dict[str, Any]
    text: TurnText | None


async def rebuild_conversation(store: StepStore, conversation_id: str, *, now: datetime) -> Rebuilt:
    """Make turns and variants of a conversation again. May be repeated; changes no choice.

    Inherited turns are rebuilt in the conversation that they come from. One that waits, was
    deleted or is a summary has no run that speaks for it, and is left as it is.

    Raises:
        ConversationNotFoundError: neither a head nor a run of it is in this workspace.
    """
    answers = [
        _Answer(
            run=run,
            place=json.loads(run.metadata[TURN_METADATA]),
            text=await text_of_run(store, run.run_id),
        )
        for run in await store.list_runs(conversation_id=conversation_id)
        if TURN_METADATA in run.metadata
    ]
    answers.sort(key=lambda each: (each.place["position"], each.place["number"]))

    async def work(rows: ConversationRows) -> Rebuilt:
        return await _rebuild(rows, conversation_id, answers, now)

    return await store.conversations.transact(f"rebuild conversation {conversation_id!r}", work)


async def _rebuild(
    rows: ConversationRows, conversation_id: str, answers: Sequence[_Answer], now: datetime
) -> Rebuilt:
    head = await _head(rows, conversation_id, answers, now)
    turns: dict[int, TurnRecord] = {}
    variants: dict[tuple[int, int], VariantRecord] = {}
    changed = 0
    for answer in answers:
        if await _is_buried(rows, head, answer):
            continue
        variant = _variant(head, answer)
        variants[variant.position, variant.number] = variant
        turn = turns.get(variant.position) or await _turn(rows, head, answer)
        turns[variant.position] = replace(
            turn, variant_count=max(turn.variant_count, variant.number)
        )
    for position, turn in turns.items():
        active = variants.get((position, turn.active_variant))
        joined = as_active(turn, active) if active else turn
        if turn.is_inherited:
            joined = replace(joined, prompt="", steers=())
        if await rows.find_turn(conversation_id, position) != joined:
            changed += 1
            await rows.put_turns([joined])
        if not turn.is_inherited and not await rows.find_receipt(conversation_id, turn.message_id):
            await rows.put_receipt(_receipt(turn))
    kept = {
        (each.position, each.number): each
        for each in await rows.list_variants(conversation_id, list(turns))
    }
    different = [each for place, each in variants.items() if kept.get(place) != each]
    await rows.put_variants(different)
    await rows.put_conversation(_grown(head, turns, variants))
    return Rebuilt(
        conversation_id=conversation_id,
        turns=len(turns),
        variants=len(variants),
        changed_rows=changed + len(different),
    )


async def _is_buried(rows: ConversationRows, head: ConversationRecord, answer: _Answer) -> bool:
    """Whether the turn was deleted: what its run still says must not come back."""
    kept = await rows.find_turn(head.conversation_id, answer.place["position"])
    return kept is not None and kept.is_tombstone


async def _head(
    rows: ConversationRows, conversation_id: str, answers: Sequence[_Answer], now: datetime
) -> ConversationRecord:
    head = await rows.find_conversation(conversation_id)
    if head is not None and head.state != "deleted":
        return head
    if head is not None or not answers:
        problem = "this workspace has no such conversation, and no run of one"
        raise ConversationNotFoundError(conversation_id, problem)
    first = answers[0].run
    spec = ConversationSpec(agent=first.agent_name or "", principal=first.principal)
    return await begin_conversation(rows, conversation_id, spec, now)


async def _turn(rows: ConversationRows, head: ConversationRecord, answer: _Answer) -> TurnRecord:
    """The turn as it is kept, with what its first answer says of it."""
    place = answer.place
    kept = await rows.find_turn(head.conversation_id, place["position"])
    if kept is not None and (kept.is_inherited or place["number"] > 1 or answer.text is None):
        return kept
    made = TurnRecord(
        conversation_id=head.conversation_id,
        workspace_id=head.workspace_id,
        position=place["position"],
        public_id=place["turn_public_id"],
        message_id=place["message_id"],
        prompt=answer.text.prompt if answer.text else "",
        created_at=datetime.fromisoformat(place["asked_at"]),
        principal=answer.run.principal,
    )
    if kept is None:
        return made
    return replace(kept, prompt=made.prompt, public_id=made.public_id, message_id=made.message_id)


def _variant(head: ConversationRecord, answer: _Answer) -> VariantRecord:
    run, place, text = answer.run, answer.place, answer.text
    status = _STATUS[run.state]
    return VariantRecord(
        conversation_id=head.conversation_id,
        workspace_id=head.workspace_id,
        position=place["position"],
        number=place["number"],
        public_id=place["variant_public_id"],
        run_id=run.run_id,
        order=place["order"],
        created_at=datetime.fromisoformat(place["asked_at"]),
        status=status,
        content=text.content if text and status == "completed" else None,
        steers=text.steers if text else (),
        error=run.error,
        path_revision=int(run.metadata.get(PATH_METADATA, "0")),
        ended_at=run.ended_at,
    )


def _receipt(turn: TurnRecord) -> MessageReceipt:
    return MessageReceipt(
        conversation_id=turn.conversation_id,
        workspace_id=turn.workspace_id,
        message_id=turn.message_id,
        text_digest=text_digest(turn.prompt),
        position=turn.position,
        number=1,
    )


def _grown(
    head: ConversationRecord,
    turns: dict[int, TurnRecord],
    variants: dict[tuple[int, int], VariantRecord],
) -> ConversationRecord:
    if not turns:
        return head
    last = max(turns)
    order = max(each.order for each in variants.values()) + 1
    is_longer = last + 1 >= head.turn_count
    return replace(
        head,
        turn_count=max(head.turn_count, last + 1),
        order_count=max(head.order_count, order),
        last_turn_public_id=turns[last].public_id if is_longer else head.last_turn_public_id,
    )
