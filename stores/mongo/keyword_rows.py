"""Rows of the keyword index: one for each field that a conversation shows, and one for its title.

A row lies in a lane, by its conversation. Each transaction that changes rows of a lane takes the
lane's next number and writes it into them, so the numbers of a lane ascend as its transactions were
committed: who has read a lane up to a number finds all that changed since behind it, and nothing
is ever missed. Lanes are many, so that conversations of a workspace rarely wait for each other.

A row does not name its conversation's public id: rows of a long fork are there before its head is.
A field that is no longer shown leaves a row without `live` and without lexemes, which says so.
"""

import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from bson import Int64, MaxKey

from stores.conversation_records import ConversationRecord
from stores.keyword.fields import TITLE_POSITION
from stores.keyword.lexer import LEXER_ID
from stores.keyword.queries import KeywordField
from stores.mongo.documents import Document
from stores.search.counting import term_key

ROWS = "keyword_rows"
LANES = "keyword_lanes"
STATE = "keyword_state"

WHOLE: Document = {"_id": "index", "lexer": LEXER_ID, "is_complete": True}
"""In the state: rows are there for all that conversations show, with lexemes of this lexer."""

LANE_COUNT = 32

MOST_LEXEMES = 20_000
"""In one document: each is an entry in an index, and some 18 bytes. What has more gets parts."""

_SIGN = 1 << 63
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Candidate:
    """A field that holds all lexemes, as the index has it.

    `number` is of the answer that the turn showed, 0 for a title.
    """

    order_id: str
    field: KeywordField
    conversation_id: str
    position: int
    number: int


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A lane in a transaction that changes it, with the number that it took."""

    index: int
    sequence: int


def lane_of(conversation_id: str) -> int:
    """The lane of a conversation's rows. Frozen: rows have it."""
    return zlib.crc32(conversation_id.encode()) % LANE_COUNT


def lexeme_key(lexeme: str) -> int:
    """What is kept of a lexeme: 64 bits of its hash, signed, as MongoDB has numbers."""
    number = term_key(lexeme)
    return number - 2 * _SIGN if number >= _SIGN else number


def keys_of(lexemes: Iterable[str]) -> list[Int64]:
    """The keys of lexemes, ascending."""
    return [Int64(each) for each in sorted(map(lexeme_key, lexemes))]


def text_version(text: str) -> bytes:
    """Tells one text from another, and lexemes of one lexer from another's."""
    found = hashlib.blake2b(
        f"{LEXER_ID}\n{text}".encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES
    )
    return found.digest()


def row_key(
    workspace_id: str, conversation_id: str, position: int, name: KeywordField, part: int = 0
) -> Document:
    """The `_id` of a row."""
    return {
        "workspace_id": workspace_id,
        "conversation_id": conversation_id,
        "position": position,
        "field": name,
        "part": part,
    }


def title_key(workspace_id: str, conversation_id: str) -> Document:
    """The `_id` of a conversation's title row."""
    return row_key(workspace_id, conversation_id, TITLE_POSITION, "title")


def of_positions(
    workspace_id: str, conversation_id: str, first: int = 0, last: int | None = None
) -> Document:
    """A query for the rows of a conversation's turns, by `_id`; all by default."""
    key: Document = {"workspace_id": workspace_id, "conversation_id": conversation_id}
    end = MaxKey() if last is None else last + 1
    within = {"$gte": {**key, "position": first}, "$lt": {**key, "position": end}}
    return {"_id": within, "workspace_id": workspace_id}


def of_lanes(workspace_id: str) -> Document:
    """A query for the lanes of a workspace, by `_id`."""
    key: Document = {"workspace_id": workspace_id}
    return {"_id": {"$gte": key, "$lt": {**key, "lane": MaxKey()}}}


def parts_of(key: Document, first: int = 0) -> Document:
    """A query for a row with its parts, by `_id`."""
    within = {"$gte": {**key, "part": first}, "$lt": {**key, "part": MaxKey()}}
    return {"_id": within, "workspace_id": key["workspace_id"]}


def row_document(key: Document, lane: Lane) -> Document:
    """A row that shows nothing: what all rows have."""
    return {"_id": key, **key, "lane": lane.index, "sequence": Int64(lane.sequence)}


def facts_of(head: ConversationRecord) -> Document:
    """What a search asks of a conversation, as its title row has it."""
    return {
        "public_id": head.public_id,
        "is_archived": head.is_archived,
        "is_auxiliary": head.kind != "main",
        "is_deleted": head.state == "deleted",
        "owner": head.principal,
    }


def candidate_of(document: Document) -> Candidate:
    """What a row says of the field that it is about."""
    return Candidate(
        document["order_id"],
        document["field"],
        document["conversation_id"],
        document["position"],
        document["number"],
    )
