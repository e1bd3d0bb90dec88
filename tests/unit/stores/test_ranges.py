from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stores.histories import Range, positions_in
from stores.ranges import difference, holds, portion, union

RANGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair))),
    max_size=8,
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
