"""`perdure erase`: remove a conversation or a workspace with all that was kept of it."""

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import connected_client, current_settings, opened_mongodb
from cli.failures import WrongUsageError
from cli.options import AsJson, Workspace
from cli.output import moment, note, print_json, print_text

if TYPE_CHECKING:
    from settings import Settings
    from stores.erasing import Erasure, Receipt

WORKERS_STOPPED = timedelta(0)


def erase_command(
    *,
    conversation: Annotated[
        str | None,
        typer.Argument(metavar="[CONVERSATION]", help="Its id.", show_default=False),
    ] = None,
    whole_workspace: Annotated[
        bool, typer.Option("--whole-workspace", help="Everything of the tenant --workspace.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete/--dry-run", help="Erase it; without it, only say what it is.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel what is still open, instead of refusing.")
    ] = False,
    keep_inherited: Annotated[
        bool, typer.Option("--keep-inherited", help="Keep for forks what they inherited.")
    ] = False,
    workers_stopped: Annotated[
        bool,
        typer.Option(
            "--workers-stopped",
            help="No worker runs: media and payloads of the last hour go, too.",
        ),
    ] = False,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Erase a conversation or a workspace, in MongoDB, its media and Temporal.

    May be stopped and begun again. Leaves a receipt that says what was removed, by kind and count.
    """
    from stores.erasing import Erasure  # noqa: PLC0415

    if (conversation is None) != whole_workspace:
        message = "name a conversation, or say --whole-workspace; not both"
        raise WrongUsageError(message)
    erasure = Erasure(conversation_id=conversation, keeps_inherited=keep_inherited)
    receipt = asyncio.run(
        erased(
            current_settings(),
            workspace,
            erasure,
            cancels=cancel,
            is_dry=not delete,
            grace=WORKERS_STOPPED if workers_stopped else None,
        )
    )
    what = f"{erasure.kind} {conversation or workspace}"
    if receipt is None:
        print_text(f"would erase {what}")
        note("Nothing was touched: the same command with --delete erases it.")
        return
    if as_json:
        print_json(asdict(receipt))
        return
    print_text(f"erased {what}, since {moment(receipt.begun_at)}")
    for name, count in sorted(receipt.counts.items()):
        print_text(f"  {name}: {count}")
    if receipt.counts.get("executions"):
        note("Temporal deletes executions by and by: what has just ended, in a minute or two.")
    if receipt.pending:
        left = ", ".join(f"{count} {name}" for name, count in receipt.pending.items())
        note(
            f"Nothing names {left} any more; they are younger than an hour, and a worker may be "
            "about to. Repeat the command in an hour, or with --workers-stopped."
        )


async def erased(
    settings: "Settings",
    workspace: str,
    erasure: "Erasure",
    *,
    cancels: bool,
    is_dry: bool,
    grace: timedelta | None = None,
) -> "Receipt | None":
    """The receipt; `None` of a dry run, which only looks whether it may be erased."""
    from cli.executions_removal import ExecutionsRemoval  # noqa: PLC0415
    from stores.mongo.erasing import SHORTEST_GRACE  # noqa: PLC0415
    from workflows.conversation_models import conversation_workflow_id  # noqa: PLC0415

    client = await connected_client(settings)
    removal = ExecutionsRemoval(client, cancels=cancels)
    async with opened_mongodb(settings) as opened:
        store = opened.for_workspace(workspace)
        await store.verify()
        eraser = store.eraser(
            namespace=client.namespace,
            before=removal,
            workflow_of=conversation_workflow_id,
            grace=SHORTEST_GRACE if grace is None else grace,
        )
        await eraser.check(erasure)
        if is_dry:
            return None
        if erasure.conversation_id is not None:
            await removal.end([conversation_workflow_id(workspace, erasure.conversation_id)])
        await removal.end(await eraser.open_runs(erasure))
        now = datetime.now(UTC)  # noqa: TID251 - the command line has no other clock
        return await eraser.erase(erasure, now=now)
