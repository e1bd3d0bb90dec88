"""A page of a conversation over the history API: whole requests, rights and all."""

from collections.abc import Sequence
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
OTHERS, TURNS_OF_OTHERS = 1000, 20
PAGES, QUICK_PAGES = 60, 30
WORDS = "A paragraph of an answer, as they are, with a list of things to do next. " * 8
STEPS = 10
BUDGET_MS = 10.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def measure_history(bench: Bench) -> list[Figure]:
    """Pages of 20 turns in a conversation of 10,000, before and after there are 1,000 others."""
    database = f"history_{uuid4().hex}"
    store = MongoStepStore(db_url=bench.mongodb_uri, database=database)
    count = QUICK_PAGES if bench.is_quick else PAGES
    try:
        await store.initialise()
        access = store.conversations.access
        await access.add_principal("ann", "human", now=NOW)
        await access.grant("ann", "default", now=NOW)
        token, _ = await access.add_token("ann", now=NOW)
        workspace = await store.conversations.workspace_public_id(now=NOW)
        head = await _fill(bench.mongodb[database], "talk", TURNS)
        await _run(store, TURNS - 1)
        transport = httpx2.ASGITransport(create_app(store))
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://api", headers=headers
        ) as client:
            path = f"/agent_api/v1/workspaces/{workspace}/conversations/{head.public_id}/history"
            alone = await _pages(client, path, count)
            for number in range(OTHERS):
                await _fill(bench.mongodb[database], f"other-{number}", TURNS_OF_OTHERS)
            among = await _pages(client, path, count)
    finally:
        await bench.mongodb.drop_database(database)
        await store.aclose()
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
        Figure(
            name=f"a page among {OTHERS} other conversations over one alone",
            unit="x",
            measured=median(among["newest"]) / median(alone["newest"]),
            detail=f"{median(among['newest']):.1f} ms against {median(alone['newest']):.1f} ms",
        ),
    ]


async def _pages(client: httpx2.AsyncClient, path: str, count: int) -> dict[str, list[float]]:
    """Milliseconds of each page; the kinds take turns, so that noise meets all of them."""
    found = (await client.get(path, params={"before_position": TURNS // 2, "limit": 1})).json()
    middle = found["turns"][0]["public_id"]
    asked: dict[str, dict[str, Any]] = {
        "newest": {},
        "around": {"around_turn_public_id": middle},
        "execution": {"include_execution": "true"},
    }
    taken: dict[str, list[float]] = {name: [] for name in asked}
    for index in range(count + 5):
        for name, parameters in asked.items():
            began = perf_counter()
            answer = await client.get(path, params=parameters)
            seconds = perf_counter() - began
            if len(answer.json()["turns"]) != 20:
                message = f"no page came: {answer.text}"
                raise RuntimeError(message)
            if index >= 5:  # the first ones load what later ones find loaded
                taken[name].append(1000 * seconds)
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


async def _fill(database: Database, conversation_id: str, count: int) -> ConversationRecord:
    turns: list[TurnRecord] = []
    variants: list[VariantRecord] = []
    last: str | None = None
    for position in range(count):
        last = new_public_id(NOW, after=last)
        place: dict[str, Any] = {"conversation_id": conversation_id, "position": position}
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
                run_id=turn_run_id("default", conversation_id, f"m{position}", 1),
                order=position,
                created_at=NOW,
                status="completed",
                content=WORDS,
            )
        )
    head = ConversationRecord(
        conversation_id=conversation_id,
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
