"""Term keys and counts of a conversation, as arrays that grow at their end."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Numbers = NDArray[np.int64]

_LAST_KEY = np.uint64((1 << 64) - 1)

_LEAST_SORTED = 400_000
"""Postings from which sorting pays: of some 10,000 messages. Below, looking at each is quick."""


class Column:
    """Numbers of one kind; appending copies nothing old, but when the room is doubled."""

    def __init__(self, dtype: Any) -> None:  # noqa: ANN401 - what numpy takes
        self._room: NDArray[Any] = np.empty(256, dtype)
        self._size = 0

    @property
    def values(self) -> NDArray[Any]:
        """What was appended. It does not change, whatever is appended later."""
        return self._room[: self._size]

    @property
    def size_bytes(self) -> int:
        """Of the room."""
        return self._room.nbytes

    def append(self, values: NDArray[Any]) -> None:
        """Append them."""
        size = self._size + len(values)
        if size > len(self._room):
            room = np.empty(max(size, 2 * len(self._room)), self._room.dtype)
            room[: self._size] = self.values
            self._room = room
        self._room[self._size : size] = values
        self._size = size


class Postings:
    """Which entries hold a term, and how often: most are sorted by term, the rest is as it came."""

    def __init__(self) -> None:
        self._sorted_keys: Keys = np.empty(0, np.uint64)
        self._sorted_entries: NDArray[Any] = np.empty(0, np.int32)
        self._sorted_counts: NDArray[Any] = np.empty(0, np.uint32)
        self._clear_tail()

    def _clear_tail(self) -> None:
        self._keys, self._entries = Column(np.uint64), Column(np.int32)
        self._counts = Column(np.uint32)

    @property
    def size_bytes(self) -> int:
        """Of all arrays."""
        tail = (self._keys, self._entries, self._counts)
        base = (self._sorted_keys, self._sorted_entries, self._sorted_counts)
        return sum(each.size_bytes for each in tail) + sum(each.nbytes for each in base)

    def append(self, keys: Keys, entries: NDArray[Any], counts: NDArray[Any]) -> None:
        """Add postings, of entries that have none yet."""
        self._keys.append(keys)
        self._entries.append(entries)
        self._counts.append(counts)

    def find(self, key: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The entries with that key and how often each holds it; each entry once, in any order."""
        wanted = np.uint64(key)
        start, end = np.searchsorted(self._sorted_keys, [wanted, wanted + np.uint64(1)])
        if wanted == _LAST_KEY:
            end = len(self._sorted_keys)
        there = np.flatnonzero(self._keys.values == wanted)
        if start == end:
            return self._entries.values[there], self._counts.values[there]
        return (
            np.concatenate([self._sorted_entries[start:end], self._entries.values[there]]),
            np.concatenate([self._sorted_counts[start:end], self._counts.values[there]]),
        )

    @property
    def is_worth_sorting(self) -> bool:
        """Whether so much came since it was sorted that finding takes long."""
        return len(self._keys.values) > max(_LEAST_SORTED, len(self._sorted_keys) // 4)

    def sort(self) -> None:
        """Sort all of it by term. Half a second for 100,000 messages: in a thread."""
        keys = np.concatenate([self._sorted_keys, self._keys.values])
        order = np.argsort(keys, kind="stable")
        self._sorted_entries = np.concatenate([self._sorted_entries, self._entries.values])[order]
        self._sorted_counts = np.concatenate([self._sorted_counts, self._counts.values])[order]
        self._sorted_keys = keys[order]
        self._clear_tail()
