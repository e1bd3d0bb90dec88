"""Child processes that can be stopped, killed, frozen and started again, and never outlive us."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from time import monotonic

from cli.failures import CommandError

POLL_INTERVAL = timedelta(milliseconds=10)
"""How often the operating system is asked about a port or a process: far below what a person or
a test notices, far above what costs anything."""

LOG_TAIL_LINES = 20
"""A Python traceback or a server's last words, on one screen with the message around it."""

_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):  # it died before the line above
    sys.exit("the process that starts this one is gone")
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that is inherited
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Run by a bare interpreter that then becomes the command, under the same pid: 20 ms, and safe
where `preexec_fn` is not, because this process has threads. SIGKILL also ends a frozen child, and
both servers recover from it by their journals."""


class LocalServerError(CommandError):
    """A server or a worker could not be started here, or ended when it should not have."""


class ChildProcess:
    """One command that can be run, ended and run again.

    It has a session of its own, so Ctrl-C in a terminal reaches the parent alone, which then ends
    its children in order. On Linux it is killed when the thread that spawned it ends, which
    happens at the latest when this process dies, however it dies: spawn from the main thread.

    Nothing in it is bound to an event loop: start it in one `asyncio.run`, stop it in another.
    """

    stop_within = timedelta(seconds=15)
    """Between SIGTERM and SIGKILL. Temporal and MongoDB need 1 to 2 s."""

    telling_line = re.compile("")
    """Which lines of the log say why it ended; all of them where none matches."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        stop_within: timedelta | None = None,
    ) -> None:
        self.name = name
        self.command = tuple(str(part) for part in command)
        self.log_path = log_path
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._was_spawned = False
        if stop_within is not None:
            self.stop_within = stop_within

    @property
    def pid(self) -> int | None:
        """The newest process's id, also after it ended; `None` before the first."""
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the newest process ended, below zero by a signal; `None` while there is no end."""
        return self._process.poll() if self._process else None

    def spawn(self) -> None:
        """Run the command; both its outputs go to the log.

        The log of this object's first process replaces an older one, which is kept beside it as
        `<name>.previous.log`; later processes append.

        Raises:
            LocalServerError: it runs already.
        """
        if self.is_running:
            message = f"{self.name} was to be started and runs already (pid {self.pid})."
            raise LocalServerError(message)
        self._rotate_log()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - callers build the command
                [*_launcher(), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )

    async def stop(self) -> None:
        """End it with SIGTERM, or with SIGKILL after `stop_within`; quiet when it has ended.

        Cancelling this call kills the process: a second Ctrl-C does not wait.
        """
        if not self.is_running:
            return
        try:
            self._signal(signal.SIGTERM)
            self.thaw()  # a frozen process cannot end
            await until(lambda: not self.is_running, within=self.stop_within)
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End it with SIGKILL, as a crash would; quiet when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Suspend it with SIGSTOP: its sockets stay open and nobody answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on after `freeze`."""
        self._signal(signal.SIGCONT)

    def last_words(self) -> str:
        """Return the log's last lines and its path, for an error message."""
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        lines = text.splitlines()
        telling = [line for line in lines if self.telling_line.search(line)] or lines
        tail = "\n".join(telling[-LOG_TAIL_LINES:]) or "(nothing)"
        return f"The last lines of {str(self.log_path)!r}:\n{tail}"

    def describe_end(self) -> str:
        """Say how the newest process ended, with its last words."""
        return f"{self.name} ended with exit code {self.exit_code}. {self.last_words()}"

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _rotate_log(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        if not self._was_spawned and self.log_path.exists():
            self.log_path.replace(self.log_path.with_suffix(".previous.log"))
        self._was_spawned = True


async def until(condition: Callable[[], bool], *, within: timedelta) -> bool:
    """Wait for a condition; return whether it came to hold in time."""
    deadline = monotonic() + within.total_seconds()
    while not condition():
        if monotonic() > deadline:
            return False
        await pause()
    return True


async def pause() -> None:
    """Let `POLL_INTERVAL` pass between two looks at the outside world."""
    await asyncio.sleep(POLL_INTERVAL.total_seconds())  # noqa: TID251 - no event tells us


def _launcher() -> list[str]:
    if sys.platform != "linux":
        return []  # no such call: when the parent is killed, its children have to be ended by hand
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
