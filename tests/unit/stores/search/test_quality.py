"""A small sample of `python -m benchmarks.search_quality`; the whole is made by hand."""

from benchmarks.search_quality import measured


def test_code_is_found_by_its_description_more_often_than_with_the_references_terms() -> None:
    ours, theirs, ratio, _ = measured("installed", 200, 60)
    assert ours > theirs
    assert ratio > 1.2
