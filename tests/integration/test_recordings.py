"""What a user's own project gets: runs that are recorded once, and replayed without a server."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recordings import RecordingError, Recordings
from replay_testing import RecordedRuns
from tests.architecture.source_tree import ROOT
from tests.helpers.script import Call, echo_steps, make_agent, script
from workflows.agent_run_models import AgentRunInput

pytestmark = pytest.mark.integration

AGENTS = [make_agent()]

PROJECT = {
    "conftest.py": 'pytest_plugins = ["replay_testing"]\n',
    "pytest.ini": "[pytest]\nasyncio_mode = auto\n",
    "test_replay.py": """
from tests.helpers.script import make_agent
from workflows.agent_run_models import AgentRunInput


async def test_runs_replay(recordings):
    await recordings.replay([make_agent()], large=AgentRunInput(agent="script", prompt=""))


async def test_a_run_that_was_never_recorded(recordings):
    await recordings.replay([make_agent()], never=AgentRunInput(agent="script", prompt=""))
""",
}
"""As docs/replay.md says."""


def runs() -> dict[str, Any]:
    failing: list[list[Call]] = [[("fail", {"text": "no luck"})]]
    return {
        "large": AgentRunInput(agent="script", prompt=echo_steps(2, size=30_000)),
        "failed": AgentRunInput(agent="script", prompt=script(failing)),
    }


@pytest.mark.timeout(180)
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
    assert '"identity": "worker"' in text
    outline = kept.paths("failed")[0].with_suffix(".txt")
    assert "workflow_execution_failed" in outline.read_text()

    for name, content in PROJECT.items():
        (tmp_path / name).write_text(content)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "holds no recording of never" in done.stdout

    with pytest.raises(RecordingError, match=r"large\.1\.json: unknown: agent 'script' is not on"):
        await Recordings(kept.directory).check([make_agent("other")], name="large")
    outline.write_text(outline.read_text().replace("completed", "done"))
    with pytest.raises(RecordingError, match=r"failed\.1\.txt is not the outline"):
        await kept.check(AGENTS)


USERS_AGENT = """
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from workflows.durable import durable

model = FunctionModel(lambda *_: ModelResponse(parts=[TextPart("sent")]))
orders = Agent(model, name="orders", capabilities=[*durable()])
"""

TIMER = """
@orders.instructions
async def slow() -> str:
    await asyncio.sleep(1)
    return ""
"""


@pytest.mark.timeout(180)
def test_the_page_is_all_that_a_fresh_folder_needs(tmp_path: Path) -> None:
    blocks = re.findall(
        r"```\w+\n(# ([\w.]+\.(?:ini|py))\b.*?)```",
        (ROOT / "docs/replay.md").read_text(),
        re.DOTALL,
    )
    assert [name for _, name in blocks] == ["pytest.ini", "conftest.py", "test_replay.py"]
    for text, name in blocks:
        (tmp_path / name).write_text(text)
    (tmp_path / "my_project").mkdir()
    agents = tmp_path / "my_project" / "agents.py"
    agents.write_text(USERS_AGENT)

    def outcome(**changed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **changed},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    assert "PERDURE_RECORD=1" in outcome()
    assert "1 passed" in outcome(PERDURE_RECORD="1")
    names = sorted(each.name for each in (tmp_path / "histories").iterdir())
    assert names == ["lamps.1.json", "lamps.1.txt", "nobody.1.json", "nobody.1.txt"]
    assert "1 passed" in outcome()
    agents.write_text(f"import asyncio\n{USERS_AGENT}{TIMER}")
    assert "lamps.1.json: diverged" in outcome()
