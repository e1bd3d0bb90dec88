"""Workers in processes of their own, which a test may kill as a crash would.

They are forked from a process that has imported everything, so that the successor of a dead worker
polls within a second.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.worker import WorkerConfig

from agents.registry import load_agents
from client import connect, existing_search_attributes
from settings import Settings
from stores.faulty import FaultPlan, with_faults
from stores.opening import open_step_store
from tests.helpers.user_workflows import USER_WORKFLOWS
from worker import build_worker

STICKY_TIMEOUT = timedelta(seconds=1)
"""A dead worker's runs wait this long on its own queue, by default ten seconds. (No cache would do,
too, but then a workflow task that takes long cancels its local activities: other behaviour.)"""

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, "stores.mongo.steps", "tests.helpers.user_agents"])


class WorkerProcess:
    """A worker as production builds it, on MongoDB, with the agents that the settings name.

    As a context manager it is started, and killed at the end.

    Args:
        settings: of the worker.
        log_path: where both its outputs are appended.
        plan: faults of its store.
    """

    def __init__(
        self, settings: Settings, *, log_path: Path, plan: FaultPlan | None = None
    ) -> None:
        self._arguments = (settings, plan, log_path)
        self._process: BaseProcess | None = None

    def start(self) -> None:
        """Start a process; it polls when it is ready, which nobody has to wait for."""
        self._process = _FORKS.Process(target=_main, args=self._arguments, daemon=True)
        self._process.start()

    def kill(self) -> None:
        """End it with SIGKILL; quiet when there is none."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    @property
    def exit_code(self) -> int | None:
        """How it ended, below zero by a signal; `None` while it runs."""
        return self._process.exitcode if self._process else None

    @property
    def pid(self) -> int | None:
        """Of the process; `None` before it was started."""
        return self._process.pid if self._process else None

    def restart(self) -> None:
        """Kill it and start another."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill it."""
        self.kill()


class _QuickTakeover(SimplePlugin):
    def __init__(self) -> None:
        super().__init__("quick-takeover")  # pyright: ignore[reportUnknownMemberType] - the SDK's overloads

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        config["sticky_queue_schedule_to_start_timeout"] = STICKY_TIMEOUT
        return super().configure_worker(config)


def _main(settings: Settings, plan: FaultPlan | None, log_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the test's to handle
    with log_path.open("a") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
        asyncio.run(_work(settings, plan))


async def _work(settings: Settings, plan: FaultPlan | None) -> None:
    store = open_step_store(
        "mongodb", db_url=settings.mongodb_uri, database=settings.mongodb_database
    )
    if plan is not None:
        store = with_faults(store, plan)
    config = (await connect(settings)).config()
    config["plugins"] = [*config["plugins"], _QuickTakeover()]
    client = Client(**config)
    worker = build_worker(
        client,
        store,
        load_agents(settings.agent_paths),
        settings,
        search_attributes=await existing_search_attributes(client),
        workflows=USER_WORKFLOWS,
    )
    async with worker:
        await asyncio.Event().wait()
