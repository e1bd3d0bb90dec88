"""The harness's side, run by the interpreter of its own environment; prints JSON.

`write URI DATABASE`: runs that its own `MongoStepStore` keeps, in both layouts of messages.
`search URI DATABASE`: what its search answers over its own `MongoStepStore`, query by query.
`use BACKEND PLACE`: its capability and its helpers over a store of ours; a place in MongoDB is a
connection string and, behind a space, a database.
"""

import asyncio
import importlib
import json
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pymongo import AsyncMongoClient

from stores.opening import open_step_store
from tests.interop import searched
from tests.interop.reads import inspection, message_digest, reads_of

# By name: type checkers run in an environment that has no harness.
harness: Any = importlib.import_module("pydantic_ai_harness.step_persistence")
recovery: Any = importlib.import_module("pydantic_ai_harness.step_persistence.recovery")

PLANS: dict[str, tuple[tuple[str, ...], ...]] = {
    "help me": (("look_up", "set_label"), ("ask",), ("moody",)),
    "break": (("look_up",), ("set_label",), ("explode",)),
    "go on": (("look_up",),),
    "large": (("large", "picture"),),
}
"""The steps of an answer to a prompt, each with its tools."""

INLINE_RUNS = ("broken", "older")
"""Runs that are put into the layout of before messages were stored once."""


def follow(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """The model: steps of the newest prompt's plan, then a text."""
    prompt, done = "", 0
    for message in messages:
        done += isinstance(message, ModelResponse)
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart) and isinstance(part.content, str):
                prompt, done = part.content, 0
    plan = PLANS.get(prompt, ())
    if done >= len(plan):
        return ModelResponse(parts=[TextPart(f"{prompt}: done")])
    turn = len(messages)
    return ModelResponse(
        parts=[ToolCallPart(name, {}, tool_call_id=f"call-{turn}-{name}") for name in plan[done]]
    )


def make_agent(store: Any, run_id: str) -> Agent[None, str]:
    """An agent of the harness's capability over that store, with a helper that it delegates to."""
    helper = Agent(
        FunctionModel(follow),
        name="helper",
        capabilities=[harness.StepPersistence(store=store, run_id=f"{run_id}-helper")],
    )
    persistence = harness.StepPersistence(
        store=store,
        run_id=run_id,
        agent_name="orchestrator",
        metadata={"a.b": "1", "$x": "ключ"},
        capture_frontier=True,
    )
    agent = Agent(FunctionModel(follow), name="agent", capabilities=[persistence])
    tries: list[str] = []

    @agent.tool_plain
    async def look_up() -> str:
        return "found \U0001f50d"

    @agent.tool
    async def set_label(ctx: RunContext[None]) -> str:
        await harness.annotate_tool_effect(
            store, ctx, idempotency_key="issue-1::label", effect_summary="set a label"
        )
        return "set"

    @agent.tool_plain
    async def ask() -> str:
        return (await helper.run("go on")).output

    @agent.tool_plain
    async def moody() -> str:
        tries.append("")
        if len(tries) == 1:
            raise ModelRetry("not now")  # noqa: EM101, TRY003 - as a tool would
        return "now"

    @agent.tool_plain
    async def explode() -> str:
        raise RuntimeError("it broke")  # noqa: EM101, TRY003 - as a tool would

    @agent.tool_plain
    async def large() -> str:
        return "long " * 600

    @agent.tool_plain
    async def picture() -> dict[str, Any]:
        image = BinaryContent(data=bytes(range(256)) * 10, media_type="image/png")
        own = {"part_kind": "x", "content": "mine " * 500, "uri": "u"}
        escaped = {**own, "__harness_external_uri__": "v", "__harness_external_text__": 5}
        literal = {"__harness_external_media__": True, "uri": "w"}
        return {"image": image, "escaped": escaped, "literal": literal}

    @helper.tool_plain(name="look_up")
    async def look_up_for_helper() -> str:
        return "found by the helper"

    return agent


async def play(store: Any) -> None:
    """A run with a delegate, annotations and a retry, and one that breaks."""
    await make_agent(store, "whole").run("help me", conversation_id="talk")
    with suppress(RuntimeError):
        await make_agent(store, "broken").run("break", conversation_id="talk")


async def write(uri: str, database: str) -> dict[str, Any]:
    """Fill a database, and read it with the harness's own store."""
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(uri)
    store = harness.MongoStepStore(client=client, database=database, media_threshold_bytes=2000)
    await play(store)
    await make_agent(store, "large").run("large")
    await _write_without_keys(store)
    for run_id in INLINE_RUNS:
        await _put_inline(client[database], run_id)
    reads = await reads_of(store, include_interrupted=True)
    await client.close()
    return reads


