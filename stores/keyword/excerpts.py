"""The stretch of a field's text that a match shows."""

import re
from collections.abc import Sequence

from stores.keyword.lexer import is_han

MOST_CHARACTERS = 500
"""Code points of an excerpt."""


def excerpt(text: str, lexemes: Sequence[str]) -> tuple[str, bool]:
    """At most 500 characters of a text, as they are, and whether anything was left out.

    They lie around the first place that has a Chinese lexeme, or a word that begins with an English
    one. Where no word does, as with `happi` for `happy`, it is the beginning.
    """
    if len(text) <= MOST_CHARACTERS:
        return text, False
    found = _pattern(lexemes).search(text)
    middle = (found.start() + found.end()) // 2 if found else 0
    start = min(max(0, middle - MOST_CHARACTERS // 2), len(text) - MOST_CHARACTERS)
    return text[start : start + MOST_CHARACTERS], True


def _pattern(lexemes: Sequence[str]) -> "re.Pattern[str]":
    begin = r"(?<![^\W_])"
    words = "|".join(
        re.escape(each) if is_han(each) else begin + re.escape(each) for each in lexemes
    )
    return re.compile(words, re.IGNORECASE)
