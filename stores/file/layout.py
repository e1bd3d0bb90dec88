"""Where runs lie in a directory, and who may write one."""

import fcntl
import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from stores.errors import InvalidIdentifierError, StoreUnavailableError

HEADS = "@commit-heads"
"""The directory of commit heads, beside those of the runs: no run id has an at sign."""

LOCK_SECONDS = 5.0
"""How long to wait for another writer of a run. One commit takes milliseconds, so whoever holds the
lock for longer is stuck, and waiting on does not help."""

_PAUSE_SECONDS = 0.005
"""Between two tries: a lock with a deadline cannot be waited for otherwise."""

_SAFE_RUN_ID = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_RULE = f"{_SAFE_RUN_ID.pattern} without '..'"


def is_safe(run_id: str) -> bool:
    """Whether the id may name a directory."""
    return bool(_SAFE_RUN_ID.fullmatch(run_id)) and run_id != "." and ".." not in run_id


def check_run_id(run_id: str) -> str:
    """Return the id when it may name a directory.

    Raises:
        InvalidIdentifierError: it may not. Not retryable.
    """
    if not is_safe(run_id):
        kind, problem = "run_id", f"is no name of a directory here: it takes {_RULE}"
        raise InvalidIdentifierError(kind, run_id, problem)
    return run_id


def head_file(directory: Path, workspace_id: str, execution_id: str) -> Path:
    """The file of a commit head; an execution's id need not be safe."""
    name = sha256(f"{workspace_id}\x00{execution_id}".encode(errors="surrogatepass")).hexdigest()
    return directory / HEADS / f"{name}.json"


@contextmanager
def locked(directory: Path) -> Generator[None]:
    """Hold the directory's lock; the system lets go of it when the process dies.

    Raises:
        StoreUnavailableError: another writer held it for `LOCK_SECONDS`. Retryable.
    """
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                msg = f"another writer has held {directory} for {LOCK_SECONDS:.0f} s; retry"
                raise StoreUnavailableError(msg)
            time.sleep(_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_whole(path: Path, content: str) -> None:
    """Put a file in place of another one, so that a reader sees the one or the other, whole.

    Only for whoever holds the lock of its directory, or of the one above.
    """
    path.parent.mkdir(exist_ok=True)
    draft = path.with_name(f"{path.name}.tmp")
    with draft.open("wb") as file:
        file.write(content.encode(errors="surrogatepass"))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make sure that new names in a directory survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
