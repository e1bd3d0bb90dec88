"""The search, written plainly: over any source, without an index. What an index has to equal."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence

from pydantic_ai.messages import ModelMessage

from stores.records import RunRecord
from stores.search.analysis import analyzer_named
from stores.search.bm25 import ranked
from stores.search.corpus import RunMessages, Section, corpus_of
from stores.search.query import HistoryQuery, Hit, Window
from stores.search.rendering import indexed_text
from stores.search.source import CountingSource, HistorySource


class ReferenceRanking:
    """A corpus in memory, ranked message by message."""

    def __init__(self, corpus: Sequence[RunMessages], query: HistoryQuery) -> None:
        self._corpus = corpus
        self._query = query
        self._hits: list[Hit] | None = None
        self.sections: Sequence[Section] = [each.section for each in corpus]
        self.run_count = 0
        self.skipped = 0

    def hits(self) -> Iterable[Hit]:
        """See `Ranking.hits`."""
        terms = analyzer_named(self._query.analyzer).terms
        places = [
            (section, line)
            for section, run in enumerate(self._corpus)
            for line in range(len(run.messages))
        ]
        documents = [
            Counter(terms(indexed_text(each, includes_own=self._query.includes_own)))
            for run in self._corpus
            for each in run.messages
        ]
        scores = ranked(self._query.terms, documents, self._query.bm25)
        return [Hit(*places[index], score) for index, score in scores]

    async def messages(self, windows: Sequence[Window]) -> list[list[ModelMessage | None]]:
        """See `Ranking.messages`."""
        return [
            list(self._corpus[each.hit.section].messages[each.start : each.end]) for each in windows
        ]


async def reference_ranking(source: HistorySource, query: HistoryQuery) -> ReferenceRanking:
    """Read every run within the scope and rank its messages."""
    records: list[tuple[RunRecord, list[ModelMessage]]] = []
    skipped = 0
    for run in await source.list_runs():
        if query.scope == "conversation" and run.conversation_id != query.conversation_id:
            continue
        if query.run_id not in {None, run.run_id}:
            continue
        if isinstance(source, CountingSource):
            messages, unreadable = await source.read_run(run_id=run.run_id)
            skipped += unreadable
        else:
            messages = await source.run_history(run_id=run.run_id)
        records.append((run, messages))
    corpus = await asyncio.to_thread(corpus_of, records)
    ranking = ReferenceRanking(corpus, query)
    ranking.run_count = sum(bool(messages) for _, messages in records)
    ranking.skipped = skipped
    return ranking
