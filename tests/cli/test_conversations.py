"""Conversations from the command line."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic_ai import Agent, Tool
from pydantic_ai.models.function import FunctionModel
from pymongo import AsyncMongoClient

from client import connect
from settings import Settings
from stores.mongo.steps import MongoStepStore
from tests.cli.test_commands import Perdure
from tests.helpers.chatting import EchoModel, prompts
from tests.helpers.script import follow, script
from tests.helpers.speaking import make_speaker, speech
from tests.helpers.terminal import at_a_terminal
from tests.helpers.workers import running_worker
from workflows.delegates import delegate
from workflows.durable import durable


def pay(cents: int) -> str:
    """Pay that much."""
    return f"paid {cents}"


ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(180)


@dataclass(frozen=True)
class Shop:
    """An installation with a worker: agents that echo, pay, have somebody pay, and speak."""

    perdure: Perdure
    store: MongoStepStore
    echo: EchoModel

    async def run(
        self, *arguments: str, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(self.perdure, *arguments, stdin=stdin)

    async def document(self, *arguments: str) -> Any:
        return await asyncio.to_thread(self.perdure.document, *arguments)

    async def approvals(self, tool: str) -> list[str]:
        """How all approvals of that tool's calls stand."""
        effects = [
            effect
            for each in await self.store.list_runs()
            for effect in await self.store.list_tool_effects(run_id=each.run_id)
        ]
        return sorted(
            each.approval.state for each in effects if each.approval and each.tool_name == tool
        )


@pytest_asyncio.fixture
async def shop(
    temporal_address: str, mongodb_uri: str, mongodb_database: str, task_queue: str, tmp_path: Path
) -> AsyncIterator[Shop]:
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
    payer = Agent(
        FunctionModel(follow),
        name="payer",
        tools=[Tool(pay, requires_approval=True)],
        capabilities=durable(),
    )
    boss = Agent(
        FunctionModel(follow),
        name="boss",
        tools=[delegate("payer", description="Pays.")],
        capabilities=durable(),
    )
    agents: list[Agent[Any, Any]] = [echo.agent(), payer, boss, make_speaker()]
    try:
        async with running_worker(await connect(settings), store, agents, task_queue):
            yield Shop(perdure, store, echo)
    finally:
        await store.aclose()


PAYING = script([[("pay", {"cents": 5})]], final="It is done.")


@pytest.mark.integration
async def test_a_chat_asks_before_a_call_that_needs_an_approval(shop: Shop) -> None:
    paying = ("chat", "payer", "--conversation-id", "paying")
    waits = await shop.run(*paying, stdin=f"{PAYING}\n")
    assert (waits.returncode, "perdure approve" in waits.stderr) == (1, True), waits.stderr
    assert "Traceback" not in waits.stderr
    decided = await shop.run(*paying, stdin=f"yes\n{PAYING}\nperhaps\nn\n")
    assert decided.stdout == f"> {PAYING}\nIt is done.\nIt is done.\n", decided.stderr
    assert 'pay wants to run with {"cents":5}' in decided.stderr.replace(": 5", ":5")
    assert "pay completed" in decided.stderr
    assert await shop.approvals("pay") == ["approved", "denied"]


@pytest.mark.integration
async def test_a_chat_asks_for_calls_of_delegates_in_place(shop: Shop) -> None:
    asked = script([[("ask_payer", {"prompt": PAYING})]], final="They were told.")
    decided = await shop.run("chat", "boss", stdin=f"{asked}\nyes\n")
    assert decided.stdout == "They were told.\n", decided.stderr
    assert "pay of delegate delegate-" in decided.stderr
    assert await shop.approvals("pay") == ["approved"]


@pytest.mark.integration
async def test_a_person_at_a_terminal_reads_along_is_asked_and_ends_with_ctrl_d(
    shop: Shop, tmp_path: Path
) -> None:
    marker = tmp_path / "stopped"
    stuck = speech("It is so, and so it stays", stop_at=3, marker=marker, how="hang")

    def talk() -> str:
        environment = shop.perdure.environment()
        with at_a_terminal(environment, "chat", "payer", "--conversation-id", "desk") as desk:
            desk.expect("> ")
            desk.send(f"{PAYING}\n")
            desk.expect("Let it? [y/n] ")
            desk.send("what?\n")
            desk.expect("Let it? [y/n] ")
            desk.send("y\n")
            desk.expect("pay completed")
            desk.expect("It is done.\n> ")
            desk.send("no script\n")  # the model fails, and the conversation does not
            desk.expect("failed")
            desk.expect("> ")
            assert desk.end() == 0
            desk.expect("perdure chat payer --conversation-id desk")
        with at_a_terminal(environment, "chat", "speaker") as speaker:
            speaker.expect("> ")
            speaker.send(f"{stuck}\n")
            speaker.expect('"hang"}\n')
            speaker.expect("It is so, ")  # the model is still to say the rest
            return speaker.shown

    said = (await asyncio.to_thread(talk)).rpartition('"hang"}\n')[2]
    assert "and so it stays" not in said
    assert await shop.approvals("pay") == ["approved"]


