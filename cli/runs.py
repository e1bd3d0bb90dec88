"""Commands that read runs from the store; none of them needs a worker."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.connections import current_settings, describing_client, known_run, opened_store
from cli.failures import NotFoundError, UnreachableError
from cli.inspection import print_snapshots
from cli.lineage import page_orphans
from cli.options import AsJson, RunId, Workspace
from cli.output import moment, note, offset, print_json, print_table, print_text

if TYPE_CHECKING:
    from cli.executions import Execution
    from settings import Settings
    from stores.records import ContinuableSnapshot, RunPage, RunRecord

State = Literal["running", "needs_attention", "completed", "failed", "cancelled"]
"""As `stores.records.RunState`, which takes a second to import."""


def runs_command(
    *,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    conversation: Annotated[
        str | None, typer.Option(help="Only runs of this conversation.")
    ] = None,
    parent: Annotated[str | None, typer.Option(help="Only runs delegated by this run.")] = None,
    state: Annotated[
        State | None, typer.Option(help="Only runs whose own last word is this state.")
    ] = None,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Only runs whose parent was terminated or is gone.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most runs of a page.")] = 50,
    after: Annotated[str | None, typer.Option(help="The page after that of this cursor.")] = None,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """List runs, newest first.

    A run that could not tell its end, since it was terminated, has Temporal's word for it.
    """
    filters = {
        "agent_name": agent,
        "conversation_id": conversation,
        "parent_run_id": parent,
        "state": state,
    }
    wanted = {"limit": limit, "after": after, **filters}
    page, states = asyncio.run(_page(current_settings(), workspace, wanted, orphans=orphans))
    rows = list(zip(page.runs, states, strict=True))
    if as_json:
        runs = [{**asdict(record), "joined_state": joined} for record, joined in rows]
        print_json({"runs": runs, "after": page.after})
        return
    if not rows:
        note(f"No such run in workspace {workspace!r}.")
        return
    print_table(
        ("run", "state", "agent", "started", "ended", "conversation", "parent"),
        [
            (
                *(run.run_id, joined, run.agent_name, moment(run.started_at)),
                *(moment(run.ended_at), run.conversation_id, run.parent_run_id),
            )
            for run, joined in rows
        ],
    )
    if page.after:
        note(f"There are more: the same command with --after {page.after}")


def events_command(
    *, run_id: RunId, workspace: Workspace = "default", as_json: AsJson = False
) -> None:
    """List the events of a run, in order."""

    async def read() -> tuple[Any, Any]:
        async with known_run(run_id, workspace) as (store, run):
            return run, await store.list_events(run_id=run_id)

    run, events = asyncio.run(read())
    if as_json:
        print_json({"run_id": run_id, "events": events})
        return
    print_table(
        ("seq", "time", "at", "step", "event", "tool", "call", "error"),
        [
            (
                *(e.sequence, moment(e.timestamp), offset(e.timestamp, run.started_at)),
                *(e.step_index, e.kind, e.tool_name, e.tool_call_id, e.error),
            )
            for e in events
        ],
    )


def snapshots_command(
    *, run_id: RunId, workspace: Workspace = "default", as_json: AsJson = False
) -> None:
    """List the snapshots of a run.

    They are the histories that it can be continued or forked from.
    """

    async def read() -> Sequence[Any]:
        async with known_run(run_id, workspace) as (store, _):
            return await store.list_snapshot_summaries(run_id=run_id)

    snapshots = asyncio.run(read())
    if as_json:
        print_json({"run_id": run_id, "snapshots": snapshots})
    else:
        print_snapshots(snapshots)


def messages_command(
    *,
    run_id: RunId,
    snapshot: Annotated[
        int | None, typer.Option(help="Sequence of a snapshot; the newest by default.")
    ] = None,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Print the messages of a run.

    They are those of its newest snapshot, or of the one that is named.
    """
    found = asyncio.run(_snapshot(run_id, workspace, snapshot))
    if as_json:
        from pydantic_ai.messages import ModelMessagesTypeAdapter  # noqa: PLC0415

        messages = ModelMessagesTypeAdapter.dump_python(found.messages, mode="json")
        print_json({**asdict(replace(found, messages=[])), "messages": messages})
        return
    note(
        f"Snapshot {found.sequence} of run {run_id}: {found.state}, step {found.step_index}, "
        f"{len(found.messages)} messages"
    )
    from cli.transcripts import describe_messages  # noqa: PLC0415

    for line in describe_messages(found.messages):
        print_text(line)


async def _page(
    settings: "Settings", workspace: str, wanted: dict[str, Any], *, orphans: bool
) -> "tuple[RunPage, list[str]]":
    """A page of runs, and the state of each; `wanted` is of `page_runs`."""
    async with opened_store(settings, workspace) as store:
        if orphans:
            page = await page_orphans(settings, store, wanted)
        else:
            page = await store.page_runs(**wanted)
    return page, await joined_states(settings, page.runs)


async def joined_states(settings: "Settings", runs: "Sequence[RunRecord]") -> list[str]:
    """The state of each run: its own last word, or Temporal's where it could not speak any more."""
    open_runs = [run.run_id for run in runs if run.ended_at is None]
    executions = await _executions(settings, open_runs)
    if not executions:
        return [run.state for run in runs]
    from cli.executions import joined_state  # noqa: PLC0415 - slow to load

    return [joined_state(run, executions.get(run.run_id)) for run in runs]


async def _executions(
    settings: "Settings", run_ids: Sequence[str]
) -> "dict[str, Execution | None] | None":
    """What Temporal knows of these runs; `None`, with a note, when it does not answer."""
    if not run_ids:
        return {}
    from cli.executions import find_executions  # noqa: PLC0415 - slow to load

    try:
        return await find_executions(await describing_client(settings), run_ids)
    except UnreachableError as error:
        note(f"Only what the store knows: {error}.")
        return None


async def _snapshot(run_id: str, workspace: str, sequence: int | None) -> "ContinuableSnapshot":
    async with known_run(run_id, workspace) as (store, _):
        if sequence is None:
            found = await store.latest_snapshot(run_id=run_id, include_interrupted=True)
        else:
            found = await store.find_snapshot(run_id=run_id, sequence=sequence)
    if found is None:
        which = "no snapshot" if sequence is None else f"no snapshot {sequence}"
        message = f"run {run_id!r} has {which}; `perdure snapshots {run_id}` lists them"
        raise NotFoundError(message)
    return found
