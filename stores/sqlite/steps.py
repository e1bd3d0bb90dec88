"""The step store in one SQLite file, for plain runs on one machine."""

import sqlite3
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path

from anyio import to_thread

from stores.identifiers import DEFAULT_WORKSPACE
from stores.local import LocalStepStore
from stores.media.messages import DEFAULT_THRESHOLD_BYTES, MediaChoice, MessageMedia
from stores.redaction import NO_REDACTION, Redaction
from stores.sqlite.connection import SqliteConnection, check_database
from stores.sqlite.media import SqliteMediaStore
from stores.sqlite.rows import SqliteRows


class SqliteStepStore(LocalStepStore):
    """`StepStore` in SQLite 3.38 or later. Any number of processes may use one file.

    A commit is one transaction that takes the file's write lock first, so it is decided on what
    cannot change. In WAL mode readers do not wait for it. Calls of one store object, and of those
    that `for_workspace` made from it, take turns on its connection.

    Of the seed's tables `runs`, `events`, `snapshots`, `snapshot_idempotency_keys` and
    `tool_effects` hold the same things, with other columns. What differs, and why:

    - `positions` and `messages` hold each message once; a snapshot names ranges of positions, so
      the 800th save of a run costs what the 8th does.
    - Each row has workspace, branch and commit number, and each key a digest of what it stands
      for, so that equal content is told from another. `snapshot_idempotency_keys` holds only the
      keys of snapshots that were pruned; those of the others are in `snapshots`.
    - `tool_effects` has a row for each call by step and call index, since providers use ids again.
    - `commit_heads` has the newest commit of each execution that ever committed here.
    """

    def __init__(
        self,
        *,
        database: str | Path | None = None,
        connection: sqlite3.Connection | None = None,
        workspace_id: str = DEFAULT_WORKSPACE,
        max_snapshots_per_run: int | None = None,
        media_store: MediaChoice = "auto",
        media_threshold_bytes: int = DEFAULT_THRESHOLD_BYTES,
        redaction: Redaction = NO_REDACTION,
    ) -> None:
        """Bind the store; nothing is opened before the first call.

        Args:
            database: the file, made when it is missing; the store closes it in `aclose`.
            connection: a shared connection, opened with `check_same_thread=False` and left open.
                What its owner executes during a call of the store is part of that call's
                transaction, so use it for something else only between calls.
            workspace_id: the workspace that the store is bound to.
            max_snapshots_per_run: see `stores.retention`.
            media_store: for large content; by default a `SqliteMediaStore` on the same connection,
                in the table `media`.
            media_threshold_bytes: content of this size and above goes there.
            redaction: what is masked in all that is written.

        Raises:
            ValueError: not exactly one of `database` and `connection`, or a bound or a threshold
                below 1.
            InvalidIdentifierError: the workspace id is malformed.
        """
        self._connection = SqliteConnection(database=database, connection=connection)
        if media_store == "auto":
            media_store = SqliteMediaStore(connection=self._connection)
        super().__init__(
            workspace_id=workspace_id,
            redaction=redaction,
            max_snapshots_per_run=max_snapshots_per_run,
            media=MessageMedia(
                media_store, workspace_id=workspace_id, threshold_bytes=media_threshold_bytes
            ),
        )

    @contextmanager
    def _session(
        self, attempt: str, *, writing: Collection[str] | None = None
    ) -> Generator[SqliteRows]:
        with self._connection.transaction(attempt, is_write=writing is not None) as cursor:
            yield SqliteRows(cursor, workspace_id=self._workspace_id, where=self._connection.where)

    async def initialise(self) -> list[str]:
        """See `StepStore.initialise`. The first use of a store does the same by itself."""
        return await to_thread.run_sync(self._connection.open)

    async def verify(self) -> None:
        """See `StepStore.verify`. Reads the whole file."""
        await to_thread.run_sync(check_database, self._connection)

    async def aclose(self) -> None:
        """See `StepStore.aclose`. Store objects of other workspaces are closed with this one."""
        await self._media.aclose()
        await to_thread.run_sync(self._connection.close)
