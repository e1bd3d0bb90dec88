"""A history as lines that people can read and compare: its payloads are base64."""

from collections.abc import Callable, Iterator
from typing import Any

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent, MarkerRecordedEventAttributes
from temporalio.client import WorkflowHistory

from workflows.recorded_commits import local_activity_in

LEFT_OUT = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED,
}
"""Say nothing that the event after them does not say."""


def outline_of(history: WorkflowHistory) -> str:
    """One line for each event that the workflow caused or heard of."""
    return "".join(f"{line}\n" for line in _lines(history))


def outline_by_event(history: WorkflowHistory) -> dict[int, str]:
    """The same line by line, for each event that has one, without its number."""
    return dict(_numbered(history))


def _lines(history: WorkflowHistory) -> Iterator[str]:
    for number, text in _numbered(history):
        yield f"{number:4} {text}"


def _numbered(history: WorkflowHistory) -> Iterator[tuple[int, str]]:
    activities: dict[int, str] = {}
    for event in history.events:
        if event.event_type in LEFT_OUT:
            continue
        name = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower()
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name:
            activities[event.event_id] = scheduled.activity_type.name
        yield event.event_id, f"{name} {_detail(event, activities)}".rstrip()


def _detail(event: HistoryEvent, activities: dict[int, str]) -> str:
    """What the event is about."""
    kind = event.WhichOneof("attributes") or ""
    attributes: Any = getattr(event, kind, None)
    if kind.startswith("activity_task_"):
        scheduled = getattr(attributes, "scheduled_event_id", event.event_id)
        return activities[scheduled]
    tell = _DETAILS.get(kind.removesuffix("_event_attributes"))
    return tell(attributes) if tell else ""


def _error_type(failure: Failure) -> str:
    """The first type that is named: the outermost failure may only wrap an activity's."""
    while not failure.application_failure_info.type and failure.HasField("cause"):
        failure = failure.cause
    return failure.application_failure_info.type


def _marker(marker: MarkerRecordedEventAttributes) -> str:
    """The local activity that a marker tells the end of."""
    outcome = " failed" if marker.HasField("failure") else ""
    return f"{local_activity_in(marker) or marker.marker_name}{outcome}"


_DETAILS: dict[str, Callable[[Any], str]] = {
    "marker_recorded": _marker,
    "timer_started": lambda timer: f"{timer.start_to_fire_timeout.ToTimedelta().total_seconds()} s",
    "upsert_workflow_search_attributes": lambda upsert: ", ".join(
        sorted(upsert.search_attributes.indexed_fields)
    ),
    "workflow_execution_failed": lambda end: _error_type(end.failure),
    "workflow_execution_started": lambda start: start.workflow_type.name,
    "workflow_task_failed": lambda task: (
        WorkflowTaskFailedCause.Name(task.cause).removeprefix("WORKFLOW_TASK_FAILED_CAUSE_").lower()
    ),
}
