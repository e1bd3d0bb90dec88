"""A run's path depends on its script alone: not on delays, evictions, slow commits, ticks of the
event loop, hash seeds or clocks."""

import asyncio
import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import wraps
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ToolReturn
from pydantic_ai.models.function import FunctionModel
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.common import RetryPolicy

from activities.boundaries import CommitBoundariesResult, CommitHeader
from stores.faulty import Fault, FaultPlan, with_faults
from stores.memory import InMemoryStepStore
from stores.operations import Operation
from stores.protocols import StepStore
from tests.helpers.evidence import content_of, trail_of
from tests.helpers.script import echo_steps, follow, make_agent, script
from tests.helpers.workers import count_scheduled_activities, running_worker
from worker import build_replayer
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput, AgentRunOutput
from workflows.durable import durable
from workflows.journal import Journal
from workflows.persistence import StepPersistence
from workflows.policies import LOCAL_COMMIT_TIMEOUT

pytestmark = pytest.mark.integration

HISTORIES = int(os.environ.get("PERDURE_TEST_HISTORIES", "40"))
AT_ONCE = 40
LONGEST_DELAY_SECONDS = 0.2

delayed = Agent(FunctionModel(follow), name="delayed", capabilities=[*durable()])


@delayed.tool_plain(metadata={"effect": "read"})
async def late(text: str) -> str:
    """Give the text back after a while."""
    await asyncio.sleep(random.uniform(0, LONGEST_DELAY_SECONDS))  # noqa: S311 - no secret
    return text


def late_steps(parallel: int) -> str:
    calls = [("late", {"text": f"{call}"}) for call in range(parallel)]
    return script([calls, [("late", {"text": "alone"})]])


@dataclass(frozen=True)
class Circumstances:
    """Under which a run is executed."""

    max_cached_workflows: int = 1000
    commit_seconds: float = 0
    """How long one of its commits is late."""
    commit_fails: bool = False
    """Whether one of its commits says that the store is away."""

    @property
    def needs_fallback(self) -> bool:
        """Whether that commit is made by a regular activity."""
        return self.commit_fails or self.commit_seconds > LOCAL_COMMIT_TIMEOUT.total_seconds()


PLAIN = Circumstances()
CROWDED = 4
"""Workflows in a cache that ten times as many want to be in."""
ADVERSE = [
    Circumstances(max_cached_workflows=CROWDED),
    Circumstances(commit_seconds=1),
    Circumstances(commit_seconds=2.5),
    Circumstances(commit_seconds=0.2),
    Circumstances(max_cached_workflows=CROWDED, commit_seconds=2.5),
    Circumstances(commit_fails=True),
]
LATE_AT = ("run_started", "start_tool_effect", "tool_call_completed", "save_snapshot")


def odd_commit(run_id: str, number: int, circumstances: Circumstances) -> Fault:
    """One commit of the run; when it is late, it is written even if its caller has given up."""
    return Fault(
        name=run_id,
        action="fail" if circumstances.commit_fails else "delay",
        seconds=circumstances.commit_seconds,
        when="before" if number % 2 else "after",
        run_id=run_id,
        holds=LATE_AT[number % len(LATE_AT)],
        outlives_caller=True,
    )


