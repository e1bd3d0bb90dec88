"""Ranges of positions as sets: sorted, disjoint, half-open."""

from collections.abc import Iterable, Iterator, Sequence

from stores.histories import Range


def union(ranges: Iterable[Range]) -> list[Range]:
    """The fewest ranges that hold what any of these holds, in order."""
    joined: list[Range] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif start < end:
            joined.append((start, end))
    return joined


def difference(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """What is left of `ranges` without what `taken` holds."""
    left: list[Range] = []
    away = iter(union(taken))
    hole = next(away, None)
    for start, end in union(ranges):
        begin = start
        while hole is not None and hole[0] < end:
            if begin < hole[0]:
                left.append((begin, hole[0]))
            begin = max(begin, hole[1])
            if hole[1] >= end:
                break
            hole = next(away, None)
        if begin < end:
            left.append((begin, end))
    return left


def portion(ranges: Iterable[Range], *, start: int, count: int) -> list[Range]:
    """The first `count` positions from `start` on, of sorted ranges."""
    return list(_portion(ranges, start, count))


def _portion(ranges: Iterable[Range], start: int, count: int) -> Iterator[Range]:
    for begin, end in ranges:
        first = max(begin, start)
        last = min(end, first + count)
        if first < last:
            yield first, last
            count -= last - first
        if not count:
            return


def holds(ranges: Sequence[Range], position: int) -> bool:
    """Whether one of these ranges has the position."""
    return any(start <= position < end for start, end in ranges)
