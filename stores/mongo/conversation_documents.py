"""Conversations, turns and variants as documents: their own field names, times in microseconds.

What only queries need is added on the way in (`live`, `folded`, `is_unfinished`) and skipped on the
way out.
"""

from collections.abc import Callable
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, TypeVar

from stores.conversation_records import (
    UNFINISHED,
    ConversationRecord,
    MessageReceipt,
    TurnRecord,
    VariantRecord,
)
from stores.mongo.documents import Document
from stores.paging import microseconds, time_at

Record = TypeVar("Record", ConversationRecord, TurnRecord, VariantRecord, MessageReceipt)

_DECODERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("created_at", "updated_at", "ended_at"), time_at),
    **dict.fromkeys(("tags", "steers"), tuple),
}

_FIELDS: dict[type[Any], dict[str, Callable[[Any], Any] | None]] = {
    kind: {each.name: _DECODERS.get(each.name) for each in fields(kind)}
    for kind in (ConversationRecord, TurnRecord, VariantRecord, MessageReceipt)
}
"""How each field of a record is read; `None`: as it is."""


def conversation_key(workspace_id: str, conversation_id: str) -> Document:
    """The `_id` of a head."""
    return {"workspace_id": workspace_id, "conversation_id": conversation_id}


def turn_key(workspace_id: str, conversation_id: str, position: int) -> Document:
    """The `_id` of a turn."""
    return {**conversation_key(workspace_id, conversation_id), "position": position}


def receipt_key(workspace_id: str, conversation_id: str, message_id: str) -> Document:
    """The `_id` of a message's receipt."""
    return {**conversation_key(workspace_id, conversation_id), "message_id": message_id}


def conversation_document(record: ConversationRecord) -> Document:
    """The head's document."""
    key = conversation_key(record.workspace_id, record.conversation_id)
    folded = "\n".join((record.title, record.subtitle, *record.tags)).casefold()
    return _document(record) | {"_id": key, "live": record.state != "deleted", "folded": folded}


def turn_document(record: TurnRecord) -> Document:
    """The turn's document."""
    key = turn_key(record.workspace_id, record.conversation_id, record.position)
    folded = "\n".join((record.prompt, *record.steers)).casefold()
    added = {"_id": key, "live": True, "is_visible": record.is_visible, "folded": folded}
    return _document(record) | added


def variant_document(record: VariantRecord) -> Document:
    """The variant's document."""
    key = turn_key(record.workspace_id, record.conversation_id, record.position)
    added: Document = {"_id": {**key, "number": record.number}, "live": True}
    if record.status in UNFINISHED:
        added["is_unfinished"] = True
    return _document(record) | added | {"folded": (record.content or "").casefold()}


def receipt_document(record: MessageReceipt) -> Document:
    """The receipt's document."""
    key = receipt_key(record.workspace_id, record.conversation_id, record.message_id)
    return _document(record) | {"_id": key}


def _document(record: Any) -> Document:  # noqa: ANN401 - a record of ours
    return {name: _encoded(value) for name, value in asdict(record).items() if value is not None}


def _encoded(value: Any) -> Any:  # noqa: ANN401 - any BSON value
    if isinstance(value, datetime):
        return microseconds(value)
    return list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def record_of(kind: type[Record], document: Document) -> Record:
    """The record that a document holds."""
    decoders = _FIELDS[kind]
    return kind(
        **{
            name: value if (decode := decoders[name]) is None else decode(value)
            for name, value in document.items()
            if name in decoders
        }
    )
