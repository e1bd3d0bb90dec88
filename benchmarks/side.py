"""One of the two that are compared: workers on a task queue of their own."""

from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter
from uuid import uuid4

from temporalio.client import Client, WorkflowHandle

from benchmarks.scripted import Plan
from benchmarks.workflow import BenchmarkRunWorkflow, NothingWorkflow

LONGEST_RUN = timedelta(minutes=10)
"""A run that takes longer hangs; the benchmark ends with an error instead of never."""

RunHandle = WorkflowHandle[BenchmarkRunWorkflow, str]


@dataclass(frozen=True, kw_only=True)
class Side:
    """Starts workflows for the workers of one side, and waits for them."""

    client: Client
    task_queue: str

    async def run(self, agent: str, plan: Plan) -> RunHandle:
        """The handle of a run that has ended well."""
        handle = await self.client.start_workflow(
            BenchmarkRunWorkflow.run,
            args=[agent, plan],
            id=f"{agent}-{uuid4().hex}",
            task_queue=self.task_queue,
            execution_timeout=LONGEST_RUN,
        )
        await handle.result()
        return handle

    async def seconds(self, agent: str, plan: Plan) -> float:
        """How long a run takes, from the start request to the answer."""
        start = perf_counter()
        await self.run(agent, plan)
        return perf_counter() - start

    async def seconds_of_nothing(self) -> float:
        """How long a workflow takes that does nothing."""
        start = perf_counter()
        await self.client.execute_workflow(
            NothingWorkflow.run,
            id=f"nothing-{uuid4().hex}",
            task_queue=self.task_queue,
            execution_timeout=LONGEST_RUN,
        )
        return perf_counter() - start
