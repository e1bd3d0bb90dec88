"""Several worker processes on one machine, each with its own client, store and event loop.

They are started with spawn: neither MongoDB's driver nor Temporal's core outlives a fork. One that
ends unasked ends all, so that whatever runs the worker sees it and starts it again.
"""

import logging
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import FrameType

from settings import Settings

logger = logging.getLogger("perdure.worker")

Main = Callable[[Settings, int], int]
"""What a process does: settings and its number to an exit code. A function of a module."""

KILL_AFTER_SECONDS = 15.0
"""Beyond the grace period: a process that has not ended by then does not end by itself."""


def settings_of_process(settings: Settings, number: int) -> Settings:
    """The settings of process `number`, from 0; each has a health port of its own."""
    if settings.health_port is None:
        return settings
    return settings.model_copy(update={"health_port": settings.health_port + number})


def run_processes(main: Main, settings: Settings) -> int:
    """Run `settings.processes` of them until SIGTERM or SIGINT, or until one ends.

    Returns:
        0 when they were told to stop and all ended well, else 1.
    """
    spawning = multiprocessing.get_context("spawn")
    processes = [
        spawning.Process(
            target=_run, args=(main, settings_of_process(settings, number), number), daemon=False
        )
        for number in range(settings.processes)
    ]
    told: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        told.append(number)
        _terminate(processes)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    for process in processes:
        if not told:
            process.start()
    processes = [process for process in processes if process.pid is not None]
    wait([process.sentinel for process in processes])
    if not told:
        ended = [process for process in processes if process.exitcode is not None]
        for process in ended:
            logger.error(
                "Worker process %s ended by itself with %s; the others are stopped",
                process.pid,
                process.exitcode,
            )
        _terminate(processes)
    for process in processes:
        process.join(settings.graceful_shutdown_seconds + KILL_AFTER_SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
    return 0 if told and all(process.exitcode == 0 for process in processes) else 1


def _terminate(processes: list[SpawnProcess]) -> None:
    for process in processes:
        if process.pid is not None and process.is_alive():
            process.terminate()


def _run(main: Main, settings: Settings, number: int) -> None:
    raise SystemExit(main(settings, number))
