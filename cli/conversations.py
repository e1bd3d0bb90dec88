"""Commands about conversations: list, rebuild, delete."""

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cli.connections import current_settings, opened_store
from cli.erasing import erased
from cli.options import AsJson, Workspace
from cli.output import moment, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from settings import Settings
    from stores.conversation_records import ConversationRecord, RemovedConversation
    from stores.erasing import Receipt
    from stores.rebuilding import Rebuilt

ConversationId = Annotated[
    str, typer.Argument(metavar="CONVERSATION", help="Its id.", show_default=False)
]


def conversations_command(
    *,
    query: Annotated[
        str, typer.Option(help="Only with this in their names, prompts or replies.")
    ] = "",
    archived: Annotated[
        Literal["exclude", "include", "only"], typer.Option(help="Whether archived ones are shown.")
    ] = "exclude",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most conversations.")] = 50,
    offset: Annotated[int, typer.Option(min=0, help="How many are passed over.")] = 0,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """List conversations, newest activity first."""

    async def listed(settings: "Settings") -> "list[ConversationRecord]":
        async with opened_store(settings, workspace) as store:
            return await store.conversations.listing(
                query, archived=archived, limit=limit, offset=offset
            )

    found = asyncio.run(listed(current_settings()))
    if as_json:
        print_json({"conversations": [asdict(each) for each in found]})
        return
    if not found:
        note(f"No such conversation in workspace {workspace!r}.")
        return
    print_table(
        ("conversation", "title", "agent", "turns", "state", "last activity"),
        [
            (
                *(each.conversation_id, each.title, each.agent, each.turn_count),
                "archived" if each.is_archived else each.state,
                moment(each.updated_at),
            )
            for each in found
        ],
    )


def rebuild_command(
    *, conversation: ConversationId, workspace: Workspace = "default", as_json: AsJson = False
) -> None:
    """Make the turns of a conversation again from its runs and their snapshots.

    What members chose (the answer that counts, what is hidden, the name) stays as it is.
    """

    async def rebuilt(settings: "Settings") -> "Rebuilt":
        from stores.rebuilding import rebuild_conversation  # noqa: PLC0415

        now = datetime.now(UTC)  # noqa: TID251 - the command line has no other clock
        async with opened_store(settings, workspace) as store:
            return await rebuild_conversation(store, conversation, now=now)

    done = asyncio.run(rebuilt(current_settings()))
    if as_json:
        print_json(asdict(done))
        return
    print_text(
        f"{done.turns} turns with {done.variants} answers come from runs; "
        f"{done.changed_rows} rows were not as they say, and are now"
    )


def delete_conversation_command(
    *,
    conversation: ConversationId,
    turn: Annotated[
        int | None,
        typer.Option(min=0, help="Only this turn, counted from 0.", show_default=False),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete/--dry-run", help="Delete it; without it, only say what it is.")
    ] = False,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Delete a conversation with its runs and all that nothing else refers to.

    A turn in progress is cancelled first. Turns that forks have inherited stay for them; `erase`
    asks about those. What Temporal has of it goes as well. With --turn only what was said in that
    turn goes: its place stays, in forks, too, and the histories of later runs say that it was
    deleted.
    """
    from stores.erasing import Erasure  # noqa: PLC0415

    settings = current_settings()
    head = asyncio.run(_known(settings, workspace, conversation))
    what = conversation if turn is None else f"turn {turn} of {conversation}"
    if not delete:
        print_text(f"would delete {what}: {head.turn_count} turns with agent {head.agent}")
        note("Nothing was touched: the same command with --delete removes it.")
        return
    erasure = Erasure(conversation_id=conversation, keeps_inherited=True)
    removed: Receipt | RemovedConversation | None
    if turn is None:
        removed = asyncio.run(erased(settings, workspace, erasure, cancels=True, is_dry=False))
    else:
        removed = asyncio.run(_delete_turn(settings, workspace, conversation, turn))
    if removed is None:
        return
    if as_json:
        print_json(asdict(removed))
        return
    print_text(f"deleted {what}")
    for name, count in sorted(removed.counts.items()):
        print_text(f"  {name}: {count}")


async def _known(settings: "Settings", workspace: str, conversation: str) -> "ConversationRecord":
    from stores.errors import ConversationNotFoundError  # noqa: PLC0415

    async with opened_store(settings, workspace) as store:
        head = await store.conversations.find(conversation)
    if head is None:
        problem = f"workspace {workspace!r} has no such conversation"
        raise ConversationNotFoundError(conversation, problem)
    return head


async def _delete_turn(
    settings: "Settings", workspace: str, conversation: str, turn: int
) -> "RemovedConversation":
    now = datetime.now(UTC)  # noqa: TID251 - the command line has no other clock
    async with opened_store(settings, workspace) as store:
        return await store.conversations.delete_turn(conversation, turn, now=now)
