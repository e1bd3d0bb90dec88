"""The answer to a search: words for each case, and excerpts."""

import logging
from collections.abc import Sequence

from stores.search.analysis import Finder, analyzer_named, find_nothing
from stores.search.excerpts import clipped
from stores.search.query import (
    LONGEST_QUERY,
    FoundMessage,
    HistoryQuery,
    IndexedStore,
    IndexUnusableError,
    Match,
    Ranking,
    SearchAnswer,
)
from stores.search.reference import reference_ranking
from stores.search.source import HistorySource, SnapshotHistorySource
from stores.threads import in_thread_if

_LOGGER = logging.getLogger(__name__)

_LONGEST_REPEATED = 200
"""Characters of the query that an answer repeats."""

_LONG_LINES = 30_000
"""Characters of what is looked through for excerpts from which that takes some milliseconds."""

_BEYOND_ASCII = 25
"""As how many characters one counts of a text that is not all ASCII."""

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
    matches: Sequence[Match] = ()
    if ranking.windows:
        found = await ranking.messages()
        is_long = _looked_through(found) > _LONG_LINES
        matches = await in_thread_if(is_long, lambda: _matches(query, ranking, found))
    notes = " ".join(filter(None, (_skipped_words(ranking.skipped), _cut_words(query), note)))
    text = _text(query, ranking, matches)
    return SearchAnswer(
        text=f"{text}\n\n{notes}" if notes else text,
        matches=tuple(matches),
        runs=ranking.run_count,
        messages=ranking.message_count,
        skipped=ranking.skipped,
        note=notes or None,
    )


def _text(query: HistoryQuery, ranking: Ranking, matches: Sequence[Match]) -> str:
    if not ranking.message_count:
        if query.run_id is not None:
            return f"No persisted history for run '{query.run_id}'."
        return EMPTY_CONVERSATION if query.scope == "conversation" else EMPTY_STORE
    asked = query.text
    if len(asked) > _LONGEST_REPEATED:
        asked = asked[:_LONGEST_REPEATED] + "..."
    searched = f"{ranking.message_count} persisted messages of {ranking.run_count} run(s)"
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


def _looked_through(found: Sequence[Sequence[FoundMessage]]) -> int:
    """About how many characters have to be looked through for the terms of the query."""
    texts = (
        line.text
        for messages in found
        for each in messages
        if each.is_match
        for line in each.lines or ()
        if len(line.text) > line.shown
    )
    return sum(len(each) * (1 if each.isascii() else _BEYOND_ASCII) for each in texts)


def _matches(
    query: HistoryQuery, ranking: Ranking, found: Sequence[Sequence[FoundMessage]]
) -> list[Match]:
    find = analyzer_named(query.analyzer).finder(frozenset(query.terms))
    matches: list[Match] = []
    for window, messages in zip(ranking.windows, found, strict=True):
        section = ranking.sections[window.hit.section]
        first = section.first_index + window.start
        lines = (
            f"[{first + offset}] {_shown(message, find, query)}"
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


def _shown(found: FoundMessage, find: Finder, query: HistoryQuery) -> str:
    """A message as an excerpt shows it.

    The search's own answers are left out with the calls that asked for them: they would be copies
    of what is shown anyway.
    """
    if found.lines is None:
        return UNREADABLE
    find = find if found.is_match else find_nothing
    lines = [
        f"{each.label}: {clipped(each.text, each.shown, find, len(query.terms))}"
        for each in found.lines
        if query.includes_own or not each.is_own
    ]
    return "\n".join(lines) or WITHOUT_TEXT
