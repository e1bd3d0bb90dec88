"""What SQLite's errors mean to a caller of a store."""

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager

from stores.errors import StoreConfigurationError, StoreError, StoreUnavailableError

_PRIMARY_CODE = 0xFF
"""An extended code has its primary one in the lowest byte."""

_UNAVAILABLE: dict[int, str] = {
    sqlite3.SQLITE_BUSY: "another process is writing; retry",
    sqlite3.SQLITE_LOCKED: "another statement is writing; retry",
    sqlite3.SQLITE_FULL: "the disk is full; make room and retry",
    sqlite3.SQLITE_IOERR: "the disk failed; retry, and look at it when that does not help",
    sqlite3.SQLITE_INTERRUPT: "it was interrupted; retry",
}
"""Codes of errors that another attempt may not meet."""

_CONFIGURATION: dict[int, str] = {
    sqlite3.SQLITE_CORRUPT: "the file is damaged; restore it from a backup",
    sqlite3.SQLITE_NOTADB: "the file is damaged or no SQLite database; name another one",
    sqlite3.SQLITE_CANTOPEN: "make its directory, or name another file",
    sqlite3.SQLITE_READONLY: "give this process the right to write the file and its directory",
    sqlite3.SQLITE_PERM: "give this process the right to write the file and its directory",
    sqlite3.SQLITE_AUTH: "the connection's authorizer forbids it",
}
"""Codes of errors that stay until somebody repairs something."""


@contextmanager
def sqlite_errors(attempt: str, where: Callable[[], str]) -> Generator[None]:
    """Turn SQLite's errors into the store's.

    Args:
        attempt: what is tried, in words.
        where: names the file, once it is known.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise _store_error(error, f"{attempt} in {where()}") from error


def _store_error(error: sqlite3.Error, what: str) -> StoreError:
    if isinstance(error, sqlite3.ProgrammingError):
        return StoreConfigurationError(
            f"{what}: {error} A shared connection must be open, and opened with "
            "check_same_thread=False"
        )
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY_CODE
    if code in _UNAVAILABLE:
        return StoreUnavailableError(f"{what}: {error}: {_UNAVAILABLE[code]}")
    if code in _CONFIGURATION:
        return StoreConfigurationError(f"{what}: {error}: {_CONFIGURATION[code]}")
    return StoreError(f"{what}: SQLite failed: {type(error).__name__}: {error}")
