"""The answer to a search: words for each case, and excerpts."""

import asyncio
import logging
from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage

from stores.search.analysis import analyzer_named
from stores.search.excerpts import clipped
from stores.search.query import (
    LONGEST_QUERY,
    HistoryQuery,
    IndexedStore,
    IndexUnusableError,
    Match,
    Ranking,
    SearchAnswer,
    Window,
    windows_of,
)
from stores.search.reference import reference_ranking
from stores.search.rendering import lines_of
from stores.search.source import HistorySource, SnapshotHistorySource

_LOGGER = logging.getLogger(__name__)

_LONGEST_REPEATED = 200
"""Characters of the query that an answer repeats."""

NO_CONVERSATION = (
    "Conversation-scoped search needs a conversation id, and this run has none. Pass "
    "`conversation_id=` to `Agent.run(...)` so the search can tell this conversation's history "
    "from other conversations in the same store."
)
EMPTY_QUERY = (
    "The query has no word to search for. Pass one or more words, names or numbers that the "
    "message you look for holds; each is searched by itself and rare ones count most."
)
EMPTY_CONVERSATION = (
    "No persisted history in this conversation yet. Search covers only runs sharing this run's "
    "conversation id, which comes from an explicit `conversation_id=` argument or is inherited "
    "from `message_history`; runs started with neither belong to other conversations."
)
EMPTY_STORE = (
    "No persisted conversation history to search yet. History accumulates as runs persist their "
    "steps (pair this capability with `StepPersistence` on a shared store)."
)
UNREADABLE = "[this message cannot be read]"
WITHOUT_TEXT = "[no text content]"


async def search_history(source: HistorySource, query: HistoryQuery) -> SearchAnswer:
    """Search what a source holds, by its store's index where that can answer.

    Nothing is reached beyond the query's scope: a run outside it is answered as one that does not
    exist, and a search of a conversation that has no id finds nothing.
    """
    if query.scope == "conversation" and query.conversation_id is None:
        return SearchAnswer(text=NO_CONVERSATION)
    if not query.terms:
        return SearchAnswer(text=EMPTY_QUERY)
    ranking, note = await _ranking(source, query)
    return await _answer(query, ranking, note)


async def _ranking(source: HistorySource, query: HistoryQuery) -> tuple[Ranking, str | None]:
    if not isinstance(source, SnapshotHistorySource) or not isinstance(source.store, IndexedStore):
        return await reference_ranking(source, query), None
    try:
        return await source.store.history_index.rank(query), None
    except IndexUnusableError as error:
        _LOGGER.warning("searched without the index: %s", error)
        note = f"Searched without the index, which takes longer: {error}."
        return await reference_ranking(source, query), note


async def _answer(query: HistoryQuery, ranking: Ranking, note: str | None) -> SearchAnswer:
    total = sum(each.length for each in ranking.sections)
    windows: list[Window] = []
    if total:
        windows = await asyncio.to_thread(
            lambda: windows_of(
                ranking.hits(),
                ranking.sections,
                max_matches=query.max_matches,
                context_lines=query.context_lines,
            )
        )
    matches: Sequence[Match] = ()
    if windows:
        found = await ranking.messages(windows)
        matches = await asyncio.to_thread(_matches, query, ranking, windows, found)
    notes = " ".join(filter(None, (_skipped_words(ranking.skipped), _cut_words(query), note)))
    text = _text(query, ranking, total, matches)
    return SearchAnswer(
        text=f"{text}\n\n{notes}" if notes else text,
        matches=tuple(matches),
        runs=ranking.run_count,
        messages=total,
        skipped=ranking.skipped,
        note=notes or None,
    )


def _text(query: HistoryQuery, ranking: Ranking, total: int, matches: Sequence[Match]) -> str:
    if not total:
        if query.run_id is not None:
            return f"No persisted history for run '{query.run_id}'."
        return EMPTY_CONVERSATION if query.scope == "conversation" else EMPTY_STORE
    asked = query.text
    if len(asked) > _LONGEST_REPEATED:
        asked = asked[:_LONGEST_REPEATED] + "..."
    searched = f"{total} persisted messages of {ranking.run_count} run(s)"
    if not matches:
        return f"No matches for '{asked}' in {searched}."
    blocks = (_block(each) for each in matches)
    return f"Found {len(matches)} match(es) for '{asked}' in {searched}:\n\n" + "\n\n---\n\n".join(
        blocks
    )


def _block(match: Match) -> str:
    label = f"run: {match.run_id}"
    if match.conversation_id is not None:
        label += f" | conversation: {match.conversation_id}"
    return f"[score: {match.score:.1f} | {label}]\n{match.excerpt}"


def _skipped_words(skipped: int) -> str | None:
    if not skipped:
        return None
    return f"Skipped {skipped} snapshot(s) that cannot be read; what only they held is not covered."


def _cut_words(query: HistoryQuery) -> str | None:
    if len(query.text) <= LONGEST_QUERY:
        return None
    return f"Only the first {LONGEST_QUERY:,} characters of the query were searched for."


def _matches(
    query: HistoryQuery,
    ranking: Ranking,
    windows: Sequence[Window],
    found: Sequence[Sequence[ModelMessage | None]],
) -> list[Match]:
    terms = frozenset(query.terms)
    matches: list[Match] = []
    for window, messages in zip(windows, found, strict=True):
        section = ranking.sections[window.hit.section]
        first = section.first_index + window.start
        lines = (
            f"[{first + offset}] {_shown(message, terms, query)}"
            for offset, message in enumerate(messages)
        )
        matches.append(
            Match(
                run_id=section.run_id,
                conversation_id=section.conversation_id,
                index=section.first_index + window.hit.line,
                score=window.hit.score,
                excerpt="\n".join(lines),
            )
        )
    return matches


def _shown(message: ModelMessage | None, terms: frozenset[str], query: HistoryQuery) -> str:
    """A message as an excerpt shows it.

    The search's own answers are left out with the calls that asked for them: they would be copies
    of what is shown anyway.
    """
    if message is None:
        return UNREADABLE
    analyzer = analyzer_named(query.analyzer)
    lines = [
        f"{each.label}: {clipped(each.text, each.shown, terms, analyzer)}"
        for each in lines_of(message)
        if query.includes_own or not each.is_own
    ]
    return "\n".join(lines) or WITHOUT_TEXT
