"""Payloads by reference: cut into chunks and compressed; a chunk that is stored is not sent again.

A manifest says that a workflow needs a payload. It holds nothing that reading needs: it is what a
sweep goes by.
"""

import asyncio
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stores.chunks import Chunk, Kind, Tree, below, plant
from stores.errors import DamagedPayloadError
from stores.payload_cache import KnownIds, RecentChunks
from stores.payload_compression import compressed, decompressed
from stores.payload_keys import (
    NO_KEYS,
    Keyring,
    PayloadKey,
    WrongPayloadKeyError,
    plain_id,
)

DEFAULT_CACHE_BYTES = 16 * 1024 * 1024
"""What runs with a window of 500 KB need for thirty of them. A run fills it in time, so a worker's
memory grows by as much; what is not there is read in one request."""

BATCH_BYTES = 4 * 1024 * 1024
BATCH_CHUNKS = 500
"""In one write or read of chunks: far below MongoDB's 48 MB for a message."""

ASK_FIRST_BYTES = 128 * 1024
"""From here on it is asked what is stored before anything is sent: a process that goes on with
another one's run knows none of its chunks, and all are there."""


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk as it is stored.

    Attributes:
        kind: what it holds. Nodes hold ids alone and are neither compressed nor encrypted, so a
            sweep needs no key.
        data: compressed, then encrypted if `key_id` is set.
        key_id: the key; `None` without encryption.
    """

    kind: Kind
    data: bytes
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A workflow's claim to a payload, for as long as Temporal knows the workflow."""

    namespace: str
    workflow_id: str
    root: bytes


class ChunkStore(Protocol):
    """Where chunks and manifests are kept. All methods may be repeated.

    Errors of every method: `StoreUnavailableError` (retryable) when no server could be reached.
    """

    async def touch_chunks(self, ids: Sequence[bytes]) -> set[bytes]:
        """Of these chunks, those that are stored; none of them is swept within the grace period."""
        ...

    async def put_chunks(self, chunks: Mapping[bytes, StoredChunk]) -> None:
        """Write those that are not there, and touch all."""
        ...

    async def find_chunks(self, ids: Sequence[bytes]) -> dict[bytes, StoredChunk]:
        """Those of them that are stored."""
        ...

    async def put_manifests(self, manifests: Sequence[Manifest]) -> None:
        """Write those that are not there, and touch all."""
        ...

    async def aclose(self) -> None:
        """Let go of what was opened here. Quiet a second time."""
        ...


@dataclass(frozen=True, slots=True)
class PayloadOwners:
    """The workflows whose histories hold a payload: one, and for a child's input and result two."""

    namespace: str
    workflow_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PayloadClaim:
    """What a history keeps of a payload. `workflow_id` is one owner, for words about a failure."""

    root: bytes
    workflow_id: str
    key_id: str | None = None


@dataclass
class PayloadCounts:
    """What a process has stored so far; the ratio of the two is what deduplication saves."""

    payloads: int = 0
    bytes_given: int = 0
    bytes_new: int = 0
    bytes_written: int = 0
    """After compression."""


