"""What Temporal knows of a run: its status, and what it is doing now.

It is asked of the server alone. A query would need a worker, and the runs that somebody looks at
are those whose worker is gone.
"""

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import BaseModel, ValidationError
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHistoryEventFilterType,
)
from temporalio.service import RPCError, RPCStatusCode

from cli.connections import asking
from cli.output import age, moment

if TYPE_CHECKING:
    from stores.records import RunBranch, RunRecord

CLOSED_STATES = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELED": "cancelled",
    "TERMINATED": "terminated",
    "TIMED_OUT": "timed_out",
}
"""State of a run by Temporal's status, where the run could not say it itself."""

PARALLEL_QUESTIONS = 20
"""Runs that are asked about at a time: enough to fill the round trips, far below any rate limit."""

HISTORY_PAGE_EVENTS = 100

_EXECUTION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, kw_only=True)
class PendingActivity:
    """An activity that was scheduled and has not ended.

    `what` is its summary, such as `call tool: <toolset>:lookup`, or else its type. Of a tool call
    `tool_name` and `tool_call_id` are known as far as its input tells.
    """

    what: str
    state: str
    attempt: int
    maximum_attempts: int | None
    scheduled_at: datetime | None
    started_at: datetime | None = None
    last_heartbeat_at: datetime | None = None
    next_attempt_at: datetime | None = None
    worker: str | None = None
    last_failure: str | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    def __str__(self) -> str:
        """One line: what, how, which attempt, since when, where, and what went wrong before."""
        since = self.started_at or self.scheduled_at
        limit = f" of {self.maximum_attempts}" if self.maximum_attempts else ""
        parts = [f"{self.what}: {self.state}, attempt {self.attempt}{limit}"]
        if since:
            parts.append(f"since {moment(since)} ({age(since)})")
        if self.last_heartbeat_at:
            parts.append(f"last heartbeat {age(self.last_heartbeat_at)}")
        if self.worker:
            parts.append(f"on {self.worker}")
        if self.last_failure:
            parts.append(f"the attempt before: {self.last_failure}")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """The newest execution of a workflow id, as the server describes it.

    `task_attempt` is above 1 while a workflow task fails again and again: a run that no longer fits
    the code, or a worker that cannot run it. `failure` is why a closed one failed.
    """

    workflow_id: str
    status: str
    workflow_type: str
    task_queue: str
    execution_id: str
    first_execution_id: str
    history_length: int
    started_at: datetime
    closed_at: datetime | None = None
    pending_activities: tuple[PendingActivity, ...] = ()
    task_attempt: int | None = None
    task_since: datetime | None = None
    failure: str | None = None

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will happen in it."""
        return self.status in CLOSED_STATES

    @property
    def doing(self) -> list[str]:
        """What it does now, a line for each thing; empty when it is closed."""
        if self.is_closed:
            return []
        lines = [str(activity) for activity in self.pending_activities]
        if self.task_since and self.task_attempt:
            failing = " (it fails; `perdure replay` may say why)" if self.task_attempt > 1 else ""
            lines.append(
                f"workflow task: attempt {self.task_attempt}, since {moment(self.task_since)} "
                f"({age(self.task_since)}){failing}"
            )
        return lines or ["waiting"]


class _RunContext(BaseModel):
    tool_call_id: str | None = None


class _ToolCall(BaseModel):
    """What is read of the argument of pydantic-ai's tool activities, `CallToolParams`."""

    name: str
    tool_args: object
    serialized_run_context: _RunContext


async def find_execution(
    client: Client, workflow_id: str, *, execution_id: str | None = None
) -> Execution | None:
    """The newest execution of that id or the one that is named; `None` when there is none.

    Raises:
        UnreachableError: Temporal does not answer.
    """
    try:
        async with asking(client):
            handle = client.get_workflow_handle(workflow_id, run_id=execution_id)
            description = await handle.describe()
            inputs = await _scheduled(client, description)
            failure = await _failure(client, description)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    return _execution(description, inputs, failure)


async def find_execution_of_branch(client: Client, branch: "RunBranch") -> Execution | None:
    """The execution that goes on with what that branch began; `None` when Temporal has none.

    After a reset it is a newer one of the same id, which may also belong to another run since.

    Raises:
        UnreachableError: Temporal does not answer.
    """
    if not _EXECUTION_ID.fullmatch(branch.branch):  # a run outside of workflows
        return None
    async with asking(client):
        query = f"RunId = '{branch.branch}'"
        ids = [found.id async for found in client.list_workflows(query, limit=1)]
    if not ids:
        return None
    newest = await find_execution(client, ids[0])
    if newest is None or newest.execution_id == branch.branch:
        return newest
    if newest.first_execution_id == branch.execution_id:
        return newest
    return await find_execution(client, ids[0], execution_id=branch.branch)


async def find_executions(
    client: Client, workflow_ids: Iterable[str]
) -> dict[str, Execution | None]:
    """`find_execution` of each id. The first that is not answered stops all."""
    free = asyncio.Semaphore(PARALLEL_QUESTIONS)

    async def find(workflow_id: str) -> tuple[str, Execution | None]:
        async with free:
            return workflow_id, await find_execution(client, workflow_id)

    return dict(await asyncio.gather(*(find(each) for each in dict.fromkeys(workflow_ids))))


