"""`perdure chat`: a conversation with an agent, line by line."""

import asyncio
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import current_settings, opened_store, submitting_client
from cli.failures import CommandError
from cli.options import Workspace
from cli.output import note, print_text
from cli.turns import TurnDisplay, read_line

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

    from stores.protocols import StepStore
    from workflows.durable_conversation import DurableConversation


def chat_command(
    *,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Its name.", show_default=False)],
    conversation_id: Annotated[
        str | None,
        typer.Option("--conversation-id", help="One to go on with, or to begin under this id."),
    ] = None,
    max_turns: Annotated[
        int, typer.Option(min=1, help="How many turns the model gets to see, in a new one.")
    ] = 20,
    principal: Annotated[str | None, typer.Option(help="Who talks.")] = None,
    workspace: Workspace = "default",
) -> None:
    """Talk to an agent: a line is a message, and the end of the input ends the command.

    Text is shown while it comes, with the tools that are called; a call that needs an approval is
    asked about. The conversation goes on by itself and can be taken up again under its id.
    """
    asyncio.run(_chat(agent, conversation_id, max_turns, principal, workspace))


async def _chat(
    agent: str,
    conversation_id: str | None,
    max_turns: int,
    principal: str | None,
    workspace: str,
) -> None:
    from cli.submit import fresh_run_id  # noqa: PLC0415
    from workflows.conversation_models import TURN_LIMITS  # noqa: PLC0415
    from workflows.conversation_refusals import ConversationRefusedError  # noqa: PLC0415
    from workflows.durable_conversation import DurableConversation  # noqa: PLC0415
    from workflows.fairness import priority_of  # noqa: PLC0415

    settings = current_settings()
    async with submitting_client(settings) as client, opened_store(settings, workspace) as store:
        conversation = DurableConversation.connect(
            client,
            agent=agent,
            conversation_id=conversation_id or fresh_run_id(agent),
            workspace_id=workspace,
            max_turns=max_turns,
            principal=principal,
            task_queue=settings.task_queue,
            store=store,
            priority=priority_of(
                workspace, priority=settings.priority, weights=settings.fairness_weights
            ),
            usage_limits=replace(TURN_LIMITS, cost_limit=settings.cost_limit),
        )
        display = TurnDisplay(conversation, store, by=principal)
        note(f"Conversation {conversation.conversation_id}. End with Ctrl-D.")
        if conversation_id is not None:
            try:
                await conversation.refresh()
            except ConversationRefusedError:
                note("It is new.")
            else:
                _show(conversation.history)
                await _go_on(conversation, store, display)
        while line := await asyncio.to_thread(read_line, "> "):
            if line.strip():
                await _answer(conversation, display, line.strip())
    note(f"Go on with: perdure chat {agent} --conversation-id {conversation.conversation_id}")


async def _go_on(
    conversation: "DurableConversation", store: "StepStore", display: TurnDisplay
) -> None:
    """Show the turns that are still to be answered; one may wait for an approval."""
    open_turns = await store.conversations.list_unfinished(conversation.conversation_id)
    for turn, variant in open_turns:
        if variant.number == 1:  # the answer to the message, which can be asked for again
            print_text(f"> {turn.prompt}")
            await _answer(conversation, display, turn.prompt, message_id=turn.message_id)


async def _answer(
    conversation: "DurableConversation",
    display: TurnDisplay,
    line: str,
    *,
    message_id: str | None = None,
) -> None:
    """Say the line and show the answer; what is refused is said and ends nothing."""
    from workflows.conversation_refusals import (  # noqa: PLC0415
        ConversationRefusedError,
        TurnFailedError,
    )

    try:
        await display.show(line, await conversation.submit(line, message_id=message_id))
    except (ConversationRefusedError, TurnFailedError) as error:
        if not sys.stdin.isatty():
            raise CommandError(str(error)) from error
        note(str(error))


def _show(history: "list[ModelMessage]") -> None:
    """What was said so far, as far as the agent remembers it."""
    from stores.saved_conversations import spoken_text  # noqa: PLC0415

    for message in history:
        mark = "> " if message.kind == "request" else ""
        for text in spoken_text([message]):
            print_text(f"{mark}{text}")
