"""What excerpts show is read once, and forgotten when there is too much of it."""

from stores.mongo.search_lines import KeptLines
from stores.search.rendering import Line


def lines(text: str) -> list[Line]:
    return [Line("User", text)]


def test_what_was_shown_longest_ago_is_forgotten_first() -> None:
    kept = KeptLines(most_characters=10)
    kept.keep({"a": lines("1234"), "b": lines("1234")})
    assert kept.of(["a", "c"]) == {"a": lines("1234")}
    kept.keep({"c": lines("12")})
    assert set(kept.of(["a", "b", "c"])) == {"a", "b", "c"}
    kept.of(["a"])
    kept.keep({"d": lines("1")})
    assert set(kept.of(["a", "b", "c", "d"])) == {"a", "c", "d"}


def test_what_is_kept_again_counts_once() -> None:
    kept = KeptLines(most_characters=10)
    for _ in range(5):
        kept.keep({"a": lines("1234")})
    kept.keep({"b": lines("123456")})
    assert set(kept.of(["a", "b"])) == {"a", "b"}


def test_a_message_that_is_larger_than_the_bound_is_not_kept() -> None:
    kept = KeptLines(most_characters=10)
    kept.keep({"a": lines("12345678901")})
    assert kept.of(["a"]) == {}
    kept.keep({"b": lines("1234567890")})
    assert set(kept.of(["b"])) == {"b"}
