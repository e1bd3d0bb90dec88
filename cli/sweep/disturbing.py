"""What is done from outside once a fault has struck: kill, restart, freeze, thaw, cancel, reset."""

import asyncio
import secrets
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowHandle

from cli.sweep.points import FAULT, Point
from cli.sweep.stage import Lane, seen
from cli.sweep.workers import WorkerProcess
from stores.faulty import FaultPlan
from workflows.lineage import is_tool_activity

AWAY = timedelta(seconds=1.5)
"""How long MongoDB is away, besides its start: long enough that a local commit gives up."""

SOON = timedelta(seconds=40)

DETECTION_LOOK = timedelta(milliseconds=200)

LONGEST_TELLING = timedelta(milliseconds=300)
"""An update is answered by the next worker alone; until then nothing tells that the server has
it."""


class Disturber:
    """Does what a point asks for.

    Args:
        worker: the one that runs and will be struck.
    """

    def __init__(
        self,
        lane: Lane,
        point: Point,
        handle: WorkflowHandle[Any, Any],
        plan: FaultPlan,
        worker: WorkerProcess,
    ) -> None:
        self._lane = lane
        self._point = point
        self._handle = handle
        self._plan = plan
        self._worker = worker
        self._successor: WorkerProcess | None = None
        self._killed_at: datetime | None = None
        self._restart_task: asyncio.Task[None] | None = None

    @property
    def has_struck(self) -> bool:
        """Whether the fault has."""
        return self._plan.has_fired(FAULT)

    def kill(self) -> None:
        """End all workers."""
        for worker in (self._worker, self._successor):
            if worker is not None:
                worker.kill()

    async def disturb(self) -> None:
        """Do what follows the strike, up to where another worker or MongoDB is back."""
        if self._point.moment == "reported" and self._point.disturbance != "repeat":
            await seen(self._is_reported, within=SOON, what="no report")
        match self._point.disturbance:
            case "kill" | "update":
                await self._replace()
            case "mongodb":
                await self._restart_mongodb()
            case "zombie":
                self._succeed()
            case "cancel":
                await self._handle.cancel()
                if self._point.kills_after:
                    await self._replace()
            case "reset":
                await self._reset()
            case "stop":
                await self._stop()
            case "late" if self._point.is_released_early:
                await seen(self._has_fallen_back, within=SOON, what="no fallback")
                self._go()
            case _:
                pass

    async def before_answer(self) -> None:
        """Before somebody decides on a parked call."""
        if self._point.disturbance == "update":
            self._worker.kill()

    async def after_answer(self) -> None:
        """When the decision is on its way, and may not be answered yet."""
        if self._point.disturbance == "update":
            await asyncio.sleep(LONGEST_TELLING.total_seconds())  # noqa: TID251 - see there
            self._worker.start()

    async def release(self, within: timedelta) -> str | None:
        """Let what was held go on; the store's answer to a write that comes late."""
        self._go()
        if self._point.disturbance == "zombie":
            self._worker.signal(signal.SIGCONT)
        if self._point.late:
            await seen(
                lambda: self._plan.answer(FAULT) is not None, within=within, what="no late write"
            )
        return self._plan.answer(FAULT)

    async def watch_detection(self) -> float | None:
        """Seconds from the worker's death until Temporal knows that its tool's attempt is lost.

        Returns when it does; cancel it where the run is over.
        """
        if self._killed_at is None or self._point.place.split()[0] not in {"body", "update"}:
            return None
        lost: set[str] | None = None
        while True:
            found = await self._handle.describe()
            tools = [
                each
                for each in found.raw_description.pending_activities
                if is_tool_activity(each.activity_type.name)
            ]
            lost = {each.activity_id for each in tools} if lost is None else lost
            if not lost:  # the tool ran inside the workflow
                return None
            if any(each.activity_id in lost and each.attempt > 1 for each in tools):
                now = datetime.now(UTC)  # noqa: TID251 - what passed since the kill
                return round((now - self._killed_at).total_seconds(), 1)
            await asyncio.sleep(DETECTION_LOOK.total_seconds())  # noqa: TID251 - nothing to wait on

    def _go(self) -> None:
        (self._plan.directory / "go").touch()

    def _succeed(self) -> None:
        """Start another worker beside the frozen one."""
        worker = self._worker
        self._successor = WorkerProcess(
            settings=worker.settings, plan=worker.plan, planted=worker.planted
        )
        self._successor.start()

    async def _replace(self) -> None:
        """Have the worker dead, and another one in its place."""
        if self._plan.faults[0].action != "kill":
            self._worker.kill()
        await seen(lambda: not self._worker.is_running, within=SOON, what="the worker lives")
        self._killed_at = datetime.now(UTC)  # noqa: TID251 - compared with the server's clock
        self._worker.start()

    async def _restart_mongodb(self) -> None:
        await self._lane.mongodb.kill()
        self._go()
        await asyncio.sleep(AWAY.total_seconds())  # noqa: TID251 - being away is the point
        await self._lane.mongodb.start()

    async def _is_reported(self) -> bool:
        """Whether Temporal has it in the history."""
        occasion = self._plan.occasion(FAULT)
        run_id = occasion.get("run_id") or self._handle.id
        client = self._lane.client
        found = await client.get_workflow_handle(run_id).describe()
        if token := occasion.get("token"):
            pending = found.raw_description.pending_activities
            return str(token).split("/")[1] not in {each.activity_id for each in pending}
        length = int(occasion.get("history_length", _LENGTH_OF_THE_FIRST_TASK))
        return found.history_length > length

    async def _has_fallen_back(self) -> bool:
        occasion = self._plan.occasion(FAULT)
        head = await self._lane.store.find_commit_head(execution_id=occasion["execution_id"])
        return head is not None and head.number >= occasion["number"]

    async def _reset(self) -> None:
        """Reset the run to its newest workflow task, while a commit is tried again and again."""
        await self._lane.mongodb.kill()
        self._go()
        await seen(self._has_pending_commit, within=SOON, what="no pending commit")
        events = (await self._handle.fetch_history()).events
        ends = [
            event.event_id
            for event in events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        ]
        await self._lane.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=self._lane.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=self._handle.id),
                workflow_task_finish_event_id=ends[-1],
                request_id=secrets.token_hex(16),
                reason="the sweep",
            )
        )
        await self._lane.mongodb.start()

    async def _has_pending_commit(self) -> bool:
        found = await self._handle.describe()
        pending = found.raw_description.pending_activities
        return any(each.activity_type.name == "commit_boundaries" for each in pending)

    async def _stop(self) -> None:
        """Have the worker stop as on a deployment; or kill it while it does."""
        self._worker.signal(signal.SIGTERM)
        if self._point.kills_after:
            self._worker.kill()
        await seen(lambda: not self._worker.is_running, within=SOON, what="the worker goes on")
        self._worker.start()


_LENGTH_OF_THE_FIRST_TASK = 3
"""Events of a history whose first workflow task is under way."""
