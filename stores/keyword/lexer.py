r"""From text to lexemes: English as PostgreSQL's `english` configuration, Chinese cut into words.

Text is read in runs. A run of Han characters is cut by jieba's search mode, without its model for
unknown words: such a word is found by its characters wherever it stands. Any other run of letters,
digits, marks and underscores is read as PostgreSQL's parser reads it between two spaces.

Where the two differ: PostgreSQL takes a run that mixes Han and other characters for one word.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache, lru_cache

from py_rust_stemmers import (  # pyright: ignore[reportMissingTypeStubs]
    SnowballStemmer,  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
)

from stores.search.standard_terms import STOP_WORDS

LEXER_ID = "english-1"
"""Of the lexemes that it makes; kept with an index. To change what they are, change this."""

MOST_LEXEME_BYTES = 2046
"""Of a lexeme's UTF-8; longer ones are not indexed, as PostgreSQL does."""

HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters that are cut into words, for a character class of `re`."""

_MOST_HAN = 4096
"""Characters of a Han run that are cut together: a dictionary is asked for each."""

_LONGEST_CACHED = 40
_CACHED_PIECES = 65536

_CHARACTERS = 0x20000
"""Of the first two planes: letters, marks and numbers of all scripts but Han."""

_FLOAT = re.compile(r"[0-9]+e[0-9]+(?=[^0-9])")
_DIGIT = re.compile("[0-9]")
_ASCII_RUN = re.compile(r"[A-Za-z0-9_]+")

_stem: Callable[[str], str] = SnowballStemmer("english").stem_word  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def lexemes(text: str) -> set[str]:
    """The different lexemes of a text, however long it is."""
    found: set[str] = set()
    if text.isascii():
        for run in _ASCII_RUN.finditer(text):
            found.update(_of_run(run.group()))
        return found
    for run in _runs().finditer(text):
        if run.lastgroup == "han":
            found.update(_of_han(run.group()))
        else:
            found.update(_of_run(run.group()))
    return found


def is_han(lexeme: str) -> bool:
    """Whether a lexeme is of a Han run."""
    return _han().match(lexeme) is not None


def _of_han(run: str) -> Iterator[str]:
    import rjieba  # noqa: PLC0415 - reads its dictionary: a tenth of what a command takes to start

    for start in range(0, len(run), _MOST_HAN):
        yield from rjieba.cut_for_search(run[start : start + _MOST_HAN], False)  # noqa: FBT003 - takes no keyword


def _of_run(run: str) -> Iterator[str]:
    for piece in run.split("_"):
        if len(piece) <= _LONGEST_CACHED:
            yield from _cached_lexemes(piece)
        else:
            yield from _of_piece(piece)


def _of_piece(piece: str) -> tuple[str, ...]:
    rest, found = _in_lower_case(piece), list[str]()
    while True:  # ends: each time with less
        if not rest.isascii():
            rest = rest.lstrip(_marks("Mn"))
        number = _FLOAT.match(rest)
        if number is None:
            break
        found.append(number.group())
        rest = rest[number.end() :]
    if _DIGIT.search(rest):
        found.append(rest)
    elif rest and rest not in STOP_WORDS and len(rest) <= 2 * MOST_LEXEME_BYTES:
        # What is longer is dropped with its stem, which would take minutes to find.
        found.append(_stem(rest))
    return tuple(each for each in found if len(each.encode(errors="replace")) <= MOST_LEXEME_BYTES)


_cached_lexemes = lru_cache(maxsize=_CACHED_PIECES)(_of_piece)


def _in_lower_case(piece: str) -> str:
    """Each character by itself, as the server's locale does: no final sigma, one `i` for `İ`."""
    if piece.isascii():
        return piece.lower()
    return "".join(each.lower()[0] for each in piece)


@cache
def _han() -> "re.Pattern[str]":
    return re.compile(f"[{HAN}]")


@cache
def _marks(category: str = "M") -> str:
    """Combining marks: they belong to the word that they follow; those of no width begin none."""
    return "".join(_of_category(category))


@cache
def _runs() -> "re.Pattern[str]":
    """For text beyond ASCII; made at first use, since the characters are looked for.

    Superscripts and fractions part words, though they are word characters to `re`.
    """
    character = rf"[^\W{HAN}{''.join(_of_category('No'))}]"
    return re.compile(rf"(?P<han>[{HAN}]+)|(?P<word>(?:{character}|[{_marks()}])+)")


def _of_category(prefix: str) -> list[str]:
    characters = map(chr, range(_CHARACTERS))
    return [each for each in characters if unicodedata.category(each).startswith(prefix)]
