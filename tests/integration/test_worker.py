"""The worker as a process: how it starts, what it refuses, how it stops."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Tool
from temporalio.client import Client

from client import connect, existing_search_attributes, register_search_attributes
from settings import Settings
from stores.errors import StoreConfigurationError, StoreUnavailableError
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from temporal_tls import TemporalUnavailableError
from tests.helpers.eventually import eventually
from tests.helpers.script import echo_steps, make_agent, script
from tests.helpers.workers import count_events, running_worker
from worker import initialise, run_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.agents import AgentSetupError

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]

AGENTS = """
from tests.helpers.script import make_agent
from pydantic_ai import Agent
agent = make_agent("script")
twins = [make_agent("twin"), make_agent("twin")]
number = 7
"""


NAMELESS = """
from tests.helpers.script import make_agent
agent = make_agent(None)
"""


@pytest.fixture
def environment(
    tmp_path: Path, temporal_address: str, mongodb_uri: str, mongodb_database: str, task_queue: str
) -> dict[str, str]:
    (tmp_path / "my_agents.py").write_text(AGENTS)
    (tmp_path / "nameless_agents.py").write_text(NAMELESS)
    return {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "PERDURE_TEMPORAL_ADDRESS": temporal_address,
        "PERDURE_MONGODB_URI": mongodb_uri,
        "PERDURE_MONGODB_DATABASE": mongodb_database,
        "PERDURE_TASK_QUEUE": task_queue,
        "PERDURE_AGENTS": "my_agents:agent",
        "PERDURE_GRACEFUL_SHUTDOWN_SECONDS": "20",
    }


@contextmanager
def worker_process(environment: dict[str, str]) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "worker.py")],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_sigterm_in_a_tool_of_3_s_lets_it_finish_and_another_worker_goes_on(
    temporal: Client,
    mongo: MongoStepStore,
    task_queue: str,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    slow, after = tmp_path / "slow", tmp_path / "after"
    steps: list[list[tuple[str, dict[str, Any]]]] = [
        [("mark", {"path": str(slow), "text": "slow", "delay": 3})],
        [("mark", {"path": str(after), "text": "after"})],
    ]
    with worker_process(environment) as first:
        handle = await temporal.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent="script", prompt=script(steps)),
            id=f"run-{task_queue}",
            task_queue=task_queue,
        )

        def tool_runs() -> bool:
            assert first.poll() is None, first.communicate()
            return slow.exists()

        await eventually(tool_runs, within=timedelta(seconds=40))
        first.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(timeout=1)  # it waits for the tool
        _, log = await asyncio.to_thread(first.communicate, timeout=30)
    assert first.returncode == 0, log
    assert "Stopping" in log
    (effect,) = await mongo.list_tool_effects(run_id=handle.id)
    assert effect.status in {"started", "completed"}  # the worker that goes on records its end
    assert not after.exists()
    with worker_process(environment) as second:
        await asyncio.wait_for(handle.result(), 30)
    assert slow.read_text() == f"slow {first.pid}\n"
    assert after.read_text() == f"after {second.pid}\n"
    history = await handle.fetch_history()
    events = count_events(history)
    assert events["EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT"] == 0
    assert events["EVENT_TYPE_ACTIVITY_TASK_FAILED"] == 0
    effects = await mongo.list_tool_effects(run_id=handle.id)
    assert [effect.status for effect in effects] == ["completed", "completed"]


@pytest.mark.parametrize(("target_memory", "at_most"), [(0.99, 3), (0.01, 1)])
async def test_the_resource_tuner_runs_what_memory_allows_and_at_least_one_activity(
    temporal: Client, mongo: MongoStepStore, task_queue: str, target_memory: float, at_most: int
) -> None:
    """Up to the bounds of fixed slots; above the target, as any machine is at 1 %, one by one."""
    running, most = 0, 0

    async def busy() -> str:
        """Count how many of it run."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.3)
        running -= 1
        return "done"

    agent = make_agent("script", tools=[Tool(busy, metadata={"effect": "read"})])
    calls: list[tuple[str, dict[str, Any]]] = [("busy", {})] * 6
    tuned: dict[str, Any] = {
        "tuner": "resource",
        "target_memory": target_memory,
        "target_cpu": 1.0,
        "max_concurrent_activities": 3,
        "max_concurrent_workflow_tasks": 10,
    }
    async with running_worker(temporal, mongo, [agent], task_queue, **tuned):
        runs = [
            await temporal.execute_workflow(
                AgentRunWorkflow.run,
                AgentRunInput(agent="script", prompt=script([calls])),
                id=f"run-{number}-{task_queue}",
                task_queue=task_queue,
            )
            for number in range(2)
        ]
    assert [run.output for run in runs] == ["done", "done"]
    assert 1 <= most <= at_most


