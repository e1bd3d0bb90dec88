"""Terms as an index has them in memory: 64-bit keys and counts.

A key is a hash of the term. That one of a query's terms has the key of any of a million others has
a chance of 5 in 10^14.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

_CACHED_TERMS = 200_000


@lru_cache(maxsize=_CACHED_TERMS)
def term_key(term: str) -> int:
    """The key of a term."""
    digest = hashlib.blake2b(term.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True, slots=True)
class CountedTerms:
    """How many terms a document has, and how often each different one."""

    length: int
    counts: Mapping[str, int]

    @classmethod
    def of(cls, terms: Iterable[str]) -> "CountedTerms":
        """Count them."""
        counted = Counter(terms)
        return cls(counted.total(), counted)
