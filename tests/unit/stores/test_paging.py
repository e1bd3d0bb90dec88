from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from stores.paging import RunCursor, decode_cursor, encode_cursor, microseconds, time_at


@given(st.datetimes(timezones=st.just(UTC)))
def test_microseconds_are_exact(time: datetime) -> None:
    assert time_at(microseconds(time)) == time


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_microseconds_are_in_the_order_of_time(first: datetime, second: datetime) -> None:
    assert (microseconds(first) < microseconds(second)) == (first < second)


@given(
    st.datetimes(timezones=st.just(UTC)),
    st.text(),
    st.dictionaries(st.sampled_from(["state", "agent_name"]), st.text()),
)
def test_a_cursor_comes_back(time: datetime, run_id: str, filters: dict[str, str]) -> None:
    cursor = RunCursor(started_at=time, run_id=run_id)
    text = encode_cursor(cursor, filters)
    assert text.isascii()
    assert decode_cursor(text, filters) == cursor
