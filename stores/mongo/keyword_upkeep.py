"""Keeping the rows of the keyword index: in the transaction that changes what a conversation shows.

Rows follow the words that are shown, whatever the operation was: at the end of its transaction the
turns that it wrote are compared with the rows that are there. Long texts would hold a transaction
up; of them it writes only that their lexemes are pending, and `settle_pending` writes those behind
it, as do searches, whoever comes first.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bson import Int64
from pymongo import DeleteMany, ReplaceOne, ReturnDocument
from pymongo.asynchronous.client_session import AsyncClientSession

from stores.conversation_records import ConversationRecord, Turn, TurnRecord, VariantRecord
from stores.conversation_rows import ConversationRows, with_variants
from stores.keyword.fields import FieldText, fields_of
from stores.keyword.lexer import lexemes
from stores.keyword.queries import KeywordField
from stores.mongo.client import Database
from stores.mongo.documents import Document
from stores.mongo.keyword_rows import (
    LANES,
    MOST_LEXEMES,
    ROWS,
    Lane,
    facts_of,
    keys_of,
    lane_of,
    of_positions,
    parts_of,
    row_document,
    row_key,
    text_version,
    title_key,
)

MOST_CHARACTERS = 100_000
"""Whose lexemes one transaction writes: some 30 ms of its five seconds."""

_LONG_TEXT = 20_000
"""Characters that are read in a thread."""

_FIELDS: tuple[KeywordField, ...] = ("prompt", "steers", "content")
_KNOWN = {"version": 1, "number": 1, "parts": 1, "live": 1, "pending": 1}

_Rows = Mapping[tuple[int, KeywordField], Document]


@dataclass(kw_only=True)
class KeywordUpkeep:
    """What one transaction has read and written of conversations, and what follows for the rows.

    Args:
        database: of the rows.
        session: of the transaction.
        workspace_id: of the conversations.
        is_forced: write rows also where they seem to be right.
    """

    database: Database
    session: AsyncClientSession
    workspace_id: str
    is_forced: bool = False
    has_pending: bool = False
    """Whether lexemes were left to `settle_pending`."""
    _found: dict[str, ConversationRecord | None] = field(
        default_factory=dict[str, ConversationRecord | None]
    )
    _found_turns: dict[tuple[str, int], TurnRecord] = field(
        default_factory=dict[tuple[str, int], TurnRecord]
    )
    _found_variants: dict[tuple[str, int, int], VariantRecord] = field(
        default_factory=dict[tuple[str, int, int], VariantRecord]
    )
    _heads: dict[str, ConversationRecord] = field(default_factory=dict[str, ConversationRecord])
    _turns: dict[str, dict[int, TurnRecord | None]] = field(
        default_factory=dict[str, dict[int, TurnRecord | None]]
    )
    _variants: dict[tuple[str, int, int], VariantRecord] = field(
        default_factory=dict[tuple[str, int, int], VariantRecord]
    )
    _left: int = MOST_CHARACTERS

    def found_head(self, conversation_id: str, head: ConversationRecord | None) -> None:
        """Hear of a head as it was before the transaction."""
        self._found.setdefault(conversation_id, head)

    def found_turn(self, turn: TurnRecord) -> None:
        """Hear of a turn as it is stored; what the transaction wrote itself is no news."""
        if turn.position not in self._turns.get(turn.conversation_id, {}):
            self._found_turns[turn.conversation_id, turn.position] = turn

    def found_variant(self, variant: VariantRecord) -> None:
        """The same of a variant."""
        place = (variant.conversation_id, variant.position, variant.number)
        if place not in self._variants:
            self._found_variants[place] = variant

    def put_head(self, head: ConversationRecord) -> None:
        """Hear of a head as it is now."""
        self._heads[head.conversation_id] = head

    def put_turn(self, turn: TurnRecord) -> None:
        """Hear of a turn as it is now."""
        self._turns.setdefault(turn.conversation_id, {})[turn.position] = turn

    def note_turns(self, conversation_id: str, positions: Iterable[int]) -> None:
        """Look at the rows of these turns, whether they were written or not."""
        self._turns.setdefault(conversation_id, {}).update(dict.fromkeys(positions))

    def put_variant(self, variant: VariantRecord) -> None:
        """Hear of a variant as it is now. One that only began to run says nothing new."""
        place = variant.conversation_id, variant.position
        self._variants[*place, variant.number] = variant
        if variant.status != "running":
            self._turns.setdefault(place[0], {}).setdefault(place[1], None)

    async def flush(self, rows: ConversationRows) -> None:
        """Write what follows, once, at the end of the transaction."""
        for conversation_id in sorted({*self._heads, *self._turns}):
            head = self._heads.get(conversation_id)
            found = self._found.get(conversation_id)
            is_same = head is None or (found is not None and _named(head) == _named(found))
            title = None if is_same and not self.is_forced else head
            turns = self._turns.get(conversation_id, {})
            writes = _Writes(title)
            if turns:
                await self._compare(rows, conversation_id, turns, writes)
            await self._write(conversation_id, writes)

    async def _compare(
        self,
        rows: ConversationRows,
        conversation_id: str,
        positions: Mapping[int, TurnRecord | None],
        writes: "_Writes",
    ) -> None:
        """Find the rows of these turns that are not as they should be."""
        turns = await self._joined(rows, conversation_id, positions)
        known = self._as_read(turns)
        if known is None:
            known = await self._known(conversation_id, positions)
        for turn in turns:
            shown = {each.field: each for each in fields_of(turn)}
            for name in _FIELDS:
                kept = known.get((turn.record.position, name), {})
                if name in shown:
                    if _is_kept(kept, turn, shown[name]) and not self.is_forced:
                        continue
                    writes.shown.append((turn, shown[name]))
                    writes.note_replaced(kept, turn)
                elif kept.get("live") or kept.get("pending"):
                    writes.gone.append((turn.record.position, name))
                if kept.get("pending") or kept.get("parts", 1) > 1:
                    writes.in_parts.append((turn.record.position, name))
        if writes.rewritten and not self.is_forced:
            await self._follow_forks(rows, conversation_id, writes.rewritten)

    async def _joined(
        self,
        rows: ConversationRows,
        conversation_id: str,
        positions: Mapping[int, TurnRecord | None],
    ) -> list[Turn]:
        """The turns with their selected answers: from what was just written, or read again."""
        at_hand: list[Turn] = []
        for position, turn in positions.items():
            if turn is None or turn.is_inherited:
                break
            active = self._variants.get((conversation_id, position, turn.active_variant))
            if active is None:
                break
            at_hand.append(Turn(record=turn, variants=(active,)))
        else:
            return at_hand
        first, last = min(positions), max(positions)
        found = await rows.list_turns(
            conversation_id,
            after=first - 1,
            before=last + 1,
            limit=last - first + 1,
            newest_first=False,
        )
        wanted = [each for each in found if each.position in positions]
        return await with_variants(rows, conversation_id, wanted)

    def _as_read(self, turns: Sequence[Turn]) -> _Rows | None:
        """The rows that there must be by what was read of these turns, where nothing goes.

        `None`: words that were shown change or go, or not everything was read; then the rows have
        to be looked at.
        """
        if self.is_forced:
            return None
        rows: dict[tuple[int, KeywordField], Document] = {}
        for turn in turns:
            place = turn.record.conversation_id, turn.record.position
            old = self._found_turns.get(place)
            if old is None or old.is_inherited:
                return None
            active = self._found_variants.get((*place, old.active_variant))
            if active is None or old.active_variant != turn.record.active_variant:
                return None
            shown = {each.field: each for each in fields_of(turn)}
            for each in fields_of(Turn(record=old, variants=(active,))):
                if shown.get(each.field) != each:
                    return None
                rows[place[1], each.field] = {
                    "number": old.active_variant,
                    "version": text_version(each.text),
                    "live": True,
                }
        return rows

    async def _known(
        self, conversation_id: str, positions: Mapping[int, TurnRecord | None]
    ) -> _Rows:
        """The rows of these turns, without lexemes."""
        first, last = min(positions), max(positions)
        if conversation_id in self._found:
            before = self._found[conversation_id]
            if (before.turn_count if before else 0) <= first and not self.is_forced:
                return {}  # they are new
        query = of_positions(self.workspace_id, conversation_id, first, last)
        found = self.database[ROWS].find(query, _KNOWN, session=self.session)
        return {
            (each["_id"]["position"], each["_id"]["field"]): each
            for each in await found.to_list()
            if each["_id"]["part"] == 0
        }

    async def _follow_forks(
        self, rows: ConversationRows, conversation_id: str, positions: Sequence[int]
    ) -> None:
        """Let forks follow where the words of an answer themselves became others (`rebuild`)."""
        query = {
            "workspace_id": self.workspace_id,
            "source_conversation_id": conversation_id,
            "position": {"$in": list(positions)},
        }
        shown = {"conversation_id": 1, "position": 1}
        found = self.database["turns"].find(query, shown, session=self.session)
        forks: dict[str, dict[int, TurnRecord | None]] = {}
        for each in await found.to_list():
            forks.setdefault(each["conversation_id"], {})[each["position"]] = None
        for fork, inherited in forks.items():
            writes = _Writes(None)
            await self._compare(rows, fork, inherited, writes)
            await self._write(fork, writes)

    async def _write(self, conversation_id: str, writes: "_Writes") -> None:
        if writes.is_empty:
            return
        lane = await next_in_lane(self.database, self.session, self.workspace_id, conversation_id)
        documents: list[Document] = []
        if writes.title is not None:
            documents.append(title_document(writes.title, lane))
        for turn, text in writes.shown:
            documents.append(await self._shown(turn, text, lane))
        for position, name in writes.gone:
            key = row_key(self.workspace_id, conversation_id, position, name)
            documents.append(row_document(key, lane))
        changed: list[ReplaceOne[Document] | DeleteMany] = [
            ReplaceOne({"_id": each["_id"], "workspace_id": self.workspace_id}, each, upsert=True)
            for each in documents
        ]
        for position, name in writes.in_parts:
            key = row_key(self.workspace_id, conversation_id, position, name)
            changed.append(DeleteMany(parts_of(key, 1)))
        if changed:
            await self.database[ROWS].bulk_write(changed, session=self.session)

    async def _shown(self, turn: Turn, text: FieldText, lane: Lane) -> Document:
        record = turn.record
        key = row_key(self.workspace_id, record.conversation_id, record.position, text.field)
        document = row_document(key, lane) | {
            "version": text_version(text.text),
            "number": record.active_variant,
            "order_id": record.public_id,
        }
        self._left -= len(text.text)
        if self._left >= 0:
            found = await lexemes_of(text.text)
            if len(found) <= MOST_LEXEMES:
                return document | {"live": True, "parts": 1, "lexemes": keys_of(found)}
        self.has_pending = True
        return document | {"pending": True}


@dataclass
class _Writes:
    """What is to be written of one conversation."""

    title: ConversationRecord | None
    shown: list[tuple[Turn, FieldText]] = field(default_factory=list[tuple[Turn, FieldText]])
    gone: list[tuple[int, KeywordField]] = field(default_factory=list[tuple[int, KeywordField]])
    in_parts: list[tuple[int, KeywordField]] = field(default_factory=list[tuple[int, KeywordField]])
    rewritten: list[int] = field(default_factory=list[int])
    """Positions where the words of an answer changed, and not the choice of it."""

    @property
    def is_empty(self) -> bool:
        return self.title is None and not (self.shown or self.gone)

    def note_replaced(self, kept: Document, turn: Turn) -> None:
        is_other_text = kept.get("number") == turn.record.active_variant
        if is_other_text and turn.record.status != "running":
            self.rewritten.append(turn.record.position)


def _is_kept(kept: Document, turn: Turn, text: FieldText) -> bool:
    return kept.get("number") == turn.record.active_variant and kept.get("version") == text_version(
        text.text
    )


def _named(head: ConversationRecord) -> Document:
    return facts_of(head) | {"title": head.title}


async def next_in_lane(
    database: Database, session: AsyncClientSession, workspace_id: str, conversation_id: str
) -> Lane:
    """Take the next number of a conversation's lane."""
    lane = lane_of(conversation_id)
    found: Any = await database[LANES].find_one_and_update(
        {"_id": {"workspace_id": workspace_id, "lane": lane}},
        {"$inc": {"sequence": Int64(1)}},
        upsert=True,
        return_document=ReturnDocument.AFTER,
        session=session,
    )
    return Lane(index=lane, sequence=int(found["sequence"]))


