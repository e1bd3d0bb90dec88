"""What a search may be asked, whose its cursors are, and what of a text is shown."""

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.keyword import cursors
from stores.keyword.cursors import CursorSealer, Place
from stores.keyword.excerpts import MOST_CHARACTERS, excerpt
from stores.keyword.queries import (
    ConversationFilter,
    InvalidParameterError,
    KeywordQuery,
    check_page_size,
)

TURN = "01900000-0000-7000-8000-000000000071"
CONVERSATION = "01900000-0000-7000-8000-000000000070"
PLACE = Place(TURN, CONVERSATION, "prompt")
SEALER = CursorSealer(
    key=b"k" * 32,
    workspace_id="w",
    query=KeywordQuery(text="run"),
    allowed=ConversationFilter(principal="alice", everything=True),
)


@pytest.mark.spec("HS-6")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("x" * 1025, "1025 bytes"),
        ("é" * 513, "1026 bytes"),
        ("run \ud800", "lone surrogate"),
    ],
)
def test_a_query_that_is_no_query_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidParameterError, match=problem) as caught:
        KeywordQuery(text=text)
    assert caught.value.parameter == "query"


@pytest.mark.spec("HS-6")
def test_a_query_may_have_1024_bytes() -> None:
    assert KeywordQuery(text="é" * 512).lexemes == ("é" * 512,)


@pytest.mark.spec("HS-17")
def test_a_query_of_stop_words_or_punctuation_has_no_lexemes() -> None:
    assert KeywordQuery(text="the of and").lexemes == ()
    assert KeywordQuery(text="?!").lexemes == ()


@pytest.mark.spec("HS-9")
@pytest.mark.parametrize("size", [0, -1, 51])
def test_a_page_has_1_to_50_matches(size: int) -> None:
    with pytest.raises(InvalidParameterError, match="between 1 and 50") as caught:
        check_page_size(size)
    assert caught.value.parameter == "limit"


@pytest.mark.spec("HS-10", "HS-22")
def test_a_cursor_opens_for_whom_it_was_sealed() -> None:
    assert SEALER.open(SEALER.seal(PLACE)) == PLACE


@pytest.mark.spec("HS-10", "HS-22")
@pytest.mark.parametrize(
    "other",
    [
        replace(SEALER, key=b"l" * 32),
        replace(SEALER, workspace_id="v"),
        replace(SEALER, allowed=ConversationFilter(principal="bob", everything=True)),
        replace(SEALER, query=KeywordQuery(text="walk")),
        replace(SEALER, query=KeywordQuery(text="run", archived="include")),
        replace(SEALER, query=KeywordQuery(text="run", include_auxiliary=True)),
    ],
    ids=["key", "workspace", "principal", "query", "archived", "auxiliary"],
)
def test_a_cursor_of_another_search_or_principal_is_refused(other: CursorSealer) -> None:
    with pytest.raises(InvalidParameterError, match="no cursor of this search") as caught:
        other.open(SEALER.seal(PLACE))
    assert caught.value.parameter == "after"


@pytest.mark.spec("HS-10")
def test_a_cursor_from_before_a_change_of_the_order_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sealed = SEALER.seal(PLACE)
    monkeypatch.setattr(cursors, "CURSOR_VERSION", cursors.CURSOR_VERSION + 1)
    with pytest.raises(InvalidParameterError):
        SEALER.open(sealed)


@pytest.mark.spec("HS-10")
@pytest.mark.parametrize("cursor", ["", "x", "=", "%%%", "é", "\ud800", "A" * 2000, "\x00"])
def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidParameterError):
        SEALER.open(cursor)


@pytest.mark.spec("HS-10")
@given(at=st.integers(min_value=0, max_value=65), change=st.sampled_from("Aaz09-_=. "))
def test_an_edited_cursor_is_refused(at: int, change: str) -> None:
    sealed = SEALER.seal(PLACE)
    edited = sealed[:at] + change + sealed[at + 1 :]
    if edited == sealed:
        assert SEALER.open(edited) == PLACE
        return
    with pytest.raises(InvalidParameterError):
        SEALER.open(edited)


@pytest.mark.spec("HS-22")
def test_a_cursor_tells_nothing_but_a_place_that_its_holder_was_shown() -> None:
    sealed = SEALER.seal(PLACE)
    data = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
    assert data[:33].hex() == (TURN + CONVERSATION).replace("-", "") + "01"
    assert len(data) == 33 + 16


@pytest.mark.spec("HS-26", "HS-27")
def test_an_excerpt_lies_around_a_word_or_a_chinese_term_and_is_the_text_as_it_is() -> None:
    before, after = "<b>x</b> " * 100, " yz" * 300
    for word, lexeme in (("Running", "run"), ("北京", "北京"), ("my_runs", "run")):
        text = before + word + after
        shown, truncated = excerpt(text, [lexeme])
        assert truncated
        assert len(shown) == MOST_CHARACTERS
        assert shown in text
        assert abs(shown.index(word) - 250) < 10


@pytest.mark.spec("HS-26")
def test_an_excerpt_of_a_stem_that_no_word_begins_with_is_the_beginning() -> None:
    text = "happy " * 200
    assert excerpt(text, ["happi"]) == (text[:500], True)
    assert excerpt("unrunning " * 100, ["run"]) == (("unrunning " * 100)[:500], True)
    assert excerpt("short", ["run"]) == ("short", False)


@pytest.mark.spec("HS-26")
@given(text=st.text(max_size=1500), lexeme=st.text(min_size=1, max_size=5))
def test_an_excerpt_is_a_stretch_of_500_characters_of_any_text(text: str, lexeme: str) -> None:
    shown, truncated = excerpt(text, [lexeme])
    assert shown in text
    assert len(shown) == min(len(text), 500)
    assert truncated == (len(text) > 500)
