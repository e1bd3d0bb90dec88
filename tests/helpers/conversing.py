"""What every conversation does, plain or durable: one class of tests for both."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Protocol

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart

from tests.helpers.chatting import CHUNKS, EchoModel, prompts
from workflows.results import RunResult


class Talk(Protocol):
    """The surface of a conversation."""

    @property
    def history(self) -> list[ModelMessage]: ...

    async def say(self, text: str) -> RunResult[str]: ...

    def stream(self, text: str) -> AsyncIterator[str]: ...


class Talking(Protocol):
    """Begins conversations with one model."""

    echo: EchoModel

    def begin(self, *, max_turns: int = 20) -> Talk: ...


class ConversationSuite(ABC):
    @pytest.fixture
    @abstractmethod
    def talking(self) -> Talking:
        """Begins conversations."""

    @pytest.mark.spec("CV-18", "CV-20", "CV-28")
    async def test_a_turn_with_no_history_sees_only_itself_and_gives_a_result(
        self, talking: Talking
    ) -> None:
        result = await talking.begin().say("hello")

        assert [prompts(each) for each in talking.echo.seen] == [["hello"]]
        assert result.output == "reply 1"
        assert [step.agent for step in result.steps] == ["conversation"]
        assert result.usage.requests == 1
        assert prompts(result.steps[0].result.all_messages()) == ["hello"]

    @pytest.mark.spec("CV-1", "CV-2", "CV-19", "CV-28")
    async def test_a_conversation_remembers_every_turn_and_nothing_of_another(
        self, talking: Talking
    ) -> None:
        conversation = talking.begin()
        for text in ("one", "two", "three"):
            await conversation.say(text)
        assert prompts(talking.echo.seen[2]) == ["one", "two", "three"]
        assert prompts(conversation.history) == ["one", "two", "three"]

        await talking.begin().say("another")
        assert prompts(talking.echo.seen[3]) == ["another"]

    @pytest.mark.spec("CV-3", "CV-9", "CV-10", "CV-28")
    async def test_the_window_limits_what_the_model_sees_and_what_is_kept(
        self, talking: Talking
    ) -> None:
        conversation = talking.begin(max_turns=2)
        for text in ("one", "two", "three", "four"):
            await conversation.say(text)

        assert prompts(talking.echo.seen[3]) == ["three", "four"]
        assert "one" not in prompts(conversation.history)

    @pytest.mark.spec("CV-11", "CV-12", "CV-13", "CV-14", "CV-15", "CV-28")
    async def test_a_reply_streams_as_chunks_that_add_up_and_is_remembered(
        self, talking: Talking
    ) -> None:
        conversation = talking.begin()
        received = [delta async for delta in conversation.stream("hi")]
        assert received == CHUNKS["hi"]
        final = conversation.history[-1]
        assert isinstance(final, ModelResponse)
        assert [part.content for part in final.parts if isinstance(part, TextPart)] == [
            "Hello, Priya!"
        ]

        _ = [delta async for delta in conversation.stream("I am Priya")]
        await conversation.say("who am I?")
        assert prompts(talking.echo.seen[-1]) == ["hi", "I am Priya", "who am I?"]

    async def test_an_empty_message_is_refused(self, talking: Talking) -> None:
        conversation = talking.begin()
        with pytest.raises(ValueError, match="empty"):
            await conversation.say("  ")
        assert talking.echo.seen == []
