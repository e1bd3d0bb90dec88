"""Blobs in MongoDB: a manifest each, and chunks that fit into documents.

Not GridFS, which knows no blob by its content. Each upload writes chunks of its own and the
manifest last, so two writers never share a chunk, and a blob is there whole or not at all.
"""

import copy
import json
import re
from asyncio import timeout
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from hashlib import sha256

from bson import Binary, ObjectId
from pymongo import IndexModel

from stores.errors import MediaNotFoundError, StoreError, StoreUnavailableError
from stores.identifiers import DEFAULT_WORKSPACE, check_identifier
from stores.media.addresses import parse_media_uri, resolved_public_url, uri_of_digest
from stores.media.protocols import NO_CONTEXT, MediaContext, PublicUrlResolver
from stores.media.reading import check_digest, metadata_in
from stores.mongo.client import Client, Database, MongoConnection
from stores.mongo.documents import SERVER_TIME, Document
from stores.mongo.failures import is_duplicate, store_errors

DEFAULT_CHUNK_SIZE_BYTES = 8 * 1024 * 1024

LARGEST_CHUNK_SIZE_BYTES = 16 * 1024 * 1024 - 64 * 1024
"""A document less what else a chunk holds."""

STEP_TIMEOUT_SECONDS = 30.0
"""Of one chunk: a server that hangs must not hold a caller for ever."""

REFRESHED_AFTER_MICROSECONDS = 20 * 60 * 1_000_000
"""A put of a blob that is there writes nothing while its `touched_at` is younger: many runs may
share one. A commit demands that it is younger than twice this, a sweep that it is older than three
times, so what a commit names is not removed beside it."""

COLLECTION = "media"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def media_id(digest: str, workspace_id: str) -> str:
    """The `_id` of a manifest: a workspace sees its own blobs alone."""
    return f"{digest}.{workspace_id}"


def touched_within(microseconds: int) -> Document:
    """Whether a document was touched within this time of the server's clock."""
    return {"$gt": ["$touched_at", {"$subtract": [SERVER_TIME, microseconds]}]}


