"""A command at a terminal of its own, as a person has it: what it shows is read as it comes."""

import contextlib
import os
import re
import select
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).parents[2]

_PATIENCE_SECONDS = 60.0
"""Many times what a command takes to start on a busy machine."""

_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Both ends of a pseudo-terminal, and the process at the other one."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self._process = process
        self._descriptor = descriptor
        self._shown = ""
        self._read = 0

    def expect(self, text: str) -> None:
        """Return when the text is shown, behind what was expected last."""
        deadline = monotonic() + _PATIENCE_SECONDS
        while (found := self._shown.find(text, self._read)) < 0:
            left = deadline - monotonic()
            assert left > 0, f"{text!r} is not shown; what is: {self._shown[self._read :]!r}"
            assert self._take(left), f"it ended without {text!r}: {self._shown[self._read :]!r}"
        self._read = found + len(text)

    def send(self, text: str) -> None:
        """Type it."""
        os.write(self._descriptor, text.encode())

    def end(self) -> int:
        """Type Ctrl-D, and wait; the exit code."""
        self.send("\x04")
        while self._take(_PATIENCE_SECONDS):
            pass
        return self._process.wait(_PATIENCE_SECONDS)

    @property
    def shown(self) -> str:
        """All that was shown so far, what was typed among it."""
        return self._shown

    def _take(self, within: float) -> bool:
        """Take what is shown next; false when the process has closed its end."""
        ready, _, _ = select.select([self._descriptor], [], [], within)
        if not ready:
            return True
        try:
            read = os.read(self._descriptor, 65536)
        except OSError:  # Linux's word for a terminal that nobody has open any more
            return False
        self._shown += _CONTROLS.sub("", read.decode()).replace("\r\n", "\n")
        return bool(read)


@contextlib.contextmanager
def at_a_terminal(environment: Mapping[str, str], *arguments: str) -> Generator[Terminal]:
    """`perdure` with these arguments; it is killed where it has not ended."""
    mine, its = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=ROOT,
        env={**environment, "TERM": "xterm", "COLUMNS": "200"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    try:
        yield Terminal(process, mine)
    finally:
        process.kill()
        process.wait()
        os.close(mine)
