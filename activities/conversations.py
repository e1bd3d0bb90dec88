"""What a conversation journals, and what a turn is begun with: activities over a store.

Each is one transaction that may be repeated, so a local attempt and its regular fallback, or two
attempts of a workflow task, leave the same rows.
"""

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic_ai.messages import ModelMessage
from temporalio import activity
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from activities.errors import as_application_error
from stores.conversation_records import (
    ConversationKind,
    ConversationRecord,
    ConversationSpec,
    SubmittedMessage,
    TurnRecord,
    VariantRecord,
    VariantStatus,
)
from stores.conversations import ConversationName, ConversationStore
from stores.errors import ConversationNotFoundError, StoreError
from stores.identifiers import DEFAULT_WORKSPACE
from stores.protocols import StepStore
from stores.turn_histories import history_before, text_of_run

Result = TypeVar("Result")

_LOGGER = logging.getLogger(__name__)


class _Request(BaseModel):
    """Which conversation; all requests are frozen: recorded histories hold them."""

    model_config = ConfigDict(frozen=True)

    conversation_id: str
    workspace_id: str = DEFAULT_WORKSPACE


class ConversationBeginning(BaseModel):
    """How a conversation is begun; `settings` is JSON."""

    agent: str
    kind: ConversationKind = "main"
    max_turns: int = 20
    max_tokens: int | None = None
    principal: str | None = None
    settings: str = "{}"


class OpenConversationRequest(_Request):
    """`begin`: what to begin it with where it does not exist."""

    begin: ConversationBeginning | None = None


class AnswerHandle(BaseModel):
    """One answer that was asked for: ids and a place, no text."""

    position: int
    number: int
    order: int
    run_id: str
    message_id: str
    turn_public_id: str
    variant_public_id: str
    asked_at: datetime
    principal: str | None = None
    status: VariantStatus = "pending"


class OpenConversationResult(BaseModel):
    """The head's facts, and the answers that have not ended."""

    settings: str
    agent: str
    next_order: int
    queue: list[AnswerHandle] = []


class AdmitMessageRequest(_Request):
    """A message to a conversation.

    `intent`: a new turn, another answer to the turn at `position`, what was said to the run of
    `position` and `number`, or nothing but a look whether the message is known.
    """

    message_id: str
    text: str
    intent: Literal["turn", "regenerate", "steer", "look"] = "turn"
    principal: str | None = None
    position: int = 0
    number: int = 0


class AdmitMessageResult(BaseModel):
    """The answer that the message led to; `None`: a look found nothing."""

    answer: AnswerHandle | None = None
    is_new: bool = False


class BeginTurnRequest(_Request):
    """The place of the answer that a run is to give, and the window."""

    position: int
    number: int
    max_turns: int
    max_tokens: int | None = None


class BeginTurnResult(BaseModel):
    """What the run is begun with."""

    prompt: str
    messages: list[ModelMessage] = []
    path_revision: int = 0


class FinishTurnRequest(_Request):
    """How the run of an answer ended."""

    position: int
    number: int
    run_id: str
    status: VariantStatus
    error: str | None = None


class FinishTurnResult(BaseModel):
    """Nothing of what was said: histories keep it."""

    status: VariantStatus


class ChangeConversationRequest(_Request):
    """One change by a member or a policy; which fields count depends on `change`."""

    change: Literal["select", "hide", "conceal", "rename", "archive", "close"]
    position: int = 0
    number: int = 0
    is_on: bool = True
    title: str = ""
    subtitle: str = ""
    tags: tuple[str, ...] = ()


class ForkConversationRequest(_Request):
    """Inherit the turns up to `at_position` into a new conversation."""

    at_position: int
    into: str


class ConversationChanged(BaseModel):
    """The conversation after a change."""

    conversation_id: str
    revision: int


class AwaitRunRequest(BaseModel):
    """A run that somebody else started."""

    model_config = ConfigDict(frozen=True)

    run_id: str


class AwaitRunResult(BaseModel):
    """How it ended."""

    status: VariantStatus
    error: str | None = None