class MongoMediaStore:
    """`StreamingMediaStore` in the collections `media` (manifests) and `media_chunks`.

    Metadata are JSON text in the manifest, so any key is allowed; it is one document, so keep them
    small. The first put of a blob counts, with its metadata.
    """

    def __init__(
        self,
        *,
        client: Client | None = None,
        db_url: str | None = None,
        database: str | None = None,
        collection: str = COLLECTION,
        chunk_size_bytes: int = DEFAULT_CHUNK_SIZE_BYTES,
        public_url: PublicUrlResolver | None = None,
        workspace_id: str = DEFAULT_WORKSPACE,
        connection: MongoConnection | None = None,
    ) -> None:
        """Bind the store; nothing is connected before the first call.

        Args:
            client: a shared client, left open by `aclose`.
            db_url: a connection string; the store opens its own client and closes it in `aclose`.
            database: the database's name.
            collection: of the manifests; that of the chunks has `_chunks` after it.
            chunk_size_bytes: of new blobs.
            public_url: see `MediaStore.public_url`.
            workspace_id: whose blobs the store sees.
            connection: of a step store, in place of the first three: it prepares the database.

        Raises:
            ValueError: not exactly one of `client` and `db_url`, no `database`, or a chunk size or
                a collection's name that cannot be.
            InvalidIdentifierError: the workspace id is malformed.
        """
        if not _NAME.fullmatch(collection):
            msg = f"collection={collection!r} cannot be; use letters, digits and underscores"
            raise ValueError(msg)
        if not 1 <= chunk_size_bytes <= LARGEST_CHUNK_SIZE_BYTES:
            msg = (
                f"chunk_size_bytes is {chunk_size_bytes}; pass 1 to {LARGEST_CHUNK_SIZE_BYTES}, "
                "since a chunk is one document"
            )
            raise ValueError(msg)
        self._is_prepared = connection is not None
        self._connection = connection or MongoConnection(
            client=client, db_url=db_url, database=database
        )
        self._name = collection
        self._chunk_size_bytes = chunk_size_bytes
        self._public_url = public_url
        self._workspace_id = check_identifier("workspace_id", workspace_id)

    def for_workspace(self, workspace_id: str) -> "MongoMediaStore":
        """See `WorkspaceMediaStore.for_workspace`."""
        store = copy.copy(self)
        store._workspace_id = check_identifier("workspace_id", workspace_id)  # noqa: SLF001
        return store

    def is_in(self, connection: MongoConnection) -> bool:
        """Whether a step store with this connection can look at the manifests in transactions."""
        return self._connection is connection and self._name == COLLECTION

    async def aclose(self) -> None:
        """Close the client if it was made here. Quiet a second time."""
        await self._connection.close()

    async def initialise(self) -> None:
        """Make the indexes; the first put does so by itself. A step store makes those of its own.

        Raises:
            StoreConfigurationError: the user may not make them.
        """
        async with self._working("prepare media") as database:
            chunks, manifests = database[f"{self._name}_chunks"], database[self._name]
            by_file = IndexModel([("files_id", 1), ("n", 1)], name="files_v1", unique=True)
            await chunks.create_indexes([by_file])
            await manifests.create_indexes([IndexModel([("files_id", 1)], name="files_v1")])
        self._is_prepared = True

    @asynccontextmanager
    async def _working(self, attempt: str) -> AsyncGenerator[Database]:
        where = self._connection.where
        try:
            async with timeout(STEP_TIMEOUT_SECONDS):
                with store_errors(attempt, where):
                    yield self._connection.database
        except TimeoutError as error:
            seconds = f"{STEP_TIMEOUT_SECONDS:.0f} s"
            msg = f"{attempt} on {where}: no answer within {seconds}; retry"
            raise StoreUnavailableError(msg) from error

    # Writing

    async def put(self, data: bytes, *, context: MediaContext = NO_CONTEXT) -> str:
        """See `MediaStore.put`."""
        digest = sha256(data).hexdigest()
        uri = uri_of_digest(digest)
        if not await self._refreshed(uri):
            size = self._chunk_size_bytes
            pieces = (data[start : start + size] for start in range(0, len(data), size))
            upload = _Upload()
            for piece in pieces:
                await self._add_chunk(upload, piece)
            await self._finish(upload, digest, context)
        return uri

    async def put_stream(
        self, chunks: AsyncIterable[bytes], *, context: MediaContext = NO_CONTEXT
    ) -> str:
        """See `StreamingMediaStore.put_stream`. Two chunks are in memory at a time."""
        upload, digest, held = _Upload(), sha256(), bytearray()
        size = self._chunk_size_bytes
        try:
            async for piece in chunks:
                digest.update(piece)
                held += piece
                while len(held) >= size:
                    await self._add_chunk(upload, bytes(held[:size]))
                    del held[:size]
            if held:
                await self._add_chunk(upload, bytes(held))
        except BaseException:
            await self._forget(upload)
            raise
        await self._finish(upload, digest.hexdigest(), context)
        return uri_of_digest(digest.hexdigest())

    async def _refreshed(self, uri: str) -> bool:
        """Whether the blob is there, and is not swept for the time to come."""
        own = {"_id": media_id(parse_media_uri(uri), self._workspace_id)}
        is_fresh = {"is_fresh": touched_within(REFRESHED_AFTER_MICROSECONDS)}
        async with self._working(f"look for media {uri}") as database:
            found = await database[self._name].find_one(own, is_fresh)
            if found is None or found["is_fresh"]:
                return found is not None
            touch = [{"$set": {"touched_at": SERVER_TIME}}]
            return bool((await database[self._name].update_one(own, touch)).matched_count)

    async def _add_chunk(self, upload: "_Upload", piece: bytes) -> None:
        if not self._is_prepared:
            await self.initialise()
        chunk = {"files_id": upload.files_id, "n": upload.count, "data": Binary(piece)}
        async with self._working("write media") as database:
            await database[f"{self._name}_chunks"].insert_one(chunk)
        upload.count += 1
        upload.size_bytes += len(piece)

    async def _finish(self, upload: "_Upload", digest: str, context: MediaContext) -> None:
        """Write the manifest, unless another writer was faster."""
        told: Document = {
            "workspace_id": self._workspace_id,
            "sha256": digest,
            "media_type": context.media_type,
            "filename": context.filename,
            "metadata": json.dumps(dict(context.metadata)),
            "size_bytes": upload.size_bytes,
            "chunk_size_bytes": self._chunk_size_bytes,
            "chunk_count": upload.count,
        }
        uri = uri_of_digest(digest)
        values = {name: {"$literal": value} for name, value in told.items() if value is not None}
        change = [{"$set": {**values, "touched_at": SERVER_TIME}}]
        own = {"_id": media_id(digest, self._workspace_id), "files_id": upload.files_id}
        try:
            async with self._working(f"write media {uri}") as database:
                await self._check_chunks(upload, uri)
                await database[self._name].update_one(own, change, upsert=True)
        except StoreError as error:
            await self._forget(upload)
            if not is_duplicate(error.__cause__):
                raise
            await self._refreshed(uri)

    async def _check_chunks(self, upload: "_Upload", uri: str) -> None:
        """Return when all chunks are there: a sweep removes those of uploads of a day ago."""
        chunks = self._connection.database[f"{self._name}_chunks"]
        if upload.count != await chunks.count_documents({"files_id": upload.files_id}):
            msg = f"chunks of media {uri} are gone before all were written; retry"
            raise StoreUnavailableError(msg)

    async def _forget(self, upload: "_Upload") -> None:
        """Remove the chunks of an upload that nothing will name, or leave that to a sweep."""
        with suppress(StoreError):
            async with self._working("remove chunks") as database:
                query = {"files_id": upload.files_id}
                await database[f"{self._name}_chunks"].delete_many(query)

    # Reading

    async def _manifest(self, uri: str, fields: tuple[str, ...]) -> Document | None:
        query = {"_id": media_id(parse_media_uri(uri), self._workspace_id)}
        async with self._working(f"look for media {uri}") as database:
            return await database[self._name].find_one(query, dict.fromkeys(fields, 1))

    async def _known_manifest(self, uri: str, *fields: str) -> Document:
        found = await self._manifest(uri, fields)
        if found is None:
            raise MediaNotFoundError(uri, f"is not in {self._connection.where}")
        return found

    async def get(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bytes:
        """See `MediaStore.get`."""
        return b"".join([piece async for piece in self.get_stream(uri, context=context)])

    async def get_stream(
        self,
        uri: str,
        *,
        context: MediaContext = NO_CONTEXT,  # noqa: ARG002 - the key is the digest
    ) -> AsyncIterator[bytes]:
        """See `StreamingMediaStore.get_stream`. One chunk is in memory at a time."""
        manifest = await self._known_manifest(uri, "files_id", "chunk_count")
        digest, size_bytes = sha256(), 0
        for n in range(manifest["chunk_count"]):
            query = {"files_id": manifest["files_id"], "n": n}
            async with self._working(f"read media {uri}") as database:
                chunk = await database[f"{self._name}_chunks"].find_one(query, {"data": 1})
            if chunk is None:
                break  # and so the digest does not fit
            digest.update(chunk["data"])
            size_bytes += len(chunk["data"])
            yield bytes(chunk["data"])
        check_digest(uri, digest.hexdigest(), size_bytes)

    async def exists(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bool:  # noqa: ARG002
        """See `MediaStore.exists`."""
        return await self._manifest(uri, ("_id",)) is not None

    async def public_url(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> str | None:
        """See `MediaStore.public_url`."""
        return await resolved_public_url(
            self._public_url, uri, context, workspace_id=self._workspace_id
        )

    async def get_metadata(
        self,
        uri: str,
        *,
        context: MediaContext = NO_CONTEXT,  # noqa: ARG002
    ) -> Mapping[str, str]:
        """See `MediaStore.get_metadata`."""
        return metadata_in(uri, (await self._known_manifest(uri, "metadata"))["metadata"])


class _Upload:
    """Chunks that no manifest names yet. The id tells when the upload began."""

    def __init__(self) -> None:
        self.files_id = ObjectId()
        self.count = 0
        self.size_bytes = 0
