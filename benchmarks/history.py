"""A page of a conversation over the history API: whole requests, rights and all."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter
from typing import Any
from uuid import uuid4

import httpx2
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from api.app import create_app
from benchmarks.bench import Bench
from benchmarks.figures import Figure, median, percentile
from stores.conversation_records import ConversationRecord, TurnRecord, VariantRecord
from stores.conversation_rows import turn_run_id
from stores.mongo.client import Database
from stores.mongo.conversation_documents import (
    conversation_document,
    turn_document,
    variant_document,
)
from stores.mongo.documents import Document
from stores.mongo.steps import MongoStepStore
from stores.public_ids import new_public_id
from workflows.persistence import StepPersistence

TURNS = 10_000
FEW, MANY, QUICK_MANY = 10, 1000, 200
"""Other conversations, every second one of another workspace, each of another principal."""
TURNS_OF_OTHERS = 100
PAGES, QUICK_PAGES = 60, 30
WORDS = "A paragraph of an answer, as they are, with a list of things to do next. " * 8
STEPS = 10
BUDGET_MS = 10.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def measure_history(bench: Bench) -> list[Figure]:
    """Pages of 20 turns in a conversation of 10,000, among few and among many others."""
    count = QUICK_PAGES if bench.is_quick else PAGES
    many = QUICK_MANY if bench.is_quick else MANY
    async with _reader(bench, FEW) as few_others, _reader(bench, many) as many_others:
        alone, among = await _pages([few_others, many_others], count)
    turns = [each * TURNS_OF_OTHERS for each in (FEW, many)]
    return [
        *(
            Figure(
                name=f"a page of 20 turns, {name}",
                unit="ms",
                measured=median(among[name]),
                budget=BUDGET_MS,
                detail=f"95th {percentile(among[name], 0.95):.1f}, {count} pages",
            )
            for name in ("newest", "around")
        ),
        Figure(
            name=f"the same with the execution of a run of {STEPS} steps",
            unit="ms",
            measured=median(among["execution"]),
            detail=f"95th {percentile(among['execution'], 0.95):.1f}",
        ),
        *(
            Figure(
                name=f"a page, {name}: {turns[1]:,} turns of others over {turns[0]:,}",
                unit="x",
                measured=median(among[name]) / median(alone[name]),
                detail=f"{median(among[name]):.1f} ms against {median(alone[name]):.1f} ms",
            )
            for name in ("newest", "around")
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Asks the service for pages of one conversation."""

    client: httpx2.AsyncClient
    path: str
    middle: str
    """Public id of a turn in the middle."""

    async def milliseconds(self, parameters: dict[str, Any]) -> float:
        """How long a page of 20 turns takes."""
        began = perf_counter()
        answer = await self.client.get(self.path, params=parameters)
        seconds = perf_counter() - began
        if len(answer.json()["turns"]) != 20:
            message = f"no page came: {answer.text}"
            raise RuntimeError(message)
        return 1000 * seconds


@asynccontextmanager
async def _reader(bench: Bench, others: int) -> AsyncGenerator[_Reader]:
    """A database with one conversation of 10,000 turns and so many others, and who reads it."""
    name = f"history_{uuid4().hex}"
    database = bench.mongodb[name]
    store = MongoStepStore(db_url=bench.mongodb_uri, database=name)
    try:
        await store.initialise()
        access = store.conversations.access
        await access.add_principal("ann", "human", now=NOW)
        await access.grant("ann", "default", reach="own", now=NOW)
        token, _ = await access.add_token("ann", now=NOW)
        workspace = await store.conversations.workspace_public_id(now=NOW)
        head = await _fill(database, "talk", TURNS, principal="ann")
        for number in range(others):
            await _fill(
                database,
                f"other-{number}",
                TURNS_OF_OTHERS,
                principal=f"user-{number}",
                workspace_id="another" if number % 2 else "default",
            )
        await _run(store, TURNS - 1)
        path = f"/agent_api/v1/workspaces/{workspace}/conversations/{head.public_id}/history"
        headers = {"Authorization": f"Bearer {token}"}
        transport = httpx2.ASGITransport(create_app(store))
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://api", headers=headers
        ) as client:
            asked = {"before_position": TURNS // 2, "limit": 1}
            found = (await client.get(path, params=asked)).json()
            yield _Reader(client=client, path=path, middle=found["turns"][0]["public_id"])
    finally:
        await bench.mongodb.drop_database(name)
        await store.aclose()


async def _pages(readers: Sequence[_Reader], count: int) -> list[dict[str, list[float]]]:
    """Milliseconds of each page of each reader; all take turns, so that noise meets all of them."""
    taken: list[dict[str, list[float]]] = [{} for _ in readers]
    for index in range(count + 5):
        for reader, times in zip(readers, taken, strict=True):
            for name, parameters in (
                ("newest", {}),
                ("around", {"around_turn_public_id": reader.middle}),
                ("execution", {"include_execution": "true"}),
            ):
                milliseconds = await reader.milliseconds(parameters)
                if index >= 5:  # the first ones load what later ones find loaded
                    times.setdefault(name, []).append(milliseconds)
    return taken


async def _run(store: MongoStepStore, position: int) -> None:
    """A real run of the last turn."""
    run_id = turn_run_id("default", "talk", f"m{position}", 1)
    kept: list[Any] = [StepPersistence[None](store=store)]
    agent: Agent[None, str] = Agent(
        FunctionModel(_answer), name="doer", capabilities=kept, tools=[look_up]
    )
    await agent.run("Look things up.", run_id=run_id, conversation_id="talk")


def look_up(number: int) -> str:
    return f"{number}: {WORDS}"


def _answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """A call for each step, then a text."""
    said = sum(isinstance(each, ModelResponse) for each in messages)
    if said < STEPS:
        return ModelResponse(parts=[ToolCallPart("look_up", {"number": said})])
    return ModelResponse(parts=[TextPart(WORDS)])


async def _fill(
    database: Database,
    conversation_id: str,
    count: int,
    *,
    principal: str | None = None,
    workspace_id: str = "default",
) -> ConversationRecord:
    turns: list[TurnRecord] = []
    variants: list[VariantRecord] = []
    last: str | None = None
    for position in range(count):
        last = new_public_id(NOW, after=last)
        place: dict[str, Any] = {
            "conversation_id": conversation_id, "workspace_id": workspace_id, "position": position,
        }  # fmt: skip
        turns.append(
            TurnRecord(
                **place,
                public_id=last,
                message_id=f"m{position}",
                prompt=f"question {position}",
                created_at=NOW,
                status="completed",
            )
        )
        variants.append(
            VariantRecord(
                **place,
                number=1,
                public_id=new_public_id(NOW),
                run_id=turn_run_id(workspace_id, conversation_id, f"m{position}", 1),
                order=position,
                created_at=NOW,
                status="completed",
                content=WORDS,
            )
        )
    head = ConversationRecord(
        conversation_id=conversation_id,
        workspace_id=workspace_id,
        principal=principal,
        public_id=new_public_id(NOW),
        agent="doer",
        created_at=NOW,
        updated_at=NOW,
        turn_count=count,
    )
    await _insert(database, "conversations", [conversation_document(head)])
    await _insert(database, "turns", [turn_document(each) for each in turns])
    await _insert(database, "variants", [variant_document(each) for each in variants])
    return head


async def _insert(database: Database, name: str, documents: Sequence[Document]) -> None:
    await database[name].insert_many(documents)
