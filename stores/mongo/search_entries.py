"""What the messages of a log hold: blocks as they were read, and postings once they are worth it.

A first search looks for its terms in the blocks, which takes less time than to make postings of
them. From the second one on there are postings, and blocks only of what came since.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stores.mongo.search_postings import Column, Postings
from stores.mongo.search_terms import Array, TermBlock, is_readable, line_of, spelled
from stores.search.counting import term_key

_FEW_POSTINGS = 20_000
"""That are made in a few milliseconds."""


class SearchedEntries:
    """The terms of a log's messages. Entries count the messages, from 0.

    Args:
        only: keep what holds these terms and drop the rest: for a search that remembers nothing.
    """

    def __init__(self, only: Sequence[str] | None = None) -> None:
        self._only = None if only is None else list(map(line_of, only))
        self._only_keys = [term_key(spelled(each)) for each in only or ()]
        self._blocks: list[TermBlock] = []
        self._postings = Postings()
        self._lengths = Column(np.int64)
        self._size_of_blocks = 0
        self._has_own = False

    @property
    def size_bytes(self) -> int:
        """Of all that is kept."""
        return self._size_of_blocks + self._postings.size_bytes + self._lengths.size_bytes

    @property
    def lengths(self) -> Array:
        """Terms of each entry."""
        return self._lengths.values

    def take(self, document: Mapping[str, Any], *, includes_own: bool) -> None:
        """Take in an append or a segment, inflated. Terms packed in another way are left out."""
        if "terms" not in document or not is_readable(document["analyzer"]):
            return
        first = len(self._lengths.values)
        blocks = [TermBlock(document["terms"], first)]
        lengths = blocks[0].lengths
        if includes_own and "own_terms" in document:
            blocks.append(TermBlock(document["own_terms"], first))
            lengths = lengths + blocks[1].lengths
            self._has_own = True
        self._lengths.append(lengths)
        for block in blocks:
            if self._only is None:
                self._blocks.append(block)
                self._size_of_blocks += block.size_bytes
            else:
                self._keep_only(block, self._only)

    def _keep_only(self, block: TermBlock, only: Sequence[bytes]) -> None:
        for term, entries, counts in block.find(only):
            key = self._only_keys[term]
            self._postings.append(np.full(len(entries), key, np.uint64), entries, counts)

    def find(self, terms: Sequence[str]) -> list[tuple[Array, Array]]:
        """The entries with each term and how often each holds it; each entry once, in any order."""
        found = [[self._postings.find(term_key(spelled(each)))] for each in terms]
        wanted = list(map(line_of, terms))
        for block in self._blocks:
            for term, entries, counts in block.find(wanted):
                found[term].append((entries, counts))
        return [self._joined(each) for each in found]

    def _joined(self, found: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
        entries, counts = (np.concatenate(each) for each in zip(*found, strict=True))
        if not self._has_own:
            return entries, counts
        # A message that holds a word in its text and in a call of the search has it in both.
        entries, at = np.unique(entries, return_inverse=True)
        return entries, np.bincount(at, counts, len(entries)).astype(np.int64)

    @property
    def is_long_to_unpack(self) -> bool:
        """Whether `unpack` takes more than a few milliseconds."""
        return self._size_of_blocks > 2 * _FEW_POSTINGS or self._postings.is_worth_sorting

    def unpack(self) -> None:
        """Make postings of all blocks, and sort them where there are many."""
        blocks, self._blocks, self._size_of_blocks = self._blocks, [], 0
        if blocks:
            keys, entries, counts = zip(*(each.postings() for each in blocks), strict=True)
            self._postings.append(
                np.concatenate(keys), np.concatenate(entries), np.concatenate(counts)
            )
        if self._postings.is_worth_sorting:
            self._postings.sort()
