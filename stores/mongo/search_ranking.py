"""Ranking a view: BM25 over its arrays, and the messages around the best hits.

The sums are those of `stores.search.bm25`, in the same order.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stores.mongo.search_lines import Lines, SearchLines
from stores.mongo.search_places import Places
from stores.mongo.search_view import LogView
from stores.search.bm25 import Bm25, inverse_document_frequency
from stores.search.corpus import Section
from stores.search.query import FoundMessage, Hit, Window

_FIRST_HITS = 256
"""Hits that are sorted before anybody asks for more: enough for ten windows."""


def scores_of(
    view: LogView, places: Places, terms: Sequence[str], parameters: Bm25
) -> NDArray[np.float64]:
    """The score of each entry of a corpus, in its order.

    Args:
        view: whose entries they are.
        places: of the corpus.
        terms: of the query, each once; scores are added up in this order.
        parameters: of BM25.
    """
    count = len(places.flat)
    scores = np.zeros(count)
    if not places.term_count:
        return scores
    lengths, average = places.lengths, places.term_count / count
    k1, b = parameters.k1, parameters.b
    for entries, frequencies in view.entries.find(terms):
        at = places.order[entries]
        is_there = at >= 0
        at, frequency = at[is_there], frequencies[is_there].astype(np.float64)
        if places.again:
            at, frequency = _with_further(places, entries, frequencies, at, frequency)
        idf = inverse_document_frequency(count, len(at))
        norm = k1 * (1.0 - b + b * lengths[at] / average)
        scores[at] += idf * (frequency * (k1 + 1.0)) / (frequency + norm)
    return scores


def hits_of(scores: NDArray[np.float64], starts: NDArray[Any]) -> Iterator[Hit]:
    """What has a score above 0, best first, then in the order of the corpus."""
    matching = np.flatnonzero(scores > 0)
    done = 0
    while done < len(matching):
        wanted = max(_FIRST_HITS, 8 * done)
        least = 0.0
        if wanted < len(matching):
            # All that score as the last one of them do: equals are told apart by their places.
            least = -float(np.partition(-scores[matching], wanted - 1).item(wanted - 1))
        best = matching[scores[matching] >= least]
        best = best[np.lexsort((best, -scores[best]))]
        places: list[int] = best[done:].tolist()
        for at in places:
            section = int(np.searchsorted(starts, at, side="right")) - 1
            yield Hit(section, at - int(starts[section]), float(scores[at]))
        done = len(best)


def _with_further(
    places: Places,
    entries: NDArray[Any],
    frequencies: NDArray[Any],
    at: NDArray[Any],
    frequency: NDArray[np.float64],
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Places and frequencies with the further places of these entries added."""
    held = dict(zip(entries.tolist(), frequencies.tolist(), strict=True))
    further = [(place, held[entry]) for entry, place in places.again if entry in held]
    return (
        np.concatenate([at, np.array([place for place, _ in further], at.dtype)]),
        np.concatenate([frequency, np.array([count for _, count in further], np.float64)]),
    )


class LogRanking:
    """See `Ranking`: of a view as it was when it was ranked."""

    def __init__(
        self,
        lines: SearchLines,
        view: LogView,
        places: Places,
        scores: NDArray[np.float64],
        windows: Sequence[Window],
    ) -> None:
        self._lines = lines
        self._digests = view.digests
        self._copies = view.copies
        self._places = places
        self._scores = scores
        self._found: dict[str, Lines] | None = None
        self.sections: Sequence[Section] = places.sections
        self.windows: Sequence[Window] = windows
        self.message_count = len(places.flat)
        self.run_count = places.run_count
        self.skipped = places.skipped

    async def read(self) -> dict[str, Lines]:
        """The lines of what it shows, by digest. One query, and what large texts lie elsewhere."""
        shown = {entry for each in self.windows for entry in self._entries_of(each)}
        found = await self._lines.load({self._digests[each] for each in shown})
        gone = (each for each in shown if self._digests[each] not in found)
        copies = {copy for each in gone for copy in self._copies.get(each, ())}
        self._found = found | await self._lines.load(copies) if copies else found
        return self._found

    async def messages(self) -> list[list[FoundMessage]]:
        """See `Ranking.messages`.

        A message whose run has taken it back since is shown as another run has it.
        """
        found = await self.read() if self._found is None else self._found

        def lines(entry: int) -> Lines | None:
            own = found.get(self._digests[entry])
            if own is not None:
                return own
            copies = self._copies.get(entry, ())
            return next((found[each] for each in copies if each in found), None)

        return [
            list(map(FoundMessage, map(lines, self._entries_of(each)), self._are_matches(each)))
            for each in self.windows
        ]

    def _are_matches(self, window: Window) -> list[bool]:
        are_matches: list[bool] = (self._scores[self._slice_of(window)] > 0).tolist()
        return are_matches

    def _entries_of(self, window: Window) -> list[int]:
        entries: list[int] = self._places.flat[self._slice_of(window)].tolist()
        return entries

    def _slice_of(self, window: Window) -> slice:
        start = int(self._places.starts[window.hit.section])
        return slice(start + window.start, start + window.end)
