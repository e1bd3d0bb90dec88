"""The agent `conversation` and a small real model on this machine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelResponse, TextPart

from agents.conversation.agent import ChatDeps, Conversation
from tests.helpers.chatting import prompts

pytestmark = [pytest.mark.live, pytest.mark.timeout(300), pytest.mark.spec("CV-29")]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def model() -> Iterator[None]:
    command = [sys.executable, "-m", "agents.local_model"]
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        assert server.stdout is not None
        lines = [server.stdout.readline().strip() for _ in range(3)]
        for line in lines:
            name, _, value = line.partition("=")
            patch.setenv(name, value)
        sys.stdout.write(f"{lines[0]}\n")  # a live check says what it ran against
        try:
            yield
        finally:
            server.terminate()


async def test_the_model_uses_what_it_was_told_and_a_turn_outside_the_window_is_gone() -> None:
    conversation = Conversation(ChatDeps(max_turns=2))
    await conversation.say("Hi! My name is Priya.")
    name = await conversation.say("What is my name?")
    assert "priya" in name.output.lower()
    await conversation.say("What is the capital of France?")
    assert prompts(conversation.history)[0] == "What is my name?"


async def test_a_streamed_reply_is_what_is_remembered() -> None:
    conversation = Conversation()
    chunks = [each async for each in conversation.stream("What is the capital of France?")]
    final = conversation.history[-1]
    assert isinstance(final, ModelResponse)
    texts = [part.content for part in final.parts if isinstance(part, TextPart)]
    assert ("".join(chunks), len(chunks) > 3) == ("".join(texts), True)
    follow_up = await conversation.say("Which country did I ask about?")
    assert prompts(conversation.history)[0] == "What is the capital of France?"
    assert follow_up.output
