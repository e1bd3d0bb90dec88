"""Terms of texts and queries, and excerpts that show them."""

from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stores.search.analysis import analyzer_named
from stores.search.excerpts import clipped
from stores.search.standard_terms import STOP_WORDS

STANDARD = analyzer_named("standard")
REGEX = analyzer_named("regex")


@pytest.mark.spec("CS-62")
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("我们在12月31日去北京大学", "北京"),
        ("我们在12月31日去北京大学", "31"),
        ("東京タワーに行きました", "タワー"),
        ("안녕하세요세계", "세계"),
        ("ภาษาไทยง่าย", "ไทย"),
        ("नमस्ते दुनिया", "नमस्ते"),
        ("une e\u0301cole", "\u00e9cole"),
        ("\uff26\uff35\uff2c\uff2c width", "full width"),
        ("\uff23\uff0b\uff0b\u306e\u672c", "c++"),
        ("see src/perdure/app_main.py", "app_main.py"),
        ("written in C++ and C#.", "C#"),
        ("the scikit-learn package", "scikit-learn"),
        ("pydantic_ai.messages.ToolCallPart", "tool call part"),
        ("error E1234 in HTTPServer", "http e1234"),
        ("foxes were running", "fox run"),
    ],
)
def test_every_term_of_a_word_is_among_those_of_a_text_that_holds_it(text: str, word: str) -> None:
    asked = STANDARD.query_terms(word)
    assert asked
    assert set(asked) <= set(STANDARD.terms(text))


def test_symbols_tell_names_apart() -> None:
    assert "c++" not in STANDARD.terms("C# and plain C")
    assert "c#" in STANDARD.query_terms("c#")
    assert STANDARD.terms("hello #tag a+b c++") == ["hello", "tag", "a", "b", "c", "c++"]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_terms_and_tokens_say_the_same_of_any_text(text: str) -> None:
    for analyzer in (STANDARD, REGEX):
        terms = analyzer.terms(text)
        tokens = list(analyzer.finder(set(terms))(text))
        assert Counter(each.term for each in tokens) == Counter(terms)
        wanted = set(terms[:2])
        some = [each for each in tokens if each.term in wanted]
        assert list(analyzer.finder(wanted)(text)) == some
        assert all(0 <= each.start < each.end <= len(text) for each in tokens)
        assert set(analyzer.query_terms(text)) <= set(analyzer.terms(text))


def test_stop_words_are_indexed_and_asked_for_only_when_there_is_nothing_else() -> None:
    assert len(STOP_WORDS) == 127
    assert "the" in STANDARD.terms("the window")
    assert STANDARD.query_terms("what did we decide about the window size?") == [
        "decid",
        "window",
        "size",
    ]
    assert STANDARD.query_terms("to be or not to be") == ["to", "be", "or", "not"]


def test_a_lone_character_is_asked_for_and_one_of_a_longer_run_is_not() -> None:
    assert STANDARD.query_terms("京") == ["京"]
    assert STANDARD.query_terms("北京") == ["北京"]
    assert STANDARD.query_terms("?! ... —") == []


def test_an_unknown_analyzer_is_refused() -> None:
    with pytest.raises(ValueError, match="'standard', 'regex'"):
        analyzer_named(cast("Any", "icu"))


@pytest.mark.spec("CS-33", "CS-34")
def test_an_excerpt_shows_the_match_wherever_it_is() -> None:
    text = "x " * 9500 + "needle " + "y " * 500
    shown = clipped(text, 500, REGEX.finder({"needle"}), 1)
    assert "needle" in shown
    assert shown.startswith("...")
    assert shown.endswith("...")
    assert len(shown) == 506
    head = clipped("needle " + text, 500, REGEX.finder({"needle"}), 1)
    assert head == ("needle " + text)[:500] + "..."
    assert clipped(text, 500, REGEX.finder({"absent"}), 1) == text[:500] + "..."
    assert clipped("short", 500, REGEX.finder({"short"}), 1) == "short"
    assert clipped("x" * 400 + " " + "n" * 450, 500, REGEX.finder({"n" * 450}), 1).count("n") == 450


def test_an_excerpt_is_where_most_terms_stand_together() -> None:
    text = "window " + "a " * 500 + "the window size is 4 GB " + "b " * 500
    assert "window size is 4 GB" in clipped(text, 200, STANDARD.finder({"window", "size"}), 2)


@pytest.mark.timeout(10)  # the stemmer would take an hour
def test_a_word_of_millions_of_letters_is_one_term_as_it_is() -> None:
    word = "y" * 2_000_000
    assert analyzer_named("standard").terms(f"{word} walking") == [word, "walk"]
