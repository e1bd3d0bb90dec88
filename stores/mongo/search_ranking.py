"""BM25 over a view's arrays: the same sums as `stores.search.bm25`, in the same order."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stores.mongo.search_view import LogView, Places
from stores.search.bm25 import Bm25, inverse_document_frequency
from stores.search.query import Hit

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
    lengths: NDArray[Any] = view.entries.lengths[places.flat]
    total = int(lengths.sum())
    if not total:
        return scores
    average = total / count
    k1, b = parameters.k1, parameters.b
    for term in terms:
        entries, frequencies = view.entries.find(term)
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
