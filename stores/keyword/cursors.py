"""Cursors of keyword search: a place in the order, and a seal that says whose it is.

The place is of a match that its holder was shown. The seal is an HMAC over place, workspace,
principal, query and version, under a key that the database keeps: what was edited, made for
another query or principal, or by a version that ordered matches otherwise is refused.
"""

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass
from uuid import UUID

from stores.keyword.queries import (
    ConversationFilter,
    InvalidParameterError,
    KeywordField,
    KeywordQuery,
)

CURSOR_VERSION = 1
"""Of the order and of what a cursor holds."""

_SEAL_BYTES = 16
_PLACE_BYTES = 33
_FIELDS: tuple[KeywordField, ...] = ("content", "prompt", "steers", "title")


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """Where a match is in the order: matches come with their places descending.

    Args:
        order_id: public id of the turn, or of the conversation for a title.
        public_id: public id of the conversation.
        field: name of the field.
    """

    order_id: str
    public_id: str
    field: KeywordField


@dataclass(frozen=True, kw_only=True)
class CursorSealer:
    """Seals and opens the cursors of one search.

    Args:
        key: secret of the database.
        workspace_id: of the search.
        query: of the search.
        allowed: says whose search it is.
    """

    key: bytes
    workspace_id: str
    query: KeywordQuery
    allowed: ConversationFilter

    def seal(self, place: Place) -> str:
        """The cursor behind a match."""
        held = _held(place)
        return base64.urlsafe_b64encode(held + self._seal_of(held)).decode().rstrip("=")

    def open(self, cursor: str) -> Place:
        """The place that a cursor holds.

        Raises:
            InvalidParameterError: it is not one of this search.
        """
        problem = "it is no cursor of this search; send next_after of the page before, as it was"
        try:
            padded = cursor + "=" * (-len(cursor) % 4)
            data = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
        except (ValueError, binascii.Error) as error:
            raise InvalidParameterError(parameter="after", problem=problem) from error
        held, seal = data[:_PLACE_BYTES], data[_PLACE_BYTES:]
        is_ours = hmac.compare_digest(seal, self._seal_of(held))
        if not is_ours or base64.urlsafe_b64encode(data).decode().rstrip("=") != cursor:
            raise InvalidParameterError(parameter="after", problem=problem)
        return _place(held)

    def _seal_of(self, held: bytes) -> bytes:
        sealed = json.dumps(
            [
                CURSOR_VERSION,
                self.workspace_id,
                self.allowed.principal,
                self.query.lexemes,
                self.query.archived,
                self.query.include_auxiliary,
                held.hex(),
            ]
        )
        return hmac.new(self.key, sealed.encode(), hashlib.sha256).digest()[:_SEAL_BYTES]


def _held(place: Place) -> bytes:
    ids = UUID(place.order_id).bytes + UUID(place.public_id).bytes
    return ids + bytes([_FIELDS.index(place.field)])


def _place(held: bytes) -> Place:
    ids = [str(UUID(bytes=held[start : start + 16])) for start in (0, 16)]
    return Place(ids[0], ids[1], _FIELDS[held[32]])
