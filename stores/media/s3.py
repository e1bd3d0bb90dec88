"""Blobs as objects of an S3 bucket, or of what speaks its protocol."""

import copy
import re
from collections.abc import AsyncIterable, AsyncIterator, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from stores.errors import (
    MediaNotFoundError,
    StoreConfigurationError,
    StoreUnavailableError,
)
from stores.identifiers import DEFAULT_WORKSPACE, check_identifier
from stores.media.addresses import (
    default_key_strategy,
    key_for,
    media_uri_for,
    resolved_public_url,
    uri_of_digest,
)
from stores.media.disk import PIECE_BYTES
from stores.media.protocols import NO_CONTEXT, KeyStrategy, MediaContext, PublicUrlResolver
from stores.media.reading import check_digest

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import S3Store

PART_BYTES = 8 * 1024 * 1024
"""Of a multipart upload, which a larger blob is; four of them are in memory at a time."""

PARTS_AT_ONCE = 4

LOOKED_FOR_ABOVE_BYTES = 1024 * 1024
"""A blob of this size is looked for before it is sent: a question is cheaper than the bytes."""

TIMEOUT = timedelta(seconds=30)
"""Of one request."""

RETRY_TIMEOUT = timedelta(seconds=5)
"""For all attempts together: what lasts longer is an outage, and the caller decides how to wait."""

_METADATA_NAME = re.compile(r"[A-Za-z0-9-]+")

_OURS = frozenset({"content-type", "content-disposition", "content-encoding", "content-language"})
"""Attributes of an object that are not a caller's metadata."""


