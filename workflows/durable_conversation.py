"""A conversation as an application holds it: for clients of Temporal, never in workflow code."""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage
from temporalio.client import (
    ActivityFailureError,
    Client,
    WithStartWorkflowOperation,
    WorkflowFailureError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.conversations import (
    ConversationChanged,
    ReadConversationRequest,
    ReadConversationResult,
)
from activities.history import LoadHistoryRequest, LoadHistoryResult
from stores.errors import StoreUnavailableError
from stores.following import StreamEvent
from stores.identifiers import DEFAULT_WORKSPACE
from stores.protocols import StepStore
from workflows import names
from workflows.agent_run_models import AgentRunOutput
from workflows.conversation_models import (
    ArchiveRequest,
    ConversationInput,
    ConversationSettings,
    ForkRequest,
    RegenerateRequest,
    RenameRequest,
    SayRequest,
    SelectVariantRequest,
    Ticket,
    TurnCancelled,
    VisibilityRequest,
    conversation_workflow_id,
)
from workflows.conversation_refusals import failure, is_aborted, refusal
from workflows.fairness import priority_of
from workflows.live_reply import HeldReply, live_events
from workflows.results import RunResult, Step

Answer = TypeVar("Answer", bound=BaseModel)

_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5
"""Between looks at a run that is still to begin."""

_REPEAT_AFTER = 20
"""Looks for a run that does not begin, until its message is said again: who had it may be gone."""

_MOST_REPEATS = 20
"""Of an update whose workflow closed meanwhile."""

_READ_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, kw_only=True)
class TurnResult:
    """What a turn used, and the history of the next one."""

    usage: RunUsage
    messages: list[ModelMessage]

    def all_messages(self) -> list[ModelMessage]:
        """The history with this turn, as far as the window holds it."""
        return self.messages


