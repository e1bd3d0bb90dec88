"""How a tool call stands: what the ledger says of it, joined with what Temporal does about it."""

import asyncio
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from cli.output import age, moment

if TYPE_CHECKING:
    from temporalio.client import Client

    from cli.executions import Execution, PendingActivity
    from stores.protocols import StepStore
    from stores.records import RunRecord, ToolEffectRecord

StandingKind = Literal["ended", "in flight", "retrying", "parked", "approval", "unknown", "unasked"]
"""`parked`: its run waits for a decision; `approval`: it has not run, and does when somebody
approves it; `unknown`: nobody knows, and its run is over; `unasked`: Temporal does not answer."""

PARALLEL_QUESTIONS = 20
"""Runs that are asked about at a time: enough to fill the round trips, far below any rate limit."""

Hosts = dict[str, "tuple[RunRecord | None, Execution | None]"]
"""Of each run its record and the workflow that it is part of."""

OPEN = frozenset({"started", "unknown"})
"""As `stores.records.UNRESOLVED`, which takes a second to import."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a call stands. `command` is what to type where somebody has to decide."""

    kind: StandingKind
    words: str
    since: datetime | None = None
    attempt: int | None = None
    next_attempt_at: datetime | None = None
    command: str | None = None

    def as_document(self) -> dict[str, Any]:
        """What `--json` prints of it with the effect."""
        return {
            "standing": self.words,
            "standing_kind": self.kind,
            "since": self.since,
            "attempt": self.attempt,
            "next_attempt_at": self.next_attempt_at,
            "command": self.command,
        }


async def find_hosts(client: "Client", store: "StepStore", run_ids: Iterable[str]) -> Hosts:
    """Of each run its record and the workflow that it is part of.

    Raises:
        UnreachableError: Temporal does not answer.
    """
    free = asyncio.Semaphore(PARALLEL_QUESTIONS)

    async def find(run_id: str) -> "tuple[RunRecord | None, Execution | None]":
        async with free:
            record = await store.get_run(run_id=run_id)
            return record, await find_host(client, store, run_id, record)

    wanted = list(dict.fromkeys(run_ids))
    found = await asyncio.gather(*(find(each) for each in wanted))
    return dict(zip(wanted, found, strict=True))


async def find_host(
    client: "Client", store: "StepStore", run_id: str, record: "RunRecord | None"
) -> "Execution | None":
    """The workflow that a run is part of, `None` when Temporal knows of none.

    It has the run's id, or it is a user's own and the run's record tells its execution, or the run
    is made in an activity of its parent.

    Raises:
        UnreachableError: Temporal does not answer.
    """
    from cli.executions import find_execution, find_execution_of_branch  # noqa: PLC0415 - slow

    asked: set[str] = set()
    while True:
        asked.add(run_id)
        execution = await find_execution(client, run_id)
        if execution is None and record is not None and record.branches:
            execution = await find_execution_of_branch(client, record.branches[-1])
        parent = record.parent_run_id if record else None
        if execution is not None or parent is None or parent in asked:
            return execution
        run_id, record = parent, await store.get_run(run_id=parent)


def is_over(record: "RunRecord | None", execution: "Execution | None") -> bool:
    """Whether nothing of the run will happen any more: an open call of it stays open."""
    if execution is None or execution.is_closed:
        return True
    # A workflow of its own that is open was reset, or is about to close.
    is_part = record is not None and execution.workflow_id != record.run_id
    return is_part and record is not None and record.ended_at is not None


def unasked(
    effect: "ToolEffectRecord", *, problem: str | None = "Temporal does not answer"
) -> Standing:
    """How a call stands as far as the ledger alone tells; `problem` is why Temporal is left out."""
    if effect.status not in OPEN:
        return _ended(effect)
    return Standing(
        kind="unasked",
        words=f"{effect.status}; {problem}" if problem else effect.status,
        since=effect.ended_at or effect.started_at,
    )


def standing_of(
    effect: "ToolEffectRecord", record: "RunRecord | None", execution: "Execution | None"
) -> Standing:
    """How a call stands in its run, whose workflow is that execution."""
    if effect.status not in OPEN:
        return _ended(effect)
    if effect.awaits_approval and effect.approval:
        return _unapproved(effect, effect.approval.at, record, execution)
    if is_over(record, execution):
        return Standing(
            kind="unknown",
            words=_unknown_words(effect, record, execution),
            since=effect.ended_at or effect.started_at,
            command=command_of(effect, is_parked=False),
        )
    return _going_on(effect, record, execution)


