"""The terms of the standard analyzer: words, parts of identifiers, pairs of characters.

Text is read in runs. A run of a script without spaces (Chinese, Japanese, Korean; Thai, Lao, Khmer,
Burmese) gives each of its characters and each pair: no dictionary, so no word is cut in one place
in a document and in another in a query. Any other run is a word: its stem, or, where it is made of
parts (`snake_case`, `camelCase`, `E1234`), the whole and the stem of each. Names with symbols
(`C++`, `.net-core`, `app.main`) are kept as a whole besides.

Combining marks are no word characters to `re`, and would split words of Hindi, Thai and decomposed
accents; here they belong to the word. Forms are made one by NFKC and case folding.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

from py_rust_stemmers import (  # pyright: ignore[reportMissingTypeStubs]
    SnowballStemmer,  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
)

STOP_WORDS = frozenset(
    """
    i me my myself we our ours ourselves you your yours yourself yourselves he him his
    himself she her hers herself it its itself they them their theirs themselves what which
    who whom this that these those am is are was were be been being have has had having do
    does did doing a an the and but if or because as until while of at by for with about
    against between into through during before after above below to from up down in out on
    off over under again further then once here there when where why how all any both each
    few more most other some such no nor not only own same so than too very s t can will
    just don should now
    """.split()  # noqa: SIM905 - as a list it would be 127 lines
)
"""The 127 English ones of PostgreSQL."""

_LONGEST_COMPOUND = 100
"""Characters of a name with symbols that is kept as a whole; longer ones are not names."""

_CACHED_WORDS = 65536
_CACHED_RUNS = 8192
_LONGEST_CACHED = 40
"""Characters of a run whose terms are remembered: most are words that come again and again."""

_LONGEST_STEMMED = 100
"""Characters of a word that has a stem; the stemmer takes minutes for some of millions."""

_BASIC_PLANE = 0x10000

_UNSPACED = (
    "\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"
)
"""Han, Kana, Hangul: a character is one."""

_CLUSTERED = "\u0e01-\u0e4e\u0e80-\u0ecf\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u1780-\u17d3"
"""Thai, Lao, Burmese, Khmer: a character is a letter with its marks."""

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ASCII_RUN = re.compile(r"[A-Za-z0-9_]+(?:[.\-][A-Za-z0-9_]+)*(?:\+\+|\#(?!\w))?")
_ASCII_WORD = re.compile(r"[A-Za-z0-9_]+")

_stem_word: Callable[[str], str] = SnowballStemmer("english").stem_word  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


class StandardToken(NamedTuple):
    """Terms that come from one stretch of a text.

    `word` is it in one case, for stop words. `unspaced` counts the characters of the run that it is
    of, and `size` its own; both are 0 for words.
    """

    terms: tuple[str, ...]
    word: str
    start: int
    end: int
    size: int = 0
    unspaced: int = 0

    def moved(self, offset: int) -> "StandardToken":
        """The same, as far behind."""
        return self.at(self.start + offset, self.end + offset)

    def at(self, start: int, end: int) -> "StandardToken":
        """The same in that place."""
        return StandardToken(self.terms, self.word, start, end, self.size, self.unspaced)


def is_lone(token: StandardToken) -> bool:
    """Whether a query asks for it: not for a single character of a longer run."""
    return token.size != 1 or token.unspaced == 1


class WantedTokens:
    """The ASCII runs that have any of the terms that are looked for, with the tokens that do.

    It remembers what it has looked at, for many texts have the same words.

    Args:
        terms: that are looked for.
    """

    def __init__(self, terms: AbstractSet[str]) -> None:
        self._terms = terms
        self._seen: set[str] = set()
        self.tokens: dict[str, tuple[StandardToken, ...]] = {}
        """By run, of those that `are_in` has looked at."""

    def are_in(self, runs: Sequence[str]) -> bool:
        """Whether any of these runs has one."""
        for run in set(runs).difference(self._seen):
            self._seen.add(run)
            if not self._terms.isdisjoint(_ascii_terms(run)):
                tokens = _run_tokens(run)
                wanted = (each for each in tokens if not self._terms.isdisjoint(each.terms))
                self.tokens[run] = tuple(wanted)
        return not self.tokens.keys().isdisjoint(runs)


def standard_tokens(text: str, wanted: WantedTokens | None = None) -> Iterator[StandardToken]:
    """The tokens of a text in their order.

    Args:
        text: any.
        wanted: what is looked for: other tokens may be left out, which takes a tenth of the time.
    """
    if text.isascii():
        if wanted is None:
            for run in _ASCII_RUN.finditer(text):
                yield from _of_words(run.group(), run.start(), _ASCII_WORD)
        else:
            yield from _wanted_tokens(text, wanted)
        return
    patterns = _patterns()
    for run in patterns.run.finditer(text):
        whole, start = run.group(), run.start()
        plain = whole if whole.isascii() else unicodedata.normalize("NFKC", whole)
        if plain != whole:  # places within it no longer fit, and it may have become several runs
            yield from (each.at(start, run.end()) for each in standard_tokens(plain, wanted))
        elif run.lastgroup != "words":
            yield from _of_unspaced(patterns.cluster.finditer(whole), start)
        elif wanted is not None and whole.isascii():
            if wanted.are_in([whole]):
                yield from (each.moved(start) for each in wanted.tokens[whole])
        else:
            yield from _of_words(whole, start, patterns.word)


def _wanted_tokens(text: str, wanted: WantedTokens) -> Iterator[StandardToken]:
    runs = _ASCII_RUN.findall(text)
    if not wanted.are_in(runs):
        return
    at = 0
    for run in runs:
        at = text.index(run, at)  # between two runs is nothing that a run begins with
        if run in wanted.tokens:
            yield from (each.moved(at) for each in wanted.tokens[run])
        at += len(run)


def standard_terms(text: str) -> Iterator[str]:
    """The terms of those tokens, in some order: what an index needs, three times as fast."""
    if text.isascii():
        for run in _ASCII_RUN.findall(text):
            yield from _ascii_terms(run)
        return
    patterns = _patterns()
    for found in patterns.run.finditer(text):
        run = found.group()
        plain = run if run.isascii() else unicodedata.normalize("NFKC", run)
        if plain != run:
            yield from standard_terms(plain)
        elif run.isascii():
            yield from _ascii_terms(run)
        elif found.lastgroup == "words":
            yield from (term for each in _of_words(run, 0, patterns.word) for term in each.terms)
        else:
            characters = patterns.cluster.findall(run)
            yield from characters
            yield from map("".join, pairwise(characters))


def _ascii_terms(run: str) -> tuple[str, ...]:
    return _cached_terms(run) if len(run) <= _LONGEST_CACHED else _run_terms(run)


def _run_terms(run: str) -> tuple[str, ...]:
    return tuple(term for each in _of_words(run, 0, _ASCII_WORD) for term in each.terms)


_cached_terms = lru_cache(maxsize=_CACHED_WORDS)(_run_terms)


def _run_tokens(run: str) -> tuple[StandardToken, ...]:
    return _cached_tokens(run) if len(run) <= _LONGEST_CACHED else _tokens_of(run)


def _tokens_of(run: str) -> tuple[StandardToken, ...]:
    return tuple(_of_words(run, 0, _ASCII_WORD))


_cached_tokens = lru_cache(maxsize=_CACHED_RUNS)(_tokens_of)


def _of_words(run: str, start: int, pattern: "re.Pattern[str]") -> Iterator[StandardToken]:
    last_end = 0
    count = 0
    for found in pattern.finditer(run):
        count += 1
        last_end = found.end()
        word = found.group()
        terms = word_terms(word)
        if terms:
            yield StandardToken(terms, word.casefold(), start + found.start(), start + last_end)
    if (count > 1 or last_end < len(run)) and len(run) <= _LONGEST_COMPOUND:
        yield StandardToken((run.casefold(),), run.casefold(), start, start + len(run))


def _of_unspaced(clusters: "Iterator[re.Match[str]]", start: int) -> Iterator[StandardToken]:
    found = [(each.group(), start + each.start(), start + each.end()) for each in clusters]
    for index, (text, begin, end) in enumerate(found):
        yield StandardToken((text,), text, begin, end, 1, len(found))
        if index + 1 < len(found):
            following, _, far_end = found[index + 1]
            pair = text + following
            yield StandardToken((pair,), pair, begin, far_end, 2, len(found))


def word_terms(word: str) -> tuple[str, ...]:
    """The terms of a word: its stem, or itself and the stems of its parts."""
    parts = _PARTS.findall(word) if word.isascii() else list(filter(None, word.split("_")))
    stems = tuple(_stem(each.casefold()) for each in parts)
    if len(parts) > 1:
        return (word.casefold(), *stems)
    return stems


def _stem(word: str) -> str:
    is_english = len(word) <= _LONGEST_STEMMED and word.isascii() and word.isalpha()
    return _stem_word(word) if is_english else word


@dataclass(frozen=True)
class _Patterns:
    run: "re.Pattern[str]"
    word: "re.Pattern[str]"
    cluster: "re.Pattern[str]"


@cache
def _patterns() -> _Patterns:
    """For text beyond ASCII; made at first use, since the combining marks are looked for."""
    marks = _combining_marks()
    letter = rf"[^\W{_UNSPACED}{_CLUSTERED}]"
    word = rf"{letter}(?:{letter}|[{marks}])*"
    words = rf"{word}(?:[.\-]{word})*(?:[+\uff0b]{{2}}|[\#\uff03](?![A-Za-z0-9_]))?"
    clusters = rf"[{_CLUSTERED}](?:[{_CLUSTERED}{marks}])*"
    characters = rf"[{_UNSPACED}](?:[{_UNSPACED}{marks}])*"
    return _Patterns(
        run=re.compile(
            rf"(?P<clusters>{clusters})|(?P<characters>{characters})|(?P<words>{words})"
        ),
        word=re.compile(word),
        cluster=re.compile(rf"[^{marks}][{marks}]*|[{marks}]+"),
    )


def _combining_marks() -> str:
    """Of the basic plane, as ranges for a character class of `re`."""
    points = [n for n in range(_BASIC_PLANE) if unicodedata.category(chr(n)).startswith("M")]
    ranges: list[list[int]] = []
    for point in points:
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)
