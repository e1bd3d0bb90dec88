"""The bundled agent `conversation` in a plain process, and its files."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agents.conversation import __main__ as demo_module
from agents.conversation import agent as module
from agents.conversation import record as recording
from agents.conversation.agent import ChatDeps, Conversation, chat_agent, run_chat
from tests.helpers.chatting import EchoModel, prompts
from tests.helpers.conversing import ConversationSuite


@dataclass
class PlainTalking:
    echo: EchoModel

    def begin(self, *, max_turns: int = 20) -> Conversation:
        return Conversation(ChatDeps(max_turns=max_turns))


@pytest.fixture
def echo() -> Iterator[EchoModel]:
    model = EchoModel()
    with chat_agent.override(model=model.model):
        yield model


class TestPlainConversation(ConversationSuite):
    @pytest.fixture
    def talking(self, echo: EchoModel) -> PlainTalking:
        return PlainTalking(echo)


@pytest.mark.spec("CV-18", "CV-21", "CV-28")
async def test_history_passed_in_is_what_the_model_sees(
    echo: EchoModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger=module.__name__)
    first = await run_chat("my name is Priya")
    await run_chat("what is my name?", history=first.steps[0].result.all_messages())

    assert prompts(echo.seen[1]) == ["my name is Priya", "what is my name?"]
    assert [each.getMessage() for each in caplog.records] == [
        "Chat turn: 16 characters, 0 messages",
        "Chat turn: 16 characters, 2 messages",
    ]
    assert "Priya" not in caplog.text


@pytest.mark.spec("CV-16", "CV-17", "CV-22")
def test_the_agent_has_a_name_limits_for_each_turn_and_raises_content_filter_errors() -> None:
    assert chat_agent.name == "conversation"
    assert module.USAGE_LIMITS.request_limit == 10
    assert module.USAGE_LIMITS.total_tokens_limit == 100_000
    found: list[str] = []
    chat_agent.root_capability.apply(lambda each: found.append(type(each).__name__))
    assert "RaiseContentFilterError" in found


@pytest.mark.spec("CV-23", "CV-24")
def test_prompt_and_metadata_lie_beside_the_agent() -> None:
    folder = Path(module.__file__).parent
    rules = (folder / "prompt.txt").read_text()
    for words in ("one to three sentences", "has told you", "never told you, say you don't know"):
        assert words in rules
    metadata = tomllib.loads((folder / "example.toml").read_text())
    assert metadata.keys() == {"title", "pattern", "summary", "smoke_input", "entrypoint"}
    assert all(hasattr(module, name) for name in metadata["entrypoint"].values())


@pytest.mark.spec("CV-25")
async def test_the_demo_prints_two_replies_and_one_as_it_is_generated(
    echo: EchoModel, capsys: pytest.CaptureFixture[str]
) -> None:
    await demo_module.demo()

    assert capsys.readouterr().out == "reply 1\nreply 2\nstreaming: reply 3\n"
    assert len(echo.seen) == 3


@pytest.mark.spec("CV-30")
async def test_a_run_is_recorded_with_model_tokens_cost_and_duration(echo: EchoModel) -> None:
    text = await recording.record()

    assert len(echo.seen) == 1
    first, *others = text.splitlines()
    assert "echo" in first
    for words in ("1 step", "tokens", "cost unknown", " s, on ", "reply 1"):
        assert any(words in line for line in others), words
    kept = recording.RECORD.read_text()
    assert kept.startswith("Recorded run · SmolLM2"), "of the model on this machine"
    assert "cost unknown" in kept
