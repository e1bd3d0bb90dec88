"""A turn as it is read: its fields, cut to what the page has left for them."""

from typing import Literal

from stores.conversation_records import Turn
from stores.reading.budget import TextBudget
from stores.reading.pages import TurnView

TextField = Literal["prompt", "steers", "content"]
FIELDS: tuple[TextField, ...] = ("prompt", "steers", "content")
"""In the order in which they are read."""


def texts_of(turn: Turn) -> dict[TextField, str]:
    """The texts that the turn has, by the active variant; those that it lacks are absent."""
    texts: dict[TextField, str] = {
        "prompt": turn.record.prompt,
        "steers": "\n".join(turn.record.steers),
        "content": (turn.active.content if turn.active else None) or "",
    }
    return {name: text for name, text in texts.items() if text}


def view_of(turn: Turn, budget: TextBudget) -> TurnView:
    """The turn with as much of its text as the budget allows; a field left out whole is empty."""
    texts = texts_of(turn)
    shown = {name: budget.take(texts[name]) for name in FIELDS if name in texts}
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
