"""Conversations from the command line."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, Tool
from pydantic_ai.models.function import FunctionModel

from client import connect
from settings import Settings
from stores.mongo.steps import MongoStepStore
from tests.cli.test_commands import Perdure
from tests.helpers.chatting import EchoModel, prompts
from tests.helpers.script import follow, script
from tests.helpers.workers import running_worker
from workflows.durable import durable


def pay(cents: int) -> str:
    """Pay that much."""
    return f"paid {cents}"


ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(180)


@pytest.mark.integration
async def test_a_conversation_is_held_listed_rebuilt_and_deleted(
    temporal_address: str, mongodb_uri: str, mongodb_database: str, task_queue: str, tmp_path: Path
) -> None:
    settings = Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=mongodb_database,
        task_queue=task_queue,
        data_dir=tmp_path,
    )
    told = settings.model_dump(mode="json", exclude_none=True)
    perdure = Perdure({name: str(value) for name, value in told.items()})
    store = MongoStepStore(db_url=mongodb_uri, database=mongodb_database)
    await store.initialise()
    echo = EchoModel()

    async def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(perdure, *arguments, stdin=stdin)

    payer = Agent(
        FunctionModel(follow),
        name="payer",
        tools=[Tool(pay, requires_approval=True)],
        capabilities=durable(),
    )
    agents: list[Agent[Any, Any]] = [echo.agent(), payer]
    async with running_worker(await connect(settings), store, agents, task_queue):
        paying = ("chat", "payer", "--conversation-id", "paying")
        asked = script([[("pay", {"cents": 5})]], final="It is done.")
        waits = await run(*paying, stdin=f"{asked}\n")
        assert (waits.returncode, "perdure approve" in waits.stderr) == (1, True), waits.stderr
        assert "Traceback" not in waits.stderr
        decided = await run(*paying, stdin=f"yes\n{asked}\nperhaps\nn\n")
        assert decided.stdout == f"> {asked}\nIt is done.\nIt is done.\n", decided.stderr
        assert 'pay wants to run with {"cents":5}' in decided.stderr.replace(": 5", ":5")
        assert "pay completed" in decided.stderr
        effects = [
            effect
            for each in await store.list_runs(conversation_id="paying")
            for effect in await store.list_tool_effects(run_id=each.run_id)
        ]
        states = [each.approval.state for each in effects if each.approval is not None]
        assert sorted(states) == ["approved", "denied"]

        chat = ("chat", "conversation", "--conversation-id", "trip")
        first = await run(*chat, stdin="hi\n\nwhat now?\n")
        assert (first.returncode, first.stdout) == (0, "Hello, Priya!\nreply 2\n"), first.stderr
        again = await run(*chat, stdin="and then?\nfail\n")
        assert again.stdout == "> hi\nHello, Priya!\n> what now?\nreply 2\nreply 3\n"
        assert (again.returncode, "failed" in again.stderr) == (1, True)
        assert prompts(echo.seen[2]) == ["hi", "what now?", "and then?"]

        listed = await asyncio.to_thread(perdure.document, "conversations", "--query", "PRIYA")
        (head,) = listed["conversations"]
        assert (head["conversation_id"], head["turn_count"]) == ("trip", 4)
        rebuilt = await asyncio.to_thread(perdure.document, "rebuild", "trip")
        assert (rebuilt["turns"], rebuilt["changed_rows"]) == (4, 0)
        unknown = await run("rebuild", "unknown")
        assert (unknown.returncode, "no such conversation" in unknown.stderr) == (3, True)

        runs = await store.list_runs(conversation_id="trip")
        await run("delete-conversation", "trip")
        assert await store.conversations.find("trip") is not None
        deleted = await asyncio.to_thread(
            perdure.document, "delete-conversation", "trip", "--delete"
        )
        counts = deleted["counts"]
        assert (counts["runs"], counts["turns"], counts["conversation_messages"]) == (4, 4, 4)
        assert counts["messages"] >= 7
        assert (counts["stream_chunks"] >= 4, counts["search_log"] >= 3) == (True, True)
        assert [await store.get_run(run_id=each.run_id) for each in runs] == [None] * 4
    await store.aclose()


@pytest.mark.spec("CV-26")
def test_a_bundled_agent_is_copied_under_another_name(tmp_path: Path) -> None:
    perdure = Perdure({})
    made = perdure("new-agent", "concierge", "--into", str(tmp_path))
    assert made.returncode == 0, made.stderr
    names = {each.name for each in (tmp_path / "concierge").iterdir()}
    assert names >= {"__init__.py", "__main__.py", "agent.py", "prompt.txt", "example.toml"}
    code = "from concierge.agent import chat_agent; print(chat_agent.name)"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "concierge\n"
    assert perdure("new-agent", "concierge", "--into", str(tmp_path)).returncode == 1
    assert perdure("new-agent", "not-a-name", "--into", str(tmp_path)).returncode == 2
