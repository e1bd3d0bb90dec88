"""`perdure follow`: a run's text and tool calls while they come."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import (
    current_settings,
    describing_client,
    not_found_message,
    opened_store,
)
from cli.failures import CommandError, NotFoundError, UnreachableError
from cli.options import RunId, Workspace
from cli.output import note, printable

if TYPE_CHECKING:
    from settings import Settings
    from stores.following import StreamEvent
    from stores.protocols import StepStore

QUIET = timedelta(seconds=2)
"""After which Temporal is asked whether the run is still there: one that was terminated does not
say so itself."""

APPEARS_WITHIN = timedelta(seconds=1)
"""A run that was submitted a moment ago is registered by then, if a worker is there."""

BETWEEN_TRIES = timedelta(seconds=1)
"""To reach a MongoDB that was there before."""


def follow_command(
    *,
    run_id: RunId,
    as_json: Annotated[
        bool,
        typer.Option("--json", envvar="PERDURE_JSON", help="Print a JSON object for each event."),
    ] = False,
    offset: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="OFFSET", help="Begin behind this event, whose offset --json tells."
        ),
    ] = None,
    workspace: Workspace = "default",
) -> None:
    """Show what a run says and does until it ends.

    Text goes to standard output as the model gives it, everything else to standard error. Of a run
    that does not stream (`perdure run --stream`), and of one that has ended long ago, the reply
    comes in one piece.
    """
    asyncio.run(_follow(run_id, offset, workspace, _Printer(as_json=as_json)))


async def _follow(run_id: str, offset: str | None, workspace: str, printer: "_Printer") -> None:
    from stores.errors import RunNotFoundError  # noqa: PLC0415

    settings = current_settings()
    last: StreamEvent | None = None
    async with opened_store(settings, workspace) as store:
        try:
            async with aclosing(_events(settings, store, run_id, offset)) as events:
                async for event in events:
                    printer.print(event)
                    last = event
        except RunNotFoundError as error:
            asked = f"`perdure show {run_id}` also asks Temporal"
            message = not_found_message(settings, store, run_id, asked)
            raise NotFoundError(message) from error
    if last is not None and last.kind == "run_failed":
        message = f"run {run_id!r} failed: {last.error}; see `perdure show {run_id}`"
        raise CommandError(message)


async def _events(
    settings: "Settings", store: "StepStore", run_id: str, offset: str | None
) -> "AsyncGenerator[StreamEvent]":
    """The run's events; a MongoDB that goes away meanwhile is waited for.

    Raises:
        CommandError: Temporal says that the run is over, and the run did not.
    """
    from stores.errors import StoreUnavailableError  # noqa: PLC0415

    is_first = True
    while True:  # ends: with the run
        try:
            async with aclosing(_heard(settings, store, run_id, offset)) as events:
                async for event in events:
                    is_first, offset = False, event.offset
                    yield event
        except StoreUnavailableError as error:
            if is_first:
                raise
            note(f"Waiting for MongoDB: {error}")
            await asyncio.sleep(BETWEEN_TRIES.total_seconds())  # noqa: TID251 - a server is away
        else:
            return


async def _heard(
    settings: "Settings", store: "StepStore", run_id: str, offset: str | None
) -> "AsyncGenerator[StreamEvent]":
    from stores.following import follow_run  # noqa: PLC0415 - slow to load

    followed = follow_run(store, run_id, after=offset, appears_within=APPEARS_WITHIN)
    async with aclosing(followed) as stream:
        coming: asyncio.Task[StreamEvent | None] | None = None
        try:
            while True:  # ends: with the run
                coming = coming or asyncio.ensure_future(anext(stream, None))
                await asyncio.wait([coming], timeout=QUIET.total_seconds())
                if not coming.done():
                    await _check_that_it_goes_on(settings, store, run_id)
                    continue
                event, coming = coming.result(), None
                if event is None:
                    return
                yield event
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)


async def _check_that_it_goes_on(settings: "Settings", store: "StepStore", run_id: str) -> None:
    """Ask Temporal; nothing is known when it does not answer.

    Raises:
        CommandError: the run is over.
    """
    from cli.executions import CLOSED_STATES, find_executions  # noqa: PLC0415 - slow to load

    try:
        found = await find_executions(await describing_client(settings), [run_id])
    except UnreachableError:
        return
    execution = found.get(run_id)
    run = await store.get_run(run_id=run_id)
    if execution is None or not execution.is_closed or run is None or run.ended_at is not None:
        return
    state = CLOSED_STATES[execution.status]
    message = f"run {run_id!r} was {state} before it came to an end; see `perdure show {run_id}`"
    raise CommandError(message)


class _Printer:
    """Text as it comes; a line of its own for everything else."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._is_in_line = False

    def print(self, event: "StreamEvent") -> None:
        """Print one event at once."""
        if self._as_json:
            known = {name: value for name, value in asdict(event).items() if value is not None}
            sys.stdout.write(json.dumps(known) + "\n")
        elif event.kind == "text":
            sys.stdout.write(printable(event.text))
            self._is_in_line = not event.text.endswith("\n")
        else:
            self._print_other(event)
        sys.stdout.flush()

    def _print_other(self, event: "StreamEvent") -> None:
        if self._is_in_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._is_in_line = False
        match event.kind:
            case "retry":
                note("(that attempt was lost; it begins again)")
                sys.stdout.write(printable(event.text))
                self._is_in_line = bool(event.text)
            case "reset":
                note("(the run was reset; it is told from its start)")
            case "tool_call_started" | "tool_call_completed" | "tool_call_failed":
                error = f": {event.error}" if event.error else ""
                what = event.kind.removeprefix("tool_call_")
                note(f"{event.tool_name} ({event.tool_call_id}) {what}{error}")
            case _:
                pass
