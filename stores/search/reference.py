"""The search, written plainly: over any source, without an index. What an index has to equal."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage

from stores.records import RunRecord
from stores.search.analysis import analyzer_named
from stores.search.bm25 import ranked
from stores.search.corpus import RunMessages, Section, corpus_of
from stores.search.query import FoundMessage, HistoryQuery, Hit, Window, windows_of
from stores.search.rendering import indexed_text, lines_of
from stores.search.source import CountingSource, HistorySource


class ReferenceRanking:
    """See `Ranking`: a corpus in memory, ranked message by message."""

    def __init__(
        self,
        corpus: Sequence[RunMessages],
        query: HistoryQuery,
        *,
        run_count: int,
        skipped: int,
    ) -> None:
        self._corpus = corpus
        self.sections: Sequence[Section] = [each.section for each in corpus]
        hits = _hits(corpus, query)
        self._matching = {(each.section, each.line) for each in hits}
        self.windows: Sequence[Window] = windows_of(hits, self.sections, query)
        self.message_count = sum(each.length for each in self.sections)
        self.run_count = run_count
        self.skipped = skipped

    async def messages(self) -> list[list[FoundMessage]]:
        """See `Ranking.messages`."""
        return [
            [
                FoundMessage(
                    lines_of(self._corpus[each.hit.section].messages[line]),
                    is_match=(each.hit.section, line) in self._matching,
                )
                for line in range(each.start, each.end)
            ]
            for each in self.windows
        ]


def _hits(corpus: Sequence[RunMessages], query: HistoryQuery) -> list[Hit]:
    terms = analyzer_named(query.analyzer).terms
    places = [
        (section, line) for section, run in enumerate(corpus) for line in range(len(run.messages))
    ]
    documents = [
        Counter(terms(indexed_text(each, includes_own=query.includes_own)))
        for run in corpus
        for each in run.messages
    ]
    scores = ranked(query.terms, documents, query.bm25)
    return [Hit(*places[index], score) for index, score in scores]


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
    run_count = sum(bool(messages) for _, messages in records)
    return await asyncio.to_thread(
        lambda: ReferenceRanking(corpus_of(records), query, run_count=run_count, skipped=skipped)
    )
