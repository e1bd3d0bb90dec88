"""The counted terms of an append or several, packed into a few bytes, and read from them.

All terms of the messages are spelled out once, sorted, a line each; messages hold numbers of lines
and how often. Deflated, that takes a third of the room of 64-bit keys for what people and programs
write. A term can be looked for without unpacking anything: it is a line of the text.

Before the text, little-endian: `_HEAD`; for each message how many terms it has and how many
different ones, 4 bytes each; for each of those the distance of its line to the one before it, 2
bytes or 4; likewise how often it is there, 1 byte or 4.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stores.mongo.documents import Document
from stores.search.counting import CountedTerms, term_key

_FORMAT = "/2"
"""Of what is packed, behind the analyzer's id. What has none is of keys, and no longer read."""

LONGEST_SPELLED = 40
"""Characters of a term that is spelled out; of a longer one its key is: mostly it is no word."""

_HEAD = struct.Struct("<BII")
"""Flags, messages, different terms of all messages together."""

_WIDE_LINES, _WIDE_COUNTS = 1, 2
_MOST_LINES, _MOST_COUNTED = 1 << 16, 1 << 8

Array = NDArray[Any]


def terms_id(analyzer_id: str) -> str:
    """What the log keeps with terms: who made them, and how they are packed."""
    return analyzer_id + _FORMAT


def is_readable(kept: str) -> bool:
    """Whether terms with that id are packed as here."""
    return kept.endswith(_FORMAT)


def spelled(term: str) -> str:
    """A term as it is kept; no term has a `=`."""
    return term if len(term) <= LONGEST_SPELLED else f"={term_key(term):x}"


def packed(documents: Sequence[CountedTerms]) -> bytes:
    """The counted terms of several messages."""
    counted = [{spelled(term): n for term, n in each.counts.items()} for each in documents]
    terms = sorted({term for each in counted for term in each})
    line = {term: number for number, term in enumerate(terms)}
    lines: list[int] = []
    counts: list[int] = []
    for each in counted:
        found = sorted((line[term], count) for term, count in each.items())
        lines += (number for number, _ in found)
        counts += (count for _, count in found)
    return _written(
        terms,
        lengths=np.array([each.length for each in documents], "<u4"),
        sizes=np.array([len(each) for each in counted], "<u4"),
        lines=np.array(lines, "<u4"),
        counts=np.array(counts, "<u4"),
    )


def joined(parts: Iterable[tuple[bytes | None, int]]) -> bytes:
    """The counted terms of all messages of several appends.

    Args:
        parts: what `packed` made of each, or `None` when none of its messages has a term; and how
            many messages they are.
    """
    blocks = [(TermBlock(zlib.decompress(data), 0) if data else None, n) for data, n in parts]
    spelled_out = {id(block): block.terms() for block, _ in blocks if block}
    terms = sorted(set[str]().union(*spelled_out.values()))
    line = {term: number for number, term in enumerate(terms)}
    nothing = np.zeros(0, "<u4")
    columns: list[tuple[Array, ...]] = []
    for block, count in blocks:
        if block is None:
            columns.append((np.zeros(count, "<u4"), np.zeros(count, "<u4"), nothing, nothing))
            continue
        numbers = np.array([line[each] for each in spelled_out[id(block)]], "<u4")
        columns.append((block.lengths, block.sizes, numbers[block.lines], block.counts))
    lengths, sizes, lines, counts = map(np.concatenate, zip(*columns, strict=True))
    return _written(terms, lengths=lengths, sizes=sizes, lines=lines, counts=counts)


