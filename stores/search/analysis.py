"""From text to terms.

An analyzer has an id, which an index keeps with every entry: terms of two analyzers never mix. To
change what one does, give it another id.
"""

import re
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Literal, NamedTuple, Protocol

from stores.search.standard_terms import (
    STOP_WORDS,
    WantedTokens,
    is_lone,
    standard_terms,
    standard_tokens,
)

AnalyzerName = Literal["standard", "regex"]
"""`standard` finds words in scripts without spaces, parts of identifiers and other forms of a word;
`regex` takes runs of word characters as they are."""


class Token(NamedTuple):
    """A term and the stretch of the text that it was made of."""

    term: str
    start: int
    end: int


Finder = Callable[[str], Iterator[Token]]
"""Where a text has the terms that are looked for; one may overlap others and come many times."""


def find_nothing(_: str) -> Iterator[Token]:
    """The finder for a text that is known to have none of the terms."""
    return iter(())


class Analyzer(Protocol):
    """How text is read. The same for documents and queries but for what queries leave out."""

    @property
    def id(self) -> str:
        """Of the terms that it makes; kept in an index."""
        ...

    def finder(self, terms: AbstractSet[str]) -> Finder:
        """Looks for these terms in any number of texts."""
        ...

    def terms(self, text: str) -> list[str]:
        """All terms of a text, as a document."""
        ...

    def query_terms(self, text: str) -> list[str]:
        """The terms to ask for, each once, in order; empty when the text has none."""
        ...


class RegexAnalyzer:
    r"""Runs of `\w`, in lower case: what pydantic-ai-harness ranks by."""

    id = "regex"
    _pattern = re.compile(r"\w+")

    def finder(self, terms: AbstractSet[str]) -> Finder:
        """See `Analyzer.finder`."""

        def find(text: str) -> Iterator[Token]:
            for found in self._pattern.finditer(text):
                term = found.group().lower()
                if term in terms:
                    yield Token(term, found.start(), found.end())

        return find

    def terms(self, text: str) -> list[str]:
        """See `Analyzer.terms`."""
        return [each.lower() for each in self._pattern.findall(text)]

    def query_terms(self, text: str) -> list[str]:
        """See `Analyzer.query_terms`."""
        return list(dict.fromkeys(self.terms(text)))


class StandardAnalyzer:
    """See `stores.search.standard_terms`."""

    id = "standard-2"

    def finder(self, terms: AbstractSet[str]) -> Finder:
        """See `Analyzer.finder`."""
        wanted = WantedTokens(terms)

        def find(text: str) -> Iterator[Token]:
            for token in standard_tokens(text, wanted):
                for term in token.terms:
                    if term in terms:
                        yield Token(term, token.start, token.end)

        return find

    def terms(self, text: str) -> list[str]:
        """See `Analyzer.terms`."""
        return list(standard_terms(text))

    def query_terms(self, text: str) -> list[str]:
        """See `Analyzer.query_terms`.

        Of a script without spaces only pairs are asked for, unless a character stands alone: single
        ones would match everywhere. Stop words are asked for only when there is nothing else.
        """
        tokens = [each for each in standard_tokens(text) if is_lone(each)]
        telling = [each for each in tokens if each.word not in STOP_WORDS]
        return list(dict.fromkeys(term for each in telling or tokens for term in each.terms))


ANALYZERS: dict[AnalyzerName, Callable[[], Analyzer]] = {
    "standard": StandardAnalyzer,
    "regex": RegexAnalyzer,
}


@cache
def analyzer_named(name: AnalyzerName) -> Analyzer:
    """The analyzer of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in ANALYZERS:
        message = f"analyzer {name!r} is none of {', '.join(map(repr, ANALYZERS))}"
        raise ValueError(message)
    return ANALYZERS[name]()
