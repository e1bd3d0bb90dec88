"""The words that candidates of a keyword search show, read when a page is filled.

Nothing is shown on the word of the index alone: a candidate counts if its turn is visible and shows
the same answer still. So a page is as current as its reads.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stores.conversation_records import ConversationRecord, Turn, TurnRecord, VariantRecord
from stores.keyword.cursors import Place
from stores.keyword.fields import FieldText, fields_of, is_searched
from stores.keyword.lexer import lexemes
from stores.keyword.queries import ConversationFilter, KeywordMatch, KeywordQuery
from stores.keyword.scanning import match_of
from stores.mongo.client import Database
from stores.mongo.conversation_documents import conversation_key, record_of, turn_key
from stores.mongo.keyword_rows import Candidate

Answer = tuple[str, int, int]
"""Conversation, position and number of an answer."""

_HEADS_WITHOUT = {"folded": 0, "settings": 0}
_TURNS_WITHOUT = {"folded": 0}


@dataclass(frozen=True, kw_only=True)
class KeywordTexts:
    """Words of the conversations of one workspace."""

    database: Database
    workspace_id: str

    async def matches(
        self,
        candidates: Sequence[Candidate],
        query: KeywordQuery,
        allowed: ConversationFilter,
    ) -> list[tuple[Place, KeywordMatch]]:
        """Those that may be read now, in order."""
        heads = await self._heads({each.conversation_id for each in candidates})
        heads = {key: each for key, each in heads.items() if is_searched(each, query, allowed)}
        readable = [each for each in candidates if each.conversation_id in heads]
        turns = await self.turns(
            (each.conversation_id, each.position, each.number)
            for each in readable
            if each.field != "title"
        )
        found: list[tuple[Place, KeywordMatch]] = []
        for each in readable:
            head = heads[each.conversation_id]
            turn = turns.get((each.conversation_id, each.position, each.number))
            text = _text_of(each, head, turn, query)
            if text is not None:
                place = Place(each.order_id, head.public_id, each.field)
                found.append((place, match_of(head, turn, text, query)))
        return sorted(found, key=lambda each: each[0], reverse=True)

    async def _heads(self, ids: set[str]) -> dict[str, ConversationRecord]:
        keys = [conversation_key(self.workspace_id, each) for each in sorted(ids)]
        found = self.database["conversations"].find({"_id": {"$in": keys}}, _HEADS_WITHOUT)
        return {
            each["conversation_id"]: record_of(ConversationRecord, each)
            for each in await found.to_list()
        }

    async def turns(self, answers: Iterable[Answer]) -> dict[Answer, Turn]:
        """Turns that show these answers, with the words; what forks inherit comes from sources.

        Costs two questions, and two more for each fork between a turn and its first conversation.
        """
        at = {each: (each[0], each[1]) for each in answers}
        shown: dict[Answer, TurnRecord] = {}
        found: dict[Answer, VariantRecord] = {}
        turns: dict[Answer, Turn] = {}
        while at:
            records, variants = await asyncio.gather(
                self._records(set(at.values())),
                self._variants({(*place, answer[2]) for answer, place in at.items()}),
            )
            sources: dict[Answer, tuple[str, int]] = {}
            for answer, place in at.items():
                record = records.get(place)
                if record is None or record.is_tombstone:
                    continue
                shown.setdefault(answer, record)
                if (*place, answer[2]) in variants:
                    found.setdefault(answer, variants[*place, answer[2]])
                if record.source_conversation_id is not None:
                    sources[answer] = (record.source_conversation_id, place[1])
                elif shown[answer].active_variant == answer[2]:
                    turns[answer] = _turn(shown[answer], record, found.get(answer))
            at = sources
        return turns

    async def _records(self, places: set[tuple[str, int]]) -> dict[tuple[str, int], TurnRecord]:
        keys = [turn_key(self.workspace_id, *each) for each in sorted(places)]
        found = self.database["turns"].find({"_id": {"$in": keys}}, _TURNS_WITHOUT)
        records = [record_of(TurnRecord, each) for each in await found.to_list()]
        return {(each.conversation_id, each.position): each for each in records}

    async def _variants(self, answers: set[Answer]) -> dict[Answer, VariantRecord]:
        keys = [
            {**turn_key(self.workspace_id, conversation, position), "number": number}
            for conversation, position, number in sorted(answers)
        ]
        found = self.database["variants"].find({"_id": {"$in": keys}}, _TURNS_WITHOUT)
        records = [record_of(VariantRecord, each) for each in await found.to_list()]
        return {(each.conversation_id, each.position, each.number): each for each in records}


def _turn(shown: TurnRecord, first: TurnRecord, active: VariantRecord | None) -> Turn:
    """As `with_variants` joins it, with the selected answer alone."""
    if shown.is_inherited:
        steers = active.steers if active else ()
        shown = replace(shown, prompt=first.prompt, steers=steers)
    return Turn(record=shown, variants=(active,) if active else ())


def _text_of(
    candidate: Candidate, head: ConversationRecord, turn: Turn | None, query: KeywordQuery
) -> FieldText | None:
    if candidate.field == "title":
        is_same = lexemes(head.title).issuperset(query.lexemes)
        return FieldText("title", head.title) if is_same else None
    shown = fields_of(turn) if turn else []
    return next((each for each in shown if each.field == candidate.field), None)
