"""BM25 as plain functions: what the index has to equal, term by term."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Bm25:
    """How soon more of a term says no more (`k1`), and how much a long document is held against it.

    Raises:
        ValueError: `k1` is not a finite number of at least 0, or `b` is not within 0 and 1.
    """

    k1: float = 1.5
    b: float = 0.75

    def __post_init__(self) -> None:
        """Check both: a negative `k1` can divide by zero, and NaN would hide every match."""
        if not math.isfinite(self.k1) or self.k1 < 0:
            message = f"bm25_k1 must be a finite number of at least 0, got {self.k1!r}"
            raise ValueError(message)
        if not 0 <= self.b <= 1:
            message = f"bm25_b must be within 0 and 1, got {self.b!r}"
            raise ValueError(message)

    def term_score(self, idf: float, frequency: int, length: int, average_length: float) -> float:
        """What one term adds to the score of a document that holds it `frequency` times."""
        norm = self.k1 * (1.0 - self.b + self.b * length / average_length)
        return idf * (frequency * (self.k1 + 1.0)) / (frequency + norm)


def inverse_document_frequency(documents: int, holding: int) -> float:
    """`ln((N - df + 0.5) / (df + 0.5) + 1)`: above zero for every term, also one in all documents.

    0 for a term in none.
    """
    if holding == 0:
        return 0.0
    return math.log((documents - holding + 0.5) / (holding + 0.5) + 1.0)


def ranked(
    query_terms: Sequence[str], documents: Sequence[Mapping[str, int]], parameters: Bm25
) -> list[tuple[int, float]]:
    """Index and score of each document with a score above 0, best first, then in their order.

    Args:
        query_terms: each once; scores are added up in this order.
        documents: how often each holds each term.
        parameters: of BM25.
    """
    lengths = [sum(each.values()) for each in documents]
    total = sum(lengths)
    if total == 0:
        return []
    average = total / len(documents)
    holding = Counter(term for each in documents for term in query_terms if each.get(term))
    idf = {each: inverse_document_frequency(len(documents), holding[each]) for each in query_terms}
    scores: list[tuple[int, float]] = []
    for index, (document, length) in enumerate(zip(documents, lengths, strict=True)):
        score = 0.0
        for term in query_terms:
            if frequency := document.get(term, 0):
                score += parameters.term_score(idf[term], frequency, length, average)
        scores.append((index, score))
    return sorted((each for each in scores if each[1] > 0), key=lambda each: -each[1])
