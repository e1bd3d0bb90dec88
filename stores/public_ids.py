"""Public ids: UUIDs of version 7 (RFC 9562), made where a thing is first stored."""

import secrets
from datetime import datetime

from stores.paging import microseconds

_RANDOM_BITS = 74
_RANDOM = (1 << _RANDOM_BITS) - 1


def new_public_id(now: datetime, *, after: str | None = None) -> str:
    """A UUIDv7 of this time, as text; greater than `after`, however the clock went.

    Where the clock stands still or goes back the id is one more than `after`.
    """
    value = (microseconds(now) // 1000 << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)
    if after is not None and value <= (last := _value_of(after)):
        value = last + 1
    return _text_of(value)


def _text_of(value: int) -> str:
    """The 48 bits of milliseconds and 74 random ones with version and variant between them."""
    milliseconds, random = value >> _RANDOM_BITS, value & _RANDOM
    high, low = random >> 62, random & ((1 << 62) - 1)
    digits = f"{milliseconds << 80 | 7 << 76 | high << 64 | 0b10 << 62 | low:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _value_of(text: str) -> int:
    number = int(text.replace("-", ""), 16)
    high, low = (number >> 64) & 0xFFF, number & ((1 << 62) - 1)
    return (number >> 80) << _RANDOM_BITS | high << 62 | low
