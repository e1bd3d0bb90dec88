"""Worker processes that faults strike: forked from one that has imported everything.

So the successor of a dead worker polls within a second.
"""

import asyncio
import json
import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import temporalio.client
from temporalio import activity
from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    WorkerConfig,
)

from cli.sweep.planted import PLANTED
from cli.sweep.script import Scene
from cli.sweep.talk_script import SERVED
from client import connect, existing_search_attributes
from settings import Settings
from stores.commits import Commit
from stores.faulty import Fault, FaultPlan, with_faults
from stores.opening import open_step_store
from stores.protocols import StepStore
from worker import build_worker

STICKY_TIMEOUT = timedelta(seconds=1)
"""A dead worker's runs wait this long on its own queue, by default ten seconds."""

POLLS = 2
"""The least. Each open poll of a frozen worker takes a task, which then has to time out."""

CALLS = "calls"
"""File in a listening plan's directory: a line for each operation that was committed."""

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__, "cli.sweep.ending"])


class ListeningPlan(FaultPlan):
    """Without faults; notes what is committed, so that faults can be put there."""

    def claim(self, method: str, arguments: tuple[object, ...]) -> Fault | None:
        """Note a commit; nothing strikes it."""
        for commit in arguments:
            if isinstance(commit, Commit) and commit.position:
                lines = [
                    {
                        "run_id": each.run_id,
                        "number": commit.position.number,
                        "kind": each.kind,
                        "key": each.key,
                    }
                    for each in commit.operations
                ]
                with (self.directory / CALLS).open("a") as file:
                    file.writelines(json.dumps(line) + "\n" for line in lines)
        return super().claim(method, arguments)


@dataclass(kw_only=True)
class WorkerProcess:
    """A worker as production builds it, with the script's agents and a plan of faults.

    Args:
        plan: a new process of the same plan is spared what has struck already.
        planted: what is wrong with its store, a key of `PLANTED`.
    """

    settings: Settings
    plan: FaultPlan
    planted: str | None = None
    _process: BaseProcess | None = None

    def start(self) -> None:
        """Start a process; it polls when it is ready, which nobody has to wait for."""
        arguments = (self.settings, self.plan, self.planted)
        self._process = _FORKS.Process(target=_main, args=arguments, daemon=True)
        self._process.start()

    @property
    def is_running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None and self._process.is_alive()

    @property
    def is_ready(self) -> bool:
        """Whether it runs and polls."""
        pid = self._process.pid if self._process else None
        return pid is not None and self.is_running and _ready(self.plan, pid).exists()

    def kill(self) -> None:
        """End it with SIGKILL; quiet when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; quiet when it has ended."""
        if self._process is not None and self._process.pid and self.is_running:
            os.kill(self._process.pid, number)


class _FaultyActivities(temporalio.client.Interceptor, Interceptor):
    """Has the plan strike activities that call no store, by their type."""

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        return _FaultyInbound(next, self._plan)


class _FaultyInbound(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, plan: FaultPlan) -> None:
        super().__init__(following)
        self._plan = plan

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        fault = self._plan.claim(f"activity:{activity.info().activity_type}", ())
        if fault is None:
            return await super().execute_activity(input)
        return await self._plan.strike(fault, partial(super().execute_activity, input), ())


class _QuickTakeover(SimplePlugin):
    def __init__(self) -> None:
        super().__init__("quick-takeover")  # pyright: ignore[reportUnknownMemberType] - the SDK's overloads

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        config["sticky_queue_schedule_to_start_timeout"] = STICKY_TIMEOUT
        config["max_concurrent_workflow_task_polls"] = POLLS
        config["max_concurrent_activity_task_polls"] = POLLS
        return super().configure_worker(config)


def _main(settings: Settings, plan: FaultPlan, planted: str | None) -> None:
    from cli.sweep.ending import end_with_parent  # noqa: PLC0415 - importing it is what it does

    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's to handle
    with (plan.directory / "worker.log").open("a") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
        asyncio.run(_work(settings, plan, planted))


async def _work(settings: Settings, plan: FaultPlan, planted: str | None) -> None:
    Scene.plan = plan
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store: Any = open_step_store(
        "mongodb", db_url=settings.mongodb_uri, database=settings.mongodb_database
    )
    if planted is not None:
        store = PLANTED[planted](store)
    store = with_faults(cast("StepStore", store), plan)
    config = (await connect(settings)).config()
    config["plugins"] = [*config["plugins"], _QuickTakeover()]
    config["interceptors"] = [*config["interceptors"], _FaultyActivities(plan)]
    client = Client(**config)
    attributes = await existing_search_attributes(client)
    async with build_worker(client, store, SERVED, settings, search_attributes=attributes):
        _ready(plan, os.getpid()).touch()
        await stop.wait()


def _ready(plan: FaultPlan, pid: int) -> Path:
    return plan.directory / f"{pid}.ready"
