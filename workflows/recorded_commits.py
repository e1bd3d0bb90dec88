"""What a history itself tells of its commits: their results, and which branch made them."""

import json
from dataclasses import dataclass, field
from typing import Any

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent, MarkerRecordedEventAttributes
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from activities.boundaries import CommitBoundariesResult
from workflows.commit_capture import COMMITS

LOCAL_ACTIVITY_MARKER = "core_local_activity"
"""The name of the SDK's own."""

SETTLED_ENDS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
}
"""Ends that the workflow came to by itself, with all of its commits in the history."""

OTHER_ENDS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
}


@dataclass(frozen=True, kw_only=True)
class RecordedCommit:
    """A commit whose result the history holds, and the branch that made it."""

    result: CommitBoundariesResult
    branch: str
    event_id: int


@dataclass(frozen=True, kw_only=True)
class RecordedExecution:
    """One execution of a workflow, as its history tells it.

    Attributes:
        execution_id: the same after a reset.
        branch: the execution's own id, another one after a reset.
        former_id: the execution that was continued as this one.
        is_closed: nothing more comes.
        is_settled: it ended by itself, so that all that it wrote is in the history.
        build_ids: of the workers that did its tasks.
        commits: by number. Refused ones and those of a lost attempt are not here.
    """

    workflow_id: str
    workflow_type: str
    execution_id: str
    branch: str
    former_id: str
    is_closed: bool
    is_settled: bool
    build_ids: frozenset[str]
    commits: dict[int, RecordedCommit] = field(default_factory=dict[int, RecordedCommit])


async def recorded_execution(
    history: WorkflowHistory, converter: DataConverter
) -> RecordedExecution:
    """Read a history, with the converter of those who wrote it.

    Raises:
        StoreError: a payload that the history refers to cannot be had.
    """
    started = history.events[0].workflow_execution_started_event_attributes
    branch = execution_id = started.original_execution_run_id
    commits: dict[int, RecordedCommit] = {}
    names: dict[int, str] = {}
    build_ids: set[str] = set()
    for event in history.events:
        reset_to = _reset(event)
        if reset_to is not None:
            branch = reset_to
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name in COMMITS:
            names[event.event_id] = scheduled.activity_type.name
        build_ids.add(_build_id(event))
        payloads = _result(event, names)
        if payloads:
            (result,) = await converter.decode(payloads, [CommitBoundariesResult])
            commits[result.number] = RecordedCommit(
                result=result, branch=branch, event_id=event.event_id
            )
    last = history.events[-1].event_type
    return RecordedExecution(
        workflow_id=history.workflow_id,
        workflow_type=started.workflow_type.name,
        execution_id=execution_id,
        branch=branch,
        former_id=started.continued_execution_run_id,
        is_closed=last in SETTLED_ENDS | OTHER_ENDS,
        is_settled=last in SETTLED_ENDS,
        build_ids=frozenset(build_ids - {""}),
        commits=commits,
    )


def local_activity_in(marker: MarkerRecordedEventAttributes) -> str | None:
    """The type of the local activity that a marker tells the end of."""
    return str(_data_of(marker).get("activity_type", "")) or None


def local_activity_number(marker: MarkerRecordedEventAttributes) -> int | None:
    """The SDK's number of that local activity, by which errors of a replay name it."""
    number: int | None = _data_of(marker).get("seq")
    return number


def _data_of(marker: MarkerRecordedEventAttributes) -> dict[str, Any]:
    if marker.marker_name != LOCAL_ACTIVITY_MARKER or "data" not in marker.details:
        return {}
    payloads = marker.details["data"].payloads
    told: dict[str, Any] = json.loads(payloads[0].data) if payloads else {}
    return told


def _reset(event: HistoryEvent) -> str | None:
    """The branch that begins here."""
    failed = event.workflow_task_failed_event_attributes
    is_reset = failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW
    return failed.new_run_id if is_reset else None


def _build_id(event: HistoryEvent) -> str:
    done = event.workflow_task_completed_event_attributes
    return done.worker_version.build_id or done.binary_checksum


def _result(event: HistoryEvent, names: dict[int, str]) -> list[Any]:
    """Payloads of the result of a commit that this event tells."""
    completed = event.activity_task_completed_event_attributes
    if completed.scheduled_event_id in names:
        return list(completed.result.payloads)
    marker = event.marker_recorded_event_attributes
    if local_activity_in(marker) in COMMITS:
        return list(marker.details["result"].payloads)
    return []
