"""The assistant and a small real model on this machine. Needs the extra `local-model`."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic_ai import ModelSettings

from agents.assistant import agent
from client import connect
from settings import Settings
from stores.opening import open_step_store
from tests.helpers.workers import running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
QUESTION = "What is the capital of France?"
GREEDY = ModelSettings(temperature=0, max_tokens=40)


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """What the model's server tells a worker; the server is stopped afterwards, as `dev` does."""
    command = [sys.executable, "-m", "agents.local_model"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        # Written in one piece when the model answers; a server that cannot start ends the pipe.
        lines = [server.stdout.readline() for _ in range(3)]
        try:
            yield dict(line.strip().split("=", 1) for line in lines)
        finally:
            server.terminate()
    assert server.returncode == 0


@pytest.fixture(autouse=True)
def _is_the_assistants_model(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


async def test_a_durable_run_is_answered(temporal_address: str, task_queue: str) -> None:
    client = await connect(Settings(temporal_address=temporal_address))
    async with running_worker(client, open_step_store("memory"), [agent], task_queue):
        output = await client.execute_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent="assistant", prompt=QUESTION, model_settings=dict(GREEDY)),
            id=f"run-{uuid4().hex}",
            task_queue=task_queue,
        )

    assert "Paris" in output.output
    assert output.usage.output_tokens > 0


async def test_an_answer_is_streamed() -> None:
    async with agent.run_stream(
        QUESTION, model_settings={"temperature": 0, "max_tokens": 40}
    ) as run:
        texts = [text async for text in run.stream_text(debounce_by=None)]

    assert "Paris" in texts[-1]
    assert len(texts) > 3