@dataclass(kw_only=True)
class DurableConversation:
    """The surface of `Conversation`, with turns that run in the workflow `conversation`.

    `history` is what the next turn remembers; it is read after each turn, and by `refresh`.
    """

    client: Client
    conversation_id: str
    settings: ConversationSettings
    workspace_id: str = DEFAULT_WORKSPACE
    principal: str | None = None
    task_queue: str = names.TASK_QUEUE
    store: StepStore | None = None
    priority: Priority | None = None
    history: list[ModelMessage] = field(default_factory=list[ModelMessage])

    @classmethod
    def connect(
        cls,
        client: Client,
        *,
        agent: str,
        conversation_id: str,
        workspace_id: str = DEFAULT_WORKSPACE,
        max_turns: int = 20,
        principal: str | None = None,
        task_queue: str = names.TASK_QUEUE,
        store: StepStore | None = None,
        priority: Priority | None = None,
        **settings: Any,  # noqa: ANN401 - fields of ConversationSettings
    ) -> "DurableConversation":
        """The conversation of that id; it begins with the first message. Sends nothing.

        One that exists keeps the settings with which it was begun.

        Args:
            client: connected as worker and CLI are (`client.connect`).
            agent: its name, which a worker has to serve.
            conversation_id: unique in its workspace.
            workspace_id: set by the trusted submitter.
            max_turns: how far the model may look back.
            principal: who talks.
            task_queue: that workers poll.
            store: the workers' one, to read text as it is generated; without it `stream` gives a
                reply whole, and `follow` nothing. Whoever opened it closes it.
            priority: see `workflows.fairness.priority_of`; by default a share like any workspace's.
            settings: more fields of `ConversationSettings`.

        Raises:
            ValueError: a setting does not fit, such as `max_turns` below 1.
            InvalidIdentifierError: an id is malformed.
        """
        held = ConversationSettings(agent=agent, max_turns=max_turns, **settings)
        ConversationInput(conversation_id=conversation_id, workspace_id=workspace_id)
        return cls(
            client=client,
            conversation_id=conversation_id,
            settings=held,
            workspace_id=workspace_id,
            principal=principal,
            task_queue=task_queue,
            store=store and store.for_workspace(workspace_id),
            priority=priority,
        )

    # Turns

    async def say(self, text: str, *, message_id: str | None = None) -> RunResult[Any]:
        """Send a message and wait for the whole reply.

        Repeats: the same message id gives the same reply, also after the workflow ended.

        Raises:
            ValueError: the text is empty.
            ConversationRefusedError: it was not taken.
            TurnFailedError: its run ended without an answer.
        """
        return await self.reply(text, await self.submit(text, message_id=message_id))

    async def stream(self, text: str, *, message_id: str | None = None) -> AsyncGenerator[str]:
        """Send a message and yield the reply in the pieces in which the model gave it.

        Only what counts is yielded, so it comes when the reply is whole: the pieces add up to it,
        always. Whoever can take text back reads it while it comes, with `follow`. Raises what `say`
        raises.
        """
        ticket = await self.submit(text, message_id=message_id)
        held = HeldReply()
        if self.store is not None:
            try:
                async with aclosing(self.follow(text, ticket)) as events:
                    async for event in events:
                        held.take(event)
            except StoreUnavailableError:  # the answer comes by way of Temporal
                held = HeldReply()
        result = await self.reply(text, ticket)
        for delta in held.chunks(str(result.output)):
            yield delta

    async def follow(self, text: str, ticket: Ticket) -> AsyncGenerator[StreamEvent]:
        """What the run that a ticket names says and does while it does (docs/streaming.md).

        Ends with the run, however that one ends; `reply` tells.

        Raises:
            RuntimeError: the conversation was connected without a store.
            StoreUnavailableError: MongoDB is away; the run goes on.
        """
        if self.store is None:
            message = "to follow a turn, connect the conversation with store="
            raise RuntimeError(message)
        ended = asyncio.create_task(self.output(text, ticket))
        try:
            events = live_events(self.store, ticket.answer.run_id, ended)
            async with aclosing(events):
                async for event in events:
                    yield event
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def submit(self, text: str, *, message_id: str | None = None) -> Ticket:
        """Have a message journaled; the ticket says which run answers it."""
        request = SayRequest(
            text=_checked(text),
            message_id=message_id or _fresh_id(),
            principal=self.principal,
        )
        return await self._update(names.SAY_UPDATE, request, Ticket, begins=True)

    async def reply(self, text: str, ticket: Ticket) -> RunResult[Any]:
        """Wait for the answer that a ticket promises, and remember it."""
        output = await self.output(text, ticket)
        request = LoadHistoryRequest(
            run_id=output.run_id, workspace_id=self.workspace_id, accept_unresolved=True
        )
        self.history = (await self._read("load_history", request, LoadHistoryResult)).messages
        result = TurnResult(usage=output.usage, messages=self.history)
        step = Step(agent=self.settings.agent, result=result)
        return RunResult(output=output.output, steps=(step,))

    async def steer(self, text: str, *, message_id: str | None = None) -> Ticket:
        """Say something to the run in progress, before its next model request."""
        request = SayRequest(
            text=_checked(text),
            message_id=message_id or _fresh_id(),
            principal=self.principal,
        )
        return await self._update(names.STEER_UPDATE, request, Ticket)

    async def regenerate(self, position: int, *, message_id: str | None = None) -> Ticket:
        """Ask for another answer to a turn; it counts when it is selected."""
        request = RegenerateRequest(
            position=position, message_id=message_id or _fresh_id(), principal=self.principal
        )
        return await self._update(names.REGENERATE_UPDATE, request, Ticket)

    async def cancel(self) -> TurnCancelled:
        """Cancel the turn in progress."""
        return await self._update(names.CANCEL_TURN_UPDATE, None, TurnCancelled)

    # Changes

    async def select_variant(self, position: int, number: int) -> ConversationChanged:
        """Make another answer to a turn the one that is read and remembered."""
        request = SelectVariantRequest(position=position, number=number)
        return await self._update(names.SELECT_VARIANT_UPDATE, request, ConversationChanged)

    async def hide(self, position: int, *, is_on: bool = True) -> ConversationChanged:
        """Hide a turn, or show it again."""
        request = VisibilityRequest(position=position, is_on=is_on)
        return await self._update(names.HIDE_UPDATE, request, ConversationChanged)

    async def conceal(self, position: int, *, is_on: bool = True) -> ConversationChanged:
        """Conceal a turn by policy, or show it again."""
        request = VisibilityRequest(position=position, is_on=is_on)
        return await self._update(names.CONCEAL_UPDATE, request, ConversationChanged)

    async def rename(
        self, title: str, *, subtitle: str = "", tags: tuple[str, ...] = ()
    ) -> ConversationChanged:
        """Name the conversation by hand."""
        request = RenameRequest(title=title, subtitle=subtitle, tags=tags)
        return await self._update(names.RENAME_UPDATE, request, ConversationChanged)

    async def archive(self, *, is_on: bool = True) -> ConversationChanged:
        """Put the conversation away, or take it out again."""
        request = ArchiveRequest(is_on=is_on)
        return await self._update(names.ARCHIVE_UPDATE, request, ConversationChanged)

    async def fork(self, at_position: int, *, into: str) -> "DurableConversation":
        """A new conversation that inherits the turns up to one, by reference."""
        request = ForkRequest(at_position=at_position, into=into)
        await self._update(names.FORK_UPDATE, request, ConversationChanged)
        forked = DurableConversation(
            client=self.client,
            conversation_id=into,
            settings=self.settings,
            workspace_id=self.workspace_id,
            principal=self.principal,
            task_queue=self.task_queue,
            store=self.store,
        )
        await forked.refresh()
        return forked

    async def close(self) -> ConversationChanged:
        """End the conversation; what waits is answered still."""
        return await self._update(names.CLOSE_UPDATE, None, ConversationChanged)

    async def refresh(self) -> None:
        """Read the history: what the next turn remembers.

        Raises:
            ConversationRefusedError: this workspace has no such conversation.
        """
        request = ReadConversationRequest(
            conversation_id=self.conversation_id, workspace_id=self.workspace_id
        )
        read = await self._read("read_conversation", request, ReadConversationResult)
        self.history = read.messages

    # What they have in common

    @property
    def workflow_id(self) -> str:
        """Of the conversation's workflow."""
        return conversation_workflow_id(self.workspace_id, self.conversation_id)

    async def _read(self, name: str, request: BaseModel, answer: type[Answer]) -> Answer:
        """Have a worker read the store; nothing of it stays in a history."""
        try:
            result: Answer = await self.client.execute_activity(
                name,
                request,
                id=f"read-{_fresh_id()}",
                task_queue=self.task_queue,
                result_type=answer,
                start_to_close_timeout=_READ_TIMEOUT,
            )
        except ActivityFailureError as error:
            raise refusal(error.cause) from error
        return result

    async def _update(
        self, name: str, request: BaseModel | None, answer: type[Answer], *, begins: bool = False
    ) -> Answer:
        """Send an update, with a workflow for it; again where a closing workflow aborted it."""
        update_id = _update_id(name, request)
        for _ in range(_MOST_REPEATS):
            started: WithStartWorkflowOperation[Any, Any] = WithStartWorkflowOperation(
                names.CONVERSATION,
                ConversationInput(
                    conversation_id=self.conversation_id,
                    workspace_id=self.workspace_id,
                    principal=self.principal,
                    settings=self.settings if begins else None,
                ),
                id=self.workflow_id,
                task_queue=self.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                priority=self.priority or priority_of(self.workspace_id),
            )
            arguments = [] if request is None else [request]
            try:
                result: Answer = await self.client.execute_update_with_start_workflow(  # pyright: ignore[reportUnknownMemberType] - the SDK's overloads
                    name,
                    args=arguments,
                    start_workflow_operation=started,
                    id=update_id,
                    result_type=answer,
                )
            except WorkflowUpdateFailedError as error:
                if not is_aborted(error.cause):
                    raise refusal(error.cause) from error
            except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
                if isinstance(error.__cause__, asyncio.CancelledError):
                    raise asyncio.CancelledError from error  # the SDK's word for the caller's own
                if not is_aborted(error):
                    raise
            else:
                return result
            await asyncio.sleep(_FIRST_PAUSE_SECONDS)  # noqa: TID251 - a client
        message = (
            f"conversation {self.conversation_id!r} ended {_MOST_REPEATS} times under {name!r}"
        )
        raise refusal(ApplicationError(message, type="ConversationClosingError"))

    async def output(self, text: str, ticket: Ticket) -> AgentRunOutput:
        """How the run that a ticket names ended; raises what `say` raises."""
        run_id = ticket.answer.run_id
        handle = self.client.get_workflow_handle(run_id, result_type=AgentRunOutput)
        pause, looks = _FIRST_PAUSE_SECONDS, 0
        while True:  # ends: when the run has
            try:
                output: AgentRunOutput = await handle.result()
            except WorkflowFailureError as error:
                raise failure(run_id, error.cause) from error
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
            else:
                return output
            await asyncio.sleep(pause)  # noqa: TID251 - a client
            pause, looks = min(2 * pause, _LONGEST_PAUSE_SECONDS), looks + 1
            if looks % _REPEAT_AFTER == 0:
                await self.submit(text, message_id=ticket.answer.message_id)


def _checked(text: str) -> str:
    if not text.strip():
        message = "a message to a conversation is empty; say something"
        raise ValueError(message)
    return text


def _fresh_id() -> str:
    return str(uuid.uuid4())  # noqa: TID251 - a client


def _update_id(name: str, request: BaseModel | None) -> str:
    """The same for the same message and text: the server then knows a repeat by itself."""
    if not isinstance(request, SayRequest | RegenerateRequest):
        return _fresh_id()
    return hashlib.sha256(f"{name} {request.model_dump_json()}".encode()).hexdigest()
