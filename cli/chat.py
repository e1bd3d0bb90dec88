"""`perdure chat`: a conversation with an agent, line by line."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import connected_client, current_settings
from cli.failures import CommandError
from cli.options import Workspace
from cli.output import note, print_text, printable

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

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

    The conversation goes on by itself and can be taken up again under its id.
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
    from workflows.conversation_refusals import ConversationRefusedError  # noqa: PLC0415
    from workflows.durable_conversation import DurableConversation  # noqa: PLC0415

    settings = current_settings()
    conversation = DurableConversation.connect(
        await connected_client(settings),
        agent=agent,
        conversation_id=conversation_id or fresh_run_id(agent),
        workspace_id=workspace,
        max_turns=max_turns,
        principal=principal,
        task_queue=settings.task_queue,
    )
    note(f"Conversation {conversation.conversation_id}. End with Ctrl-D.")
    if conversation_id is not None:
        try:
            await conversation.refresh()
        except ConversationRefusedError:
            note("It is new.")
        _show(conversation.history)
    while line := await asyncio.to_thread(_read_line):
        if line.strip():
            await _answer(conversation, line.strip())
    note(f"Go on with: perdure chat {agent} --conversation-id {conversation.conversation_id}")


def _read_line() -> str:
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    return sys.stdin.readline()


async def _answer(conversation: "DurableConversation", line: str) -> None:
    """Say the line and print the reply as it comes; what is refused is said and ends nothing."""
    from workflows.conversation_refusals import (  # noqa: PLC0415
        ConversationRefusedError,
        TurnFailedError,
    )

    try:
        async for text in conversation.stream(line):
            sys.stdout.write(printable(text))
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()
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
