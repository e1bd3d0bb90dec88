"""Input, updates and answers of `conversation`: frozen models that the sandbox passes through."""

import hashlib
import json
from typing import Any

from pydantic import BaseModel, Field, field_validator
from pydantic_ai.usage import UsageLimits

from activities.conversations import AnswerHandle
from stores.conversation_records import ConversationKind, MidTurnPolicy
from stores.identifiers import DEFAULT_WORKSPACE, check_identifier
from workflows.payloads import SubmittedInput

LONGEST_WORKFLOW_ID_BYTES = 1000
"""Temporal's limit (`limit.maxIDLength`)."""

TURN_LIMITS = UsageLimits(request_limit=10, total_tokens_limit=100_000)
"""Of each turn where nobody says otherwise: as the plain conversation has them."""


class ConversationSettings(BaseModel):
    """How a conversation is held. Whoever begins it chooses; it keeps them to its end.

    Args:
        agent: its name.
        kind: `main`, or a conversation beside or below another one.
        max_turns: turns that the model gets to see; 1 is the least.
        max_tokens: about how many tokens they may have together; `None`: no such bound.
        mid_turn: what becomes of a message while a turn runs.
        queue_limit: messages that may wait; the next one is refused.
        idle_seconds: without a message its workflow ends, to begin again with the next one.
        recycle_turns: it continues as new after so many turns ...
        recycle_updates: ... or so many updates; the server allows 2,000 in an execution.
        usage_limits: of each turn; `None`: 10 requests and 100,000 tokens.
        deps: JSON for the agent's `deps_type`; `None`: the window, where it takes `ChatDeps`.
        model: pydantic-ai model in place of the agent's own.
        model_settings: for each request.
        names_itself: whether a small model gives it a title.
        namer_model: pydantic-ai model for that.
    """

    agent: str
    kind: ConversationKind = "main"
    max_turns: int = Field(default=20)
    max_tokens: int | None = None
    mid_turn: MidTurnPolicy = "enqueue"
    queue_limit: int = Field(default=100, ge=1)
    idle_seconds: float = Field(default=300.0, gt=0)
    recycle_turns: int = Field(default=100, ge=1)
    recycle_updates: int = Field(default=1000, ge=1, le=1900)
    usage_limits: UsageLimits | None = None
    deps: Any = None
    model: str | None = None
    model_settings: dict[str, Any] | None = None
    names_itself: bool = False
    namer_model: str | None = None

    @field_validator("max_turns", "max_tokens")
    @classmethod
    def _check_window(cls, value: int | None) -> int | None:
        if value is not None and value < 1:
            message = f"a window must be at least 1, found {value}"
            raise ValueError(message)
        return value

    @property
    def limits(self) -> UsageLimits:
        """Of each turn."""
        return self.usage_limits or TURN_LIMITS


class ConversationInput(SubmittedInput):
    """Which conversation; `settings` absent: it must exist.

    `workspace_id` and `principal` are set by the trusted submitter.
    """

    conversation_id: str
    workspace_id: str = DEFAULT_WORKSPACE
    principal: str | None = None
    settings: ConversationSettings | None = None

    @field_validator("conversation_id")
    @classmethod
    def _check_conversation(cls, value: str) -> str:
        return check_identifier("conversation_id", value)

    @field_validator("workspace_id")
    @classmethod
    def _check_workspace(cls, value: str) -> str:
        return check_identifier("workspace_id", value)


class SayRequest(SubmittedInput):
    """A message, under an id that the client gives to it alone."""

    text: str
    message_id: str
    principal: str | None = None


class RegenerateRequest(SubmittedInput):
    """The wish for another answer to the turn at `position`."""

    position: int
    message_id: str
    principal: str | None = None


class SelectVariantRequest(SubmittedInput):
    """The answer that is to be read and remembered."""

    position: int
    number: int


class VisibilityRequest(SubmittedInput):
    """A turn to hide or conceal, or with `is_on` false to show again."""

    position: int
    is_on: bool = True


class RenameRequest(SubmittedInput):
    """A name given by hand."""

    title: str
    subtitle: str = ""
    tags: tuple[str, ...] = ()


class ArchiveRequest(SubmittedInput):
    """Put away, or with `is_on` false take out again."""

    is_on: bool = True


class ForkRequest(SubmittedInput):
    """A new conversation `into` with the turns up to `at_position`."""

    at_position: int
    into: str


class Ticket(BaseModel):
    """Where the answer to a message will be: `run_id` is the workflow that gives it."""

    conversation_id: str
    workspace_id: str
    answer: AnswerHandle
    is_new: bool
    """Whether the message was not known before."""
    is_steer: bool = False
    """It was given to the run in progress."""


class TurnCancelled(BaseModel):
    """The run that was asked to end."""

    run_id: str


class ConversationStatus(BaseModel):
    """Answer of the query `status`: how the workflow stands, no text."""

    agent: str | None
    running: AnswerHandle | None
    queued: int
    turns: int
    """Answered in this execution."""
    updates: int
    """Taken in this execution."""
    carried: int
    """Handles that the workflow holds."""


def conversation_workflow_id(workspace_id: str, conversation_id: str) -> str:
    """The workflow id of a conversation: no two pairs have the same. Frozen."""
    plain = f"conversation:{len(workspace_id)}:{workspace_id}:{conversation_id}"
    if len(plain.encode()) <= LONGEST_WORKFLOW_ID_BYTES:
        return plain
    pair = json.dumps([workspace_id, conversation_id])
    return "conversation:sha256:" + hashlib.sha256(pair.encode()).hexdigest()
