"""Ranking a view: BM25 over its arrays, and the messages around the best hits.

The sums are those of `stores.search.bm25`, in the same order.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage

from stores.digests import load_message, load_messages
from stores.mongo.search_texts import SearchTexts
from stores.mongo.search_view import LogView, Places
from stores.search.bm25 import Bm25, inverse_document_frequency
from stores.search.corpus import Section
from stores.search.identity import without_summary
from stores.search.query import FoundMessage, Hit, Window

_LONG_BODIES = 200_000
"""Characters of messages whose parsing takes longer than that."""

_FIRST_HITS = 256
"""Hits that are sorted before anybody asks for more: enough for ten windows."""


Result = TypeVar("Result")


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


class LogRanking:
    """See `Ranking`: of a view as it was when it was ranked."""

    def __init__(
        self,
        texts: SearchTexts,
        view: LogView,
        places: Places,
        scores: NDArray[np.float64],
        windows: Sequence[Window],
    ) -> None:
        self._texts = texts
        self._digests = view.digests
        self._copies = view.copies
        self._places = places
        self._scores = scores
        self.sections: Sequence[Section] = places.sections
        self.windows: Sequence[Window] = windows
        self.message_count = len(places.flat)
        self.run_count = places.run_count
        self.skipped = places.skipped

    async def messages(self) -> list[list[FoundMessage]]:
        """See `Ranking.messages`. One query, and what large texts lie elsewhere.

        A message whose run has taken it back since is shown as another run has it.
        """
        wanted = [self._places_of(each) for each in self.windows]
        entries = {at: int(self._places.flat[at]) for each in wanted for at in each}
        found = await self._load({self._digests[each] for each in entries.values()})
        gone = [each for each in entries.values() if self._digests[each] not in found]
        found |= await self._load({copy for each in gone for copy in self._copies.get(each, ())})

        def message(at: int) -> FoundMessage:
            entry = entries[at]
            digests = (self._digests[entry], *self._copies.get(entry, ()))
            readable = next((found[each] for each in digests if each in found), None)
            return FoundMessage(readable, is_match=bool(self._scores[at] > 0))

        return [[message(at) for at in each] for each in wanted]

    def _places_of(self, window: Window) -> range:
        start = int(self._places.starts[window.hit.section])
        return range(start + window.start, start + window.end)

    async def _load(self, digests: set[str]) -> dict[str, ModelMessage]:
        texts = await self._texts.load(list(digests)) if digests else {}
        size = sum(map(len, texts.values()))
        return await in_thread_if(size > _LONG_BODIES, lambda: _loaded(texts))


def _loaded(texts: Mapping[str, str]) -> dict[str, ModelMessage]:
    """The messages of these texts, without summaries; one that is damaged is left out."""
    loaded: Sequence[ModelMessage | None]
    try:
        loaded = load_messages(texts.values())
    except ValidationError:
        loaded = [_loaded_or_none(text) for text in texts.values()]
    searched = [each and without_summary(each) for each in loaded]
    return {digest: each for digest, each in zip(texts, searched, strict=True) if each is not None}


def _loaded_or_none(text: str) -> ModelMessage | None:
    try:
        return load_message(text)
    except ValidationError:
        return None


async def in_thread_if(is_long: bool, work: Callable[[], Result]) -> Result:  # noqa: FBT001 - reads as a sentence
    """Do it in a thread when it is long."""
    return await asyncio.to_thread(work) if is_long else work()