class S3MediaStore:
    """`StreamingMediaStore` in a bucket, by path-style URLs and signed requests.

    Objects are put and got, with their metadata, and never listed or removed, so a key that may do
    that is enough; but Amazon refuses such a key what is not there, where one that may list the
    bucket is told so. `x-amz-meta-*` headers carry metadata: names of ASCII letters, digits and
    dashes, which come back in lower case, and values of printable ASCII. Each put replaces them,
    but for one without metadata of a large blob that is there. Needs the extra `s3`.
    """

    def __init__(
        self,
        *,
        bucket: str,
        endpoint: str,
        region: str,
        access_key_id: str,
        secret_access_key: str,
        key_prefix: str = "",
        key_strategy: KeyStrategy = default_key_strategy,
        public_url: PublicUrlResolver | None = None,
        workspace_id: str = DEFAULT_WORKSPACE,
    ) -> None:
        """Bind the store; nothing is connected before the first call.

        Args:
            bucket: it must exist.
            endpoint: as `https://s3.eu-central-1.amazonaws.com`; an `http://` one is not encrypted.
            region: `auto` for Cloudflare R2.
            access_key_id: of somebody who may put and get objects.
            secret_access_key: that goes with it.
            key_prefix: before every key, as `media/`.
            key_strategy: what comes after the prefix, and a workspace's folder.
            public_url: see `MediaStore.public_url`.
            workspace_id: whose blobs the store sees.

        Raises:
            InvalidIdentifierError: the workspace id is malformed.
        """
        self._bucket = bucket
        self._endpoint = endpoint.rstrip("/")
        self._key_prefix = key_prefix
        self._key_strategy = key_strategy
        self._public_url = public_url
        self._workspace_id = check_identifier("workspace_id", workspace_id)
        self._region = region
        self._access_key_id = access_key_id
        self._secret_access_key = secret_access_key

    def for_workspace(self, workspace_id: str) -> "S3MediaStore":
        """See `WorkspaceMediaStore.for_workspace`."""
        store = copy.copy(self)
        store._workspace_id = check_identifier("workspace_id", workspace_id)  # noqa: SLF001 - of this class
        return store

    @cached_property
    def _bucket_store(self) -> "S3Store":
        try:
            from obstore.store import S3Store  # noqa: PLC0415 - an extra
        except ImportError as error:
            msg = "S3MediaStore needs the package obstore (the extra s3); install it"
            raise StoreConfigurationError(msg) from error
        return S3Store(
            self._bucket,
            endpoint=self._endpoint,
            region=self._region,
            access_key_id=self._access_key_id,
            secret_access_key=self._secret_access_key,
            virtual_hosted_style_request=False,
            client_options={
                "allow_http": self._endpoint.startswith("http://"),
                "connect_timeout": "2s",
                "timeout": f"{TIMEOUT.seconds}s",
            },
            retry_config={"max_retries": 3, "retry_timeout": RETRY_TIMEOUT},
        )

    def _key(self, uri: str, context: MediaContext) -> str:
        context = replace(context, workspace_id=self._workspace_id)
        return f"{self._key_prefix}{key_for(self._key_strategy, uri, context)}"

    @contextmanager
    def _working(self, what: str, uri: str) -> Generator[None]:
        from obstore import exceptions  # noqa: PLC0415 - an extra

        where = f"{what} media {uri} in bucket {self._bucket!r} at {self._endpoint}"
        try:
            yield
        except FileNotFoundError as error:
            if what == "write":
                msg = f"{where}: there is no such bucket; make it, or name another one"
                raise StoreConfigurationError(msg) from error
            problem = f"is not in bucket {self._bucket!r} at {self._endpoint}"
            raise MediaNotFoundError(uri, problem) from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            msg = (
                f"{where}: the server refuses ({_reason(error)}); give this key the right to put "
                "and get objects there, or name another one"
            )
            raise StoreConfigurationError(msg) from error
        except (exceptions.BaseError, TimeoutError, OSError) as error:
            msg = f"{where}: the server is away or fails ({_reason(error)}); retry"
            raise StoreUnavailableError(msg) from error

    # Writing

    async def put(self, data: bytes, *, context: MediaContext = NO_CONTEXT) -> str:
        """See `MediaStore.put`."""
        uri = media_uri_for(data)
        await self._send(uri, data, len(data), context)
        return uri

    async def put_stream(
        self, chunks: AsyncIterable[bytes], *, context: MediaContext = NO_CONTEXT
    ) -> str:
        """See `StreamingMediaStore.put_stream`.

        By way of a temporary file: the key is known at the end.
        """
        digest = sha256()
        with NamedTemporaryFile(prefix="perdure-media-") as file:
            async for chunk in chunks:
                digest.update(chunk)
                await to_thread.run_sync(file.write, chunk)
            file.flush()
            uri = uri_of_digest(digest.hexdigest())
            await self._send(uri, Path(file.name), file.tell(), context)
        return uri

    async def _send(
        self, uri: str, content: bytes | Path, size_bytes: int, context: MediaContext
    ) -> None:
        attributes = _attributes_of(context)
        store, key = self._bucket_store, self._key(uri, context)
        from obstore import put_async  # noqa: PLC0415 - an extra

        is_large = size_bytes >= LOOKED_FOR_ABOVE_BYTES and not context.metadata
        if is_large and await self._is_there(uri, size_bytes, context):
            return
        with self._working("write", uri):
            await put_async(
                store,
                key,
                content,
                attributes=attributes,
                use_multipart=size_bytes > PART_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )

    # Reading

    async def _got(self, uri: str, context: MediaContext, *, is_head: bool = False) -> "GetResult":
        store, key = self._bucket_store, self._key(uri, context)
        from obstore import get_async  # noqa: PLC0415 - an extra

        with self._working("look for" if is_head else "read", uri):
            # Not `head`: it gives no metadata.
            return await get_async(store, key, options={"head": is_head})

    async def _size_of(self, uri: str, context: MediaContext) -> int | None:
        try:
            return (await self._got(uri, context, is_head=True)).meta["size"]
        except MediaNotFoundError:
            return None

    async def _is_there(self, uri: str, size_bytes: int, context: MediaContext) -> bool:
        try:
            return await self._size_of(uri, context) == size_bytes
        except StoreConfigurationError:  # a key that may not list the bucket
            return False

    async def get(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bytes:
        """See `MediaStore.get`."""
        return b"".join([piece async for piece in self.get_stream(uri, context=context)])

    async def get_stream(
        self, uri: str, *, context: MediaContext = NO_CONTEXT
    ) -> AsyncIterator[bytes]:
        """See `StreamingMediaStore.get_stream`."""
        digest, size_bytes = sha256(), 0
        found = await self._got(uri, context)
        pieces = aiter(found.stream(min_chunk_size=PIECE_BYTES))
        while True:
            with self._working("read", uri):
                piece = await anext(pieces, None)
            if piece is None:
                break
            data = bytes(piece)
            digest.update(data)
            size_bytes += len(data)
            yield data
        check_digest(uri, digest.hexdigest(), size_bytes)

    async def delete(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> None:
        """See `ForgettingMediaStore.delete`. A bucket with versions keeps what was before."""
        store, key = self._bucket_store, self._key(uri, context)
        from obstore import delete_async  # noqa: PLC0415 - an extra

        with suppress(MediaNotFoundError), self._working("remove", uri):
            await delete_async(store, key)

    async def exists(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bool:
        """See `MediaStore.exists`."""
        return await self._size_of(uri, context) is not None

    async def public_url(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> str | None:
        """See `MediaStore.public_url`."""
        return await resolved_public_url(
            self._public_url, uri, context, workspace_id=self._workspace_id
        )

    async def get_metadata(
        self, uri: str, *, context: MediaContext = NO_CONTEXT
    ) -> Mapping[str, str]:
        """See `MediaStore.get_metadata`."""
        found = await self._got(uri, context, is_head=True)
        attributes: dict[str, Any] = dict(found.attributes)
        return {name: value for name, value in attributes.items() if name.lower() not in _OURS}


def _attributes_of(context: MediaContext) -> Any:  # noqa: ANN401 - obstore's, which has no class at run time
    attributes: dict[str, str] = {}
    for name, value in context.metadata.items():
        is_text = value.isascii() and value.isprintable() and value == value.strip()
        if not _METADATA_NAME.fullmatch(name) or name.lower() in _OURS or not is_text:
            msg = (
                f"metadata {name!r} cannot be sent to S3: names are ASCII letters, digits and "
                "dashes, values printable ASCII without outer spaces"
            )
            raise ValueError(msg)
        attributes[name.lower()] = value
    if context.media_type is not None:
        attributes["Content-Type"] = context.media_type
    return attributes


def _reason(error: BaseException) -> str:
    """The first line: the rest has the request, with its headers."""
    return str(error).partition("\n")[0][:300]
