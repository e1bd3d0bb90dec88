"""Terms as an index keeps them: 64-bit keys and counts, packed.

A key is a hash of the term. That one of a query's terms has the key of any of a million others has
a chance of 5 in 10^14.
"""

import array
import hashlib
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

_CACHED_TERMS = 200_000
_WIDEST_BYTE = 255


@lru_cache(maxsize=_CACHED_TERMS)
def term_key(term: str) -> int:
    """The key of a term."""
    digest = hashlib.blake2b(term.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True, slots=True)
class CountedTerms:
    """How many terms a document has, and how often each different one."""

    length: int
    keys: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, terms: Iterable[str]) -> "CountedTerms":
        """Count them."""
        counted = Counter(terms)
        keys = tuple(map(term_key, counted))
        return cls(counted.total(), keys, tuple(counted.values()))


@dataclass(frozen=True, slots=True)
class PackedTerms:
    """The counted terms of several documents, little-endian.

    `lengths` and `sizes` (different terms) are of 4 bytes for each document; `keys` has 8 for each
    different term of each, `counts` 1, or 4 where one of them needs more.
    """

    lengths: bytes
    sizes: bytes
    keys: bytes
    counts: bytes
    is_wide: bool

    @classmethod
    def of(cls, documents: Iterable[CountedTerms]) -> "PackedTerms":
        """Pack them in their order."""
        documents = list(documents)
        counts = [count for each in documents for count in each.counts]
        is_wide = any(each > _WIDEST_BYTE for each in counts)
        return cls(
            lengths=little_endian("I", (each.length for each in documents)),
            sizes=little_endian("I", (len(each.keys) for each in documents)),
            keys=little_endian("Q", (key for each in documents for key in each.keys)),
            counts=little_endian("I", counts) if is_wide else bytes(counts),
            is_wide=is_wide,
        )


def little_endian(code: str, numbers: Iterable[int]) -> bytes:
    """The numbers as an array of that type code of `array`, on any machine."""
    packed = array.array(code, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
