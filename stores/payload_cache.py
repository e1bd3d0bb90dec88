"""What a process remembers of chunks: the newest of them, and which ones are stored."""

from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic

from stores.chunks import Chunk

KNOWN_FOR = timedelta(minutes=25)
"""How long it is believed that a chunk is stored. A sweep's shortest grace period is an hour, more
than twice of this: whoever writes a manifest by what it believes is done long before."""

MOST_KNOWN = 200_000
"""About 30 MB of ids."""


class RecentChunks:
    """Chunks by id, as many as fit into `limit_bytes`; the longest unused go first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._chunks: OrderedDict[bytes, Chunk] = OrderedDict()

    def find(self, chunk_id: bytes) -> Chunk | None:
        """The chunk, which counts as used."""
        chunk = self._chunks.get(chunk_id)
        if chunk is not None:
            self._chunks.move_to_end(chunk_id)
        return chunk

    def keep(self, chunk: Chunk) -> None:
        """Remember it as just used."""
        if chunk.id in self._chunks:
            self._chunks.move_to_end(chunk.id)
            return
        self._chunks[chunk.id] = chunk
        self._size_bytes += len(chunk.body)
        while self._size_bytes > self._limit_bytes:
            _, oldest = self._chunks.popitem(last=False)
            self._size_bytes -= len(oldest.body)


class KnownIds:
    """Ids of which it is known that they are stored; each for `KNOWN_FOR`."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def __contains__(self, known_id: bytes) -> bool:
        """Whether this is known now."""
        return self._until.get(known_id, 0.0) > monotonic()

    @contextmanager
    def learning(self) -> Generator[set[bytes]]:
        """Put into the set what is stored when this ends well; time counts from its beginning."""
        until = monotonic() + KNOWN_FOR.total_seconds()
        learnt: set[bytes] = set()
        yield learnt
        for each in learnt:
            self._until[each] = until
            self._until.move_to_end(each)
        while len(self._until) > MOST_KNOWN:
            self._until.popitem(last=False)
