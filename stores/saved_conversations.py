"""Conversations that an application saves whole, without a server: heads, and their messages.

A head is kept apart from the snapshots of runs: it has accepted prompts and what was changed
between runs, such as a compaction, so it is not put together from snapshots.
"""

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)

SCHEMA_VERSION = 1


def _utc_now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - only when the caller names no time


def _new_id() -> str:
    return str(uuid.uuid4())  # noqa: TID251 - outside workflows


@dataclass(frozen=True, kw_only=True)
class ConversationSummary:
    """The head: revision of the content, name with its own version, and how the last run ended.

    `owner_pid` is the process that holds the conversation while `outcome` is `running`.
    """

    schema_version: int = SCHEMA_VERSION
    id: str = field(default_factory=_new_id)
    workspace: str
    created_at: datetime = field(default_factory=_utc_now)
    updated_at: datetime = field(default_factory=_utc_now)
    revision: int = 0
    title: str = "New session"
    subtitle: str = ""
    tags: tuple[str, ...] = ()
    title_source: Literal["fallback", "generated", "user"] = "fallback"
    naming_version: int = 0
    named_revision: int = 0
    model: str | None = None
    outcome: Literal["ready", "running", "completed", "failed", "cancelled"] = "ready"
    run_id: str | None = None
    owner_pid: int | None = None
    message_count: int = 0
    total_tokens: int = 0
    naming_tokens: int = 0
    archived_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class SavedConversation:
    """A head with its messages."""

    summary: ConversationSummary
    messages: list[ModelMessage]


def spoken_text(messages: list[ModelMessage]) -> list[str]:
    """What user and assistant said, in order; no tool output, no reasoning."""
    said: list[str] = []
    for message in messages:
        if isinstance(message, ModelRequest):
            for part in message.parts:
                if isinstance(part, UserPromptPart):
                    pieces = [part.content] if isinstance(part.content, str) else part.content
                    said += [each for each in pieces if isinstance(each, str)]
        elif isinstance(message, ModelResponse):  # pyright: ignore[reportUnnecessaryIsInstance] - a third kind may come
            said += [part.content for part in message.parts if isinstance(part, TextPart)]
    return said
