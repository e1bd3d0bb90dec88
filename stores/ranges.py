"""Ranges of positions, half-open: as sets, and packed into a few bytes each."""

from collections.abc import Iterable, Iterator, Sequence

from stores.histories import Range

_SEVEN_BITS, _MORE = 0x7F, 0x80


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


def packed(ranges: Iterable[Range]) -> bytes:
    """The ranges as bytes: of each the distance to the one before, and its length.

    In a history of which every message was rewritten once, neighbours come from two places that
    move on together, so both numbers are small: two bytes a range where BSON takes 26.
    """
    data = bytearray()
    last = 0
    for start, end in ranges:
        distance = start - last
        _put_number(data, 2 * distance if distance >= 0 else -2 * distance - 1)
        _put_number(data, end - start)
        last = end
    return bytes(data)


def _put_number(data: bytearray, number: int) -> None:
    while number > _SEVEN_BITS:
        data.append(number & _SEVEN_BITS | _MORE)
        number >>= 7
    data.append(number)


def unpacked(data: bytes) -> tuple[Range, ...]:
    """What `packed` was given.

    Raises:
        ValueError: `packed` has never returned this.
    """
    numbers = _numbers(data)
    ranges: list[Range] = []
    last = 0
    for coded, length in zip(numbers, numbers, strict=True):
        start = last + (-(coded + 1) // 2 if coded % 2 else coded // 2)
        last = start + length
        ranges.append((start, last))
    return tuple(ranges)


def _numbers(data: bytes) -> Iterator[int]:
    number = shift = 0
    for each in data:
        number |= (each & _SEVEN_BITS) << shift
        shift += 7
        if not each & _MORE:
            yield number
            number = shift = 0
    if shift:
        msg = "packed ranges end within a number"
        raise ValueError(msg)


def holds(ranges: Sequence[Range], position: int) -> bool:
    """Whether one of these ranges has the position."""
    return any(start <= position < end for start, end in ranges)
