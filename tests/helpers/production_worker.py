"""`python worker.py` as a process, with the variables that a deployment would set."""

import asyncio
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from settings import Settings
from tests.helpers.eventually import eventually

ROOT = Path(__file__).parents[2]
STARTS_WITHIN = timedelta(seconds=60)


def variables_of(settings: Settings) -> dict[str, str]:
    """The environment that has these settings."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
        "PYTHONPATH": str(ROOT),
        "PERDURE_TEMPORAL_ADDRESS": str(settings.temporal_address),
        "PERDURE_MONGODB_URI": str(settings.mongodb_uri),
        "PERDURE_MONGODB_DATABASE": settings.mongodb_database,
        "PERDURE_TASK_QUEUE": settings.task_queue,
        "PERDURE_AGENTS": settings.agents,
        "PERDURE_GRACEFUL_SHUTDOWN_SECONDS": "15",
    }


async def perdure_run(
    environment: Mapping[str, str], prompt: str, run_id: str
) -> subprocess.CompletedProcess[str]:
    """What `perdure run script` did, which waits for the run's end."""
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "cli.main", "run", "script", prompt, "--run-id", run_id],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


class ProductionWorker:
    """Started when it is entered, and killed at the end.

    Args:
        environment: all its variables.
        options: of the command.
    """

    def __init__(self, environment: Mapping[str, str], *options: str) -> None:
        self._environment = dict(environment)
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self.log = ""

    @property
    def process(self) -> subprocess.Popen[str]:
        """The running one."""
        assert self._process is not None, "it was not started"
        return self._process

    def __enter__(self) -> Self:
        """Start it."""
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "worker.py"), *self._options],
            env=self._environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill it; its log goes to standard output, where a failing test shows it."""
        if self.process.poll() is None:
            self.process.kill()
            self.log += self.process.communicate()[1]
        sys.stdout.write(self.log)

    async def ended(self, *, within: timedelta = STARTS_WITHIN) -> int:
        """Wait for its end, and return its exit code."""
        _, log = await asyncio.to_thread(self.process.communicate, timeout=within.total_seconds())
        self.log += log
        return self.process.returncode

    async def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def ready(self) -> None:
        """Wait until `/readyz` says so."""
        port = self._environment["PERDURE_HEALTH_PORT"]

        async def is_ready() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            try:
                return (await fetch(f"http://127.0.0.1:{port}/readyz"))[0] == 200
            except OSError:
                return False

        await eventually(is_ready, within=STARTS_WITHIN)

    async def metrics(self) -> str:
        """What a scrape reads."""
        port = self._environment["PERDURE_HEALTH_PORT"]
        return (await fetch(f"http://127.0.0.1:{port}/metrics"))[1]


async def fetch(url: str) -> tuple[int, str]:
    """Status and body of a page of ours."""

    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - our own
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)
