"""Tool calls as the commands show them: the ledger, its attempts, and how each call stands."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connections import current_settings, describing_client, known_run, opened_store
from cli.failures import UnreachableError
from cli.options import AsJson, RunId, Workspace
from cli.output import moment, note, offset, print_json, print_table, print_text
from cli.standings import (
    OPEN,
    Hosts,
    Standing,
    find_hosts,
    place_of,
    standing_of,
    unasked,
    waited,
)

if TYPE_CHECKING:
    from settings import Settings
    from stores.attempts import ToolGate
    from stores.protocols import StepStore
    from stores.records import ToolEffectRecord

FEW_ATTEMPTS = 3
"""So many are named one by one in a table's cell."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """A tool call's effect, how it stands, and its attempts, a gate for each round."""

    effect: "ToolEffectRecord"
    standing: Standing
    gates: Sequence["ToolGate"] = ()

    @property
    def is_open(self) -> bool:
        """Whether nobody knows yet what the call did."""
        return self.effect.status in OPEN

    def as_document(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            **asdict(self.effect),
            **self.standing.as_document(),
            "attempts": [
                {"round": gate.place.round, **asdict(attempt)}
                for gate in self.gates
                for attempt in gate.attempts
            ],
            "late_writes": sum(gate.late_writes for gate in self.gates),
        }

    @property
    def attempts_words(self) -> str | None:
        """Its attempts in a cell; `None` for the usual: one that completed."""
        outcomes = [attempt.outcome for gate in self.gates for attempt in gate.attempts]
        if not outcomes or outcomes == ["completed"]:
            return None
        count = sum(gate.newest.number for gate in self.gates)
        if count <= FEW_ATTEMPTS:
            return f"{count}: {', '.join(outcomes)}"
        return f"{count}, the last {outcomes[-1]}"

    @property
    def resolution_words(self) -> str | None:
        """Who approved or decided what, and why."""
        approval, resolution = self.effect.approval, self.effect.resolution
        said: list[str] = []
        if approval is not None and approval.state != "asked":
            said.append(_said(approval.state, approval.by, approval.why))
        if resolution is not None:
            said.append(_said(resolution.decision, resolution.by, resolution.why))
        return "; ".join(said) or None


def _said(what: str, by: str | None, why: str | None) -> str:
    return f"{what}{f' by {by}' if by else ''}{f': {why}' if why else ''}"


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Tool calls as the store knows them: their effects, and the attempts of any of them."""

    effects: "Sequence[ToolEffectRecord]"
    gates: "Sequence[ToolGate]" = ()

    @property
    def open_run_ids(self) -> list[str]:
        """The runs of which some call has no outcome yet."""
        return list(dict.fromkeys(each.run_id for each in self.effects if each.status in OPEN))


async def read_calls(store: "StepStore", run_id: str) -> Calls:
    """The calls of a run."""
    effects, gates = await asyncio.gather(
        store.list_tool_effects(run_id=run_id), store.attempts.list_gates(run_id=run_id)
    )
    return Calls(effects=effects, gates=gates)


