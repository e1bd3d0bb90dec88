"""A known secret: the tool and the model get it, and nothing that is kept holds it."""

import asyncio
import base64
import io
import logging
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pymongo import MongoClient
from temporalio.client import Client, WorkflowFailureError

from cli.verification import Verifier
from cli.verifying import opened_verifier
from client import connect
from converter import close_payloads
from redacting import build_redaction, mask_log, refuse_plain_payloads
from settings import Settings
from stores.attempts import AttemptEnd, ToolAttempt, ToolCallPlace
from stores.errors import StoreConfigurationError
from stores.keyword.lexer import lexemes
from stores.mongo.keyword_rows import keys_of
from stores.mongo.steps import MongoStepStore
from stores.redactor import MASK
from stores.search.answering import search_history
from stores.search.query import HistoryQuery
from stores.search.source import SnapshotHistorySource
from tests.helpers.chatting import EchoModel, prompts
from tests.helpers.scanning import histories_with, places_with
from tests.helpers.script import Call, follow, script
from tests.helpers.workers import running_worker
from tests.stores.writer import at
from worker import build_replayer, run_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput, AgentRunOutput
from workflows.durable import durable
from workflows.durable_conversation import DurableConversation

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

TOKEN = "tk-very-private-0123456789"  # noqa: S105 - of the tests
CARD = "4111-1111-1111-1111"
KEY = base64.b64encode(b"k" * 32).decode()

got: list[str] = []
"""What tools were given."""
seen: list[ModelMessage] = []
"""What the model was sent last."""


def _model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    seen[:] = messages
    return follow(messages, info)


async def _take(token: str) -> str:
    """Give the token back."""
    got.append(token)
    return f"took {token}"


async def _refuse(token: str) -> str:
    """Say the token in an error."""
    message = f"no {token}"
    raise RuntimeError(message)


AGENT = Agent(
    FunctionModel(_model),
    name="keeper",
    tools=[
        Tool(_take, name="take"),
        Tool(_take, name="look", metadata={"effect": "read"}),
        Tool(_refuse, name="refuse"),
    ],
    capabilities=durable(),
)
ECHO = EchoModel()
CHAT = ECHO.agent("confidant")


@pytest.fixture
def settings(
    temporal_address: str, mongodb_uri: str, mongodb_database: str, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    monkeypatch.setenv("SHOP_TOKEN", TOKEN)
    return Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=mongodb_database,
        redact_env="SHOP_TOKEN",
        redact_patterns=[r"\b\d{4}-\d{4}-\d{4}-\d{4}\b"],
        payload_keys={"one": KEY},
        payload_key="one",
    )


@pytest_asyncio.fixture
async def store(settings: Settings) -> AsyncGenerator[MongoStepStore]:
    store = MongoStepStore(
        db_url=settings.mongodb_uri,
        database=settings.mongodb_database,
        redaction=build_redaction(settings),
    )
    await store.initialise()
    yield store
    await store.aclose()


@pytest_asyncio.fixture
async def client(settings: Settings, store: MongoStepStore) -> AsyncGenerator[Client]:
    client = await connect(settings, chunks=store.chunks)
    yield client
    await close_payloads(client.data_converter)


async def run(client: Client, queue: str, prompt: str, **given: Any) -> AgentRunOutput:
    run_id = given.pop("run_id", f"run-{uuid4().hex}")
    request = AgentRunInput(agent="keeper", prompt=prompt, conversation_id="private", **given)
    return await client.execute_workflow(AgentRunWorkflow.run, request, id=run_id, task_queue=queue)


async def test_a_secret_reaches_the_tool_and_the_model_and_nothing_that_is_kept(
    client: Client,
    store: MongoStepStore,
    settings: Settings,
    mongodb_uri: str,
    mongodb_database: str,
    task_queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = io.StringIO()
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(log)])
    mask_log(store.redaction)
    got.clear()
    run_id = f"run-{uuid4().hex}"
    long = f"{TOKEN} {'x' * 20_000} {CARD}"
    steps: list[list[Call]] = [
        [("take", {"token": TOKEN}), ("look", {"token": f"card {CARD}"})],
        [("take", {"token": long})],
        [("refuse", {"token": TOKEN})],
    ]
    async with running_worker(client, store, [AGENT], task_queue):
        with pytest.raises(WorkflowFailureError):
            await run(client, task_queue, script(steps), run_id=run_id, stream=True)
        done = await run(client, task_queue, script(steps[:2], f"All of {TOKEN}."), stream=True)
        assert done.output == f"All of {TOKEN}."
        query = HistoryQuery(text="took token card private", conversation_id="private")
        answer = await search_history(SnapshotHistorySource(store), query)

    assert set(got) == {TOKEN, f"card {CARD}", long}
    assert TOKEN in repr(seen)
    assert CARD in repr(seen)
    assert MASK in answer.text
    assert TOKEN not in answer.text
    assert places_with(mongodb_uri, mongodb_database, TOKEN, CARD) == []
    assert await histories_with(client, TOKEN, CARD) == []
    assert f"no {MASK}" in log.getvalue()
    assert TOKEN not in log.getvalue()
    (effect, *_) = await store.list_tool_effects(run_id=run_id)
    assert MASK in str(effect.arguments_summary)
    history = await client.get_workflow_handle(run_id).fetch_history()
    await build_replayer([AGENT], converter=client.data_converter).replay_workflow(history)
    assert settings.redacts
    for each in (run_id, done.run_id):
        (found,) = await Verifier(client, store, [AGENT]).verify(each)
        assert (found.verdict, found.basis) == ("EXACT", "replay"), found.comparison.differences
        assert found.comparison.compared > 10


