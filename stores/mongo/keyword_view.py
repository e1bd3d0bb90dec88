"""The rows of a workspace in memory: postings, and for each row what a search filters and sorts by.

A row that changes becomes another entry; its old one is dead. Entries are numbered as they came.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from stores.keyword.cursors import Place
from stores.keyword.queries import ConversationFilter, KeywordField, KeywordQuery
from stores.mongo.keyword_rows import Candidate
from stores.mongo.search_postings import Column, Postings

_FIELDS: tuple[KeywordField, ...] = ("content", "prompt", "steers", "title")

_ARCHIVED, _AUXILIARY, _CLOSED = 1, 2, 4
"""Bits of a conversation. Closed: it was deleted, or its title row has not been read."""

_BYTES_PER_ENTRY = 160
"""Of what is not in arrays: the place of a row in a dictionary."""

_BYTES_PER_CONVERSATION = 500

_LEAST_SORTED = 50_000
"""Postings from which sorting what came lately pays."""

_MOST_DEAD = 20_000

_HALF = (1 << 64) - 1

Entries = NDArray[Any]


class KeywordView:
    """What was read of a workspace, by the number up to which each lane was read."""

    def __init__(self) -> None:
        self.until: dict[int, int] = {}
        self.pending: set[tuple[int, int, str]] = set()
        """Rows whose lexemes are still to come."""
        self._postings = Postings()
        self._unsorted = 0
        self._dead = 0
        self._entries: dict[tuple[int, int, str], int] = {}
        self._alive, self._field = Column(np.bool_), Column(np.uint8)
        self._high, self._low = Column(np.uint64), Column(np.uint64)
        self._conversation, self._position = Column(np.int32), Column(np.int32)
        self._number = Column(np.int32)
        self._bits = Column(np.uint8)
        self._ids: list[str] = []
        self._public_ids: list[str] = []
        self._numbers: dict[str, int] = {}
        self._owned: dict[str | None, set[int]] = {}
        self._owners: list[str | None] = []

    @property
    def size_bytes(self) -> int:
        """Of everything, about."""
        columns = (
            self._alive,
            self._field,
            self._high,
            self._low,
            self._conversation,
            self._position,
            self._number,
            self._bits,
        )
        arrays = self._postings.size_bytes + sum(each.size_bytes for each in columns)
        dictionaries = _BYTES_PER_ENTRY * len(self._entries)
        return arrays + dictionaries + _BYTES_PER_CONVERSATION * len(self._ids)

    @property
    def is_mostly_dead(self) -> bool:
        """Whether reading it anew would make it much smaller."""
        return self._dead > max(_MOST_DEAD, len(self._entries))

    @property
    def is_worth_sorting(self) -> bool:
        """Whether so much came since it was sorted that finding takes long."""
        return self._unsorted > _LEAST_SORTED

    def sort(self) -> None:
        """Sort the postings: half a second for 100,000 rows, so in a thread."""
        self._postings.sort()
        self._unsorted = 0

    # Reading rows

    def take(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Take rows as they are now, any number of times; of one that comes twice the last."""
        fresh: list[tuple[int, Mapping[str, Any]]] = []
        rows = {
            (self._conversation_of(each["conversation_id"]), each["position"], each["field"]): each
            for each in documents
        }
        for key, document in rows.items():
            conversation = key[0]
            if document["field"] == "title":
                self._take_facts(conversation, document["facts"])
            self._bury(key)
            if document.get("pending"):
                self.pending.add(key)
            else:
                self.pending.discard(key)
            if document.get("live") and document["lexemes"]:
                self._entries[key] = len(self._alive.values) + len(fresh)
                fresh.append((conversation, document))
        self._append(fresh)

    def _bury(self, key: tuple[int, int, str]) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self._alive.values[old] = False
            self._dead += 1

    def _append(self, fresh: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        if not fresh:
            return
        first = len(self._alive.values)
        halves = [_halves(document["order_id"]) for _, document in fresh]
        self._alive.append(np.ones(len(fresh), np.bool_))
        self._high.append(np.array([each[0] for each in halves], np.uint64))
        self._low.append(np.array([each[1] for each in halves], np.uint64))
        self._conversation.append(np.array([each for each, _ in fresh], np.int32))
        for column, values in (
            (self._field, [_FIELDS.index(document["field"]) for _, document in fresh]),
            (self._position, [document["position"] for _, document in fresh]),
            (self._number, [document["number"] for _, document in fresh]),
        ):
            column.append(np.array(values, np.int32))
        sizes = [len(document["lexemes"]) for _, document in fresh]
        keys = np.array([key for _, each in fresh for key in each["lexemes"]], np.int64)
        entries = np.repeat(np.arange(first, first + len(fresh), dtype=np.int32), sizes)
        self._postings.append(keys.view(np.uint64), entries, np.ones(len(keys), np.uint32))
        self._unsorted += len(keys)

    def _conversation_of(self, conversation_id: str) -> int:
        number = self._numbers.get(conversation_id)
        if number is None:
            number = self._numbers[conversation_id] = len(self._ids)
            self._ids.append(conversation_id)
            self._public_ids.append("")
            self._owners.append(None)
            self._bits.append(np.array([_CLOSED], np.uint8))
        return number

    def _take_facts(self, conversation: int, facts: Mapping[str, Any]) -> None:
        self._public_ids[conversation] = facts["public_id"]
        self._owned.get(self._owners[conversation], set()).discard(conversation)
        self._owners[conversation] = facts["owner"]
        self._owned.setdefault(facts["owner"], set()).add(conversation)
        self._bits.values[conversation] = (
            _ARCHIVED * facts["is_archived"]
            + _AUXILIARY * facts["is_auxiliary"]
            + _CLOSED * facts["is_deleted"]
        )
        if facts["is_deleted"]:  # its rows go without a word
            self.pending = {each for each in self.pending if each[0] != conversation}

    # Searching

    def find(
        self,
        keys: Sequence[int],
        query: KeywordQuery,
        allowed: ConversationFilter,
        behind: Place | None,
        count: int,
    ) -> list[Candidate]:
        """The first rows behind a place that hold all keys and may be read, in order.

        Args:
            keys: at least one.
            query: says which conversations count.
            allowed: says which of them may be read.
            behind: where the page before ended.
            count: most rows.
        """
        found = self._with_all(keys)
        found = found[self._alive.values[found]]
        found = found[self._is_searched(query)[self._bits.values[self._conversation.values[found]]]]
        if not allowed.everything:
            found = found[self._is_allowed(allowed)[self._conversation.values[found]]]
        edge: list[Candidate] = []
        if behind is not None:
            high, low = _halves(behind.order_id)
            highs, lows = self._high.values[found], self._low.values[found]
            is_level = highs == np.uint64(high)
            on_edge = found[is_level & (lows == np.uint64(low))]
            edge = [each for each in self._candidates(on_edge) if self.place(each) < behind]
            found = found[(highs < np.uint64(high)) | (is_level & (lows < np.uint64(low)))]
        found = self._newest(found, max(1, count - len(edge)))
        listed = sorted([*edge, *self._candidates(found)], key=self.place, reverse=True)
        return listed[:count]

    def _newest(self, entries: Entries, count: int) -> Entries:
        """Those of the greatest order ids, so that none of a turn is left out that comes in."""
        if len(entries) <= count:
            return entries
        highs = self._high.values[entries]
        least = _from_the_top(highs, count)
        above, level = entries[highs > least], entries[highs == least]
        missing = count - len(above)
        if len(level) > missing:
            lows = self._low.values[level]
            level = level[lows >= _from_the_top(lows, missing)]
        return np.concatenate([above, level])

    def _with_all(self, keys: Sequence[int]) -> Entries:
        lists = sorted((self._postings.find(key)[0] for key in keys), key=len)
        found = lists[0]
        for other in lists[1:]:
            if not len(found):
                break
            at = np.searchsorted(other, found)
            at[at == len(other)] = 0
            found = found[other[at] == found]
        return found

    def _is_searched(self, query: KeywordQuery) -> NDArray[np.bool_]:
        """By a conversation's bits, whether it is searched."""
        bits = np.arange(8)
        is_searched = (bits & _CLOSED) == 0
        if not query.include_auxiliary:
            is_searched &= (bits & _AUXILIARY) == 0
        if query.archived != "include":
            is_searched &= ((bits & _ARCHIVED) != 0) == (query.archived == "only")
        return is_searched

    def _is_allowed(self, allowed: ConversationFilter) -> NDArray[np.bool_]:
        """By a conversation's number, whether it may be read."""
        is_allowed = np.zeros(len(self._ids), np.bool_)
        named = [self._numbers[each] for each in allowed.conversation_ids if each in self._numbers]
        owned = [each for owner in allowed.owners for each in self._owned.get(owner, ())]
        is_allowed[np.array([*named, *owned], np.int64)] = True
        return is_allowed

    def _candidates(self, entries: Entries) -> list[Candidate]:
        rows: list[tuple[int, int, int, int, int, int]] = list(
            zip(
                self._high.values[entries].tolist(),
                self._low.values[entries].tolist(),
                self._field.values[entries].tolist(),
                self._conversation.values[entries].tolist(),
                self._position.values[entries].tolist(),
                self._number.values[entries].tolist(),
                strict=True,
            )
        )
        return [
            Candidate(_text_of(high, low), _FIELDS[name], self._ids[of], position, number)
            for high, low, name, of, position, number in rows
        ]

    def place(self, candidate: Candidate) -> Place:
        """Where a candidate is in the order."""
        public_id = self._public_ids[self._numbers[candidate.conversation_id]]
        return Place(candidate.order_id, public_id, candidate.field)


def _halves(public_id: str) -> tuple[int, int]:
    number = UUID(public_id).int
    return number >> 64, number & _HALF


def _text_of(high: int, low: int) -> str:
    digits = f"{high << 64 | low:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _from_the_top(values: NDArray[Any], count: int) -> Any:  # noqa: ANN401 - a number of numpy's
    """The value that has `count` - 1 greater or equal ones before it."""
    place = len(values) - count
    return np.partition(values, place)[place]
