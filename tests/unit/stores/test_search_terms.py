"""Packed terms are what was packed, looked for or unpacked."""

import zlib
from collections import Counter
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from stores.mongo.search_entries import SearchedEntries
from stores.mongo.search_terms import (
    TermBlock,
    inflated,
    joined,
    line_of,
    packed,
    spelled,
    terms_id,
)
from stores.search.counting import CountedTerms, term_key

LONG = "a" * 41
TERMS = st.sampled_from(["a", "aa", "b", "c++", "北京", "\ud800", LONG, LONG + "a"]) | st.text(
    st.characters(min_codepoint=33, exclude_characters="="), min_size=1, max_size=60
)
DOCUMENTS = st.lists(st.dictionaries(TERMS, st.integers(1, 300), max_size=8), max_size=6)
MANY = [{f"t{n}": 1 for n in range(70_000)}, {"t69999": 2, "t1": 70_000}]


def counted(documents: list[dict[str, int]]) -> list[CountedTerms]:
    return [CountedTerms(sum(each.values()), each) for each in documents]


@settings(deadline=None)
@given(DOCUMENTS)
@example(MANY)
def test_terms_are_found_and_unpacked_as_they_were_packed(documents: list[dict[str, int]]) -> None:
    check(TermBlock(zlib.decompress(packed(counted(documents))), 10), documents)


@settings(deadline=None)
@given(st.lists(DOCUMENTS, min_size=1, max_size=4))
@example([MANY, [], [{"t5": 3, "z": 1}, {}], [{}], MANY])
def test_terms_of_several_appends_are_found_as_if_they_were_one(
    appends: list[list[dict[str, int]]],
) -> None:
    parts = [(packed(counted(each)) if any(each) else None, len(each)) for each in appends]
    check(TermBlock(zlib.decompress(joined(parts)), 10), [doc for each in appends for doc in each])


def check(block: TermBlock, documents: list[dict[str, int]]) -> None:
    assert block.lengths.tolist() == [sum(each.values()) for each in documents]
    terms = {term for each in documents for term in each}
    expected = {
        (term_key(spelled(term)), 10 + n): count
        for n, each in enumerate(documents)
        for term, count in each.items()
    }
    keys, entries, counts = (each.tolist() for each in block.postings())
    assert dict(zip(zip(keys, entries, strict=True), counts, strict=True)) == expected
    assert len(keys) == len(expected)
    asked = list(dict.fromkeys([*sorted(terms)[:20], "a", "absent", "="]))
    found = {asked[term]: each for term, *each in block.find(list(map(line_of, asked)))}
    for term in asked:
        there = {10 + n: each[term] for n, each in enumerate(documents) if term in each}
        assert (term in found) == bool(there)
        if there:
            assert dict(zip(*(each.tolist() for each in found[term]), strict=True)) == there


def test_terms_of_an_older_packing_are_left_out() -> None:
    entries = SearchedEntries()
    entries.take({"terms": b"keys", "analyzer": "standard-2"}, includes_own=False)
    assert entries.lengths.tolist() == []


@given(st.lists(st.tuples(DOCUMENTS, DOCUMENTS), max_size=4), st.lists(st.booleans(), min_size=4))
def test_what_is_found_is_the_same_before_and_after_unpacking_and_when_it_alone_is_kept(
    appends: list[tuple[list[dict[str, int]], list[dict[str, int]]]], unpacks: list[bool]
) -> None:
    asked = ["a", "aa", LONG, "absent"]
    entries, only = SearchedEntries(), SearchedEntries(asked)
    expected: dict[str, Counter[int]] = {term: Counter() for term in asked}
    first = 0
    for (said, own), is_unpacked in zip(appends, unpacks, strict=False):
        own = [*own, *({} for _ in said)][: len(said)]  # noqa: PLW2901 - of the same messages
        document: dict[str, Any] = {"analyzer": terms_id("standard-2")}
        if said:
            document |= {"terms": packed(counted(said)), "own_terms": packed(counted(own))}
        document = inflated(document)
        for kept in (entries, only):
            kept.take(document, includes_own=True)
        if is_unpacked:
            entries.unpack()
        for n, each in enumerate(said):
            for term in asked:
                expected[term][first + n] += each.get(term, 0) + own[n].get(term, 0)
        first += len(said)
    for kept in (entries, only):
        for term, (found, counts) in zip(asked, kept.find(asked), strict=True):
            there = {entry: count for entry, count in expected[term].items() if count}
            assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == there
            assert len(found) == len(there)
