"""What the driver's errors mean to a caller of a store."""

from collections.abc import Generator
from contextlib import contextmanager

from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    OperationFailure,
    PyMongoError,
)

from stores.errors import StoreConfigurationError, StoreError, StoreUnavailableError

DUPLICATE_KEY = 11000
WRITE_CONFLICT = 112

_CONFIGURATION: dict[int, str] = {
    13: "the user lacks a privilege, or none is named; grant it `readWrite` on the database and put"
    " user and password into the connection string",
    18: "user or password are wrong; correct them in the connection string",
    20: "transactions need a replica set; start mongod with `--replSet rs0` and initiate the set",
    263: "transactions need a replica set; start mongod with `--replSet rs0` and initiate the set",
}
"""Codes of answers that stay the same until somebody repairs something."""

_UNAVAILABLE: frozenset[int] = frozenset(
    {
        WRITE_CONFLICT,
        6,  # HostUnreachable
        7,  # HostNotFound
        89,  # NetworkTimeout
        237,  # CursorKilled
        239,  # SnapshotTooOld
        246,  # SnapshotUnavailable
        9001,  # SocketException
        11601,  # Interrupted
        DUPLICATE_KEY,  # outlived every repeat, so other writers kept getting in between
        24,  # LockTimeout
        50,  # MaxTimeMSExpired
        64,  # WriteConcernFailed
        91,  # ShutdownInProgress
        189,  # PrimarySteppedDown
        225,  # TransactionTooOld
        244,  # TransactionAborted
        251,  # NoSuchTransaction
        262,  # ExceededTimeLimit
        10107,  # NotWritablePrimary
        11600,  # InterruptedAtShutdown
        11602,  # InterruptedDueToReplStateChange
        13435,  # NotPrimaryNoSecondaryOk
        13436,  # NotPrimaryOrSecondary
    }
)
"""Codes of answers that another attempt may not get."""

_PASSING_LABELS = (
    "TransientTransactionError",
    "RetryableWriteError",
    "UnknownTransactionCommitResult",
)
"""How servers and driver themselves mark an error that another attempt may not meet."""


@contextmanager
def store_errors(attempt: str, where: str) -> Generator[None]:
    """Turn the driver's errors into the store's.

    Args:
        attempt: what is tried, in words: `commit 3 of run 'r'`.
        where: hosts and database, without a password.
    """
    try:
        yield
    except DocumentTooLarge as error:
        msg = f"{attempt} on {where}: one message is larger than MongoDB's 16 MiB: {error}"
        raise StoreError(msg) from error
    except PyMongoError as error:
        raise store_error(error, attempt, where) from without_documents(error)


def without_documents(error: PyMongoError) -> PyMongoError:
    """The driver's error as a cause that goes to logs and histories.

    That of a bulk write spells out the documents that were to be written.
    """
    if not isinstance(error, BulkWriteError):
        return error
    return OperationFailure(reason_of(error), code_of(error))


def store_error(error: PyMongoError, attempt: str, where: str) -> StoreError:
    """The store's error for one of the driver's."""
    what = f"{attempt} on {where}"
    code = code_of(error)
    if code in _CONFIGURATION:
        advice = _CONFIGURATION[code]
        return StoreConfigurationError(f"{what}: MongoDB refused ({reason_of(error)}): {advice}")
    if isinstance(error, ConfigurationError):
        return StoreConfigurationError(
            f"{what}: the connection string is wrong: {reason_of(error)}; correct it"
        )
    if "certificate" in str(error).lower():
        # Retryable: a certificate that is exchanged badly must not end the runs that meet it.
        return StoreUnavailableError(
            f"{what}: no trust between MongoDB and this process: {reason_of(error)}; use the name "
            "that its certificate is for, and set tlsCAFile (and tlsCertificateKeyFile) in the "
            "connection string"
        )
    if is_passing(error):
        return StoreUnavailableError(f"{what}: MongoDB is away or busy: {reason_of(error)}; retry")
    return StoreError(f"{what}: MongoDB failed: {reason_of(error)}")


def is_passing(error: PyMongoError) -> bool:
    """Whether another attempt may succeed without anybody changing anything."""
    return (
        isinstance(error, ConnectionFailure)
        or error.timeout
        or code_of(error) in _UNAVAILABLE
        or any(error.has_error_label(each) for each in _PASSING_LABELS)
    )


def code_of(error: PyMongoError) -> int | None:
    """The server's code; of a bulk write, that of the first write that failed."""
    if isinstance(error, BulkWriteError):
        failed = error.details.get("writeErrors", [])
        return failed[0]["code"] if failed else error.code
    return error.code if isinstance(error, OperationFailure) else None


def is_duplicate(error: BaseException | None) -> bool:
    """Whether a unique index refused the write."""
    return isinstance(error, PyMongoError) and code_of(error) == DUPLICATE_KEY


def reason_of(error: PyMongoError) -> str:
    """The driver's words, without documents and without its description of the whole topology."""
    text = str(error).partition(", full error:")[0].partition(", Topology Description:")[0]
    return f"{type(error).__name__}: {text}"
