"""The reference side: pydantic-ai-harness in processes of its own, on the same servers."""

import asyncio
import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from temporalio.client import Client

from benchmarks.scripted import PERSISTED, Plan
from benchmarks.side import LONGEST_RUN, RunHandle, Side
from cli.processes import ChildProcess, LocalServerError, until

ROOT = Path(__file__).parents[1]

STARTS_WITHIN = timedelta(minutes=3)
"""Imports take 5 s when nothing else runs, and a minute on a machine with much else to do."""


@dataclass(kw_only=True)
class Reference:
    """Its workers start at the first use.

    Args:
        python: the interpreter of its environment.
        log_dir: where its processes' output goes.
    """

    client: Client
    address: str
    mongodb_uri: str
    python: Path
    log_dir: Path
    _database: str = field(default_factory=lambda: f"reference_{uuid4().hex}")
    _workers: list[ChildProcess] = field(default_factory=list[ChildProcess])
    _side: Side | None = None
    _runs: dict[Plan, RunHandle] = field(default_factory=dict[Plan, RunHandle])

    async def side(self, *, processes: int = 1) -> Side:
        """Its workers, once they work; more of them join those that there are."""
        if self._side is None:
            self._side = Side(client=self.client, task_queue=f"reference-{uuid4().hex}")
        while len(self._workers) < processes:
            name = f"worker-{len(self._workers)}"
            where = (self._database, self.address, self._side.task_queue)
            worker = self._process("worker", *where, name=name)
            worker.spawn()
            self._workers.append(worker)
            await _first_answer(self._side, worker)
        return self._side

    async def run(self, plan: Plan) -> RunHandle:
        """A run that persists; of one plan there is only one, since it takes half a minute."""
        if plan not in self._runs:
            side = await self.side()
            self._runs[plan] = await side.run(PERSISTED, plan)
        return self._runs[plan]

    async def run_outside(self, plan: Plan, *, database: str) -> None:
        """A run that persists to that database, outside Temporal."""
        process = self._process("run", database, str(plan.steps), str(plan.size_bytes))
        process.spawn()
        if not await until(lambda: not process.is_running, within=LONGEST_RUN) or process.exit_code:
            await process.kill()
            raise LocalServerError(process.describe_end())

    async def stop(self) -> None:
        """Kill its workers."""
        for worker in self._workers:
            await worker.kill()

    def _process(self, command: str, *arguments: str, name: str = "run") -> ChildProcess:
        return ChildProcess(
            f"The reference ({command})",
            [
                *(self.python, "-m", "benchmarks.reference_worker"),
                *(command, self.mongodb_uri, *arguments),
            ],
            log_path=self.log_dir / f"reference-{name}.log",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


async def _first_answer(side: Side, worker: ChildProcess) -> None:
    answer = asyncio.ensure_future(side.seconds_of_nothing())
    try:
        await until(lambda: answer.done() or not worker.is_running, within=STARTS_WITHIN)
        if not answer.done():
            raise LocalServerError(worker.describe_end())
    finally:
        answer.cancel()
