"""The reference's virtual environment, made from its lock file on first use."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from cli.failures import CommandError
from cli.output import note

LOCK = Path(__file__).parents[1] / "requirements" / "reference.txt"

_PACKAGES_A_LINE = 20


class ReferenceEnvironmentError(CommandError):
    """The reference could not be installed."""


def reference_python(data_dir: Path) -> Path:
    """The interpreter of the environment in `data_dir`, which is made if it is not up to date.

    Raises:
        ReferenceEnvironmentError: it could not be made; says where the log is.
    """
    home = data_dir.absolute() / "reference-venv"
    python, stamp = home / "bin" / "python", home / "lock-digest"
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return python
    note(f"Making the reference's environment in {home} (a minute, once)")
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    _install(python, log_path=home / "pip.log")
    stamp.write_text(digest)
    return python


def _install(python: Path, *, log_path: Path) -> None:
    # The lock is complete, so nothing is resolved.
    options = ["--disable-pip-version-check", "--no-deps", "--require-hashes", "--requirement"]
    command = [str(python), "-m", "pip", "install", *options, str(LOCK)]
    with (
        log_path.open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as pip,
    ):
        count = 0
        for line in pip.stdout or ():
            log.write(line)
            count += line.startswith("Collecting")
            if line.startswith("Collecting") and count % _PACKAGES_A_LINE == 0:
                note(f"    {count} packages")
    if pip.returncode != 0:
        message = (
            f"The reference could not be installed from {LOCK}; pip's words are in {log_path}. "
            "`python -m benchmarks --quick` measures without it"
        )
        raise ReferenceEnvironmentError(message)
