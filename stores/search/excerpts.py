"""Cutting a long text to what a reader is shown: the stretch with most of what was asked for."""

from collections import deque
from collections.abc import Iterable

from stores.search.analysis import Finder, Token


def clipped(text: str, limit: int, find: Finder, terms: int) -> str:
    """About `limit` characters of a text, with `...` where something was cut.

    Args:
        text: any.
        limit: how much of it is shown.
        find: finds terms in it; how many different ones there are is `terms`.
        terms: see `find`.

    The beginning, unless more of the terms, or any at all, stand close together further on: then
    the text around them, so that no match is reported whose term is not to be seen.
    """
    if len(text) <= limit:
        return text
    first, last = _best_stretch(find(text), limit, terms)
    if last <= limit:
        return text[:limit] + "..."
    start = (first + last - limit) // 2
    if last - first > limit:  # one long term: from its beginning
        start = first
    start = max(0, min(start, len(text) - limit))
    end = start + limit
    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")


def _best_stretch(tokens: Iterable[Token], limit: int, terms: int) -> tuple[int, int]:
    """Start and end of the first stretch within `limit` characters with most different terms."""
    best, found = (0, 0), 0
    stretch: deque[Token] = deque()
    inside: dict[str, int] = {}
    for token in tokens:
        inside[token.term] = inside.get(token.term, 0) + 1
        stretch.append(token)
        while stretch[0].start < token.end - limit and stretch[0] is not token:
            leaving = stretch.popleft().term
            inside[leaving] -= 1
            if not inside[leaving]:
                del inside[leaving]
        if len(inside) > found:
            best, found = (stretch[0].start, token.end), len(inside)
        if found == terms:
            break
    return best