class PayloadStore:
    """Writes and reads payloads, with caches that belong to this process.

    What takes processor time runs in threads, so the event loop goes on.
    """

    def __init__(
        self,
        chunks: ChunkStore,
        *,
        keys: Keyring = NO_KEYS,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self._chunks = chunks
        self._keys = keys
        self._recent = RecentChunks(cache_bytes)
        self._known = KnownIds()
        self.counts = PayloadCounts()

    async def put(self, data: bytes, *, owners: PayloadOwners, workspace_id: str) -> PayloadClaim:
        """Store a payload; when this returns, it outlives a loss of the primary.

        Repeats: only what is not stored is written.

        Raises:
            StoreUnavailableError: retryable.
            UnknownPayloadKeyError: the workspace's key is not here.
        """
        key = self._keys.for_workspace(workspace_id)
        tree = await asyncio.to_thread(plant, data, key.identify if key else plain_id)
        self.counts.payloads += 1
        self.counts.bytes_given += len(data)
        await self._put_chunks(tree, key)
        await self._put_manifests(tree.root, owners)
        return PayloadClaim(
            root=tree.root,
            workflow_id=owners.workflow_ids[0],
            key_id=key.id if key else None,
        )

    async def _put_chunks(self, tree: Tree, key: PayloadKey | None) -> None:
        new = {each.id: each for each in tree.chunks if each.id not in self._known}
        if sum(len(each.body) for each in new.values()) >= ASK_FIRST_BYTES:
            with self._known.learning() as learnt:
                for some in _batches(new.values()):
                    learnt.update(await self._chunks.touch_chunks([each.id for each in some]))
            new = {each.id: each for each in new.values() if each.id not in learnt}
        for some in _batches(new.values()):
            sealed = await asyncio.to_thread(_seal_all, some, key)
            with self._known.learning() as learnt:
                await self._chunks.put_chunks(sealed)
                learnt.update(sealed)
            self.counts.bytes_new += sum(len(each.body) for each in some)
            self.counts.bytes_written += sum(len(each.data) for each in sealed.values())
        for each in tree.chunks:
            self._recent.keep(each)

    async def _put_manifests(self, root: bytes, owners: PayloadOwners) -> None:
        manifests = {
            _manifest_id(owners.namespace, each, root): Manifest(owners.namespace, each, root)
            for each in owners.workflow_ids
        }
        new = {each: manifest for each, manifest in manifests.items() if each not in self._known}
        if new:
            with self._known.learning() as learnt:
                await self._chunks.put_manifests(list(new.values()))
                learnt.update(new)

    async def get(self, claim: PayloadClaim) -> bytes:
        """A payload; one that this process has seen lately needs no store.

        Raises:
            StoreUnavailableError: retryable.
            DamagedPayloadError: a chunk is missing or not what it was.
            UnknownPayloadKeyError: the key is not here.
        """
        key = None if claim.key_id is None else self._keys.get(claim.key_id)
        found: dict[bytes, Chunk] = {}
        ids = [claim.root]
        while True:  # ends: a chunk has the digests of what is below it
            missing = dict.fromkeys(each for each in ids if each not in found)
            found |= await self._find(list(missing), claim, key)
            if all(found[each].kind == "bytes" for each in ids):
                return b"".join(found[each].body for each in ids)
            ids = [child for each in ids for child in below(found[each])]

    async def _find(
        self, ids: Sequence[bytes], claim: PayloadClaim, key: PayloadKey | None
    ) -> dict[bytes, Chunk]:
        found = {each: chunk for each in ids if (chunk := self._recent.find(each)) is not None}
        missing = [each for each in ids if each not in found]
        for start in range(0, len(missing), BATCH_CHUNKS):
            some = missing[start : start + BATCH_CHUNKS]
            stored = await self._chunks.find_chunks(some)
            for each in some:
                if each not in stored:
                    raise DamagedPayloadError(claim.workflow_id, each.hex(), "is not stored")
            opened = await asyncio.to_thread(_open_all, stored, claim, key)
            for chunk in opened:
                found[chunk.id] = chunk
                self._recent.keep(chunk)
        return found

    async def aclose(self) -> None:
        """Close what keeps the chunks."""
        await self._chunks.aclose()


def _manifest_id(namespace: str, workflow_id: str, root: bytes) -> bytes:
    return f"{namespace}\0{workflow_id}\0".encode() + root


def _batches(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    batch: list[Chunk] = []
    size = 0
    for each in chunks:
        batch.append(each)
        size += len(each.body)
        if size >= BATCH_BYTES or len(batch) >= BATCH_CHUNKS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _seal_all(chunks: Sequence[Chunk], key: PayloadKey | None) -> dict[bytes, StoredChunk]:
    return {each.id: _seal(each, key) for each in chunks}


def _seal(chunk: Chunk, key: PayloadKey | None) -> StoredChunk:
    if chunk.kind == "ids":
        return StoredChunk(kind="ids", data=chunk.body)
    data = compressed(chunk.body)
    if key is None:
        return StoredChunk(kind="bytes", data=data)
    return StoredChunk(kind="bytes", data=key.seal_chunk(chunk.id, data), key_id=key.id)


def _open_all(
    stored: Mapping[bytes, StoredChunk], claim: PayloadClaim, key: PayloadKey | None
) -> list[Chunk]:
    return [_open(each, chunk, claim, key) for each, chunk in stored.items()]


def _open(
    chunk_id: bytes, stored: StoredChunk, claim: PayloadClaim, key: PayloadKey | None
) -> Chunk:
    try:
        data = stored.data
        if stored.kind == "bytes":
            data = key.open_chunk(chunk_id, data) if key else data
            data = decompressed(data)
    except (WrongPayloadKeyError, zlib.error) as error:
        raise _changed(chunk_id, claim) from error
    if (key.identify if key else plain_id)(stored.kind, data) != chunk_id:
        raise _changed(chunk_id, claim)
    return Chunk(id=chunk_id, kind=stored.kind, body=data)


def _changed(chunk_id: bytes, claim: PayloadClaim) -> DamagedPayloadError:
    sealed = f" or key {claim.key_id!r} is not the one it was sealed with" if claim.key_id else ""
    return DamagedPayloadError(
        claim.workflow_id, chunk_id.hex(), f"was changed since it was written{sealed}"
    )
