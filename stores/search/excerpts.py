"""Cutting a long text to what a reader is shown: the stretch with most of what was asked for."""

from collections import Counter

from stores.search.analysis import Finder, Token


def clipped(text: str, limit: int, find: Finder) -> str:
    """About `limit` characters of a text, with `...` where something was cut.

    The beginning, unless more of the terms, or any at all, stand close together further on: then
    the text around them, so that no match is reported whose term is not to be seen.
    """
    if len(text) <= limit:
        return text
    first, last = _best_stretch(list(find(text)), limit)
    if last <= limit:
        return text[:limit] + "..."
    start = (first + last - limit) // 2
    if last - first > limit:  # one long term: from its beginning
        start = first
    start = max(0, min(start, len(text) - limit))
    end = start + limit
    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")


def _best_stretch(tokens: list[Token], limit: int) -> tuple[int, int]:
    """Start and end of the first stretch within `limit` characters with most different terms."""
    best, found = (0, 0), 0
    inside: Counter[str] = Counter()
    left = 0
    for token in tokens:
        inside[token.term] += 1
        while tokens[left].start < token.end - limit and tokens[left] is not token:
            leaving = tokens[left].term
            inside[leaving] -= 1
            if not inside[leaving]:
                del inside[leaving]
            left += 1
        if len(inside) > found:
            best, found = (tokens[left].start, token.end), len(inside)
    return best
