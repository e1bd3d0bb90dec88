"""A turn as it is read: its fields, cut to what the page has left for them."""

from stores.conversation_records import Turn
from stores.keyword.fields import fields_of
from stores.reading.budget import TextBudget
from stores.reading.pages import TurnView


def view_of(turn: Turn, budget: TextBudget) -> TurnView:
    """The turn with as much of its text as the budget allows; a field left out whole is empty."""
    texts = {each.field: each.text for each in fields_of(turn)}
    shown = {name: budget.take(text) for name, text in texts.items()}
    record = turn.record
    return TurnView(
        public_id=record.public_id,
        position=record.position,
        kind=record.kind,
        role=record.role,
        status=record.status,
        created_at=record.created_at,
        truncated=shown != texts,
        **shown,
    )
