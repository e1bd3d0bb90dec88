"""MongoDB stopped while a commit of 1 MB is due, and histories replayed with it and without it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter
from typing import Any
from uuid import uuid4

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio.client import (
    Client,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowUpdateFailedError,
)

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.sizes import FAILED_TASKS, LONGEST_RUN
from cli.servers import LocalServers
from client import connect
from converter import build_data_converter, close_payloads
from settings import Settings
from stores.mongo.steps import MongoStepStore
from worker import build_replayer, build_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.durable import durable
from workflows.names import RESOLVE_UPDATE, SEARCH_ATTRIBUTES

AGENT = "outage"

OUTAGE = timedelta(seconds=30)
QUICK_OUTAGE = timedelta(seconds=12)
FIRST_ATTEMPT = timedelta(seconds=4)
"""Until then a workflow task may be open for the first attempt of the commit, for 2 s."""

LONG_TEXT_BYTES = 1_000_000
STORED = "word " * 10_000
"""What makes a prompt large enough to be stored beside the history."""
ANSWER_BUDGET_MS = 1000.0
LOOK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class _Place:
    servers: LocalServers
    settings: Settings
    store: MongoStepStore
    client: Client
    agent: Agent[None, str]
    go_on: asyncio.Event

    async def start(self, prompt: str) -> WorkflowHandle[Any, Any]:
        return await self.client.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent=AGENT, prompt=prompt),
            id=f"outage-{uuid4().hex}",
            task_queue=self.settings.task_queue,
            execution_timeout=LONGEST_RUN,
        )

    async def failure_of_replay(self, history: WorkflowHistory) -> str | None:
        """What a replay says that shares nothing with the worker; `None` when it goes through."""
        converter = build_data_converter(self.settings)
        try:
            replayer = build_replayer([self.agent], converter=converter)
            result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        finally:
            await close_payloads(converter)
        return str(result.replay_failure) if result.replay_failure else None


def _make_agent(go_on: asyncio.Event) -> Agent[None, str]:
    """Its prompt is whether it says something long, which waits to be saved until `go_on` is."""
    agent = Agent(FunctionModel(_follow), name=AGENT, capabilities=durable())

    @agent.tool_plain(metadata={"effect": "read"})
    async def hold() -> str:
        """Answer when that is so."""
        await go_on.wait()
        return "held"

    @agent.tool_plain(metadata={"temporal": False, "effect": "read"})
    async def say(size_bytes: int) -> str:
        """Say something long, inside the workflow."""
        return "x" * size_bytes

    return agent


def _follow(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    if len(messages) > 1:
        return ModelResponse(parts=[TextPart("done")])
    size_bytes = LONG_TEXT_BYTES if "long" in str(messages[0].parts) else 10
    return ModelResponse(
        parts=[
            ToolCallPart("hold", {}, tool_call_id="hold"),
            ToolCallPart("say", {"size_bytes": size_bytes}, tool_call_id="say"),
        ]
    )


async def measure_outage(bench: Bench) -> Sequence[Figure]:
    """On servers of its own, since it stops one."""
    logging.disable(logging.ERROR)  # each attempt would be told with its traceback
    try:
        return await _measure(QUICK_OUTAGE if bench.is_quick else OUTAGE)
    finally:
        logging.disable(logging.NOTSET)


async def _measure(outage: timedelta) -> list[Figure]:
    async with _place() as place:
        async with build_worker(place.client, place.store, [place.agent], place.settings):
            handle = await place.start(f"say something long, {STORED}")
            await _until_said(place.store, handle.id)
            await place.servers.mongodb.kill()
            place.go_on.set()
            first = await _answers(handle, FIRST_ATTEMPT)
            answers = await _answers(handle, outage - FIRST_ATTEMPT)
            await place.servers.mongodb.start()
            await handle.result()
            short = await place.start("say something short")
            await short.result()
        histories = [await each.fetch_history() for each in (handle, short)]
        failed = sum(event.event_type in FAILED_TASKS for event in histories[0].events)
        with_mongodb = [await place.failure_of_replay(each) for each in histories]
        await place.servers.mongodb.kill()
        stored, inline = [await place.failure_of_replay(each) for each in histories]
    seconds = f"MongoDB stopped for {outage.seconds} s, a commit of 1 MB due"
    return [
        Figure(name=f"workflow tasks that failed, {seconds}", unit="", measured=failed, budget=0),
        Figure(
            name=f"slowest answer to an update, {seconds}",
            unit="ms",
            measured=max(answers),
            budget=ANSWER_BUDGET_MS,
            detail=f"of {len(answers)}",
        ),
        Figure(
            name=f"the same in its first {FIRST_ATTEMPT.seconds} s: the commit's first attempt",
            unit="ms",
            measured=max(first),
            budget=ANSWER_BUDGET_MS,
            detail=f"of {len(first)}",
        ),
        Figure(
            name="of both histories: replays that fail in a converter of their own",
            unit="",
            measured=sum(each is not None for each in with_mongodb),
            budget=0,
        ),
        Figure(
            name="with MongoDB stopped: replays that fail of a history that holds its payloads",
            unit="",
            measured=int(inline is not None),
            budget=0,
        ),
        Figure(
            name="the same of one that refers to them, which does not say what it needs",
            unit="",
            measured=int("MongoDB is away" not in str(stored)),
            budget=0,
            detail=str(stored)[:200],
        ),
    ]


@asynccontextmanager
async def _place() -> AsyncGenerator[_Place]:
    with TemporaryDirectory(prefix="perdure-outage-") as home:
        servers = LocalServers(Path(home) / "servers", search_attributes=SEARCH_ATTRIBUTES)
        try:
            addresses = await servers.start()
            settings = Settings(
                temporal_address=addresses.temporal_address,
                mongodb_uri=addresses.mongodb_uri,
                task_queue="outage",
                data_dir=Path(home),
                graceful_shutdown_seconds=1,
            )
            store = MongoStepStore(db_url=addresses.mongodb_uri, database=settings.mongodb_database)
            await store.initialise()
            go_on = asyncio.Event()
            yield _Place(
                servers=servers,
                settings=settings,
                store=store,
                client=await connect(settings, chunks=store.chunks),
                agent=_make_agent(go_on),
                go_on=go_on,
            )
            await store.aclose()
        finally:
            await servers.kill()


async def _until_said(store: MongoStepStore, run_id: str) -> None:
    while len(await store.list_tool_effects(run_id=run_id)) < 2:  # noqa: ASYNC110 - of a server
        await asyncio.sleep(LOOK_SECONDS)


async def _answers(handle: WorkflowHandle[Any, Any], outage: timedelta) -> list[float]:
    """Milliseconds that the workflow takes to refuse an update, asked once a second meanwhile."""
    decision = {"run_id": handle.id, "tool_call_id": "none", "outcome": "completed", "by": "me"}
    until = monotonic() + outage.total_seconds()
    found: list[float] = []
    while monotonic() < until:
        start = perf_counter()
        try:
            await handle.execute_update(RESOLVE_UPDATE, decision)  # pyright: ignore[reportUnknownMemberType] - the SDK's overloads
        except WorkflowUpdateFailedError:
            found.append(1000 * (perf_counter() - start))
        await asyncio.sleep(1)
    return found
