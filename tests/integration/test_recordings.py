"""What a user's own project gets: runs that are recorded once, and replayed without a server."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from recordings import RecordingError, Recordings
from replay_testing import RecordedRuns
from tests.helpers.script import Call, echo_steps, make_agent, script
from workflows.agent_run_models import AgentRunInput

pytestmark = pytest.mark.integration

pytest_plugins = ["replay_testing"]

AGENTS = [make_agent()]


def runs() -> dict[str, Any]:
    failing: list[list[Call]] = [[("fail", {"text": "no luck"})]]
    return {
        "large": AgentRunInput(agent="script", prompt=echo_steps(2, size=30_000)),
        "failed": AgentRunInput(agent="script", prompt=script(failing)),
    }


def test_the_fixture_keeps_recordings_beside_the_test(recordings: RecordedRuns) -> None:
    assert recordings.directory == Path(__file__).parent / "histories"


@pytest.mark.timeout(120)
async def test_runs_are_recorded_when_asked_and_replayed_ever_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = RecordedRuns(tmp_path / "histories")
    with pytest.raises(RecordingError, match="holds no recording of large"):
        await kept.replay(AGENTS, **runs())
    monkeypatch.setenv("PERDURE_RECORD", "1")
    await kept.replay(AGENTS, **runs())
    monkeypatch.delenv("PERDURE_RECORD")
    assert [each.name for each in kept.paths()] == ["failed.1.json", "large.1.json"]

    text = kept.paths("large")[0].read_text()
    assert socket.gethostname() not in text
    assert "TASK_QUEUE_KIND_STICKY" in text
    assert {each["eventType"] for each in json.loads(text)["events"]} >= {
        "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED"
    }
    outline = kept.paths("failed")[0].with_suffix(".txt")
    assert "workflow_execution_failed" in outline.read_text()

    await kept.replay(AGENTS, **runs())
    with pytest.raises(RecordingError, match=r"large\.1\.json: unknown: agent 'script' is not on"):
        await Recordings(kept.directory).check([make_agent("other")], name="large")

    outline.write_text(outline.read_text().replace("completed", "done"))
    with pytest.raises(RecordingError, match=r"failed\.1\.txt is not the outline"):
        await kept.check(AGENTS)
