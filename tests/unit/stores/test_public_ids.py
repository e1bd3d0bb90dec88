from datetime import UTC, datetime, timedelta
from uuid import UUID

from stores.public_ids import new_public_id

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_public_ids_are_uuids_of_version_7_that_ascend_however_the_clock_goes() -> None:
    made = [new_public_id(NOW)]
    for n in range(50):
        made.append(new_public_id(NOW - timedelta(seconds=n), after=made[-1]))
    made.append(new_public_id(NOW + timedelta(seconds=1), after=made[-1]))

    assert made == sorted(set(made))
    parsed = [UUID(each) for each in made]
    assert {each.version for each in parsed} == {7}
    assert {each.variant for each in parsed} == {"specified in RFC 4122"}
    assert parsed[0].int >> 80 == int(NOW.timestamp() * 1000)


def test_the_largest_random_part_carries_into_the_next_millisecond() -> None:
    full = "019caa1a-0000-7fff-bfff-ffffffffffff"
    assert new_public_id(datetime(2020, 1, 1, tzinfo=UTC), after=full) == (
        "019caa1a-0001-7000-8000-000000000000"
    )
