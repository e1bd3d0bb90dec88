"""Whether this code takes runs the way that their histories went, and reads their payloads."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_ai import Agent
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError

from activities.boundaries import CommitBoundariesRequest
from cli.histories import agent_of, words_of
from stores.commits import Commit
from stores.errors import StoreError
from stores.operations import Operation
from stores.preparing import prepare
from worker import activity_arguments, build_replayer
from workflows.commit_capture import CommitCapture
from workflows.history_payloads import payloads_in
from workflows.outline import outline_by_event
from workflows.payloads import describe
from workflows.recorded_commits import (
    RecordedExecution,
    local_activity_number,
    recorded_execution,
)
from workflows.registry import WORKFLOWS

Outcome = Literal["same", "diverged", "unknown"]
"""This code goes the same way; it does not; it cannot be told."""

REPLAYS = 5
"""Attempts of a replay that found no processor for two seconds, which the SDK calls a deadlock."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What came of one history.

    Attributes:
        events: how many it has.
        problem: in words, without content.
        event: the first one that this code does not come to, or cannot read, as the outline has it.
        event_id: its number.
        run_id: the run in which that is.
        step_index: the step that was reached.
        boundary: the last operation that was made as the history has it.
        key: of that operation.
        reused_build: the build id of this code, when it also made the history.
    """

    workflow_id: str
    execution_id: str
    workflow_type: str
    outcome: Outcome
    events: int
    problem: str | None = None
    event: str | None = None
    event_id: int | None = None
    run_id: str | None = None
    step_index: int | None = None
    boundary: str | None = None
    key: str | None = None
    reused_build: str | None = None


class ReplayGate:
    """Checks histories, one after the other.

    Args:
        agents: what the worker of this code serves.
        converter: the worker's.
        build_id: of this code.
        workflows: a user's own workflow classes.
        activities: a user's own activities.
    """

    def __init__(
        self,
        agents: Sequence[Agent[Any, Any]],
        converter: DataConverter,
        *,
        build_id: str | None = None,
        workflows: Iterable[type] = (),
        activities: Iterable[Callable[..., object]] = (),
    ) -> None:
        workflows = [*workflows]
        self._converter = converter
        self._build_id = build_id
        self._agents = {str(agent.name) for agent in agents}
        self._types = {
            str(getattr(each, "__temporal_workflow_definition").name)
            for each in (*WORKFLOWS, *workflows)
        }
        self._arguments: Mapping[str, list[type] | None] = activity_arguments(agents, activities)
        self._capture = CommitCapture()
        self._replayer = build_replayer(
            agents, workflows=workflows, converter=converter, interceptors=[self._capture]
        )

    async def check(self, history: WorkflowHistory) -> Checked:
        """Replay a history and read its payloads. Nothing is executed and nothing is written."""
        looking = _Looking(history)
        try:
            unknown = await self._unknown(history, looking)
            if unknown is not None:
                return looking.unknown(unknown)
            misfit = await self._misfit(history)
        except StoreError as error:
            return looking.unknown(f"a payload cannot be read: {error}")
        if misfit is not None:
            event_id, problem = misfit
            return await self._diverged(looking, problem, event_id)
        failure = await self._replay(history)
        if failure is None:
            return looking.checked("same")
        if _is_starved(failure):
            return looking.unknown("the replay found no processor for two seconds; try again")
        return await self._diverged(looking, words_of(failure), None)

    async def _unknown(self, history: WorkflowHistory, looking: "_Looking") -> str | None:
        """Why this code can tell nothing of a history."""
        if looking.workflow_type not in self._types:
            known = ", ".join(sorted(self._types))
            return f"workflow type {looking.workflow_type!r} is not on this code, which has {known}"
        try:
            agent = await agent_of(history, self._converter)
        except (ApplicationError, ValidationError):
            return None  # told as what it is: an input that does not fit
        if agent is not None and agent not in self._agents:
            known = ", ".join(sorted(self._agents)) or "none"
            return (
                f"agent {agent!r} is not on this code, which has {known}; name its "
                "module:attribute in PERDURE_AGENTS"
            )
        return None

    async def _misfit(self, history: WorkflowHistory) -> tuple[int, str] | None:
        """The first event whose payloads this code cannot read, and why.

        A replay does not look at what activities were given; a worker of this code has to, when an
        attempt is repeated.
        """
        ended = _ended_activities(history)
        for event in history.events:
            found = [*payloads_in(event)]
            if found:
                await self._converter.decode(found, [RawValue] * len(found))
            scheduled = event.activity_task_scheduled_event_attributes
            name = scheduled.activity_type.name
            if not name:
                continue
            if name not in self._arguments:
                if event.event_id in ended:
                    continue
                return event.event_id, f"activity {name!r} is not on this code, and has not ended"
            types = self._arguments[name]
            try:
                await self._converter.decode(scheduled.input.payloads, types)
            except (ValidationError, ApplicationError, RuntimeError, TypeError) as error:
                return event.event_id, f"the input of {name} does not decode: {_reason(error)}"
        return None

    async def _replay(self, history: WorkflowHistory) -> Exception | None:
        failure: Exception | None = None
        for _ in range(REPLAYS):
            self._capture.begin()
            done = await self._replayer.replay_workflow(history, raise_on_replay_failure=False)
            failure = done.replay_failure
            if failure is None or not _is_starved(failure):
                break
            await asyncio.sleep(1)  # noqa: TID251 - for a processor
        return failure

    async def _diverged(self, looking: "_Looking", problem: str, event_id: int | None) -> Checked:
        """With the place: what was made last, and the event that does not follow from it."""
        history = looking.history
        recorded = await self._recorded(history)
        last: Operation | None = None
        if event_id is None:
            last, after = self._agreed(recorded)
            event_id = _event_in(problem, history, after)
        is_reused = recorded is not None and self._build_id in recorded.build_ids
        return looking.checked(
            "diverged",
            problem=problem,
            event_id=event_id,
            event=outline_by_event(history).get(event_id) if event_id else None,
            run_id=last.run_id if last else history.workflow_id,
            step_index=getattr(last, "step_index", None),
            boundary=last.kind if last else None,
            key=str(last.key) if last else None,
            reused_build=self._build_id if is_reused else None,
        )

    async def _recorded(self, history: WorkflowHistory) -> RecordedExecution | None:
        """What the history tells of its commits; `None` where this code cannot read it."""
        try:
            return await recorded_execution(history, self._converter)
        except (ValidationError, ApplicationError):
            return None

    def _agreed(self, recorded: RecordedExecution | None) -> tuple[Operation | None, int]:
        """The last operation that the replay made as the history has it, and its commit's event."""
        last: Operation | None = None
        event_id = 0
        commits = recorded.commits if recorded is not None else {}
        converter = self._converter.payload_converter
        for number in sorted(self._capture.commits.keys() & commits.keys()):
            group: CommitBoundariesRequest = converter.from_payload(
                converter.to_payload(self._capture.commits[number]), CommitBoundariesRequest
            )
            made = prepare(Commit(operations=group.operations, now=group.queued_at))
            if made.digest != commits[number].result.digest:
                break
            last = group.operations[-1] if group.operations else last
            event_id = commits[number].event_id
        return last, event_id


