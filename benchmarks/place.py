"""Worker processes of our side with a database and a task queue of their own.

Their memory and their processor time are theirs alone, and they can be stopped and killed.
"""

import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from temporalio.client import Client, WorkflowHandle

from benchmarks.scripted import Plan
from benchmarks.side import Side
from cli.processes import ChildProcess
from stores.opening import open_step_store
from stores.protocols import StepStore
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

ROOT = Path(__file__).parents[1]

LONGEST_RUN = timedelta(hours=1)
"""Thousands of steps, or an outage of minutes."""

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
"""Of the processor time that the system tells of a process."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A store, worker processes that write to it, and the queue that they poll."""

    client: Client
    store: StepStore
    workers: Sequence[ChildProcess]
    task_queue: str

    @property
    def side(self) -> Side:
        """For the workflows of `benchmarks.workflow`, where the workers know them."""
        return Side(client=self.client, task_queue=self.task_queue)

    async def start(self, agent: str, plan: Plan) -> WorkflowHandle[AgentRunWorkflow, object]:
        """The handle of a new `agent_run`, whose id is the run id."""
        return await self.client.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent=agent, prompt=plan.prompt),
            id=f"{agent}-{uuid4().hex}",
            task_queue=self.task_queue,
            execution_timeout=LONGEST_RUN,
        )

    def memory_mb(self, field: str = "VmRSS") -> float:
        """Memory of all workers in MB of a million bytes: `VmRSS` now, `VmHWM` at the most."""
        return sum(_memory_bytes(worker, field) for worker in self.workers) / 1e6

    def cpu_seconds(self) -> float:
        """Processor time that all workers have used, system calls included."""
        return sum(_cpu_ticks(worker) for worker in self.workers) / TICKS_A_SECOND


def _memory_bytes(worker: ChildProcess, field: str) -> int:
    status = Path(f"/proc/{worker.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _cpu_ticks(worker: ChildProcess) -> int:
    """Fields 14 and 15 of proc(5), counted behind the name, which may hold blanks."""
    behind_name = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    return int(behind_name[11]) + int(behind_name[12])


@asynccontextmanager
async def open_place(
    client: Client,
    mongodb_uri: str,
    *,
    module: str = "worker",
    processes: int = 1,
    database: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> AsyncGenerator[Place]:
    """Start the workers, which poll when they are ready; at the end they are stopped.

    Args:
        client: of the server that the workers poll, too.
        mongodb_uri: where the database is.
        module: what each process runs, as `python -m`.
        processes: how many.
        database: a fresh one when `None`; it stays.
        settings: environment variables of the workers.
    """
    database = database or f"place_{uuid4().hex}"
    task_queue = f"place-{uuid4().hex}"
    store = open_step_store("mongodb", db_url=mongodb_uri, database=database)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PERDURE_TEMPORAL_ADDRESS": client.service_client.config.target_host,
        "PERDURE_MONGODB_URI": mongodb_uri,
        "PERDURE_MONGODB_DATABASE": database,
        "PERDURE_TASK_QUEUE": task_queue,
        **(settings or {}),
    }
    with TemporaryDirectory(prefix="perdure-place-") as home:
        workers = [
            ChildProcess(
                f"Worker {number}",
                [sys.executable, "-m", module],
                log_path=Path(home) / f"worker-{number}.log",
                env=environment,
            )
            for number in range(processes)
        ]
        try:
            await store.initialise()
            for worker in workers:
                worker.spawn()
            yield Place(client=client, store=store, workers=workers, task_queue=task_queue)
        finally:
            for worker in workers:
                await worker.stop()
            await store.aclose()
