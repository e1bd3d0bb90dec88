"""The gate lets every recording through, and is known to bite: each planted change fails it."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio import activity, workflow
from temporalio.client import WorkflowHistory

from activities.history import HistoryActivities, LoadHistoryRequest, LoadHistoryResult
from cli.replay_gate import Checked, ReplayGate
from converter import build_data_converter
from settings import Settings
from stores.memory_chunks import InMemoryChunkStore
from stores.operations import Operation
from tests.helpers.delegating import IN_PRODUCTION
from tests.helpers.script import make_agent
from tests.replay.record import payloads_beside
from tests.replay.test_replay import RECORDINGS, history_of, named
from workflows.journal import Journal


def gate(
    payloads: InMemoryChunkStore | None = None, agents: Any = IN_PRODUCTION, **options: Any
) -> ReplayGate:
    settings = Settings(mongodb_uri="mongodb://unused")
    converter = build_data_converter(settings, chunks=payloads or InMemoryChunkStore())
    return ReplayGate(agents, converter, **options)


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
async def test_every_recording_goes_the_same_way(recording: Path) -> None:
    found = await gate(payloads_beside(recording)).check(history_of(recording))
    assert (found.outcome, found.problem) == ("same", None)


async def diverging(scenario: str, **options: Any) -> Checked:
    found = await gate(**options).check(named(scenario))
    assert found.outcome == "diverged", found
    return found


async def test_an_added_timer_fails_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Journal.record

    async def record(self: Journal, operation: Operation, **options: Any) -> None:
        await original(self, operation, **options)
        if operation.key == "2:model_request_started::0":
            await workflow.sleep(1)

    monkeypatch.setattr(Journal, "record", record)
    found = await diverging("completed")
    assert "Timer machine does not handle this event" in str(found.problem)
    assert (found.run_id, found.step_index) == ("completed", 2)
    assert (found.boundary, found.key) == ("append_event", "2:model_request_started::0")
    assert found.event == "activity_task_scheduled agent__script__model_request"


async def test_a_timer_before_everything_fails_at_the_first_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Journal.identify

    async def identify(self: Journal, run_id: str) -> Any:
        await workflow.sleep(1)
        return await original(self, run_id)

    monkeypatch.setattr(Journal, "identify", identify)
    found = await diverging("completed")
    assert (found.event_id, found.event) == (5, "marker_recorded registration_identity")
    assert (found.run_id, found.boundary) == ("completed", None)


async def test_a_renamed_activity_fails_at_the_event_that_has_its_old_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checking = gate()
    monkeypatch.setattr("workflows.agents._agents", {"script": make_agent("renamed")})
    found = await checking.check(named("completed"))
    assert found.outcome == "diverged"
    assert "agent__renamed__model_request" in str(found.problem)
    assert found.event == "activity_task_scheduled agent__script__model_request"
    assert (found.boundary, found.step_index) == ("append_event", 1)


class ChangedRequest(LoadHistoryRequest):
    """With a field that no history has."""

    reason: str


class ChangedActivities(HistoryActivities):
    """The activity as it would be after the change."""

    @activity.defn(name="load_history")
    async def load_history(self, request: ChangedRequest) -> LoadHistoryResult:  # type: ignore[override] # the planted change
        """Load nothing."""
        raise NotImplementedError(request)


async def test_a_changed_request_model_fails_where_a_history_holds_the_older_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replay alone does not see it: it never looks at what activities were given."""
    monkeypatch.setattr("worker.HistoryActivities", ChangedActivities)
    found = await diverging("continued")
    assert found.problem == "the input of load_history does not decode: reason: Field required"
    assert found.event == "activity_task_scheduled load_history"
    assert (await gate().check(named("completed"))).outcome == "same"


class ChangedResult(BaseModel):
    """What a commit answers after a change."""

    receipt: str


async def test_a_changed_result_model_fails_without_telling_any_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workflows.journal.CommitBoundariesResult", ChangedResult)
    found = await diverging("completed")
    assert "receipt" in str(found.problem)
    assert "input_value" not in str(found.problem)


async def test_a_build_id_that_other_code_has_used_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(*_: object) -> str:
        return "another"

    monkeypatch.setattr("workflows.delegates.child_run_id", another)
    found = await diverging("delegating", build_id="perdure")
    assert found.reused_build == "perdure"
    assert str(found.event).startswith("start_child_workflow_execution_initiated")
    assert (await diverging("delegating", build_id="2026-12-01")).reused_build is None


async def test_what_cannot_be_told_is_no_divergence() -> None:
    found = await gate(agents=[make_agent("other")]).check(named("completed"))
    assert found.outcome == "unknown"
    assert "agent 'script' is not on this code, which has other" in str(found.problem)

    (large,) = [each for each in RECORDINGS if each.name.startswith("large.")]
    found = await gate().check(history_of(large))
    assert found.outcome == "unknown"
    assert "recorded-large" in str(found.problem), "it names the workflow"

    history = named("completed")
    started = history.events[0].workflow_execution_started_event_attributes
    started.workflow_type.name = "somebody_elses"
    found = await gate().check(WorkflowHistory(history.workflow_id, history.events))
    assert found.outcome == "unknown"
    assert "workflow type 'somebody_elses' is not on this code" in str(found.problem)