def joined_state(record: "RunRecord | None", execution: Execution | None) -> str:
    """The run's state: its own last word, or Temporal's where it could not speak any more."""
    was_heard = record is not None and record.state not in {"running", "needs_attention"}
    if execution is not None and execution.is_closed and not was_heard:
        return CLOSED_STATES[execution.status]
    return record.state if record else "running"


def _execution(
    description: WorkflowExecutionDescription,
    inputs: Mapping[str, HistoryEvent],
    failure: str | None,
) -> Execution:
    raw = description.raw_description
    task = raw.pending_workflow_task if raw.HasField("pending_workflow_task") else None
    return Execution(
        workflow_id=description.id,
        status=description.status.name if description.status else "UNKNOWN",
        workflow_type=description.workflow_type,
        task_queue=description.task_queue,
        execution_id=description.run_id,
        first_execution_id=raw.workflow_execution_info.first_run_id,
        history_length=description.history_length,
        started_at=description.start_time,
        closed_at=description.close_time,
        pending_activities=tuple(
            _pending(each, inputs.get(each.activity_id)) for each in raw.pending_activities
        ),
        task_attempt=task.attempt if task else None,
        task_since=_time(task.original_scheduled_time) if task else None,
        failure=failure,
    )


def _pending(info: PendingActivityInfo, scheduled: HistoryEvent | None) -> PendingActivity:
    is_started = info.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    state = PendingActivityState.Name(info.state).removeprefix("PENDING_ACTIVITY_STATE_").lower()
    if not is_started and info.attempt > 1:
        state = "waiting to be retried"
    elif not is_started and state == "scheduled":
        state = "waiting for a worker"
    name, call_id = _tool_call(scheduled)
    return PendingActivity(
        what=_summary(scheduled) or info.activity_type.name,
        state="running" if is_started else state,
        attempt=info.attempt,
        maximum_attempts=info.maximum_attempts or None,
        scheduled_at=_time(info.scheduled_time),
        started_at=_time(info.last_started_time) if is_started else None,
        last_heartbeat_at=_time(info.last_heartbeat_time) if is_started else None,
        next_attempt_at=None if is_started else _time(info.next_attempt_schedule_time),
        worker=info.last_worker_identity or None,
        last_failure=_words(info.last_failure) if info.HasField("last_failure") else None,
        tool_name=name,
        tool_call_id=call_id,
    )


async def _scheduled(
    client: Client, description: WorkflowExecutionDescription
) -> dict[str, HistoryEvent]:
    """The events that scheduled the pending activities, by activity id.

    They are read from the newest back: what is pending was scheduled lately.
    """
    missing = {each.activity_id for each in description.raw_description.pending_activities}
    found: dict[str, HistoryEvent] = {}
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=description.id, run_id=description.run_id),
        maximum_page_size=HISTORY_PAGE_EVENTS,
    )
    while missing:
        page = await client.workflow_service.get_workflow_execution_history_reverse(request)
        for event in page.history.events:
            activity_id = event.activity_task_scheduled_event_attributes.activity_id
            if activity_id in missing:
                found[activity_id] = event
                missing.discard(activity_id)
        if not page.next_page_token:
            break
        request.next_page_token = page.next_page_token
    return found


async def _failure(client: Client, description: WorkflowExecutionDescription) -> str | None:
    """Why a failed execution failed: its last event says it."""
    if description.status is not WorkflowExecutionStatus.FAILED:
        return None
    handle = client.get_workflow_handle(description.id, run_id=description.run_id)
    kind = WorkflowHistoryEventFilterType.CLOSE_EVENT
    async for event in handle.fetch_history_events(event_filter_type=kind):
        return _words(event.workflow_execution_failed_event_attributes.failure)
    return None


def _words(failure: Failure) -> str:
    """A failure's message with those of its causes."""
    words = failure.message or failure.WhichOneof("failure_info") or "failed"
    kind = failure.application_failure_info.type
    own = f"{kind}: {words}" if kind and kind not in words else words
    return f"{own} (cause: {_words(failure.cause)})" if failure.HasField("cause") else own


def _summary(scheduled: HistoryEvent | None) -> str | None:
    if scheduled is None or not scheduled.user_metadata.HasField("summary"):
        return None
    summary = _json(scheduled.user_metadata.summary)
    return summary if isinstance(summary, str) else None


def _tool_call(scheduled: HistoryEvent | None) -> tuple[str | None, str | None]:
    """Name and call id, where the first argument is that of a tool activity of pydantic-ai."""
    if scheduled is None:
        return None, None
    payloads = scheduled.activity_task_scheduled_event_attributes.input.payloads
    try:
        call = _ToolCall.model_validate(_json(payloads[0]) if payloads else None)
    except ValidationError:
        return None, None
    return call.name, call.serialized_run_context.tool_call_id


def _json(payload: Payload) -> object:
    """What is in a payload of plain JSON; `None` for one that only a codec could read."""
    if not payload.metadata.get("encoding", b"").startswith(b"json/"):
        return None
    return json.loads(payload.data)


def _time(stamp: Timestamp) -> datetime | None:
    return stamp.ToDatetime(tzinfo=UTC) if stamp.seconds else None