class ReadConversationResult(BaseModel):
    """What the next turn would remember, and the head's facts."""

    agent: str
    public_id: str
    title: str
    turn_count: int
    messages: list[ModelMessage] = []


class ReadConversationRequest(_Request):
    """Which conversation."""


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - activities are where the clock is read


class ConversationActivities:
    """Over the worker's store; each request is answered from its own workspace."""

    def __init__(self, store: StepStore, *, now: Callable[[], datetime] = _now) -> None:
        self._store = store
        self._now = now

    @property
    def activities(self) -> list[Callable[..., object]]:
        """All of them, to be registered with a worker."""
        return [
            self.open_conversation,
            self.admit_message,
            self.begin_turn,
            self.finish_turn,
            self.change_conversation,
            self.fork_conversation,
            self.await_run,
            self.read_conversation,
        ]

    def _of(self, request: _Request) -> ConversationStore:
        return self._store.for_workspace(request.workspace_id).conversations

    @activity.defn(name="open_conversation")
    async def open_conversation(self, request: OpenConversationRequest) -> OpenConversationResult:
        """Begin the conversation or find it, with its queue."""
        begin = request.begin
        spec = ConversationSpec(**begin.model_dump()) if begin else None
        conversations = self._of(request)
        head = await _told(conversations.open(request.conversation_id, spec, now=self._now()))
        queue = await _told(conversations.list_unfinished(request.conversation_id))
        return OpenConversationResult(
            settings=head.settings,
            agent=head.agent,
            next_order=head.order_count,
            queue=[_handle(turn, variant) for turn, variant in queue],
        )

    @activity.defn(name="admit_message")
    async def admit_message(self, request: AdmitMessageRequest) -> AdmitMessageResult:
        """Journal a message; the same one again leads to the same answer."""
        conversations, conversation_id = self._of(request), request.conversation_id
        now = self._now()
        message = SubmittedMessage(
            message_id=request.message_id, text=request.text, principal=request.principal
        )
        match request.intent:
            case "look":
                found = await _told(conversations.find_message(conversation_id, message))
                if found is None:
                    return AdmitMessageResult()
                admission = found
            case "turn":
                admission = await _told(conversations.admit(conversation_id, message, now=now))
            case "regenerate":
                asked = conversations.regenerate(
                    conversation_id, request.position, message, now=now
                )
                admission = await _told(asked)
            case "steer":
                answer = (conversation_id, request.position, request.number)
                admission = await _told(conversations.add_steer(*answer, message, now=now))
        handle = _handle(admission.turn, admission.variant)
        return AdmitMessageResult(answer=handle, is_new=admission.is_new)

    @activity.defn(name="begin_turn")
    async def begin_turn(self, request: BeginTurnRequest) -> BeginTurnResult:
        """Mark the answer as running and load what its run remembers."""
        store = self._store.for_workspace(request.workspace_id)
        place = (request.conversation_id, request.position)
        turn = await _told(
            store.conversations.begin_variant(*place, request.number, now=self._now())
        )
        variant = turn.variants[0]
        messages = await _told(
            history_before(
                store,
                *place,
                path_revision=variant.path_revision,
                max_turns=request.max_turns,
                max_tokens=request.max_tokens,
            )
        )
        try:
            prompt = store.conversations.prompt_of(turn.record)
        except StoreError as error:
            raise as_application_error(error) from error
        _LOGGER.info(
            "turn %d of conversation %r: %d characters, %d messages",
            request.position,
            request.conversation_id,
            len(turn.record.prompt),
            len(messages),
        )
        return BeginTurnResult(
            prompt=prompt, messages=messages, path_revision=variant.path_revision
        )

    @activity.defn(name="finish_turn")
    async def finish_turn(self, request: FinishTurnRequest) -> FinishTurnResult:
        """Record how an answer ended, with its words as the run's snapshot has them."""
        store = self._store.for_workspace(request.workspace_id)
        text = await _told(text_of_run(store, request.run_id))
        run = await _told(store.get_run(run_id=request.run_id))  # as a rebuilt row has it
        ended = await _told(
            store.conversations.finish_variant(
                request.conversation_id,
                request.position,
                request.number,
                status=request.status,
                text=text,
                error=run.error if run else request.error,
                now=run.ended_at if run and run.ended_at else self._now(),
            )
        )
        return FinishTurnResult(status=ended.status)

    @activity.defn(name="change_conversation")
    async def change_conversation(self, request: ChangeConversationRequest) -> ConversationChanged:
        """Make one change of a member or a policy."""
        conversations, conversation_id = self._of(request), request.conversation_id
        await _told(self._change(conversations, request))
        head = await _told(conversations.find(conversation_id))
        return _changed(head, conversation_id)

    async def _change(
        self, conversations: ConversationStore, request: ChangeConversationRequest
    ) -> object:
        conversation_id, now = request.conversation_id, self._now()
        place = (conversation_id, request.position)
        match request.change:
            case "select":
                return await conversations.select_variant(*place, request.number, now=now)
            case "hide":
                return await conversations.set_visibility(*place, is_hidden=request.is_on, now=now)
            case "conceal":
                is_on = request.is_on
                return await conversations.set_visibility(*place, is_concealed=is_on, now=now)
            case "rename":
                name = ConversationName(
                    title=request.title, subtitle=request.subtitle, tags=request.tags
                )
                return await conversations.name(conversation_id, name, source="manual")
            case "archive":
                return await conversations.set_archived(conversation_id, is_archived=request.is_on)
            case "close":
                return await conversations.close(conversation_id, now=now)

    @activity.defn(name="fork_conversation")
    async def fork_conversation(self, request: ForkConversationRequest) -> ConversationChanged:
        """Make a conversation that inherits turns of this one."""
        forking = self._of(request).fork(
            request.conversation_id,
            at_position=request.at_position,
            into=request.into,
            now=self._now(),
        )
        return _changed(await _told(forking), request.into)

    @activity.defn(name="await_run")
    async def await_run(self, request: AwaitRunRequest) -> AwaitRunResult:
        """Wait for a turn's run that an earlier execution of the conversation started."""
        handle = activity.client().get_workflow_handle(request.run_id)
        try:
            await handle.result()
        except WorkflowFailureError as error:
            cause = error.cause
            if isinstance(cause, CancelledError):
                return AwaitRunResult(status="cancelled")
            return AwaitRunResult(status="failed", error=str(cause))
        return AwaitRunResult(status="completed")

    @activity.defn(name="read_conversation")
    async def read_conversation(self, request: ReadConversationRequest) -> ReadConversationResult:
        """Read what the next turn would remember, without a bound of its own. Writes nothing."""
        store = self._store.for_workspace(request.workspace_id)
        head = await _told(store.conversations.find(request.conversation_id))
        if head is None:
            problem = "this workspace has no such conversation"
            raise as_application_error(ConversationNotFoundError(request.conversation_id, problem))
        messages = await _told(
            history_before(
                store,
                request.conversation_id,
                head.turn_count,
                path_revision=head.path_revision,
                max_turns=head.max_turns + 1,
                max_tokens=head.max_tokens,
            )
        )
        return ReadConversationResult(
            agent=head.agent,
            public_id=head.public_id,
            title=head.title,
            turn_count=head.turn_count,
            messages=messages,
        )


async def _told(asking: Awaitable[Result]) -> Result:
    """What the store answers; its errors as Temporal sees them."""
    try:
        return await asking
    except StoreError as error:
        raise as_application_error(error) from error


def _handle(turn: TurnRecord, variant: VariantRecord) -> AnswerHandle:
    return AnswerHandle(
        position=turn.position,
        number=variant.number,
        order=variant.order,
        run_id=variant.run_id,
        message_id=turn.message_id,
        turn_public_id=turn.public_id,
        variant_public_id=variant.public_id,
        asked_at=variant.created_at,
        principal=turn.principal,
        status=variant.status,
    )


def _changed(head: ConversationRecord | None, conversation_id: str) -> ConversationChanged:
    return ConversationChanged(
        conversation_id=conversation_id, revision=head.revision if head else 0
    )