async def bury_rows(
    database: Database, session: AsyncClientSession, heads: Sequence[ConversationRecord]
) -> None:
    """Let searches pass over conversations that are deleted; their other rows may go at any time.

    Args:
        database: of the rows.
        session: of the transaction.
        heads: at least one, of one workspace.
    """
    lanes: dict[int, Lane] = {}  # a number serves all rows that one transaction writes in its lane
    for each in sorted(heads, key=lambda head: lane_of(head.conversation_id)):
        index = lane_of(each.conversation_id)
        if index not in lanes:
            place = each.workspace_id, each.conversation_id
            lanes[index] = await next_in_lane(database, session, *place)
    documents = [title_document(each, lanes[lane_of(each.conversation_id)]) for each in heads]
    changes = [
        ReplaceOne({"_id": each["_id"], "workspace_id": each["workspace_id"]}, each, upsert=True)
        for each in documents
    ]
    await database[ROWS].bulk_write(changes, session=session)


def title_document(head: ConversationRecord, lane: Lane) -> Document:
    """The title row of a conversation, which tells also whether it is searched at all."""
    found = lexemes(head.title)
    return row_document(title_key(head.workspace_id, head.conversation_id), lane) | {
        "facts": facts_of(head),
        "version": text_version(head.title),
        "number": 0,
        "order_id": head.public_id,
        "live": True,
        "parts": 1,
        "lexemes": keys_of(found),
    }


async def lexemes_of(text: str) -> set[str]:
    """The lexemes of a text that may be long."""
    if len(text) > _LONG_TEXT:
        return await asyncio.to_thread(lexemes, text)
    return lexemes(text)
