"""BM25 against figures that others computed."""

import math
from collections import Counter
from typing import Any

import bm25s  # pyright: ignore[reportMissingTypeStubs]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stores.search.analysis import analyzer_named
from stores.search.bm25 import Bm25, inverse_document_frequency, ranked

REGEX = analyzer_named("regex")
DOCUMENTS = [
    "the quick brown fox",
    "the lazy dog",
    "the quick dog jumps over the lazy fox",
    "fox fox fox error_code E1234 the",
    "人工智能 research is running",
]
VECTORS = {
    "quick fox": [(0, 1.554357404491), (2, 1.113752155974), (3, 0.855550001163)],
    "the dog": [
        (1, 1.418476597324),
        (2, 1.033874890569),
        (0, 0.316134145551),
        (3, 0.263928506836),
    ],
    "fox": [(3, 0.855550001163), (0, 0.592303846959), (2, 0.424406693490)],
    "E1234 missing": [(3, 1.271829689101)],
    "人工智能": [(4, 1.523400396835)],
}
"""Of the reference implementation, release 0.62.0."""


def counts(documents: list[str]) -> list[Counter[str]]:
    return [Counter(REGEX.terms(each)) for each in documents]


@pytest.mark.spec("CS-22", "CS-25")
@pytest.mark.parametrize("query", VECTORS)
def test_scores_are_those_of_the_reference(query: str) -> None:
    found = ranked(REGEX.query_terms(query), counts(DOCUMENTS), Bm25())
    assert [index for index, _ in found] == [index for index, _ in VECTORS[query]]
    assert [score for _, score in found] == pytest.approx([each for _, each in VECTORS[query]])


WORDS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(WORDS, min_size=1, max_size=8),
    query=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=4, unique=True),
    k1=st.sampled_from([0.5, 1.2, 1.5]),
    b=st.sampled_from([0.0, 0.4, 0.75, 1.0]),
)
def test_scores_are_those_of_bm25s_up_to_the_constant(
    documents: list[list[str]], query: list[str], k1: float, b: float
) -> None:
    other: Any = bm25s.BM25(method="lucene", k1=k1, b=b, dtype="float64")
    other.index(documents, show_progress=False)
    known = [each for each in query if any(each in words for words in documents)]
    scores = dict(ranked(query, [Counter(each) for each in documents], Bm25(k1=k1, b=b)))
    expected = other.get_scores(known) if known else [0.0] * len(documents)
    for index, score in enumerate(expected):
        assert scores.get(index, 0.0) == pytest.approx(score * (k1 + 1), rel=1e-9, abs=1e-12)


@pytest.mark.spec("CS-25")
def test_a_term_in_every_document_still_counts_and_ties_keep_their_order() -> None:
    assert inverse_document_frequency(1, 1) == pytest.approx(0.2877, abs=1e-4)
    assert inverse_document_frequency(2, 2) == pytest.approx(0.1823, abs=1e-4)
    found = ranked(["same"], counts(["same"] * 5), Bm25())
    assert [index for index, _ in found] == [0, 1, 2, 3, 4]
    assert ranked(["same"], [], Bm25()) == ranked(["x"], counts(["same", ""]), Bm25()) == []


@pytest.mark.spec("CS-23", "CS-24")
@pytest.mark.parametrize(
    ("option", "value"),
    [("k1", -0.1), ("k1", math.nan), ("k1", math.inf), ("b", -0.1), ("b", 1.1), ("b", math.nan)],
)
def test_parameters_out_of_range_are_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"bm25_{option} must be"):
        Bm25(**{option: value})
    assert (Bm25().k1, Bm25().b) == (1.5, 0.75)