class Evictions(logging.Handler):
    """Counts what leaves a workflow cache, at most once for each log line."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += str(record.msg).startswith("Evicting workflow")


@pytest.fixture
def evictions() -> Iterator[Evictions]:
    """Of all workers of this process."""
    logger = logging.getLogger("temporalio.worker._workflow")
    counter, level, propagate = Evictions(), logger.level, logger.propagate
    logger.addHandler(counter)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield counter
    logger.removeHandler(counter)
    logger.setLevel(level)
    logger.propagate = propagate


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_paths_do_not_depend_on_circumstances(
    temporal: Client, mongo: StepStore, task_queue: str, tmp_path: Path, evictions: Evictions
) -> None:
    """The filter: PyMongo leaves the socket of a call that is given up to the garbage collector."""
    prefix = uuid4().hex
    numbers = range(HISTORIES // 2)
    adverse = [ADVERSE[number % len(ADVERSE)] for number in numbers]
    faults = [
        odd_commit(f"{prefix}-{number}-adverse", number // len(ADVERSE), each)
        for number, each in zip(numbers, adverse, strict=True)
        if each.commit_seconds or each.commit_fails
    ]
    store = with_faults(mongo, FaultPlan(directory=tmp_path, faults=tuple(faults)))
    free = asyncio.Semaphore(AT_ONCE)

    async def run(number: int, name: str, circumstances: Circumstances) -> WorkflowHistory:
        async with free:
            handle = await temporal.start_workflow(
                AgentRunWorkflow.run,
                AgentRunInput(agent="delayed", prompt=late_steps(1 + number % 8)),
                id=f"{prefix}-{number}-{name}",
                task_queue=f"{task_queue}-{circumstances.max_cached_workflows}",
            )
            await handle.result()
            return await handle.fetch_history()

    async with AsyncExitStack() as workers:
        for size in {each.max_cached_workflows for each in [PLAIN, *ADVERSE]}:
            worker = running_worker(
                temporal, store, [delayed], f"{task_queue}-{size}", max_cached_workflows=size
            )
            await workers.enter_async_context(worker)
        runs = [run(number, "plain", PLAIN) for number in numbers]
        runs += [run(number, "adverse", adverse[number]) for number in numbers]
        histories = await asyncio.gather(*runs)

    await replay_all([delayed], histories)
    for number in numbers:
        plain = await trail_of(mongo, f"{prefix}-{number}-plain")
        assert plain == await trail_of(mongo, f"{prefix}-{number}-adverse"), adverse[number]
        assert len({key for key, *_ in plain.events}) == len(plain.events)
        assert_returns_are_in_call_order(plain.history)
    for history, each in zip(histories[len(numbers) :], adverse, strict=True):
        # In a crowded cache an eviction may have cut the commit short; and on a busy machine a
        # commit that is not late on purpose may need the fallback too.
        if each.needs_fallback and each.max_cached_workflows != CROWDED:
            assert count_scheduled_activities(history)["commit_boundaries"]
    assert evictions.count > len(numbers)


async def replay_all(agents: Sequence[Agent[Any, Any]], histories: list[WorkflowHistory]) -> None:
    async def each() -> AsyncIterator[WorkflowHistory]:
        for history in histories:
            yield history

    results = await build_replayer(agents).replay_workflows(each())
    assert results.replay_failures == {}


def assert_returns_are_in_call_order(history: list[Any]) -> None:
    called: list[str] = []
    for message in history:
        returned = [p["tool_call_id"] for p in message["parts"] if p["part_kind"] == "tool-return"]
        assert returned == called
        called = [p["tool_call_id"] for p in message["parts"] if p["part_kind"] == "tool-call"]


# --- ticks of the event loop ---

HOOKS = (
    "for_run",
    "wrap_run",
    "before_run",
    "after_run",
    "on_run_error",
    "before_model_request",
    "after_model_request",
    "wrap_tool_execute",
    "after_node_run",
)


def with_ticks(hook: Callable[..., Any], ticks: list[int]) -> Callable[..., Any]:
    """The hook with `ticks[0]` turns of the event loop before and after it; `ticks[1]` counts."""

    @wraps(hook)
    async def slowed(*args: Any, **keywords: Any) -> Any:
        await turn(ticks)
        try:
            return await hook(*args, **keywords)
        finally:
            await turn(ticks)

    return slowed


async def turn(ticks: list[int]) -> None:
    for _ in range(ticks[0]):
        ticks[1] += 1
        await asyncio.sleep(0)


async def run_to_its_end(
    client: Client, task_queue: str, prompt: str, *, agent: str = "script"
) -> WorkflowHandle[AgentRunWorkflow, AgentRunOutput]:
    handle = await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent=agent, prompt=prompt),
        id=f"run-{uuid4().hex}",
        task_queue=task_queue,
    )
    await asyncio.wait([asyncio.create_task(handle.result())])
    return handle


Groups = dict[tuple[str, int], list[tuple[str, str | None]]]
"""What each commit of an execution holds: kinds and keys."""


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    """Commits of workflows in this process, live or replayed."""
    written: Groups = {}
    write = Journal._write  # pyright: ignore[reportPrivateUsage]

    async def noted(
        self: Journal, header: CommitHeader, operations: tuple[Operation, ...]
    ) -> CommitBoundariesResult:
        place = (operations[0].run_id, header.number)
        written[place] = [(each.kind, each.key) for each in operations]
        return await write(self, header, operations)

    monkeypatch.setattr(Journal, "_write", noted)
    return written


async def regrouped(
    agent: Agent[Any, Any], histories: list[WorkflowHistory], groups: Groups
) -> Groups:
    """What a replay groups. (Live, a task may have been lost and have grouped otherwise.)"""
    groups.clear()
    await replay_all([agent], histories)
    return dict(groups)


async def test_replay_groups_alike_with_more_awaits_between_hooks(
    temporal: Client,
    memory: InMemoryStepStore,
    task_queue: str,
    monkeypatch: pytest.MonkeyPatch,
    groups: Groups,
) -> None:
    agent = make_agent("script", activities={"retry_policy": RetryPolicy(maximum_attempts=1)})
    prompts = [
        echo_steps(2, parallel=5, delay=0.05),
        script([[("echo", {"text": "a"}), ("fail", {"text": "no luck"}), ("echo", {"text": "b"})]]),
    ]
    async with running_worker(temporal, memory, [agent], task_queue):
        handles = [await run_to_its_end(temporal, task_queue, prompt) for prompt in prompts]
    histories = [await handle.fetch_history() for handle in handles]
    ticks = [0, 0]
    expected = await regrouped(agent, histories, groups)
    assert len(expected) > len(histories)
    for name in HOOKS:
        monkeypatch.setattr(
            StepPersistence, name, with_ticks(getattr(StepPersistence, name), ticks)
        )
    for count in (1, 2, 7, 30):
        ticks[0] = count
        assert await regrouped(agent, histories, groups) == expected
    assert ticks[1] > 1000


# --- other processes ---


def answer_of_a_process(mongodb_uri: str, database: str, surroundings: dict[str, str]) -> Any:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.helpers.same_operations", mongodb_uri, database],
        env={**os.environ, **surroundings},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.spec("SP-20", "SP-22")
async def test_operations_of_an_unlike_process_are_suppressed(
    mongo: StepStore, mongodb_uri: str, mongodb_database: str
) -> None:
    surroundings = [
        {"PYTHONHASHSEED": "1", "TZ": "UTC"},
        {"PYTHONHASHSEED": "2", "TZ": "Pacific/Kiritimati"},
    ]
    answers = [answer_of_a_process(mongodb_uri, mongodb_database, each) for each in surroundings]
    first, second = answers
    assert first["digests"] == second["digests"]
    assert [each["verdict"] for each in answers] == ["apply", "suppress"]
    assert {each["disposition"] for each in second["outcomes"]} == {"suppressed"}
    assert len(second["outcomes"]) == len(second["digests"])
    assert len(await mongo.list_events(run_id="run")) == len(
        [each for each in first["digests"] if each.startswith("append_event")]
    )


# --- reading, and replaying, write nothing ---


class Untouchable:
    """In place of a store; notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        message = f"nothing may be asked of the store, and {name} was"
        raise AssertionError(message)


