"""One connection to one file, used by one thread at a time."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from stores.errors import StoreConfigurationError, StoreUnavailableError
from stores.sqlite.failures import sqlite_errors
from stores.sqlite.tables import create_tables

BUSY_SECONDS = 5.0
"""How long to wait for another writer of the file. One commit takes milliseconds, so whoever holds
the file for longer is stuck, and waiting on does not help."""

_PAUSE_SECONDS = 0.005
"""Between two looks at a shared connection; nothing tells when its owner's transaction ends."""


Layout = Callable[[sqlite3.Connection, str], list[str]]
"""Makes what is missing in a file, which it is told in words; the names of what was made."""


class SqliteConnection:
    """The connection of a store, opened with its first use.

    A connection that was passed in is shared with its owner, and never closed here.
    """

    def __init__(
        self,
        *,
        database: str | Path | None,
        connection: sqlite3.Connection | None,
        layout: Layout | None = create_tables,
    ) -> None:
        """Bind it; `layout` makes the tables that the store needs, when it is opened."""
        if (database is None) == (connection is None):
            msg = "pass exactly one of database= and connection=: a file, or a shared connection"
            raise ValueError(msg)
        self._database = database
        self._shared = connection
        self._layout = layout
        self._connection: sqlite3.Connection | None = None
        self._where = "a shared SQLite connection" if database is None else f"SQLite {database}"
        self._lock = threading.Lock()
        self._process_id: int | None = None
        self._is_closed = False

    @property
    def where(self) -> str:
        """The file, in words."""
        return self._where

    def open(self) -> list[str]:
        """Connect and make the tables, unless that was done; a line for each thing that was."""
        with self._lock, sqlite_errors("open the database", lambda: self._where):
            return self._open()

    def close(self) -> None:
        """Close the connection if it was made here. Quiet a second time."""
        with self._lock:
            if self._connection is not None and self._shared is None:
                self._connection.close()
            self._connection, self._is_closed = None, True

    @contextmanager
    def transaction(self, attempt: str, *, is_write: bool) -> Generator[sqlite3.Cursor]:
        """A cursor in a transaction, which is committed at the end or rolled back by an error.

        One that writes takes the file's write lock at once, so that what it reads cannot change.

        Raises:
            StoreUnavailableError: somebody else held the file for `BUSY_SECONDS`. Retryable.
            StoreConfigurationError: the file is damaged, or no database of this layout.
        """
        with self._lock, sqlite_errors(attempt, lambda: self._where):
            self._open()
            connection = self._own()
            self._await_owner(connection)
            cursor = connection.cursor()
            cursor.row_factory = sqlite3.Row
            cursor.execute("BEGIN IMMEDIATE" if is_write else "BEGIN")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    cursor.execute("ROLLBACK")
                raise
            finally:
                cursor.close()

    def _own(self) -> sqlite3.Connection:
        if self._connection is None or self._process_id != os.getpid():
            msg = (
                f"the store on {self._where} was opened in process {self._process_id} and is used "
                f"in process {os.getpid()}: SQLite does not survive a fork. Start processes with "
                "spawn, or open the store after the fork"
            )
            raise RuntimeError(msg)
        return self._connection

    def _open(self) -> list[str]:
        if self._is_closed:
            msg = f"the store on {self._where} is closed; open another one"
            raise RuntimeError(msg)
        if self._connection is not None:
            return []
        connection = self._shared or sqlite3.connect(
            str(self._database),
            timeout=BUSY_SECONDS,
            isolation_level=None,  # transactions begin where this module says so
            check_same_thread=False,
        )
        try:
            done = self._prepare(connection)
        except BaseException:
            if self._shared is None:
                connection.close()
            raise
        self._connection, self._process_id = connection, os.getpid()
        return done

    def _prepare(self, connection: sqlite3.Connection) -> list[str]:
        if self._shared is not None:
            _, _, path = connection.execute("PRAGMA database_list").fetchone()
            self._where = f"SQLite {path or ':memory:'}, by a shared connection"
        self._await_owner(connection)
        _turn_on_wal(connection)
        made = self._layout(connection, self._where) if self._layout else []
        return [f"made {each} in {self._where}" for each in made]

    def _await_owner(self, connection: sqlite3.Connection) -> None:
        """Wait until a shared connection is in no transaction of its owner."""
        deadline = time.monotonic() + BUSY_SECONDS
        while connection.in_transaction:
            if time.monotonic() > deadline:
                msg = (
                    f"{self._where} has been in a transaction of its owner for "
                    f"{BUSY_SECONDS:.0f} s; commit or roll back there, and open the connection "
                    "without autocommit=False, which is always in one"
                )
                raise StoreUnavailableError(msg)
            time.sleep(_PAUSE_SECONDS)


def _turn_on_wal(connection: sqlite3.Connection) -> None:
    """Let readers and one writer work at once; the file remembers it.

    SQLite does not wait for others here, however long its timeout.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def check_database(connection: SqliteConnection) -> None:
    """Return when SQLite finds no damage in the file.

    Raises:
        StoreConfigurationError: it does. Not retryable.
    """
    with connection.transaction("check the database", is_write=False) as cursor:
        found = [row[0] for row in cursor.execute("PRAGMA quick_check(5)")]
    if found != ["ok"]:
        msg = f"{connection.where} is damaged: {'; '.join(found)}; restore it from a backup"
        raise StoreConfigurationError(msg)
