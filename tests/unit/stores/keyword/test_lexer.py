"""Lexemes are PostgreSQL's, and Chinese is cut into words."""

import json
from pathlib import Path

import pytest

from benchmarks.postgresql import find_postgresql, postgresql
from stores.keyword.lexer import MOST_LEXEME_BYTES, is_han, lexemes
from stores.search.standard_terms import STOP_WORDS
from tests.helpers.english_tokens import random_tokens, words

SAMPLE = Path(__file__).with_name("postgresql_lexemes.json")
"""Tokens with the lexemes that PostgreSQL 15.18 gave, in a database of locale C.UTF-8."""


def sample() -> list[tuple[str, list[str]]]:
    return [(token, found) for token, found in json.loads(SAMPLE.read_text())]


@pytest.mark.spec("HS-14", "HS-15")
def test_lexemes_are_those_that_postgresql_gave() -> None:
    recorded = sample()
    assert len(recorded) > 1000
    different = [
        (token, sorted(lexemes(token)), theirs)
        for token, theirs in recorded
        if sorted(lexemes(token)) != theirs
    ]
    assert different == []


@pytest.mark.skipif(find_postgresql() is None, reason="PostgreSQL is not installed")
@pytest.mark.spec("HS-14", "HS-15", "HS-17")
def test_lexemes_are_those_of_a_postgresql_on_fifty_thousand_words_and_as_many_tokens() -> None:
    with postgresql() as server:
        for tokens in (words(50_000), random_tokens(50_000), sorted(STOP_WORDS)):
            theirs = server.lexemes(tokens)
            different = [
                (token, sorted(lexemes(token)), found)
                for token, found in zip(tokens, theirs, strict=True)
                if sorted(lexemes(token)) != sorted(found)
            ]
            assert different == []


@pytest.mark.skipif(find_postgresql() is None, reason="PostgreSQL is not installed")
@pytest.mark.spec("HS-18")
def test_lexemes_are_dropped_at_the_size_at_which_postgresql_drops_them() -> None:
    sizes = range(MOST_LEXEME_BYTES - 1, MOST_LEXEME_BYTES + 3)
    tokens = ["7" * size for size in sizes]
    with postgresql() as server:
        assert server.lexemes(tokens) == [sorted(lexemes(each)) for each in tokens]


@pytest.mark.spec("HS-18")
def test_a_lexeme_of_more_bytes_than_postgresql_takes_is_dropped_alone() -> None:
    longest = "é" * (MOST_LEXEME_BYTES // 2)
    assert lexemes(f"{longest} {longest}é run") == {longest, "run"}


@pytest.mark.spec("HS-14")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("人工智能 research is running.", {"人工", "智能", "人工智能", "research", "run"}),
        ("我在北京大学读书", {"我", "在", "北京", "大学", "北京大学", "读书"}),
        ("GPT模型v2版", {"gpt", "模型", "v2", "版"}),
        ("The Running RUNS of runners", {"run", "runner"}),
    ],
)
def test_chinese_is_cut_in_search_mode_and_english_is_stemmed(
    text: str, expected: set[str]
) -> None:
    assert lexemes(text) == expected


@pytest.mark.spec("HS-15", "HS-16")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user_id2 __init__", {"user", "id2", "init"}),
        ("path/to/file.txt, e-mail!", {"path", "file", "txt", "e", "mail"}),
        ("5e3 5e3abc 12_34", {"5e3", "abc", "12", "34"}),
        ("", set[str]()),
        ("... ___ 🎉", set[str]()),
        ("İstanbul \u03a3\u0391\u03a3", {"istanbul", "\u03c3\u03b1\u03c3"}),
        ("lone \ud800surrogate", {"lone", "surrog"}),
    ],
)
def test_punctuation_and_underscores_part_words(text: str, expected: set[str]) -> None:
    assert lexemes(text) == expected


@pytest.mark.spec("HS-19")
def test_a_long_text_is_read_to_its_end() -> None:
    assert "last" in lexemes("x " * 500_000 + "last")
    assert "北京" in lexemes("字" * 9_000 + "。北京")
    assert len(lexemes("_".join(f"w{number}" for number in range(10_000)))) == 10_000


def test_lexemes_of_chinese_are_told_from_others() -> None:
    assert [is_han(each) for each in ("北京", "run", "v2", "ひら")] == [True, False, False, False]