def _going_on(
    effect: "ToolEffectRecord", record: "RunRecord | None", execution: "Execution | None"
) -> Standing:
    pending = execution.pending_activities if execution else ()
    for activity in pending:
        if _is_call(activity, effect):
            return _of_activity(activity)
    if effect.status == "started":
        words = "in flight: no activity is pending, its end is being recorded"
        return Standing(kind="in flight", words=words, since=effect.started_at)
    since = effect.ended_at or effect.started_at
    if record is not None and record.state == "needs_attention":
        words = f"parked: waits for a decision since {moment(since)}"
        return Standing(kind="parked", words=words, since=since, command=command_of(effect))
    words = "in flight: its outcome is unknown, and its run goes on"
    return Standing(kind="in flight", words=words, since=since)


def place_of(effect: "ToolEffectRecord") -> str:
    """The call as a person names it: step and index, or its id."""
    if effect.step_index is None or effect.call_index is None:
        return effect.tool_call_id
    return f"{effect.step_index}/{effect.call_index}"


def command_of(effect: "ToolEffectRecord", *, is_parked: bool = True) -> str:
    """What to type to decide on the call."""
    again = " | --run-again" if is_parked else ""
    return f"perdure resolve {_names(effect)} --completed JSON | --failed TEXT{again}"


def _names(effect: "ToolEffectRecord") -> str:
    names = [effect.run_id, place_of(effect)]
    if effect.workspace_id != "default":
        names += ["--workspace", effect.workspace_id]
    return shlex.join(names)


def _ended(effect: "ToolEffectRecord") -> Standing:
    return Standing(kind="ended", words=effect.status, since=effect.ended_at)


def _unapproved(
    effect: "ToolEffectRecord",
    since: datetime,
    record: "RunRecord | None",
    execution: "Execution | None",
) -> Standing:
    denying = f"perdure deny {_names(effect)}"
    if is_over(record, execution):
        words = "did not run: its run ended before somebody approved it"
        return Standing(kind="approval", words=words, since=since, command=denying)
    return Standing(
        kind="approval",
        words=f"approval: waits since {moment(since)}",
        since=since,
        command=f"perdure approve {_names(effect)}, or: {denying}",
    )


def _unknown_words(
    effect: "ToolEffectRecord", record: "RunRecord | None", execution: "Execution | None"
) -> str:
    if execution is None:
        return f"unknown: {effect.status}, and Temporal knows no workflow of the run"
    if not execution.is_closed and record is not None:
        return f"unknown: the run ended {record.state} before the call did"
    return f"unknown: the run ended {execution.status} before the call did"


def _of_activity(activity: "PendingActivity") -> Standing:
    before = f" (before: {activity.last_failure})" if activity.last_failure else ""
    since = activity.started_at or activity.scheduled_at
    due = activity.next_attempt_at
    now = datetime.now(UTC)  # noqa: TID251 - what a person is shown is relative to the present
    if activity.attempt > 1 and due is not None and due > now:
        words = f"retrying: attempt {activity.attempt} at {moment(due)}{before}"
        return Standing(
            kind="retrying",
            words=words,
            since=since,
            attempt=activity.attempt,
            next_attempt_at=due,
        )
    state = activity.state if activity.state == "running" else "waiting for a worker"
    at = f", since {moment(since)}" if since else ""
    words = f"in flight: {state}, attempt {activity.attempt}{at}{before}"
    return Standing(kind="in flight", words=words, since=since, attempt=activity.attempt)


def _is_call(activity: "PendingActivity", effect: "ToolEffectRecord") -> bool:
    if activity.tool_call_id is None:
        # Only the name is known: of a call that is unknown it may be a sibling's.
        return effect.status == "started" and activity.tool_name == effect.tool_name
    return activity.tool_call_id == effect.tool_call_id


def waited(standing: Standing) -> str:
    """The age of what the standing says, of one width so that a table keeps its shape."""
    return (age(standing.since) if standing.since else "").ljust(len("119.9 s ago"))
