"""A PostgreSQL of one's own, where one is installed: what lexemes and keyword search are held to.

On Debian: `apt-get install postgresql`. It is started on a directory and a socket of its own, and
asked through `psql`.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class PostgreSQL:
    """A server that runs.

    Args:
        binaries: where its programs are.
        socket: directory of its socket.
    """

    binaries: Path
    socket: Path

    def psql(self, statements: str, *options: str) -> str:
        """What `psql` prints for these statements, without any frame."""
        command = [
            *(str(self.binaries / "psql"), "-h", str(self.socket), "-U", "postgres"),
            *("-v", "ON_ERROR_STOP=1", "-qAt", *options),
        ]
        done = subprocess.run(
            command, input=statements, capture_output=True, text=True, check=False
        )
        if done.returncode:
            message = f"psql failed: {done.stderr}"
            raise RuntimeError(message)
        return done.stdout

    def lexemes(self, tokens: Sequence[str]) -> list[list[str]]:
        """The lexemes of each token by the configuration `english`, sorted."""
        rows = "\n".join(f"{number}\t{token}" for number, token in enumerate(tokens))
        found = self.psql(
            "CREATE TEMP TABLE tokens (n int, t text);\nCOPY tokens FROM stdin;\n" + rows + "\n"
            "\\.\nSELECT array_to_string(tsvector_to_array(to_tsvector('english', t)), E'\\t')"
            " FROM tokens ORDER BY n;\n"
        )
        return [sorted(filter(None, line.split("\t"))) for line in found.split("\n")[:-1]]


def find_postgresql() -> Path | None:
    """The programs of the newest PostgreSQL that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))  # Debian keeps them off the path
    elsewhere = shutil.which("initdb")
    if not found and elsewhere is not None:
        found.append(Path(elsewhere).parent)
    return next((each for each in reversed(found) if (each / "psql").exists()), None)


@contextmanager
def postgresql(*settings: str) -> Generator[PostgreSQL]:
    """A new, empty server until the end of the block; `settings` as `name=value`.

    Raises:
        RuntimeError: none is installed, or it does not start.
    """
    binaries = find_postgresql()
    if binaries is None:
        message = "no PostgreSQL was found; on Debian: apt-get install postgresql"
        raise RuntimeError(message)
    with tempfile.TemporaryDirectory(prefix="perdure-pg-") as home:
        as_user: list[str] = []
        if os.geteuid() == 0:  # which PostgreSQL refuses
            shutil.chown(home, "postgres")
            as_user = ["runuser", "-u", "postgres", "--"]
        data = f"{home}/data"
        options = " ".join(f"-c {each}" for each in ("listen_addresses=", *settings))
        control = [*as_user, str(binaries / "pg_ctl"), "-D", data, "-w"]
        make = [*as_user, str(binaries / "initdb"), "-D", data, "-U", "postgres", "-A", "trust"]
        _run([*make, "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"])
        _run([*control, "-l", f"{home}/log", "-o", f"-k {home} {options}", "start"])
        try:
            yield PostgreSQL(binaries=binaries, socket=Path(home))
        finally:
            _run([*control, "-m", "immediate", "stop"])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        message = f"{' '.join(command)} failed: {done.stderr}"
        raise RuntimeError(message)
