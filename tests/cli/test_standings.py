"""How open tool calls stand, by what ledger and Temporal say."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli.executions import Execution, PendingActivity
from cli.ledger import Calls, LedgerEntry, attention_lines, entries_of
from cli.standings import standing_of, unasked
from stores.attempts import ToolAttempt, ToolCallPlace, ToolGate
from stores.records import ToolApproval, ToolEffectRecord, ToolEffectResolution
from tests.stores.records import effect, run_record
from tests.stores.writer import at

NOW = datetime.now(UTC)
LATER = NOW + timedelta(hours=1)
EARLIER = NOW - timedelta(hours=1)
COMMAND = "perdure resolve run-1 2/0 --completed JSON | --failed TEXT"


def call(status: str, **changed: Any) -> ToolEffectRecord:
    return effect(status, step_index=2, call_index=0, branch="first", **changed)


def execution(*pending: PendingActivity, **changed: Any) -> Execution:
    values: dict[str, Any] = {
        "workflow_id": "run-1",
        "status": "RUNNING",
        "workflow_type": "agent_run",
        "task_queue": "queue",
        "execution_id": "first",
        "first_execution_id": "first",
        "history_length": 9,
        "started_at": EARLIER,
        **changed,
    }
    return Execution(pending_activities=pending, **values)


def activity(call_id: str = "call-1", **changed: Any) -> PendingActivity:
    values: dict[str, Any] = {
        "state": "running",
        "attempt": 1,
        "started_at": EARLIER,
        **changed,
    }
    return PendingActivity(
        what="call tool",
        maximum_attempts=None,
        scheduled_at=EARLIER,
        tool_name="look_up",
        tool_call_id=call_id,
        **values,
    )


def attempt(name: str, **changed: Any) -> ToolAttempt:
    values: dict[str, Any] = {"token": name, "worker": name, "started_at": at(1), **changed}
    return ToolAttempt(**values)


WAITING: dict[str, Any] = {"state": "waiting to be retried", "attempt": 3, "started_at": None}


@pytest.mark.parametrize(
    ("status", "state", "found", "kind", "words", "command"),
    [
        ("completed", "running", execution(), "ended", "completed", None),
        ("started", "running", execution(activity()), "in flight", "running, attempt 1", None),
        (
            *("started", "running", execution(activity(**WAITING, next_attempt_at=LATER))),
            *("retrying", "attempt 3 at 20", None),
        ),
        (
            *("started", "running", execution(activity(**WAITING, next_attempt_at=EARLIER))),
            *("in flight", "waiting for a worker, attempt 3", None),
        ),
        ("started", "running", execution(activity("call-2")), "in flight", "no activity", None),
        (
            *("unknown", "needs_attention", execution(activity("call-2")), "parked"),
            *("waits for a decision since 20", f"{COMMAND} | --run-again"),
        ),
        ("unknown", "running", execution(activity()), "in flight", "attempt 1", None),
        ("unknown", "running", execution(), "in flight", "its run goes on", None),
        ("unknown", "running", None, "unknown", "Temporal knows no workflow", COMMAND),
        ("started", "running", execution(status="TIMED_OUT"), "unknown", "TIMED_OUT", COMMAND),
    ],
)
def test_standing_is_joined_of_ledger_and_temporal(
    status: str,
    state: Any,
    found: Execution | None,
    kind: str,
    words: str,
    command: str | None,
) -> None:
    standing = standing_of(call(status), run_record(state=state), found)

    assert standing.kind == kind
    assert words in standing.words
    assert standing.command == command


def test_call_of_a_run_that_ended_in_a_workflow_that_goes_on_is_unknown() -> None:
    ended = run_record(state="failed", ended_at=at(9))

    hosted = standing_of(call("unknown"), ended, execution(workflow_id="host"))
    own = standing_of(call("unknown"), ended, execution())

    assert hosted.words == "unknown: the run ended failed before the call did"
    assert own.kind == "in flight"


def test_temporal_that_does_not_answer_is_said_of_open_calls_alone() -> None:
    assert unasked(call("started")).words == "started; Temporal does not answer"
    assert unasked(call("resolved")).words == "resolved"


def test_entry_has_the_attempts_of_its_call_in_all_rounds_and_who_decided() -> None:
    lost = attempt("first")
    done = attempt("second", number=2, outcome="completed")
    place = ToolCallPlace(run_id="run-1", branch="first", step_index=2, call_index=0)
    again = ToolCallPlace(run_id="run-1", branch="first", step_index=2, call_index=0, round=1)
    other = ToolCallPlace(run_id="run-1", branch="first", step_index=2, call_index=1)
    gates = [
        ToolGate(place=each, tool_name="look_up", attempts=attempts, late_writes=1)
        for each, attempts in [(place, (lost,)), (again, (lost, done)), (other, (done,))]
    ]
    decided = ToolEffectResolution(decision="run_again", by="ann", why="no receipt")
    approval = ToolApproval(state="approved", at=at(1), by="bob")
    record = call("completed", resolution=decided, approval=approval)

    (entry,) = entries_of(Calls(effects=[record], gates=gates), [unasked(record)])

    found = [(each["round"], each["number"]) for each in entry.as_document()["attempts"]]
    assert found == [(0, 1), (1, 1), (1, 2)]
    assert entry.as_document()["late_writes"] == 2
    assert entry.attempts_words == "3: entered, entered, completed"
    assert entry.resolution_words == "approved by bob; run_again by ann: no receipt"


def test_call_that_waits_for_approval_says_what_to_type_while_its_run_goes_on() -> None:
    approval = ToolApproval(state="asked", at=EARLIER)
    asked = call("started", approval=approval)
    stuck = run_record(state="needs_attention")

    waits = standing_of(asked, stuck, execution())
    over = standing_of(asked, stuck, execution(status="TERMINATED"))
    given = standing_of(
        call("started", approval=replace(approval, state="approved")), stuck, execution(activity())
    )

    assert (waits.kind, waits.since, over.kind) == ("approval", EARLIER, "approval")
    assert waits.command == "perdure approve run-1 2/0, or: perdure deny run-1 2/0"
    assert over.command == "perdure deny run-1 2/0"
    assert over.words.startswith("did not run")
    assert given.kind == "in flight"


def test_attention_names_the_call_and_the_command_in_its_workspace() -> None:
    record = call("unknown", workspace_id="lab", error="never ended")
    entry = LedgerEntry(effect=record, standing=standing_of(record, None, None))

    first, second = attention_lines([entry])

    assert first.startswith("call 2/0 of tool look_up: unknown: ")
    assert first.endswith("(never ended)")
    assert "run-1 2/0 --workspace lab --completed JSON" in second
