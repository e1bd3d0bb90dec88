import pytest

from stores.errors import InvalidIdentifierError
from stores.identifiers import MAX_LENGTH, check_identifier


@pytest.mark.parametrize(
    "value", ["a", "tenant/run:1", "..", "a b", "имя", "😀", "x" * MAX_LENGTH, "a\u200bb", "-"]
)
def test_these_may_be_ids(value: str) -> None:
    assert check_identifier("run_id", value) == value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("", "is empty"),
        (" a", "white space"),
        ("a\t", "white space"),
        ("\u00a0a", "white space"),
        ("a\x00b", "control character"),
        ("a\nb", "control character"),
        ("a\x7fb", "control character"),
        ("a\x85b", "control character"),
        ("a\ud800", "lone surrogate"),
        ("\udfffa", "lone surrogate"),
        ("x" * (MAX_LENGTH + 1), "has 201 characters"),
        ("x" * 10_000, "has 10000 characters"),
    ],
)
def test_these_may_not(value: str, problem: str) -> None:
    with pytest.raises(InvalidIdentifierError) as raised:
        check_identifier("conversation_id", value)
    assert problem in str(raised.value)
    assert str(raised.value).startswith("conversation_id '")
    assert len(str(raised.value)) < 400
    assert isinstance(raised.value, ValueError)
