"""Chunks of payloads in MongoDB, and the manifests that say which workflow needs them.

`touched_at` is the server's time, so that clocks of workers do not matter. Writing and touching is
one update of one document, as is looking at the time and removing: a sweep cannot get in between.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from bson import Binary
from pymongo import UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError

from stores.mongo.client import MongoConnection
from stores.mongo.documents import Document
from stores.mongo.failures import is_duplicate, store_errors
from stores.payload_store import Manifest, StoredChunk

CHUNKS = "payload_chunks"
MANIFESTS = "payload_manifests"

TOUCH: Document = {"$currentDate": {"touched_at": True}}


class MongoChunkStore:
    """`ChunkStore` on MongoDB. Writes wait for the majority: a history will depend on them."""

    def __init__(self, connection: MongoConnection, *, owns_connection: bool = False) -> None:
        """Use a connection that others share, or one that `aclose` closes."""
        self._connection = connection
        self._owns_connection = owns_connection

    async def touch_chunks(self, ids: Sequence[bytes]) -> set[bytes]:
        """See `ChunkStore.touch_chunks`."""
        query = {"_id": {"$in": list(ids)}}
        with self._errors(f"look for {len(ids)} chunks of payloads"):
            await self._collection(CHUNKS).update_many(query, TOUCH)
            found = await self._collection(CHUNKS).find(query, {"_id": 1}).to_list()
        return {bytes(each["_id"]) for each in found}

    async def put_chunks(self, chunks: Mapping[bytes, StoredChunk]) -> None:
        """See `ChunkStore.put_chunks`."""
        with self._errors(f"write {len(chunks)} chunks of payloads"):
            await self._upsert(CHUNKS, [_writing(*each) for each in chunks.items()])

    async def find_chunks(self, ids: Sequence[bytes]) -> dict[bytes, StoredChunk]:
        """See `ChunkStore.find_chunks`."""
        with self._errors(f"read {len(ids)} chunks of payloads"):
            found = await self._collection(CHUNKS).find({"_id": {"$in": list(ids)}}).to_list()
        return {bytes(each["_id"]): _chunk(each) for each in found}

    async def put_manifests(self, manifests: Sequence[Manifest]) -> None:
        """See `ChunkStore.put_manifests`."""
        workflows = ", ".join(sorted({repr(each.workflow_id) for each in manifests}))
        with self._errors(f"write manifests of workflow {workflows}"):
            await self._upsert(
                MANIFESTS,
                [UpdateOne({"_id": manifest_id(each)}, TOUCH, upsert=True) for each in manifests],
            )

    async def aclose(self) -> None:
        """See `ChunkStore.aclose`."""
        if self._owns_connection:
            await self._connection.close()

    async def _upsert(self, collection: str, updates: Sequence[UpdateOne]) -> None:
        while True:  # ends: what another writer was faster with is there the next time
            try:
                await self._collection(collection).bulk_write(updates, ordered=False)
            except BulkWriteError as error:
                if not is_duplicate(error):
                    raise
            else:
                return

    def _collection(self, name: str) -> AsyncCollection[Document]:
        return self._connection.database[name]

    def _errors(self, attempt: str) -> AbstractContextManager[None]:
        return store_errors(attempt, self._connection.where)


def manifest_id(manifest: Manifest) -> Document:
    """Manifests are read in the order of these."""
    return {
        "namespace": manifest.namespace,
        "workflow_id": manifest.workflow_id,
        "root": manifest.root,
    }


def _writing(chunk_id: bytes, chunk: StoredChunk) -> UpdateOne:
    key = {} if chunk.key_id is None else {"key_id": chunk.key_id}
    document = {"kind": chunk.kind, "data": Binary(chunk.data), **key}
    return UpdateOne({"_id": chunk_id}, {"$setOnInsert": document, **TOUCH}, upsert=True)


def _chunk(document: Document) -> StoredChunk:
    return StoredChunk(
        kind=document["kind"], data=bytes(document["data"]), key_id=document.get("key_id")
    )