async def test_verifying_without_the_secrets_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOP_TOKEN")
    with pytest.raises(StoreConfigurationError, match="SHOP_TOKEN, which is not set"):
        async with opened_verifier(settings, "default"):
            pytest.fail("a repair would have stored what workers mask")


async def test_a_repair_writes_masks(
    client: Client,
    store: MongoStepStore,
    mongodb_uri: str,
    mongodb_database: str,
    task_queue: str,
) -> None:
    async with running_worker(client, store, [AGENT], task_queue):
        done = await run(client, task_queue, script([[("take", {"token": TOKEN})]]))
    with MongoClient[dict[str, Any]](mongodb_uri) as mongodb:
        for name in ("events", "tool_effects", "positions", "messages"):
            assert mongodb[mongodb_database][name].delete_many({}).deleted_count

    (found,) = await Verifier(client, store, [AGENT]).verify(done.run_id, is_repairing=True)
    assert (found.verdict, found.comparison.differences) == ("EXACT", [])
    assert found.repaired > 4
    assert places_with(mongodb_uri, mongodb_database, TOKEN) == []
    (effect,) = await store.list_tool_effects(run_id=done.run_id)
    assert MASK in str(effect.arguments_summary)


async def test_a_run_that_continues_goes_on_with_the_mask(
    client: Client, store: MongoStepStore, task_queue: str
) -> None:
    async with running_worker(client, store, [AGENT], task_queue):
        first = await run(client, task_queue, script([[("take", {"token": TOKEN})]]))
        later = await run(client, task_queue, script([], "so it is"), continue_from=first.run_id)

    assert later.output == "so it is"
    assert TOKEN not in repr(seen)
    assert f"took {MASK}" in repr(seen)


async def test_a_turn_is_asked_with_the_prompt_as_it_was_said(
    client: Client,
    store: MongoStepStore,
    mongodb_uri: str,
    mongodb_database: str,
    task_queue: str,
) -> None:
    said = f"my token is {TOKEN}"
    async with running_worker(client, store, [CHAT], task_queue):
        talk = DurableConversation.connect(
            client,
            agent="confidant",
            conversation_id=f"private-{uuid4().hex}",
            task_queue=task_queue,
            store=store,
        )
        await talk.say(said)
        assert prompts(ECHO.seen[-1]) == [said]
        (turn,) = await store.conversations.list_turns(talk.conversation_id)
        assert turn.record.prompt == f"my token is {MASK}"
        await talk.say("and now?")
        assert prompts(ECHO.seen[-1]) == [f"my token is {MASK}", "and now?"]

    assert places_with(mongodb_uri, mongodb_database, TOKEN) == []
    with MongoClient[dict[str, Any]](mongodb_uri) as mongodb:
        rows = mongodb[mongodb_database]["keyword_rows"]
        row = rows.find_one({"position": 0, "field": "prompt"})
    assert row is not None
    assert row["lexemes"] == keys_of(lexemes(f"my token is {MASK}"))
    assert turn.record.sealed_prompt is not None
    await store.conversations.delete_turn(talk.conversation_id, 0, now=datetime.now(UTC))
    (turn, _) = await store.conversations.list_turns(talk.conversation_id)
    assert (turn.record.prompt, turn.record.sealed_prompt) == ("", None)


async def test_a_worker_that_redacts_wants_encrypted_payloads(settings: Settings) -> None:
    plain = settings.model_copy(update={"payload_key": None, "payload_keys": {}})
    with pytest.raises(StoreConfigurationError, match="PERDURE_ALLOW_PLAIN_PAYLOADS"):
        await run_worker(plain, stop=asyncio.Event())
    refuse_plain_payloads(settings)
    refuse_plain_payloads(plain.model_copy(update={"allow_plain_payloads": True}))
    refuse_plain_payloads(plain.model_copy(update={"redact_env": "", "redact_patterns": []}))


async def test_a_secret_that_is_not_set_is_named_and_a_command_goes_on(
    settings: Settings,
) -> None:
    with pytest.raises(StoreConfigurationError, match="SHOP_TOKEN, which is not set"):
        build_redaction(settings, environment={})
    lenient = build_redaction(settings, is_strict=False, environment={})
    assert lenient.text(f"{TOKEN} {CARD}") == f"{TOKEN} {MASK}"
    hooked = settings.model_copy(update={"redactor": "redacting:nothing"})
    with pytest.raises(StoreConfigurationError, match="module:function"):
        build_redaction(hooked)
    with pytest.raises(StoreConfigurationError, match="cannot be imported"):
        build_redaction(settings.model_copy(update={"redactor": "no_such_module:mask"}))


async def test_a_later_attempt_gets_the_result_as_it_was_and_the_database_does_not(
    store: MongoStepStore, mongodb_uri: str, mongodb_database: str
) -> None:
    place = ToolCallPlace(run_id="run-1", branch="b", step_index=1, call_index=0)
    attempts = [
        ToolAttempt(token=str(number), worker="w", started_at=at(number)) for number in (1, 2)
    ]
    first, second = attempts
    await store.attempts.enter(place, first, tool_name="take", policy="once")
    end = AttemptEnd(outcome="completed", ended_at=at(3), result=TOKEN.encode())
    assert await store.attempts.leave(place, first.token, end)
    entry = await store.attempts.enter(place, second, tool_name="take", policy="once")

    assert entry.verdict == "recorded"
    assert entry.gate.result == TOKEN.encode()
    found = await store.attempts.find_gate(place)
    assert found is not None
    assert found.result == TOKEN.encode()
    assert places_with(mongodb_uri, mongodb_database, TOKEN) == []
