from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.histories import Range, positions_in
from stores.ranges import difference, holds, packed, portion, union, unpacked

RANGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair))),
    max_size=8,
)


ANY_RANGES = st.lists(
    st.tuples(st.integers(0, 10**9), st.integers(1, 10**6)).map(lambda pair: (pair[0], sum(pair)))
)


def positions(ranges: Sequence[Range]) -> list[int]:
    return list(positions_in(ranges))


@given(RANGES)
def test_a_union_has_each_position_once_in_order_and_no_range_too_many(ranges: list[Range]) -> None:
    joined = union(ranges)
    assert positions(joined) == sorted(set(positions(ranges)))
    assert all(end < start for (_, end), (start, _) in pairwise(joined))


@given(RANGES, RANGES)
def test_a_difference_has_what_the_other_lacks(ranges: list[Range], taken: list[Range]) -> None:
    left = difference(ranges, taken)
    assert positions(left) == sorted(set(positions(ranges)) - set(positions(taken)))


@given(RANGES, st.integers(0, 40), st.integers(1, 9))
def test_a_portion_has_the_next_positions(ranges: list[Range], start: int, count: int) -> None:
    joined = union(ranges)
    wanted = [each for each in positions(joined) if each >= start]
    assert positions(portion(joined, start=start, count=count)) == wanted[:count]


@given(RANGES, st.integers(0, 40))
def test_a_position_is_held_or_not(ranges: list[Range], position: int) -> None:
    assert holds(ranges, position) == (position in positions(ranges))


@given(ANY_RANGES)
def test_packed_ranges_come_back_in_their_order(ranges: list[Range]) -> None:
    assert unpacked(packed(ranges)) == tuple(ranges)


def test_ranges_of_a_history_rewritten_throughout_take_two_bytes_each() -> None:
    kept = [(3 * each, 3 * each + 1) for each in range(50_000)]
    rewritten = [(start + 11, end + 11) for start, end in kept]
    history = [each for pair in zip(kept, rewritten, strict=True) for each in pair]
    assert len(packed(history)) <= 2 * len(history)


@pytest.mark.parametrize("data", [b"\x80", b"\x02\xff", b"\x02"])
def test_what_was_never_packed_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"end within a number|is shorter"):
        unpacked(data)
