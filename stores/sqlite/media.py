"""Blobs as rows of a SQLite table."""

import copy
import json
import re
import sqlite3
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from anyio import to_thread

from stores.errors import MediaNotFoundError
from stores.identifiers import DEFAULT_WORKSPACE, check_identifier
from stores.media.addresses import media_uri_for, parse_media_uri, resolved_public_url
from stores.media.protocols import NO_CONTEXT, MediaContext, PublicUrlResolver
from stores.media.reading import check_digest, metadata_in
from stores.sqlite.connection import SqliteConnection

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_COLUMNS = (
    "workspace_id TEXT NOT NULL, sha256 TEXT NOT NULL, media_type TEXT, size_bytes INTEGER, "
    "metadata TEXT, bytes BLOB, PRIMARY KEY (workspace_id, sha256)"
)


class SqliteMediaStore:
    """`MediaStore` in the table `media` of a SQLite file: one row a blob, of up to 1 GB.

    The first put of a blob counts, with its metadata; later ones change nothing.
    """

    def __init__(
        self,
        *,
        database: str | Path | None = None,
        connection: sqlite3.Connection | SqliteConnection | None = None,
        table: str = "media",
        public_url: PublicUrlResolver | None = None,
        workspace_id: str = DEFAULT_WORKSPACE,
    ) -> None:
        """Bind the store; nothing is opened before the first call.

        Args:
            database: the file, made when it is missing.
            connection: a shared connection, opened with `check_same_thread=False` and left open; or
                that of a step store.
            table: the table's name.
            public_url: see `MediaStore.public_url`.
            workspace_id: whose blobs the store sees.

        Raises:
            ValueError: not exactly one of `database` and `connection`, or a malformed table name.
            InvalidIdentifierError: the workspace id is malformed.
        """
        if not _NAME.fullmatch(table):
            msg = f"table={table!r} is no name of a table; use letters, digits and underscores"
            raise ValueError(msg)
        if isinstance(connection, SqliteConnection):
            self._connection = connection
        else:
            self._connection = SqliteConnection(
                database=database, connection=connection, layout=None
            )
        self._table = table
        self._public_url = public_url
        self._workspace_id = check_identifier("workspace_id", workspace_id)

    def for_workspace(self, workspace_id: str) -> "SqliteMediaStore":
        """See `WorkspaceMediaStore.for_workspace`."""
        store = copy.copy(self)
        store._workspace_id = check_identifier("workspace_id", workspace_id)  # noqa: SLF001 - of this class
        return store

    async def aclose(self) -> None:
        """Close the connection if it was made here. Quiet a second time."""
        await to_thread.run_sync(self._connection.close)

    async def put(self, data: bytes, *, context: MediaContext = NO_CONTEXT) -> str:
        """See `MediaStore.put`."""
        return await to_thread.run_sync(self._put, data, context)

    def _put(self, data: bytes, context: MediaContext) -> str:
        uri = media_uri_for(data)
        metadata = json.dumps(dict(context.metadata))
        key = (self._workspace_id, parse_media_uri(uri))
        row = (*key, context.media_type, len(data), metadata, data)
        with self._connection.transaction(f"write media {uri}", is_write=True) as cursor:
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({_COLUMNS})")
            cursor.execute(
                f"INSERT OR IGNORE INTO {self._table} (workspace_id, sha256, media_type, "  # noqa: S608 - a checked name
                "size_bytes, metadata, bytes) VALUES (?, ?, ?, ?, ?, ?)",
                row,
            )
        return uri

    async def get(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bytes:  # noqa: ARG002 - the key is the digest
        """See `MediaStore.get`."""
        found = await self._column(uri, "bytes")
        if found is None:
            raise MediaNotFoundError(uri, f"is not in {self._connection.where}")
        data = bytes(found) if isinstance(found, bytes) else str(found).encode()
        check_digest(uri, sha256(data).hexdigest(), len(data))
        return data

    async def exists(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bool:  # noqa: ARG002
        """See `MediaStore.exists`."""
        return await self._column(uri, "sha256") is not None

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
        found = await self._column(uri, "metadata")
        if found is None:
            raise MediaNotFoundError(uri, f"is not in {self._connection.where}")
        return metadata_in(uri, str(found))

    async def _column(self, uri: str, column: str) -> object:
        return await to_thread.run_sync(self._read, uri, column)

    def _read(self, uri: str, column: str) -> object:
        key = (self._workspace_id, parse_media_uri(uri))
        with self._connection.transaction(f"read media {uri}", is_write=False) as cursor:
            known = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
            if cursor.execute(known, (self._table,)).fetchone() is None:
                return None
            found = cursor.execute(
                f"SELECT {column} FROM {self._table} WHERE workspace_id = ? AND sha256 = ?",  # noqa: S608
                key,
            ).fetchone()
        return None if found is None else found[0]
