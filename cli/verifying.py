"""`perdure verify`: does the store tell the truth of a run?"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import connected_client, current_settings, opened_mongodb
from cli.dev import DEV_AGENTS
from cli.failures import CommandError, ExitCode, NotFoundError, WrongUsageError
from cli.histories import listed, time_before
from cli.options import AsJson, Workspace
from cli.output import note, print_json, print_text

if TYPE_CHECKING:
    from cli.verification import RunVerification, Verifier
    from settings import Settings

SHOWN_DIFFERENCES = 20
"""Of a run as text; `--json` has all."""

_UNTOLD = 2
"""Exit code where nothing is wrong, and of some run too little is left to tell."""


def verify_command(
    *,
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Id of the run.", show_default=False)
    ] = None,
    only_open: Annotated[
        bool, typer.Option("--open", help="All runs that go on, instead of one.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="All runs that ran in this time: 12h, 7d."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="With --open or --since: not more, the newest first.")
    ] = None,
    is_repairing: Annotated[
        bool,
        typer.Option("--repair", help="Write what is missing or different, as the history has it."),
    ] = False,
    as_json: AsJson = False,
    workspace: Workspace = "default",
) -> None:
    """Compare what the store holds of runs with their histories.

    Each history, over all executions of a run, is replayed on this code with the agents of
    PERDURE_AGENTS. What each commit of it holds is compared with MongoDB, and its digest with the
    one in the commit's recorded result. EXACT: all is there. GAP: something is missing. DIVERGED:
    something is otherwise. Of a run that this code does not replay the recorded digests alone are
    compared, and the answer says so. Exit code 0 when all are EXACT, 1 when one is not, 2 when of
    one too little is left to tell. Nothing is written without --repair.
    """
    if sum((run_id is not None, only_open or since is not None)) != 1:
        message = "say exactly one of RUN, and --open or --since"
        raise WrongUsageError(message)
    now = datetime.now(UTC)  # noqa: TID251 - ages are told from the present
    began = None if since is None else time_before(now, since)
    settings = current_settings()
    # The SDK logs a traceback of each history that does not replay, which is told below.
    logging.getLogger("temporalio").setLevel(logging.CRITICAL)
    found = asyncio.run(
        _verify(
            settings,
            workspace,
            run_id=run_id,
            began=began,
            only_open=only_open,
            limit=limit,
            is_repairing=is_repairing,
        )
    )
    counts: Counter[str] = Counter(str(each.verdict) for each in found)
    if as_json:
        print_json({"runs": [each.as_document() for each in found], "verdicts": dict(counts)})
    else:
        _print(found, counts, is_many=run_id is None)
    if counts["GAP"] or counts["DIVERGED"]:
        raise typer.Exit(ExitCode.FAILED)
    if counts["UNKNOWN"]:
        raise typer.Exit(_UNTOLD)


async def _verify(
    settings: "Settings",
    workspace: str,
    *,
    run_id: str | None,
    began: datetime | None,
    only_open: bool,
    limit: int | None,
    is_repairing: bool,
) -> "list[RunVerification]":
    from workflows.names import AGENT_RUN  # noqa: PLC0415

    found: list[RunVerification] = []
    async with opened_verifier(settings, workspace) as verifier:
        if run_id is not None:
            found = await verifier.verify(run_id, is_repairing=is_repairing)
            if not found:
                message = (
                    f"run {run_id!r} cannot be verified: neither workspace {workspace!r} of "
                    f"database {settings.mongodb_database!r} nor Temporal's namespace "
                    f"{settings.temporal_namespace!r} holds anything of it. `perdure runs` lists "
                    "the runs; --workspace names another workspace"
                )
                raise NotFoundError(message)
            return found
        seen: set[str] = set()
        executions = listed(
            verifier.client, types=[AGENT_RUN], since=began, only_open=only_open, limit=limit
        )
        async for each in executions:
            if each.workflow_id in seen:
                continue
            seen.add(each.workflow_id)
            found += await verifier.verify(each.workflow_id, is_repairing=is_repairing)
            if len(seen) % 100 == 0:
                note(f"{len(seen)} runs", is_dim=True)
    return found


@asynccontextmanager
async def opened_verifier(settings: "Settings", workspace: str) -> "AsyncGenerator[Verifier]":
    """A verifier over the settings' servers, with the agents of this code.

    Raises:
        CommandError: an agent cannot be loaded.
        UnreachableError: a server does not answer.
        StoreConfigurationError: what workers mask is not known here; a repair would store it.
    """
    from agents.registry import load_agents  # noqa: PLC0415
    from cli.verification import Verifier  # noqa: PLC0415
    from converter import close_payloads  # noqa: PLC0415
    from workflows.agents import AgentSetupError  # noqa: PLC0415

    try:
        agents = load_agents(settings.agent_paths or DEV_AGENTS.split(","))
    except AgentSetupError as error:
        raise CommandError(str(error)) from error
    async with opened_mongodb(settings, masks_as_workers=True) as store:
        client = await connected_client(settings)
        try:
            yield Verifier(client, store.for_workspace(workspace), agents)
        finally:
            await close_payloads(client.data_converter)


def _print(found: "list[RunVerification]", counts: Counter[str], *, is_many: bool) -> None:
    for each in found:
        if not is_many or each.verdict != "EXACT" or each.repaired:
            _print_run(each)
    if is_many:
        told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        print_text(f"{len(found)} runs: {told or 'none ran'}")


def _print_run(found: "RunVerification") -> None:
    result = found.comparison
    where = f", {found.executions} executions" if found.executions > 1 else ""
    print_text(
        f"{found.verdict}  run {found.run_id}: {result.compared} rows compared with "
        f"{_BASIS[found.basis]}{where}"
    )
    if found.why is not None:
        print_text(f"  {found.why}")
    for each in result.differences[:SHOWN_DIFFERENCES]:
        place = ", ".join(
            f"{name} {value}"
            for name, value in (("sequence", each.sequence), ("commit", each.number))
            if value is not None
        )
        print_text(f"  {each.kind}: {each.boundary} {each.key} ({place}) {each.what}")
    hidden = len(result.differences) - SHOWN_DIFFERENCES
    if hidden > 0:
        print_text(f"  and {hidden} more; --json has them all")
    if found.repaired:
        print_text(f"  repaired: {found.repaired} rows were written; this is what came of it")
    if not found.is_whole and found.executions:
        print_text("  older executions of it are gone in Temporal: nothing is said of their rows")
    for count, words in (
        (result.ahead, "rows are ahead of the history: its execution has not reported them"),
        (result.pruned, "rows were removed by retention: nothing is said of them"),
        (result.untold, "rows or commits could not be judged"),
        (result.outside, "rows were written outside the workflow: no history tells of them"),
    ):
        if count:
            print_text(f"  {count} {words}")


_BASIS = {
    "replay": "a replay on this code",
    "recorded digests": "the digests that the history holds alone",
    "rows alone": "themselves alone",
}