async def _write_without_keys(store: Any) -> None:
    """What an application writes by itself: no keys, odd times, equal rows."""
    began_at = datetime(2025, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    run = harness.RunRecord(run_id="older", parent_run_id="whole", started_at=began_at)
    await store.register_run(run)
    for step in (0, 1, 1):
        at = began_at.astimezone(timezone(timedelta(hours=2))) + timedelta(seconds=step)
        await store.append_event(
            harness.StepEvent(
                run_id="older",
                kind="tool_call_started",
                step_index=step,
                timestamp=at,
                tool_call_id="call-open",
            )
        )
        messages = [ModelRequest(parts=[UserPromptPart(f"{n}", timestamp=at)]) for n in range(step)]
        await store.save_snapshot(
            harness.ContinuableSnapshot(
                run_id="older", step_index=step, messages=messages, timestamp=at
            )
        )
    await store.record_tool_effect(
        harness.ToolEffectRecord(
            tool_call_id="call-open",
            tool_name="send",
            run_id="older",
            status="started",
            started_at=began_at,
        )
    )


async def _put_inline(database: Any, run_id: str) -> None:
    """Give a run's snapshots the layout that versions wrote which stored no message by itself.

    No version that is installed writes it; this one reads it, which the reads show.
    """
    async for document in database["snapshots"].find({"run_id": run_id}):
        references = json.loads(document["messages"])["message_refs"]
        found = {
            each["_id"]: json.loads(each["message"])
            async for each in database["snapshot_messages"].find({"_id": {"$in": references}})
        }
        text = json.dumps([found[each] for each in references])
        await database["snapshots"].update_one(
            {"_id": document["_id"]}, {"$set": {"messages": text}}
        )


async def use(backend: Any, place: str) -> dict[str, Any]:
    """Run the harness's capability over a store of ours, then its helpers, then our reads."""
    uri, _, database = place.partition(" ")
    places: dict[str, dict[str, Any]] = {
        "memory": {},
        "file": {"directory": place},
        "sqlite": {"database": place},
        "mongodb": {"db_url": uri, "database": database},
    }
    store = open_step_store(backend, **places[backend])
    await store.initialise()
    await play(store)
    result: dict[str, Any] = {"is_a_store": isinstance(store, harness.StepStore)}
    history = await harness.continue_run(store, run_id="whole")
    continued = await make_agent(store, "continued").run("go on", message_history=history)
    result["continued"] = continued.output
    forked = await harness.fork_run(store, run_id="broken", include_interrupted=True)
    result["forked"] = [message_digest(each) for each in forked]
    result["recovery"] = inspection(await recovery.inspect_recovery(store=store, run_id="broken"))
    try:
        await make_agent(store, "whole").run("go on")
    except ValueError as error:
        result["taken"] = str(error)
    result["reads"] = await reads_of(store)
    await store.aclose()
    return result


async def search(uri: str, database: str) -> dict[str, Any]:
    """The answers of its tool to each query about the conversation of `searched`."""
    searching: Any = importlib.import_module("pydantic_ai_harness.conversation_search")
    store = harness.MongoStepStore(db_url=uri, database=database)
    for number, histories in enumerate(searched.runs()):
        record: dict[str, Any] = {
            "run_id": f"run-{number}",
            "conversation_id": searched.CONVERSATION,
        }
        at = searched.START + timedelta(minutes=number)
        await store.register_run(harness.RunRecord(**record, started_at=at))
        for step, history in enumerate(histories):
            saved = harness.ContinuableSnapshot(
                **record, step_index=step, messages=history, timestamp=at + timedelta(seconds=step)
            )
            await store.save_snapshot(saved)
    toolset = searching.ConversationSearchToolset(
        searching.SnapshotHistorySource(store),
        tool_id="search",
        max_matches=searched.MATCHES,
        context_lines=0,
        bm25_k1=1.5,
        bm25_b=0.75,
        scope="conversation",
    )
    context: Any = SimpleNamespace(conversation_id=searched.CONVERSATION)
    return {
        query: await toolset.search_conversation_history(context, query)
        for query in searched.QUERIES
    }


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    found = asyncio.run({"write": write, "use": use, "search": search}[command](*arguments))
    sys.stdout.write(json.dumps(found))
