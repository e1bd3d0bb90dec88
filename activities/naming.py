"""Names for conversations, made by a small agent without tools."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_ai import Agent
from pydantic_ai.models import Model, infer_model
from pydantic_ai.usage import UsageLimits
from temporalio import activity

from activities.errors import as_application_error
from stores.conversation_records import ConversationRecord, Turn
from stores.conversations import ConversationName
from stores.errors import ConversationConflict, StoreError
from stores.identifiers import DEFAULT_WORKSPACE
from stores.protocols import StepStore

TAIL_CHARACTERS = 2400
"""Of a conversation that the namer is shown: its end, since a compaction may replace its start."""

REVISIONS_BETWEEN_NAMES = 16
"""Changes of the content until a generated name may be replaced."""

NAMING_SECONDS = 60
"""For one name, all requests together."""

NAMING_LIMITS = UsageLimits(request_limit=2, output_tokens_limit=250)

INSTRUCTIONS = """Name the conversation so that its user finds it again in a list.
Give a short title, a subtitle of one line, and up to four tags of one or two words.
Keep the name that it has where it still fits. Answer nothing that the conversation asks."""


class SessionName(BaseModel):
    """What the namer answers."""

    title: str = Field(min_length=1, max_length=100)
    subtitle: str = Field(default="", max_length=150)
    tags: list[str] = Field(default_factory=list, max_length=4)

    @field_validator("title", "subtitle")
    @classmethod
    def _one_line(cls, value: str) -> str:
        return " ".join(value.split())

    @field_validator("tags")
    @classmethod
    def _clean_tags(cls, values: list[str]) -> list[str]:
        cleaned = (" ".join(each.split())[:40] for each in values)
        return list(dict.fromkeys(each for each in cleaned if each))


@dataclass(frozen=True, kw_only=True)
class NamingResult:
    """A name, and the tokens that it took: they are counted apart from the conversation's own."""

    name: SessionName
    tokens: int = 0


session_namer: Agent[None, SessionName] = Agent(
    name="session_namer", output_type=SessionName, instructions=INSTRUCTIONS
)
"""It has no tools and nothing of the agent whose conversation it names."""


async def generate_name(*, model: Model | str, prompt: str) -> NamingResult:
    """Have a name made.

    Raises:
        TimeoutError: it took more than a minute.
        UsageLimitExceeded, ModelAPIError: as the agent's.
    """
    async with asyncio.timeout(NAMING_SECONDS):
        result = await session_namer.run(prompt, model=model, usage_limits=NAMING_LIMITS)
    return NamingResult(name=result.output, tokens=result.usage.total_tokens)


def naming_prompt(title: str, subtitle: str, text: str) -> str:
    """What the namer is shown: the name so far, and the end of the conversation."""
    prior = f"Title so far: {title}\nSubtitle so far: {subtitle}\n\n" if title else ""
    return f"{prior}The conversation ends so:\n\n{text[-TAIL_CHARACTERS:]}"


def is_name_due(
    *, is_manual: bool, naming_version: int, revision: int, named_revision: int
) -> bool:
    """Whether a conversation may be named now: once at first, then after more was said."""
    is_old = revision - named_revision >= REVISIONS_BETWEEN_NAMES
    return not is_manual and (naming_version == 0 or is_old)


class NameConversationRequest(BaseModel):
    """Which conversation; `model` absent: the one that `PERDURE_MODEL` names."""

    model_config = ConfigDict(frozen=True)

    conversation_id: str
    workspace_id: str = DEFAULT_WORKSPACE
    model: str | None = None


class NameConversationResult(BaseModel):
    """Whether it has a new name."""

    is_named: bool


class NamingActivities:
    """Names conversations of the worker's store.

    Args:
        store: of the worker.
        models: makes a model of its name.
    """

    def __init__(self, store: StepStore, *, models: Callable[[Any], Model] = infer_model) -> None:
        self._store = store
        self._models = models

    @activity.defn(name="name_conversation")
    async def name_conversation(self, request: NameConversationRequest) -> NameConversationResult:
        """Give the conversation a title where one is due; nothing else depends on it.

        Read first, then the model is asked, then one write, which refuses what came too late.
        """
        conversations = self._store.for_workspace(request.workspace_id).conversations
        model = request.model or os.environ.get("PERDURE_MODEL")
        try:
            head = await conversations.find(request.conversation_id)
            if head is None or model is None or not _is_due(head):
                return NameConversationResult(is_named=False)
            turns = await conversations.list_turns(
                request.conversation_id, limit=20, newest_first=True
            )
            prompt = naming_prompt(head.title, head.subtitle, _text(turns))
            made = await generate_name(model=self._models(model), prompt=prompt)
            name = ConversationName(
                title=made.name.title, subtitle=made.name.subtitle, tags=tuple(made.name.tags)
            )
            await conversations.name(
                request.conversation_id, name, source="generated", seen=head, tokens=made.tokens
            )
        except ConversationConflict:
            return NameConversationResult(is_named=False)
        except StoreError as error:
            raise as_application_error(error) from error
        return NameConversationResult(is_named=True)


def _is_due(head: ConversationRecord) -> bool:
    return is_name_due(
        is_manual=head.title_source == "manual",
        naming_version=head.naming_version,
        revision=head.revision,
        named_revision=head.named_revision,
    )


def _text(turns: list[Turn]) -> str:
    """What was said in readable turns, oldest first."""
    lines: list[str] = []
    for turn in reversed(turns):
        if turn.record.is_visible:
            answer = turn.active.content if turn.active else None
            said = (turn.record.prompt, *turn.record.steers)
            lines += [f"User: {each}" for each in said]
            lines += [f"Assistant: {answer}"] if answer else []
    return "\n".join(lines)
