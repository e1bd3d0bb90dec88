from datetime import UTC, datetime, timedelta

import pytest
from pydantic_ai import ModelRetry

from agents.assistant import calculate, current_time


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("6 * 7", "42"),
        ("0.1 + 0.2", "0.3"),
        ("-(2 + 3) ** 2", "-25"),
        ("123456789 * 987654321", "121932631112635269"),
        (" 1 - 2 / 4 ", "0.5"),
    ],
)
def test_arithmetic_is_exact(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "expression",
    [
        "",
        "2 +",
        "1 / 0",
        "9 ** 9 ** 9 ** 9",
        "1e400",
        "(-2) ** 0.5",
        "x",
        "'a' * 9",
        "True + 1",
        "__import__('os')",
        "(" * 150 + "1" + ")" * 150,
        "1 + " * 100 + "1",
    ],
)
def test_what_is_no_arithmetic_is_given_back_to_the_model(expression: str) -> None:
    with pytest.raises(ModelRetry, match="cannot calculate"):
        calculate(expression)


def test_the_time_is_told_in_the_zone_that_is_asked_for() -> None:
    told = datetime.fromisoformat(current_time("Asia/Kolkata"))

    assert told.utcoffset() == timedelta(hours=5, minutes=30)
    assert abs(datetime.now(UTC) - told) < timedelta(seconds=5)


@pytest.mark.parametrize("time_zone", ["", "Nowhere", "../etc/passwd", "Europe", "a\0b"])
def test_an_unknown_time_zone_is_given_back_to_the_model(time_zone: str) -> None:
    with pytest.raises(ModelRetry, match="no time zone"):
        current_time(time_zone)
