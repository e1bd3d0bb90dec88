"""`perdure gc`: remove stored messages, media and payloads that nothing refers to any more."""

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import asking, current_settings, describing_client, opened_mongodb
from cli.failures import UnreachableError, WrongUsageError
from cli.options import AsJson
from cli.output import note, print_json, print_text

if TYPE_CHECKING:
    from settings import Settings
    from stores.mongo.chunk_sweeping import ChunkSweep
    from stores.mongo.steps import MongoStepStore
    from stores.mongo.sweeping import Sweep
    from stores.retention_policies import Retained

BETWEEN_NOTES = timedelta(seconds=2)

SHORTEST_GRACE = timedelta(hours=1)
"""Far longer than any commit takes."""

LONGEST_GRACE = timedelta(days=36500)

_UNITS = ("KB", "MB", "GB")
_THOUSAND = 1000


def gc_command(
    *,
    delete: Annotated[
        bool, typer.Option("--delete/--dry-run", help="Remove them; without it, only say what.")
    ] = False,
    grace_days: Annotated[
        float,
        typer.Option(
            help="Keep what was written, pruned or ended within so many days: more than Temporal's "
            "retention, until whose end a run can be reset.",
        ),
    ] = 30,
    details_days: Annotated[
        float | None,
        typer.Option(
            help="Also remove events and effects of runs that ended so many days ago; what they "
            "said stays. By default they are kept."
        ),
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option(envvar="PERDURE_WORKSPACE", help="Only of this tenant; all by default."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove what is stored and nothing refers to: messages, media, payloads.

    Pruned snapshots leave messages behind, and messages that were replaced. Media that only such
    messages name go with them, and are not counted before; media on disk or in S3 stay. Payloads
    go when Temporal knows their workflow no more; it is asked, and with --workspace they are left
    alone. Workers may go on meanwhile. For MongoDB alone.
    """
    grace = _grace(grace_days)
    pruned = None
    if details_days is not None:
        age = _grace(details_days, "--details-days")
        pruned = asyncio.run(_prune(current_settings(), workspace, age=age, is_dry=not delete))
    swept, payloads = asyncio.run(
        _sweep(current_settings(), workspace, grace=grace, is_dry=not delete)
    )
    if as_json:
        told = {"grace_days": grace_days, "workspace_id": workspace}
        beside = None if payloads is None else asdict(payloads)
        details = None
        if pruned is not None:
            details = {"runs": pruned.detailed, "rows": pruned.rows, "open": pruned.unresolved}
        print_json({**asdict(swept), **told, "payloads": beside, "details": details})
        return
    verb = "would remove" if swept.is_dry else "removed"
    print_text(
        f"{verb} {swept.messages} messages ({size(swept.size_bytes)}) and {swept.positions} "
        f"positions of logs; looked at {swept.looked_at} messages"
    )
    if swept.media:
        print_text(f"{verb} {swept.media} media ({size(swept.media_size_bytes)})")
    if payloads is not None and (payloads.workflows or payloads.chunks):
        print_text(
            f"{verb} {payloads.chunks} chunks of payloads ({size(payloads.size_bytes)}) and "
            f"{payloads.manifests} manifests; looked at {payloads.workflows} workflows"
        )
    if pruned is not None:
        rows = "" if pruned.is_dry else f": {pruned.rows} rows"
        print_text(f"{verb} the details of {pruned.detailed} runs{rows}")
    found = swept.messages + swept.positions + swept.media + (payloads.chunks if payloads else 0)
    found += pruned.detailed if pruned else 0
    if swept.is_dry and found:
        note("Nothing was touched: the same command with --delete removes them.")


async def _prune(
    settings: "Settings", workspace: str | None, *, age: timedelta, is_dry: bool
) -> "Retained":
    now = datetime.now(UTC)  # noqa: TID251 - the command line has no other clock
    async with opened_mongodb(settings) as store:
        bound = store if workspace is None else store.for_workspace(workspace)
        await bound.verify()
        return await bound.prune_details(
            age=age, now=now, is_dry=is_dry, all_workspaces=workspace is None
        )


def _grace(days: float, option: str = "--grace-days") -> timedelta:
    shortest, longest = (each / timedelta(days=1) for each in (SHORTEST_GRACE, LONGEST_GRACE))
    if not shortest <= days <= longest:
        message = f"{option} {days:g} is out of range; pass an hour (0.042) to {longest:.0f} days"
        raise WrongUsageError(message)
    return timedelta(days=days)


async def _sweep(
    settings: "Settings", workspace: str | None, *, grace: timedelta, is_dry: bool
) -> "tuple[Sweep, ChunkSweep | None]":
    async with opened_mongodb(settings) as store:
        bound = store if workspace is None else store.for_workspace(workspace)
        await bound.verify()  # without its indexes, each page would read whole collections
        swept = await bound.sweep(
            grace=grace, is_dry=is_dry, all_workspaces=workspace is None, tell=_Teller()
        )
        if workspace is not None:
            return swept, None
        return swept, await _sweep_payloads(settings, store, grace=grace, is_dry=is_dry)


async def _sweep_payloads(
    settings: "Settings", store: "MongoStepStore", *, grace: timedelta, is_dry: bool
) -> "ChunkSweep | None":
    """What went; `None` where Temporal cannot be asked, without which nothing may."""
    from retaining import is_known  # noqa: PLC0415

    client = await describing_client(settings)

    async def is_needed(workflow_id: str) -> bool:
        async with asking(client):
            return await is_known(client, workflow_id)

    try:
        return await store.sweep_payloads(
            grace=grace, namespace=client.namespace, is_needed=is_needed, is_dry=is_dry
        )
    except UnreachableError as error:
        note(f"Payloads were left alone: {error}")
        return None


class _Teller:
    """Notes how far a sweep has come, every now and then."""

    def __init__(self) -> None:
        self._next_at = monotonic() + BETWEEN_NOTES.total_seconds()

    def __call__(self, swept: "Sweep") -> None:
        """Hear of a page."""
        if monotonic() < self._next_at:
            return
        self._next_at = monotonic() + BETWEEN_NOTES.total_seconds()
        note(
            f"looked at {swept.looked_at} of about {swept.stored} messages: {swept.messages} "
            f"({size(swept.size_bytes)}) and {swept.positions} positions are needed no more"
        )


def size(size_bytes: int) -> str:
    """Bytes in a unit that a person reads at a glance."""
    if size_bytes < _THOUSAND:
        return f"{size_bytes} B"
    amount, unit = size_bytes / _THOUSAND, _UNITS[0]
    for larger in _UNITS[1:]:
        if amount >= _THOUSAND:
            amount, unit = amount / _THOUSAND, larger
    return f"{amount:.1f} {unit}"
