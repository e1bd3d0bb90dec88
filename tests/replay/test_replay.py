"""Every recorded history replays on this code, without any server; a changed path does not."""

from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory

from activities.boundaries import CommitBoundariesRequest, CommitHeader
from converter import build_data_converter
from settings import Settings
from stores.memory_chunks import InMemoryChunkStore
from stores.operations import Operation
from tests.helpers.delegating import IN_PRODUCTION
from tests.helpers.script import make_agent
from tests.replay.record import HISTORIES, SCENARIOS, payloads_beside
from worker import build_replayer
from workflows.journal import Journal
from workflows.outline import outline_of
from workflows.registry import WORKFLOWS

RECORDINGS = sorted(HISTORIES.glob("*/*.json"))


def history_of(recording: Path) -> WorkflowHistory:
    scenario = recording.name.split(".")[0]
    return WorkflowHistory.from_json(scenario, recording.read_text())


def named(scenario: str) -> WorkflowHistory:
    return history_of([each for each in RECORDINGS if each.name.startswith(f"{scenario}.")][-1])


async def replay(history: WorkflowHistory, payloads: InMemoryChunkStore | None = None) -> None:
    settings = Settings(mongodb_uri="mongodb://unused")
    converter = build_data_converter(settings, chunks=payloads or InMemoryChunkStore())
    await build_replayer(IN_PRODUCTION, converter=converter).replay_workflow(history)


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
async def test_recorded_history_replays(recording: Path) -> None:
    await replay(history_of(recording), payloads_beside(recording))


def test_each_workflow_and_each_way_to_end_is_recorded() -> None:
    names = {workflow._Definition.must_from_class(each).name for each in WORKFLOWS}
    assert {path.parent.name for path in RECORDINGS} >= names
    assert {path.name.split(".")[0] for path in RECORDINGS} >= SCENARIOS.keys()


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_outline_beside_a_recording_is_its_own(recording: Path) -> None:
    assert recording.with_suffix(".txt").read_text() == outline_of(history_of(recording))


async def test_one_more_timer_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Journal.identify

    async def identify(self: Journal, run_id: str) -> Any:
        await workflow.sleep(1)
        return await original(self, run_id)

    monkeypatch.setattr(Journal, "identify", identify)
    with pytest.raises(workflow.NondeterminismError):
        await replay(named("completed"))


async def test_renamed_boundary_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(
        header: CommitHeader, operations: tuple[Operation, ...]
    ) -> tuple[str, CommitHeader]:
        return "renamed", CommitBoundariesRequest(**dict(header), operations=operations)

    monkeypatch.setattr("workflows.journal._request", renamed)
    with pytest.raises(workflow.NondeterminismError):
        await replay(named("completed"))


async def test_delegate_with_another_id_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(*_: object) -> str:
        return "another"

    monkeypatch.setattr("workflows.delegates.child_run_id", another)
    with pytest.raises(workflow.NondeterminismError):
        await replay(named("delegating"))


async def test_renamed_activity_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    replayer = build_replayer(IN_PRODUCTION)
    monkeypatch.setattr("workflows.agents._agents", {"script": make_agent("renamed")})
    with pytest.raises(workflow.NondeterminismError):
        await replayer.replay_workflow(named("completed"))