@pytest.mark.integration
async def test_a_conversation_is_held_listed_rebuilt_and_deleted(shop: Shop) -> None:
    chat = ("chat", "conversation", "--conversation-id", "trip")
    first = await shop.run(*chat, stdin="hi\n\nwhat now?\n")
    assert (first.returncode, first.stdout) == (0, "Hello, Priya!\nreply 2\n"), first.stderr
    again = await shop.run(*chat, stdin="and then?\nfail\n")
    assert again.stdout == "> hi\nHello, Priya!\n> what now?\nreply 2\nreply 3\n"
    assert (again.returncode, "failed" in again.stderr) == (1, True)
    assert prompts(shop.echo.seen[2]) == ["hi", "what now?", "and then?"]

    listed = await shop.document("conversations", "--query", "PRIYA")
    (head,) = listed["conversations"]
    assert (head["conversation_id"], head["turn_count"]) == ("trip", 4)
    rebuilt = await shop.document("rebuild", "trip")
    assert (rebuilt["turns"], rebuilt["changed_rows"]) == (4, 0)
    unknown = await shop.run("rebuild", "unknown")
    assert (unknown.returncode, "no such conversation" in unknown.stderr) == (3, True)

    runs = await shop.store.list_runs(conversation_id="trip")
    await shop.run("delete-conversation", "trip")
    assert await shop.store.conversations.find("trip") is not None
    counts = (await shop.document("delete-conversation", "trip", "--delete"))["counts"]
    assert (counts["runs"], counts["turns"], counts["conversation_messages"]) == (4, 4, 4)
    assert counts["messages"] >= 7
    assert (counts["stream_chunks"] >= 4, counts["search_log"] >= 3) == (True, True)
    assert [await shop.store.get_run(run_id=each.run_id) for each in runs] == [None] * 4


@pytest.mark.integration
async def test_what_was_said_in_a_deleted_turn_is_nowhere_and_its_place_is_kept(
    shop: Shop, mongodb_uri: str, mongodb_database: str
) -> None:
    async def places() -> set[str]:
        """The collections in which any document holds words of the first turn."""
        async with AsyncMongoClient[dict[str, Any]](mongodb_uri) as client:
            database = client[mongodb_database]
            return {
                name
                for name in await database.list_collection_names()
                async for each in database[name].find()
                if "priya" in repr(each).casefold()
            }

    chat = ("chat", "conversation", "--conversation-id", "trip")
    await shop.run(*chat, stdin="hi\nwhat now?\nand then?\n")
    turn = ("delete-conversation", "trip", "--turn", "0")
    await shop.run(*turn)
    assert await places() >= {"messages", "variants"}
    deleted = await shop.document(*turn, "--delete")
    counts = deleted["counts"]
    assert (counts["runs"], counts["messages"]) == (1, 2)
    assert counts["redacted positions"] >= 4
    assert await places() == set()
    found = await shop.run("search", "trip", "priya reply")
    assert ("Priya" in found.stdout, "reply 2" in found.stdout) == (False, True), found

    after = await shop.run(*chat, stdin="and now?\n")
    assert after.stdout == "> what now?\nreply 2\n> and then?\nreply 3\nreply 4\n"
    assert prompts(shop.echo.seen[-1]) == ["what now?", "and then?", "and now?"]
    rebuilt = await shop.document("rebuild", "trip")
    assert (rebuilt["turns"], rebuilt["changed_rows"]) == (3, 0)
    again = await shop.document(*turn, "--delete")
    assert set(again["counts"].values()) == {0}
    missing = await shop.run("delete-conversation", "trip", "--turn", "9", "--delete")
    assert (missing.returncode, "no turn 9" in missing.stderr) != (0, True)


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
