"""`perdure replay-check`: may this code be deployed under the runs that there are?"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import asdict
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import connected_client, current_settings
from cli.dev import DEV_AGENTS
from cli.failures import CommandError, ExitCode
from cli.histories import listed, time_before
from cli.options import AsJson
from cli.output import note, print_json, print_text

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHistory

    from cli.histories import ListedExecution
    from cli.replay_gate import Checked
    from settings import Settings

COULD_NOT_TELL = 2
"""Exit code where nothing diverged, and some history could not be checked, or none was found."""

TOLD_EVERY = 100
"""Histories, to somebody who waits."""


def replay_check_command(
    *,
    since: Annotated[
        str, typer.Option(metavar="AGE", help="Histories of runs that ran in this time.")
    ] = "7d",
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type", help="Workflow type, may be repeated; by default Perdure's.", metavar="NAME"
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Not more histories than that, the newest first.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay the histories of recent runs on this code, before it is deployed.

    Each is replayed with the worker's own converter, plugins and interceptors and the agents of
    PERDURE_AGENTS; payloads have to decode, also what activities were given, which a replay does
    not look at. Of a history that diverges the first place is told: run, step, boundary and event.
    Nothing is executed and nothing is written. Exit code 0 when all go the same way, 1 when one
    diverges, 2 when of some, or of none found, it could not be told.
    """
    now = datetime.now(UTC)  # noqa: TID251 - ages are told from the present
    after = time_before(now, since)
    settings = current_settings()
    # The SDK logs a traceback of each failure, which is told below in one line.
    logging.getLogger("temporalio").setLevel(logging.CRITICAL)
    began = monotonic()
    checked = asyncio.run(_check(settings, after=after, types=types, limit=limit))
    seconds = monotonic() - began
    counts: Counter[str] = Counter(str(each.outcome) for each in checked)
    if as_json:
        print_json(
            {
                "histories": [asdict(each) for each in checked],
                "outcomes": dict(counts),
                "seconds": round(seconds, 3),
            }
        )
    else:
        _print(checked, counts, seconds)
    if counts["diverged"]:
        raise typer.Exit(ExitCode.FAILED)
    if counts["unknown"] or not checked:
        raise typer.Exit(COULD_NOT_TELL)


async def _check(
    settings: "Settings", *, after: datetime, types: list[str] | None, limit: int | None
) -> "list[Checked]":
    from agents.registry import load_agents  # noqa: PLC0415
    from cli.replay_gate import ReplayGate  # noqa: PLC0415
    from converter import close_payloads  # noqa: PLC0415
    from workflows.agents import AgentSetupError  # noqa: PLC0415
    from workflows.names import AGENT_RUN, CONVERSATION  # noqa: PLC0415

    try:
        agents = load_agents(settings.agent_paths or DEV_AGENTS.split(","))
        client = await connected_client(settings)
        gate = ReplayGate(agents, client.data_converter, build_id=settings.build_id)
    except AgentSetupError as error:
        raise CommandError(str(error)) from error
    checked: list[Checked] = []
    try:
        found = listed(client, types=types or [AGENT_RUN, CONVERSATION], since=after, limit=limit)
        async for history in _histories(client, found, checked):
            checked.append(await gate.check(history))
            if len(checked) % TOLD_EVERY == 0:
                note(f"{len(checked)} histories", is_dim=True)
    finally:
        await close_payloads(client.data_converter)
    return checked


async def _histories(
    client: "Client", found: "AsyncGenerator[ListedExecution]", checked: "list[Checked]"
) -> AsyncGenerator["WorkflowHistory"]:
    """The history of each; what is gone since it was listed is noted."""
    from temporalio.service import RPCError, RPCStatusCode  # noqa: PLC0415

    from cli.replay_gate import Checked  # noqa: PLC0415

    async for each in found:
        handle = client.get_workflow_handle(each.workflow_id, run_id=each.execution_id)
        try:
            history = await handle.fetch_history()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            checked.append(
                Checked(
                    workflow_id=each.workflow_id,
                    execution_id=each.execution_id,
                    workflow_type=each.workflow_type,
                    outcome="unknown",
                    events=0,
                    problem="its history is gone",
                )
            )
        else:
            yield history


def _print(checked: "list[Checked]", counts: Counter[str], seconds: float) -> None:
    for each in checked:
        if each.outcome != "same":
            _print_one(each)
    if not checked:
        print_text("no history was found; --since and --type say which are looked at")
        return
    told = ", ".join(f"{counts[name]} {word}" for name, word in _WORDS if counts[name])
    print_text(f"{len(checked)} histories in {seconds:.1f} s: {told}")
    reused = {each.reused_build for each in checked if each.reused_build}
    for build_id in sorted(reused):
        print_text(
            f"build id {build_id!r} is this code's, and was used by other code before: the "
            "histories above that diverge were made under it. Give each build an id of its own "
            "(PERDURE_BUILD_ID), or nobody can tell which code a run needs"
        )


def _print_one(checked: "Checked") -> None:
    if checked.outcome == "unknown":
        print_text(f"unknown   {checked.workflow_id}: {checked.problem}")
        return
    print_text(f"diverged  {checked.workflow_id}: {checked.problem}")
    step = "" if checked.step_index is None else f" at step {checked.step_index}"
    if checked.boundary:
        print_text(f"  run {checked.run_id}{step}, after {checked.boundary} {checked.key}")
    if checked.event:
        print_text(f"  event {checked.event_id}: {checked.event}")


_WORDS = (
    ("same", "go the same way"),
    ("diverged", "diverge"),
    ("unknown", "could not be told"),
)