def effects_command(
    *,
    run_id: RunId,
    attempts: Annotated[
        bool, typer.Option("--attempts", help="List every attempt of every call instead.")
    ] = False,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """List the tool effects of a run.

    An effect is what one tool call did to the world, as far as is known. Attempts are shown where
    there was more than one, or one that did not complete; who decided on a call of unknown outcome
    is shown with it.
    """

    async def read() -> Sequence[LedgerEntry]:
        async with known_run(run_id, workspace) as (store, _):
            return await joined_entries(current_settings(), store, await read_calls(store, run_id))

    entries = asyncio.run(read())
    if as_json:
        print_json({"run_id": run_id, "effects": [each.as_document() for each in entries]})
    elif attempts:
        print_attempts(entries)
    else:
        print_effects(entries)


def unresolved_command(
    *,
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool.")] = None,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """List tool calls that have no outcome yet.

    Of all runs, oldest first. In flight: an attempt is made. Retrying: the next one has its time.
    Parked: the run waits for a decision. Approval: the call has not run, and does when somebody
    approves it. Unknown: the run is over, and nobody knows what the call did. Those three have the
    command to type. Needs no worker.
    """

    async def read() -> Sequence[LedgerEntry]:
        settings = current_settings()
        async with opened_store(settings, workspace) as store:
            found = await store.list_unresolved_tool_effects()
            calls = Calls(effects=[each for each in found if tool in {None, each.tool_name}])
            gates = await asyncio.gather(
                *(store.attempts.list_gates(run_id=each) for each in calls.open_run_ids)
            )
            calls = replace(calls, gates=[gate for each in gates for gate in each])
            return await joined_entries(settings, store, calls)

    entries = asyncio.run(read())
    if as_json:
        documents = [each.as_document() for each in entries]
        print_json({"workspace_id": workspace, "effects": documents})
    elif entries:
        _print_unresolved(entries)
    else:
        of = f" of tool {tool!r}" if tool else ""
        note(f"No tool call{of} of workspace {workspace!r} is open.")


async def joined_entries(
    settings: "Settings", store: "StepStore", calls: Calls
) -> list[LedgerEntry]:
    """The calls with what Temporal knows of them; a note when it does not answer."""
    hosts: Hosts = {}
    try:
        if calls.open_run_ids:
            client = await describing_client(settings)
            hosts = await find_hosts(client, store, calls.open_run_ids)
    except UnreachableError as error:
        note(f"Only what the store knows: {error}.")
        return entries_of(calls, [unasked(each) for each in calls.effects])
    nobody = (None, None)
    standings = [standing_of(each, *hosts.get(each.run_id, nobody)) for each in calls.effects]
    return entries_of(calls, standings)


def entries_of(calls: Calls, standings: Sequence[Standing]) -> list[LedgerEntry]:
    """Each effect with its standing and its attempts."""
    of_calls = _by_call(calls.gates)
    return [
        LedgerEntry(effect=effect, standing=standing, gates=of_calls.get(_call_of(effect), ()))
        for effect, standing in zip(calls.effects, standings, strict=True)
    ]


def _by_call(gates: "Iterable[ToolGate]") -> "Mapping[tuple[object, ...], list[ToolGate]]":
    found: dict[tuple[object, ...], list[ToolGate]] = {}
    for gate in gates:
        place = gate.place
        call = (place.run_id, place.branch, place.step_index, place.call_index)
        found.setdefault(call, []).append(gate)
    return found


def _call_of(effect: "ToolEffectRecord") -> tuple[object, ...]:
    return (effect.run_id, effect.branch, effect.step_index, effect.call_index)


def print_effects(entries: Sequence[LedgerEntry], *, title: str | None = None) -> None:
    """Print the ledger of a run's tool calls; columns that no call fills are left out."""
    rows: list[tuple[object, ...]] = []
    for entry in entries:
        e = entry.effect
        took = offset(e.ended_at, e.started_at)[1:] if e.ended_at else None
        rows.append(
            (
                *(e.step_index, e.tool_name, e.tool_call_id, e.effect, entry.standing.words),
                *(moment(e.started_at), took, entry.attempts_words, entry.resolution_words),
                *(e.arguments_summary, e.error),
            )
        )
    columns = (
        *("step", "tool", "call", "policy", "standing", "started", "took", "attempts"),
        *("decided", "arguments", "error"),
    )
    _print_filled(columns, rows, optional={"attempts", "decided"}, title=title)


def print_attempts(entries: Iterable[LedgerEntry]) -> None:
    """Print every attempt of every call."""
    print_table(
        ("step", "tool", "call", "round", "attempt", "worker", "started", "ended", "outcome"),
        [
            (
                *(entry.effect.step_index, entry.effect.tool_name, entry.effect.tool_call_id),
                *(gate.place.round, each.number, each.worker, moment(each.started_at)),
                *(moment(each.ended_at), _outcome_words(each.outcome, each.error)),
            )
            for entry in entries
            for gate in entry.gates
            for each in gate.attempts
        ],
    )


def _outcome_words(outcome: str, error: str | None) -> str:
    return f"{outcome}: {error}" if error else outcome


def _print_unresolved(entries: Sequence[LedgerEntry]) -> None:
    print_table(
        ("run", "step", "tool", "call", "policy", "standing", "age", "arguments"),
        [
            (
                *(each.effect.run_id, each.effect.step_index, each.effect.tool_name),
                *(each.effect.tool_call_id, each.effect.effect, each.standing.words),
                *(waited(each.standing), each.effect.arguments_summary),
            )
            for each in entries
        ],
    )
    commands = [each.standing.command for each in entries if each.standing.command]
    if commands:
        print_text("\nTo decide")
    for command in commands:
        print_text(command)


def attention_lines(entries: Iterable[LedgerEntry]) -> list[str]:
    """Of each call that somebody has to decide on: what it is, and what to type."""
    lines: list[str] = []
    for entry in entries:
        if entry.standing.command:
            call = f"call {place_of(entry.effect)} of tool {entry.effect.tool_name}"
            problem = f" ({entry.effect.error})" if entry.effect.error else ""
            lines += [f"{call}: {entry.standing.words}{problem}", f"  {entry.standing.command}"]
    return lines


def _print_filled(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    optional: set[str],
    title: str | None,
) -> None:
    shown = [
        index
        for index, column in enumerate(columns)
        if column not in optional or any(row[index] is not None for row in rows)
    ]
    print_table(
        [columns[index] for index in shown],
        [[row[index] for index in shown] for row in rows],
        title=title,
    )
