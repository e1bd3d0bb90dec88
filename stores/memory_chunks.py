"""Chunks of payloads in this process's memory: the verified fake."""

from collections.abc import Mapping, Sequence

from stores.payload_store import Manifest, StoredChunk


class InMemoryChunkStore:
    """`ChunkStore` in memory. Nothing is ever swept."""

    def __init__(self) -> None:
        self.chunks: dict[bytes, StoredChunk] = {}
        self.manifests: set[Manifest] = set()

    async def touch_chunks(self, ids: Sequence[bytes]) -> set[bytes]:
        """See `ChunkStore.touch_chunks`."""
        return set(ids) & self.chunks.keys()

    async def put_chunks(self, chunks: Mapping[bytes, StoredChunk]) -> None:
        """See `ChunkStore.put_chunks`."""
        self.chunks = {**chunks, **self.chunks}

    async def find_chunks(self, ids: Sequence[bytes]) -> dict[bytes, StoredChunk]:
        """See `ChunkStore.find_chunks`."""
        return {each: self.chunks[each] for each in ids if each in self.chunks}

    async def put_manifests(self, manifests: Sequence[Manifest]) -> None:
        """See `ChunkStore.put_manifests`."""
        self.manifests |= set(manifests)

    async def aclose(self) -> None:
        """See `ChunkStore.aclose`; what is stored stays."""