@dataclass(frozen=True)
class _Looking:
    history: WorkflowHistory

    @property
    def workflow_type(self) -> str:
        started = self.history.events[0].workflow_execution_started_event_attributes
        return started.workflow_type.name

    def checked(self, outcome: Outcome, **found: Any) -> Checked:  # noqa: ANN401 - fields of it
        started = self.history.events[0].workflow_execution_started_event_attributes
        return Checked(
            workflow_id=self.history.workflow_id,
            execution_id=started.original_execution_run_id,
            workflow_type=self.workflow_type,
            outcome=outcome,
            events=len(self.history.events),
            **found,
        )

    def unknown(self, why: str) -> Checked:
        return self.checked("unknown", problem=why)


def _is_starved(failure: Exception) -> bool:
    return "deadlock" in str(failure)


def _reason(error: BaseException) -> str:
    """Of a value that does not fit, without the value."""
    while not isinstance(error, ValidationError) and error.__cause__ is not None:
        error = error.__cause__
    return describe(error) if isinstance(error, ValidationError) else type(error).__name__


def _ended_activities(history: WorkflowHistory) -> set[int]:
    """Events that scheduled activities of which nothing more comes."""
    kinds = {
        EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: "activity_task_completed_event_attributes",
        EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: "activity_task_failed_event_attributes",
        EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: "activity_task_timed_out_event_attributes",
        EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: "activity_task_canceled_event_attributes",
    }
    return {
        getattr(event, kinds[event.event_type]).scheduled_event_id
        for event in history.events
        if event.event_type in kinds
    }


def _event_in(problem: str, history: WorkflowHistory, after: int) -> int | None:
    """The event that a failure of a replay is about, by the words of the SDK's core."""
    if found := re.search(r"HistoryEvent\(id: (\d+)", problem):
        return int(found[1])
    if found := re.search(r"LocalActivity\((\d+)\)", problem):
        wanted = int(found[1])
        for event in history.events:
            if local_activity_number(event.marker_recorded_event_attributes) == wanted:
                return event.event_id
    if found := re.search(r"scheduled event '([^']*)'", problem):
        named = [*_events_named(history, found[1])]
        return next((each for each in named if each > after), named[-1] if named else None)
    return None


def _events_named(history: WorkflowHistory, name: str) -> Iterator[int]:
    """Events that schedule something of this type or id."""
    for event in history.events:
        scheduled = event.activity_task_scheduled_event_attributes
        child = event.start_child_workflow_execution_initiated_event_attributes
        names = (scheduled.activity_type.name, scheduled.activity_id)
        if name in (*names, child.workflow_id, child.workflow_type.name):
            yield event.event_id
