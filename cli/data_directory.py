"""The directory with local servers' data: who holds it, and where their servers answer."""

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from cli.processes import LocalServerError, until

LOCK_WITHIN = timedelta(milliseconds=200)
"""`running_servers` holds the lock for an instant; a start must not take that for an owner."""


@dataclass(frozen=True)
class Addresses:
    """Where the servers answer that the process `pid` keeps.

    Attributes:
        pid: the process that started them, and stops them when it ends.
        temporal_address: `host:port` of the gRPC service.
        temporal_namespace: the namespace in use there.
        mongodb_uri: connection string; one's own server's may hold a password.
        temporal_ui: address of Temporal's web pages, if they are served.
    """

    pid: int
    temporal_address: str
    temporal_namespace: str
    mongodb_uri: str
    temporal_ui: str | None = None

    def describe(self) -> str:
        """Return both addresses in words, without a password."""
        mongodb = without_password(self.mongodb_uri)
        return f"Temporal at {self.temporal_address}, MongoDB at {mongodb}"


class DataDirectory:
    """A directory that one process at a time keeps servers in.

    The lock is the operating system's (`flock`), so it goes when its process goes, however it
    ends; what the files say counts only while it is held.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: int | None = None

    async def lock(self) -> None:
        """Take the directory, made if missing.

        Raises:
            LocalServerError: another process has it, or it cannot be written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            message = f"The data directory {str(self.path)!r} cannot be used: {error.strerror}."
            raise LocalServerError(message) from error
        if not await until(lambda: _try_lock(descriptor), within=LOCK_WITHIN):
            os.close(descriptor)
            raise LocalServerError(self._taken_message())
        self._lock = descriptor
        self._servers_file.unlink(missing_ok=True)  # an earlier owner's, who was killed
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())

    def publish(self, addresses: Addresses) -> None:
        """Let other processes find the servers through `running_servers`."""
        partial = self._servers_file.with_suffix(".partial")
        partial.touch(mode=0o600)  # the connection string may hold a password
        partial.write_text(json.dumps(asdict(addresses), indent=2) + "\n")
        partial.replace(self._servers_file)

    def unlock(self) -> None:
        """Give the directory free; quiet when it is."""
        if self._lock is not None:
            self._servers_file.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def published(self) -> Addresses | None:
        """Return what the lock's holder published, `None` when nobody holds it or did so yet."""
        with suppress(FileNotFoundError):
            descriptor = os.open(self.path / "lock", os.O_RDONLY)
            try:
                if not _try_lock(descriptor, fcntl.LOCK_SH):
                    return Addresses(**json.loads(self._servers_file.read_text()))
            finally:
                os.close(descriptor)
        return None

    @property
    def _servers_file(self) -> Path:
        return self.path / "servers.json"

    def _taken_message(self) -> str:
        pid = (self.path / "lock").read_text().strip() or "unknown"
        published = self.published()
        found = published.describe() if published else "they are just starting"
        return (
            f"Servers with their data in {str(self.path)!r} run already (process {pid}):"
            f" {found}. Use them, end that process (Ctrl-C where it runs), or choose another"
            " directory with --data-dir (PERDURE_DATA_DIR)."
        )


def running_servers(data_dir: Path) -> Addresses | None:
    """Return where `perdure dev` on this directory answers, `None` when none runs or it starts."""
    return DataDirectory(data_dir).published()


def without_password(uri: str) -> str:
    """Return a connection string that may be printed."""
    parts = urlsplit(uri)
    if parts.password is None:
        return uri
    user, _, hosts = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:***@{hosts}"))


def _try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