def _written(
    terms: Sequence[str], *, lengths: Array, sizes: Array, lines: Array, counts: Array
) -> bytes:
    wide_lines = len(terms) > _MOST_LINES
    wide_counts = counts.max(initial=0) >= _MOST_COUNTED
    flags = wide_lines * _WIDE_LINES | wide_counts * _WIDE_COUNTS
    # Distances may be below 0, from one message to the next; they wrap, and so do their sums.
    distances = np.diff(lines.astype("<u4" if wide_lines else "<u2"), prepend=0)
    body = (
        _HEAD.pack(flags, len(lengths), len(lines)),
        lengths.astype("<u4").tobytes(),
        sizes.astype("<u4").tobytes(),
        distances.astype("<u4" if wide_lines else "<u2").tobytes(),
        counts.astype("<u4" if wide_counts else "u1").tobytes(),
        "\n".join(["", *terms, ""]).encode(errors="surrogatepass"),
    )
    return zlib.compress(b"".join(body))


def inflated(document: Document) -> Document:
    """An append or segment with its terms inflated, as a view takes it."""
    for name in ("terms", "own_terms"):
        if name in document:
            document[name] = zlib.decompress(document[name])
    return document


class TermBlock:
    """The counted terms of an append or segment, in memory.

    Args:
        data: what `packed` made, inflated.
        first: the entry of its first message; the others follow.
    """

    __slots__ = ("_counts_at", "_data", "_flags", "_size", "_text_at", "count", "first")

    def __init__(self, data: bytes, first: int) -> None:
        self._data = data
        self._flags, self.count, self._size = _HEAD.unpack_from(self._data)
        self.first = first
        lines_at = _HEAD.size + 8 * self.count
        self._counts_at = lines_at + self._size * (4 if self._flags & _WIDE_LINES else 2)
        self._text_at = self._counts_at + self._size * (4 if self._flags & _WIDE_COUNTS else 1)

    @property
    def size_bytes(self) -> int:
        """Of what is in memory."""
        return len(self._data)

    @property
    def lengths(self) -> Array:
        """How many terms each message has."""
        return np.frombuffer(self._data, "<u4", self.count, _HEAD.size)

    @property
    def sizes(self) -> Array:
        """How many different terms each message has."""
        return np.frombuffer(self._data, "<u4", self.count, _HEAD.size + 4 * self.count)

    @property
    def lines(self) -> Array:
        """Of each message in turn, the numbers of its terms among all, ascending."""
        kind = "<u4" if self._flags & _WIDE_LINES else "<u2"
        distances = np.frombuffer(self._data, kind, self._size, _HEAD.size + 8 * self.count)
        return distances.cumsum(dtype=kind)

    @property
    def counts(self) -> Array:
        """How often each of those is there."""
        kind = "<u4" if self._flags & _WIDE_COUNTS else "u1"
        return np.frombuffer(self._data, kind, self._size, self._counts_at)

    def terms(self) -> list[str]:
        """All different terms, as they are spelled, sorted."""
        text = self._data[self._text_at + 1 : -1].decode(errors="surrogatepass")
        return text.split("\n") if text else []

    def find(self, wanted: Sequence[bytes]) -> Iterator[tuple[int, Array, Array]]:
        """Which of some terms are here, the entries with each, and how often each holds it.

        Args:
            wanted: `line_of` each term. A term is named by its place among them.
        """
        at = [self._data.find(each, self._text_at) for each in wanted]
        if max(at, default=-1) < 0:
            return
        lines, counts, ends = self.lines, self.counts, np.cumsum(self.sizes)
        for term, start in enumerate(at):
            if start >= 0:
                number = self._data.count(b"\n", self._text_at, start)
                places: Array = np.flatnonzero(lines == number)
                entries = self.first + np.searchsorted(ends, places, side="right")
                yield term, entries, counts[places]

    def postings(self) -> tuple[Array, Array, Array]:
        """Key, entry and count of each term of each message."""
        keys = np.array(list(map(term_key, self.terms())), np.uint64)
        entries = np.arange(self.first, self.first + self.count, dtype=np.int32)
        return keys[self.lines], np.repeat(entries, self.sizes), self.counts


def line_of(term: str) -> bytes:
    """What to look for in the text of a block."""
    return f"\n{spelled(term)}\n".encode(errors="surrogatepass")
