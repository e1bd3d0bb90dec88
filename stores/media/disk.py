"""Blobs as files of a directory."""

import errno
import json
import os
from collections.abc import AsyncIterable, AsyncIterator, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import IO

from anyio import to_thread

from stores.errors import (
    MediaNotFoundError,
    StoreConfigurationError,
    StoreError,
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
from stores.media.protocols import NO_CONTEXT, KeyStrategy, MediaContext, PublicUrlResolver
from stores.media.reading import check_digest, metadata_in

PIECE_BYTES = 1024 * 1024
"""Of a stream: what is in memory at a time."""

_PASSING = frozenset(
    {errno.EAGAIN, errno.EDQUOT, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOSPC}
)
"""What the system may answer otherwise the next time."""


def disk_error(error: OSError, what: str) -> StoreError:
    """The store's error for one of the system."""
    if error.errno in _PASSING:
        return StoreUnavailableError(f"{what}: {error}; retry")
    return StoreConfigurationError(f"{what}: {error}; repair that, or name another directory")


@contextmanager
def _disk_errors(attempt: str) -> Generator[None]:
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise disk_error(error, attempt) from error


class DiskMediaStore:
    """`StreamingMediaStore` in files: `<directory>/<sha256>.bin` unless `key_strategy` says else.

    A file appears whole, and only when it is on disk. Metadata are in `<file>.meta.json`, beside
    it, with the media type; there is none for a blob without metadata, and later metadata take the
    place of earlier ones. Blobs of another workspace than the default one are below
    `<directory>/workspaces/`.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        key_strategy: KeyStrategy = default_key_strategy,
        public_url: PublicUrlResolver | None = None,
        workspace_id: str = DEFAULT_WORKSPACE,
    ) -> None:
        """Bind the store; the directory is made with the first blob.

        Raises:
            InvalidIdentifierError: the workspace id is malformed.
        """
        self._directory = Path(directory)
        self._key_strategy = key_strategy
        self._public_url = public_url
        self._workspace_id = check_identifier("workspace_id", workspace_id)

    def for_workspace(self, workspace_id: str) -> "DiskMediaStore":
        """See `WorkspaceMediaStore.for_workspace`."""
        return DiskMediaStore(
            self._directory,
            key_strategy=self._key_strategy,
            public_url=self._public_url,
            workspace_id=workspace_id,
        )

    def _path(self, uri: str, context: MediaContext) -> Path:
        context = replace(context, workspace_id=self._workspace_id)
        return self._directory / key_for(self._key_strategy, uri, context)

    async def put(self, data: bytes, *, context: MediaContext = NO_CONTEXT) -> str:
        """See `MediaStore.put`."""
        return await to_thread.run_sync(self._put, data, context)

    def _put(self, data: bytes, context: MediaContext) -> str:
        uri = media_uri_for(data)
        path = self._path(uri, context)
        with _disk_errors(f"write media {uri} in {self._directory}"):
            if not path.is_file() or path.stat().st_size != len(data):
                with _draft(path) as file:
                    file.write(data)
            self._describe(path, context)
        return uri

    def _describe(self, path: Path, context: MediaContext) -> None:
        if context.metadata:
            told = {"media_type": context.media_type, "metadata": dict(context.metadata)}
            with _draft(_description_of(path)) as file:
                file.write(json.dumps(told, ensure_ascii=False).encode(errors="surrogatepass"))

    async def put_stream(
        self, chunks: AsyncIterable[bytes], *, context: MediaContext = NO_CONTEXT
    ) -> str:
        """See `StreamingMediaStore.put_stream`."""
        draft = self._directory / f".stream-{token_hex(8)}.tmp"
        digest = sha256()
        try:
            with _disk_errors(f"write media in {self._directory}"):
                await to_thread.run_sync(lambda: draft.parent.mkdir(parents=True, exist_ok=True))
                with draft.open("wb") as file:
                    async for chunk in chunks:
                        digest.update(chunk)
                        await to_thread.run_sync(file.write, chunk)
                    await to_thread.run_sync(_sync, file)
                uri = uri_of_digest(digest.hexdigest())
                path = self._path(uri, context)
                await to_thread.run_sync(_move, draft, path)
                await to_thread.run_sync(self._describe, path, context)
        finally:
            draft.unlink(missing_ok=True)
        return uri

    async def get(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bytes:
        """See `MediaStore.get`."""
        return await to_thread.run_sync(self._get, uri, context)

    def _get(self, uri: str, context: MediaContext) -> bytes:
        with self._opened(uri, context) as file:
            data = file.read()
        check_digest(uri, sha256(data).hexdigest(), len(data))
        return data

    @contextmanager
    def _opened(self, uri: str, context: MediaContext) -> Generator[IO[bytes]]:
        path = self._path(uri, context)
        with _disk_errors(f"read media {uri} in {self._directory}"):
            try:
                file = path.open("rb")
            except (FileNotFoundError, NotADirectoryError) as error:
                raise MediaNotFoundError(uri, f"is not in {self._directory}") from error
            with file:
                yield file

    async def get_stream(
        self, uri: str, *, context: MediaContext = NO_CONTEXT
    ) -> AsyncIterator[bytes]:
        """See `StreamingMediaStore.get_stream`."""
        digest, size_bytes = sha256(), 0
        with self._opened(uri, context) as file:
            while piece := await to_thread.run_sync(file.read, PIECE_BYTES):
                digest.update(piece)
                size_bytes += len(piece)
                yield piece
        check_digest(uri, digest.hexdigest(), size_bytes)

    async def delete(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> None:
        """See `ForgettingMediaStore.delete`."""
        await to_thread.run_sync(self._delete, uri, context)

    def _delete(self, uri: str, context: MediaContext) -> None:
        path = self._path(uri, context)
        with _disk_errors(f"remove media {uri} from {self._directory}"):
            _description_of(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)

    async def exists(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bool:
        """See `MediaStore.exists`."""
        return await to_thread.run_sync(self._path(uri, context).is_file)

    async def public_url(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> str | None:
        """See `MediaStore.public_url`."""
        return await resolved_public_url(
            self._public_url, uri, context, workspace_id=self._workspace_id
        )

    async def get_metadata(
        self, uri: str, *, context: MediaContext = NO_CONTEXT
    ) -> Mapping[str, str]:
        """See `MediaStore.get_metadata`."""
        return await to_thread.run_sync(self._get_metadata, uri, context)

    def _get_metadata(self, uri: str, context: MediaContext) -> Mapping[str, str]:
        path = self._path(uri, context)
        with self._opened(uri, context):
            try:
                text = _description_of(path).read_bytes()
            except FileNotFoundError:
                return {}
        return metadata_in(uri, text, of="metadata")


def _description_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.meta.json")


@contextmanager
def _draft(path: Path) -> Generator[IO[bytes]]:
    """A file that takes the place of `path` when it is whole and on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{token_hex(8)}.tmp")
    try:
        with draft.open("wb") as file:
            yield file
            _sync(file)
        _move(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _move(draft: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