@pytest.mark.spec("SP-61")
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"agents": "my_agents:nobody"}, AgentSetupError, "must be a pydantic_ai.Agent"),
        ({"agents": "my_agents:number"}, AgentSetupError, "which is int"),
        ({"agents": "my_agents"}, AgentSetupError, "write module:attribute"),
        ({"agents": "missing_module:agent"}, AgentSetupError, "no module 'missing_module'"),
        ({"agents": "my_agents:twins"}, AgentSetupError, "Two agents are named 'twin'"),
        ({"agents": "nameless_agents:agent"}, AgentSetupError, "unique `name`"),
        (
            {"temporal_address": "127.0.0.1:1"},
            TemporalUnavailableError,
            "PERDURE_TEMPORAL_ADDRESS",
        ),
        (
            {"temporal_namespace": "nowhere"},
            TemporalUnavailableError,
            "has no namespace 'nowhere'",
        ),
        (
            {"mongodb_uri": "mongodb://127.0.0.1:1/?replicaSet=rs0"},
            StoreUnavailableError,
            "127.0.0.1:1",
        ),
        ({"mongodb_database": "without_indexes"}, StoreConfigurationError, "perdure init"),
        ({"media": "tape:1"}, StoreConfigurationError, "PERDURE_MEDIA=tape:1 names no media store"),
    ],
)
@pytest.mark.usefixtures("mongo")  # the database with its indexes
async def test_worker_that_cannot_work_does_not_start_and_says_why(
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "my_agents", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error, match=re.escape(words)):
        await run_worker(Settings(**change), stop=asyncio.Event())


async def test_a_start_that_fails_is_one_line_and_exit_code_1(
    environment: dict[str, str],
) -> None:
    change = {"PERDURE_AGENTS": "my_agents:number"}
    with worker_process({**environment, **change}) as process:
        _, log = await asyncio.to_thread(process.communicate, timeout=50)
    assert process.returncode == 1
    assert len(log.splitlines()) == 1
    assert "which is int" in log


@pytest.mark.spec("SP-63")
async def test_init_makes_what_a_worker_needs_and_repeats_quietly(
    temporal_address: str, mongodb_uri: str, mongodb_database: str
) -> None:
    settings = Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=mongodb_database,
    )
    first = await initialise(settings)
    assert first
    assert await initialise(settings) == []
    store = MongoStepStore(db_url=mongodb_uri, database=mongodb_database)
    await store.verify()
    await store.aclose()


async def test_runs_are_found_by_search_attributes(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    assert await register_search_attributes(temporal) == []  # the session's server has them
    attributes = await existing_search_attributes(temporal)
    async with running_worker(
        temporal, memory, [make_agent("script")], task_queue, search_attributes=attributes
    ):
        handle = await temporal.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(
                agent="script",
                prompt=echo_steps(1),
                conversation_id=task_queue,
                parent_run_id="parent",
            ),
            id=f"run-{task_queue}",
            task_queue=task_queue,
        )
        await handle.result()

        async def found() -> list[str]:
            query = (
                f"PerdureConversation = '{task_queue}' AND PerdureState = 'completed' "
                "AND PerdureAgent = 'script' AND PerdureParent = 'parent'"
            )
            return [each.id async for each in temporal.list_workflows(query)]

        assert await eventually(found) == [handle.id]


async def test_missing_namespace_and_address_are_told(temporal_address: str) -> None:
    with pytest.raises(TemporalUnavailableError, match="no namespace 'nowhere'"):
        await connect(Settings(temporal_address=temporal_address, temporal_namespace="nowhere"))
    with pytest.raises(TemporalUnavailableError, match=r"does not answer at 127\.0\.0\.1:1"):
        await connect(Settings(temporal_address="127.0.0.1:1"))
