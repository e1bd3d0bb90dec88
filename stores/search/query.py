"""What is asked, what answers it, and what comes back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from stores.search.analysis import AnalyzerName, analyzer_named
from stores.search.bm25 import Bm25
from stores.search.corpus import Section
from stores.search.rendering import Line

SearchScope = Literal["conversation", "all"]
"""How far a search may reach: the runs of one conversation, or every run of the workspace."""

LONGEST_QUERY = 10_000
"""Characters of a query that are searched for: some thousand words."""


@dataclass(frozen=True, kw_only=True)
class HistoryQuery:
    """One search, in one workspace.

    Args:
        text: what to search for.
        conversation_id: whose runs; with scope `conversation` `None` reaches nothing.
        run_id: only this run, if it is within the scope.
        scope: see `SearchScope`.
        max_matches: most excerpts of an answer.
        context_lines: messages shown before and after each match.
        bm25: parameters of the ranking.
        analyzer: see `stores.search.analysis`.
        includes_own: search what earlier searches asked and answered, too.

    Raises:
        ValueError: a number is out of range, or the analyzer unknown.
    """

    text: str
    conversation_id: str | None = None
    run_id: str | None = None
    scope: SearchScope = "conversation"
    max_matches: int = 10
    context_lines: int = 5
    bm25: Bm25 = field(default_factory=Bm25)
    analyzer: AnalyzerName = "standard"
    includes_own: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        for name in ("max_matches", "context_lines"):
            if getattr(self, name) < 0:
                message = f"{name} must be at least 0, got {getattr(self, name)!r}"
                raise ValueError(message)
        if self.scope not in {"conversation", "all"}:
            message = f"scope must be 'conversation' or 'all', got {self.scope!r}"
            raise ValueError(message)
        analyzer_named(self.analyzer)

    @property
    def analyzer_id(self) -> str:
        """Of the terms."""
        return analyzer_named(self.analyzer).id

    @cached_property
    def terms(self) -> list[str]:
        """What is looked for, each term once."""
        return analyzer_named(self.analyzer).query_terms(self.text[:LONGEST_QUERY])


class Hit(NamedTuple):
    """A message that matches: its section, its place in there, and its score."""

    section: int
    line: int
    score: float


class Window(NamedTuple):
    """A hit with the messages around it: places in its section, half-open."""

    hit: Hit
    start: int
    end: int


class FoundMessage(NamedTuple):
    """A message of a window, as lines. `None`: it is there and cannot be read.

    `is_match`: it has a term of the query; most that are shown around a hit have none.
    """

    lines: Sequence[Line] | None
    is_match: bool


class Ranking(Protocol):
    """The corpus of one search, ranked.

    `windows` are the best hits with their surroundings, as many as the query asks for, in their
    order. `message_count`, `run_count` and `skipped` say what was searched: messages, runs that
    have any, and snapshots that were there and could not be read.
    """

    sections: Sequence[Section]
    windows: Sequence[Window]
    message_count: int
    run_count: int
    skipped: int

    async def messages(self) -> list[list[FoundMessage]]:
        """The messages of each window."""
        ...


class IndexUnusableError(Exception):
    """The index cannot answer this search exactly; the message says why, and what to do."""


class HistoryIndex(Protocol):
    """An index over what a store keeps, that answers as the store's own snapshots would."""

    async def rank(self, query: HistoryQuery) -> Ranking:
        """Rank the corpus of a query.

        Raises:
            IndexUnusableError: it has to be answered in another way.
        """
        ...


@runtime_checkable
class IndexedStore(Protocol):
    """A store that keeps an index."""

    @property
    def history_index(self) -> HistoryIndex:
        """The index of the store's workspace."""
        ...


@dataclass(frozen=True, kw_only=True)
class Match:
    """An excerpt. `index` is the matching message's number in its run's record."""

    run_id: str
    conversation_id: str | None
    index: int
    score: float
    excerpt: str


@dataclass(frozen=True, kw_only=True)
class SearchAnswer:
    """What a search found, as text for a model or a person, and as values.

    `note` says in words what kept the answer from being complete or quick; mostly `None`.
    """

    text: str
    matches: tuple[Match, ...] = ()
    runs: int = 0
    messages: int = 0
    skipped: int = 0
    note: str | None = None


def windows_of(
    hits: Iterable[Hit], sections: Sequence[Section], query: HistoryQuery
) -> list[Window]:
    """The best hits, each with its surroundings; one that has been shown with another is left out.

    Args:
        hits: best first.
        sections: that they are in; no window reaches beyond its own.
        query: says how many, and how many messages before and after each.
    """
    windows: list[Window] = []
    shown: set[tuple[int, int]] = set()
    if query.max_matches == 0:
        return windows
    for hit in hits:
        if (hit.section, hit.line) in shown:
            continue
        start = max(0, hit.line - query.context_lines)
        end = min(sections[hit.section].length, hit.line + query.context_lines + 1)
        shown.update((hit.section, line) for line in range(start, end))
        windows.append(Window(hit, start, end))
        if len(windows) == query.max_matches:
            break
    return windows