async def test_a_worker_that_replays_asks_its_store_for_nothing(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    agent = make_agent("script")
    async with running_worker(temporal, memory, [agent], task_queue):
        handle = await run_to_its_end(temporal, task_queue, echo_steps(2, parallel=3))
    untouchable = Untouchable()
    async with running_worker(temporal, cast("StepStore", untouchable), [agent], task_queue):
        status = await handle.query(AgentRunWorkflow.status)
    assert status.state == "completed"
    assert untouchable.asked == []


# --- the same agent without Temporal ---


class Point(BaseModel):
    x: int
    y: float


def make_varied_agent() -> Agent[None, str]:
    agent = Agent(FunctionModel(follow), name="varied", capabilities=[*durable()])

    @agent.tool_plain(metadata={"effect": "read"})
    def give(kind: str) -> Any:
        return b"abc" if kind == "bytes" else RETURNED[kind]

    return agent


RETURNED: dict[str, Any] = {
    "text": "a\u00e4\U0001f600\n\x00",
    "nothing": None,
    "number": 2**63,
    "fraction": 0.1,
    "dict": {"b": 1, "a.b": {"$c": [None, True]}},
    "list": [[1, [2, [3]]], [], {}],
    "tuple": (1, ("a", 2.5)),
    "set": {7},
    "model": Point(x=1, y=0.5),
    "time": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=5))),
    "binary": BinaryContent(b"\x89PNG", media_type="image/png"),
    "return": ToolReturn(
        return_value={"a": 1},
        content=["look", BinaryContent(b"xyz", media_type="image/png")],
        metadata={"source": "here", "tags": ["a"]},
    ),
}


@pytest.mark.spec("SP-1", "SP-114")
async def test_loaded_history_equals_that_of_a_plain_run(
    temporal: Client, mongo: StepStore, task_queue: str
) -> None:
    agent = make_varied_agent()
    prompt = script([[("give", {"kind": kind})] for kind in RETURNED])
    plain = await agent.run(prompt)
    async with running_worker(temporal, mongo, [agent], task_queue):
        handle = await run_to_its_end(temporal, task_queue, prompt, agent="varied")
    loaded = await mongo.latest_snapshot(run_id=handle.id)
    assert loaded is not None
    expected = content_of(plain.all_messages())
    found = content_of(loaded.messages)
    unequal = {
        kind: (got, sent)
        for kind, got, sent in zip(RETURNED, found[2::2], expected[2::2], strict=True)
        if got != sent
    }
    assert unequal == {}
    assert found == expected


@pytest.mark.xfail(
    strict=True, reason="pydantic-ai: activities write bytes as text, messages as base64"
)
async def test_returned_bytes_equal_those_of_a_plain_run(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    agent = make_varied_agent()
    prompt = script([[("give", {"kind": "bytes"})]])
    plain = await agent.run(prompt)
    async with running_worker(temporal, memory, [agent], task_queue):
        handle = await run_to_its_end(temporal, task_queue, prompt, agent="varied")
    loaded = await memory.latest_snapshot(run_id=handle.id)
    assert loaded is not None
    assert content_of(loaded.messages) == content_of(plain.all_messages())
