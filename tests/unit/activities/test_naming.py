import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits
from temporalio.testing import ActivityEnvironment

from activities.naming import (
    NAMING_LIMITS,
    NameConversationRequest,
    NamingActivities,
    NamingResult,
    SessionName,
    generate_name,
    session_namer,
)
from activities.session_namer import SessionNamer
from stores.conversation_records import ConversationSpec, SubmittedMessage, TurnText
from stores.conversations import ConversationName
from stores.memory import InMemoryStepStore
from stores.saved_conversations import ConversationSummary
from stores.sqlite.conversations import SqliteConversationStore

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class NamerModel:
    """Answers with a name, and keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.tools: list[int] = []

    def _name(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.shown += [
            str(part.content)
            for message in messages
            for part in message.parts
            if isinstance(part, UserPromptPart)
        ]
        self.tools.append(len(info.function_tools))
        (output,) = info.output_tools
        name = {"title": "A  road\n", "tags": ["x", "x", " "]}
        return ModelResponse(parts=[ToolCallPart(output.name, name)])

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self._name)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqliteConversationStore]:
    opened = SqliteConversationStore(database=tmp_path / "conversations.db")
    yield opened
    await opened.aclose()


def said(count: int) -> list[ModelMessage]:
    return [
        ModelRequest(parts=[UserPromptPart("begin " + "x" * count + " end")]),
        ModelResponse(parts=[TextPart("reply")]),
    ]


@pytest.mark.spec("SP-99", "SP-101", "SP-102")
async def test_a_name_is_made_of_the_tail_by_an_agent_without_tools_and_counted_apart(
    store: SqliteConversationStore,
) -> None:
    namer_model = NamerModel()
    saved = await store.save(
        summary=ConversationSummary(workspace="w", id="c"), messages=said(5000)
    )
    namer = SessionNamer(store=store, model=namer_model.model)
    assert await namer.name(conversation_id="c")

    assert session_namer.name == "session_namer"
    assert namer_model.tools == [0]
    (prompt,) = namer_model.shown
    assert len(prompt) < 2500
    assert "begin" not in prompt
    named = (await store.get(conversation_id="c")).summary
    assert (named.title, named.tags, named.title_source) == ("A road", ("x",), "generated")
    assert named.naming_tokens > 0
    assert named.total_tokens == saved.total_tokens

    assert not await namer.name(conversation_id="c"), "not again so soon"
    for revision, due in ((named.revision + 15, False), (named.revision + 16, True)):
        assert SessionNamer.needed(replace(named, revision=revision)) is due
    assert not SessionNamer.needed(replace(named, revision=99, title_source="user"))


@pytest.mark.spec("SP-100")
async def test_the_queue_is_bounded_coalesces_fails_quietly_and_can_be_cancelled(
    store: SqliteConversationStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="activities.session_namer")
    order: list[str] = []
    first_done = asyncio.Event()

    async def generate(*, model: object, prompt: str) -> NamingResult:
        assert model == "none"
        order.append(prompt)
        if len(order) == 1:
            message = "the model is gone"
            raise RuntimeError(message)
        if len(order) == 3:
            first_done.set()
            await asyncio.Event().wait()
        return NamingResult(name=SessionName(title="T"), tokens=1)

    entries = [ConversationSummary(workspace="w", id=f"c{n}") for n in range(12)]
    saved = [await store.save(summary=each, messages=said(0)) for each in entries]
    namer = SessionNamer(store=store, model="none", generate=generate)
    assert [namer.submit(f"c{n % 10}") for n in range(20)] == [True] * 20
    assert not namer.submit("c10")
    task = asyncio.create_task(namer.run())
    await asyncio.wait_for(first_done.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "No name for conversation 'c0'" in caplog.text
    assert (await store.get(conversation_id="c0")).summary.title == "New session"
    assert (await store.get(conversation_id="c1")).summary.title == "T"

    ages = [replace(each, updated_at=NOW + timedelta(n)) for n, each in enumerate(saved)]
    filled = SessionNamer(store=store, model="none", generate=generate)
    filled.backfill(ages)
    assert not filled.submit("another"), "the ten newest fill the queue"
    assert filled.submit("c11")
    await store.aclose()


@pytest.mark.spec("SP-101")
async def test_a_namer_that_goes_on_and_on_is_ended() -> None:
    asked: list[int] = []

    def talks(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        asked.append(len(messages))
        return ModelResponse(parts=[TextPart("no name")])

    with pytest.raises(UnexpectedModelBehavior):
        await generate_name(model=FunctionModel(talks), prompt="hello")
    assert len(asked) == 2
    assert UsageLimits(request_limit=2, output_tokens_limit=250) == NAMING_LIMITS


async def test_a_durable_conversation_is_named_once_and_never_over_a_manual_name() -> None:
    memory = InMemoryStepStore()
    conversations = memory.conversations
    model = NamerModel()
    activities = NamingActivities(memory, models=lambda _: model.model)
    await conversations.open("c", ConversationSpec(agent="a"), now=NOW)
    message = SubmittedMessage(message_id="m", text="Where is the road?")
    await conversations.admit("c", message, now=NOW)
    text = TurnText(prompt="Where is the road?", content="Here.")
    await conversations.finish_variant("c", 0, 1, status="completed", text=text, now=NOW)

    async def named(conversation_id: str = "c") -> bool:
        request = NameConversationRequest(conversation_id=conversation_id, model="m")
        return (await ActivityEnvironment().run(activities.name_conversation, request)).is_named

    assert await named()
    assert not await named()
    assert not await named("unknown")
    (prompt,) = model.shown
    assert prompt.endswith("User: Where is the road?\nAssistant: Here.")
    head = await conversations.name("c", ConversationName(title="Mine"), source="manual")
    assert head.naming_tokens > 0
    await conversations.open("d", ConversationSpec(agent="a"), now=NOW)
    await conversations.name("d", ConversationName(title="Mine"), source="manual")
    assert not await named("d")
