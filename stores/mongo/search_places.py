"""Where the messages of a corpus are, as arrays that grow with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stores.mongo.search_postings import Column
from stores.search.corpus import Section

_NOWHERE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """A corpus: its entries section by section, where each section starts, and back again.

    `order` has an entry's place among those of the corpus, -1 for one that is not of it; `lengths`
    how many terms each has, in the order of the corpus, and `term_count` all together. `again` has
    the further places of entries that are in two sections: a run that branched off before a change
    of instructions has what it inherited as its own. `run_count` and `skipped` are those of
    `Ranking`.
    """

    sections: list[Section]
    flat: NDArray[Any]
    order: NDArray[Any]
    lengths: NDArray[Any]
    term_count: int
    starts: NDArray[Any]
    again: tuple[tuple[int, int], ...]
    run_count: int
    skipped: int


class PlaceColumns:
    """The arrays of `Places`. What was given out stays as it is, but for `order`."""

    def __init__(self) -> None:
        self._flat = Column(np.int64)
        self._order = Column(np.int64)
        self._lengths = Column(np.int64)
        self._again: list[tuple[int, int]] = []
        self._term_count = 0

    @property
    def size(self) -> int:
        """How many entries the corpus has."""
        return len(self._flat.values)

    def grow(self, entries: Sequence[int], lengths: NDArray[Any], count: int) -> None:
        """Add entries at the end of the corpus.

        Args:
            entries: in their order.
            lengths: how many terms each entry has, of all that there are.
            count: of all that there are, in the corpus or not.
        """
        self._order.append(np.full(count - len(self._order.values), _NOWHERE))
        added = np.array(entries, np.int64)
        places = np.arange(self.size, self.size + len(added))
        self._flat.append(added)
        order = self._order.values
        is_new = order[added] == _NOWHERE
        # The first place of each is the one that `order` has, so it is written last.
        order[added[is_new][::-1]] = places[is_new][::-1]
        is_again = order[added] != places
        self._again += zip(added[is_again].tolist(), places[is_again].tolist(), strict=True)
        own = lengths[added]
        self._lengths.append(own)
        self._term_count += int(own.sum())

    def places(
        self, sections: Sequence[Section], starts: Sequence[int], *, run_count: int, skipped: int
    ) -> Places:
        """The corpus as it is now, in these sections."""
        return Places(
            sections=list(sections),
            flat=self._flat.values,
            order=self._order.values,
            lengths=self._lengths.values,
            term_count=self._term_count,
            starts=np.array(starts, np.int64),
            again=tuple(self._again),
            run_count=run_count,
            skipped=skipped,
        )
