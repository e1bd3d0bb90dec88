"""`perdure resolve`: say what became of a tool call whose outcome nobody knows."""

import asyncio
import getpass
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Never

import typer

from cli.connections import connected_client, current_settings, describing_client, known_run
from cli.failures import CommandError, NotFoundError, UnreachableError, WrongUsageError
from cli.options import AsJson, RunId, Workspace
from cli.output import note, print_facts, print_json, print_text
from cli.standings import OPEN, Standing, find_host, is_over, place_of, standing_of

if TYPE_CHECKING:
    from cli.executions import Execution
    from settings import Settings
    from stores.protocols import StepStore
    from stores.records import (
        ResolutionDecision,
        RunRecord,
        ToolEffectRecord,
        ToolEffectResolution,
    )
    from workflows.parking import ResolveToolEffectRequest

ANSWER_TIMEOUT = timedelta(seconds=20)
"""A run answers in milliseconds; without a worker it answers when there is one again."""

LONGEST_SUMMARY = 500
"""Characters of a result that the ledger keeps where no run takes it."""


def resolve_command(
    *,
    run_id: RunId,
    call: Annotated[
        str,
        typer.Argument(
            metavar="CALL",
            help="Its step and index, as 2/0, or its id.",
            show_default=False,
        ),
    ],
    completed: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The tool did its work; this is what it returned."),
    ] = None,
    failed: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The tool did not; the model is told this.")
    ] = None,
    run_again: Annotated[
        bool, typer.Option("--run-again", help="The tool did not; have it run once more.")
    ] = False,
    by: Annotated[
        str | None, typer.Option(metavar="WHO", help="Who decides; you by default.")
    ] = None,
    why: Annotated[str | None, typer.Option(metavar="TEXT", help="For the record.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what it would decide, and decide nothing.")
    ] = False,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Decide on a tool call whose outcome is unknown.

    `perdure unresolved` lists them. A run that waits goes on: the model gets your answer as that
    of the tool, marked as yours. Of a run that is over the ledger alone is settled, so that
    `perdure continue` no longer refuses to go past the call. The first decision counts.
    """
    decision = _decision(completed=completed, failed=failed, run_again=run_again, by=by, why=why)
    target = asyncio.run(_resolve(run_id, call, decision, workspace, is_dry=dry_run))
    if as_json:
        print_json({**target.as_document(), **decision.as_document(), "dry_run": dry_run})
    elif dry_run:
        print_facts(
            [
                ("Would decide", f"{target}: {decision.words}"),
                ("By", decision.by),
                ("Why", decision.why),
                ("It stands", target.standing.words),
                ("By way of", target.way),
            ]
        )
    else:
        print_text(f"{target}: {decision.words}, by {decision.by}")
        if target.is_over:
            note(f"Its run is over, and the ledger knows; `perdure continue {run_id}` goes on.")


@dataclass(frozen=True, kw_only=True)
class _Decision:
    """What somebody says of a call; `result` belongs to `completed`, `error` to `failed`."""

    kind: "ResolutionDecision"
    result: Any = None
    error: str | None = None
    by: str
    why: str | None

    @property
    def words(self) -> str:
        return self.kind.replace("_", " ")

    def as_document(self) -> dict[str, Any]:
        return {
            "decision": self.kind,
            "result": self.result,
            "error": self.error,
            "by": self.by,
            "why": self.why,
        }

    def resolution(self) -> "ToolEffectResolution":
        from stores.records import ToolEffectResolution  # noqa: PLC0415

        return ToolEffectResolution(decision=self.kind, by=self.by, why=self.why)


@dataclass(frozen=True, kw_only=True)
class _Target:
    """The call that is meant, and where its run goes on, if it does."""

    record: "RunRecord"
    effect: "ToolEffectRecord"
    execution: "Execution | None"
    standing: Standing

    def __str__(self) -> str:
        effect = self.effect
        return f"call {place_of(effect)} (tool {effect.tool_name}) of run {effect.run_id}"

    @property
    def is_over(self) -> bool:
        return is_over(self.record, self.execution)

    @property
    def workflow_id(self) -> str | None:
        return self.execution.workflow_id if self.execution and not self.is_over else None

    @property
    def way(self) -> str:
        if self.workflow_id is None:
            return "the ledger alone: the run is over"
        return f"an update of workflow {self.workflow_id}"

    def as_document(self) -> dict[str, Any]:
        effect = self.effect
        return {
            "run_id": effect.run_id,
            "tool_call_id": effect.tool_call_id,
            "tool_name": effect.tool_name,
            "step_index": effect.step_index,
            "call_index": effect.call_index,
            "stood": self.standing.words,
            "workflow_id": self.workflow_id,
        }


def _decision(
    *, completed: str | None, failed: str | None, run_again: bool, by: str | None, why: str | None
) -> _Decision:
    if [completed is not None, failed is not None, run_again].count(True) != 1:
        message = "say exactly one of --completed JSON, --failed TEXT and --run-again"
        raise WrongUsageError(message)
    who = _user() if by is None else by.strip()
    if not who:
        message = "--by is empty; say who decides"
        raise WrongUsageError(message)
    if completed is not None:
        return _Decision(kind="completed", result=_result(completed), by=who, why=why)
    if failed is not None:
        if not failed.strip():
            message = "--failed is empty; say what the model is told"
            raise WrongUsageError(message)
        return _Decision(kind="failed", error=failed, by=who, why=why)
    return _Decision(kind="run_again", by=who, why=why)


def _result(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        message = f"--completed is no JSON: {error}. A text has quotes of its own: '\"paid\"'"
        raise WrongUsageError(message) from error


def _refuse_constant(name: str) -> Never:
    message = f"{name} is a number in JavaScript only"
    raise ValueError(message)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid {os.getuid()}"


async def _resolve(
    run_id: str, call: str, decision: _Decision, workspace: str, *, is_dry: bool
) -> _Target:
    settings = current_settings()
    async with known_run(run_id, workspace) as (store, record):
        effect = _chosen(run_id, call, await store.list_tool_effects(run_id=run_id))
        client = await describing_client(settings)
        execution = await find_host(client, store, run_id, record)
        target = _Target(
            record=record,
            effect=effect,
            execution=execution,
            standing=standing_of(effect, record, execution),
        )
        _check(target, decision)
        if is_dry:
            return target
        if target.is_over:
            await _settle(store, target, decision)
        else:
            await _tell(settings, target, decision)
    return target


def _chosen(run_id: str, call: str, effects: "Sequence[ToolEffectRecord]") -> "ToolEffectRecord":
    found = [each for each in effects if call in {place_of(each), each.tool_call_id}]
    waiting = [each for each in found if each.status in OPEN]
    if len(waiting) == 1:
        return waiting[0]
    if waiting:
        places = ", ".join(place_of(each) for each in waiting)
        message = f"call {call!r} of run {run_id!r} is ambiguous; name one of {places}"
        raise WrongUsageError(message)
    listed = [f"{place_of(each)} ({each.tool_name})" for each in effects if each.status in OPEN]
    there = f"open calls of that run: {', '.join(listed) or 'none'}"
    if not found:
        message = f"run {run_id!r} has no call {call!r}; {there}"
        raise NotFoundError(message)
    message = f"call {call!r} of run {run_id!r} waits for no decision: {_end(found[-1])}; {there}"
    raise NotFoundError(message)


def _end(effect: "ToolEffectRecord") -> str:
    decided = effect.resolution
    if decided is None:
        return f"it {effect.status}"
    return f"it {effect.status}, decided by {decided.by}: {decided.decision}"


def _check(target: _Target, decision: _Decision) -> None:
    if target.is_over and decision.kind == "run_again":
        message = (
            f"{target} cannot run again: its run is over. Say what became of it with --completed "
            f"or --failed, then go on with `perdure continue {target.effect.run_id}`"
        )
        raise CommandError(message)
    if target.standing.kind in {"in flight", "retrying"}:
        message = (
            f"{target} waits for no decision: {target.standing.words}. Wait for its outcome; "
            "`perdure unresolved` says how it stands"
        )
        raise CommandError(message)


async def _settle(store: "StepStore", target: _Target, decision: _Decision) -> None:
    from stores.decisions import settle_tool_effect  # noqa: PLC0415

    is_completed = decision.kind == "completed"
    summary = json.dumps(decision.result, ensure_ascii=False) if is_completed else None
    ours = decision.resolution()
    stands = await settle_tool_effect(
        store,
        target.effect,
        ours,
        now=datetime.now(UTC),  # noqa: TID251 - when the person decided
        error=decision.error,
        effect_summary=summary and summary[:LONGEST_SUMMARY],
    )
    if stands != ours:
        message = f"{target} was decided by {stands.by} already: {stands.decision}"
        raise CommandError(message)


async def _tell(settings: "Settings", target: _Target, decision: _Decision) -> None:
    """Send the decision to the run, which checks it.

    Raises:
        CommandError: the run refused it.
        WrongUsageError: it is larger than Temporal takes, or cannot be encoded.
        UnreachableError: no worker answered.
    """
    from temporalio.client import WorkflowUpdateFailedError  # noqa: PLC0415
    from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError as NoAnswer  # noqa: PLC0415
    from temporalio.exceptions import ApplicationError  # noqa: PLC0415
    from temporalio.service import RPCError, RPCStatusCode  # noqa: PLC0415

    from workflows.names import RESOLVE_UPDATE  # noqa: PLC0415
    from workflows.parking import ResolveToolEffectResult  # noqa: PLC0415

    client = await connected_client(settings)
    handle = client.get_workflow_handle(target.workflow_id or target.effect.run_id)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT.total_seconds()):
            await handle.execute_update(  # pyright: ignore[reportUnknownMemberType] - the SDK's
                RESOLVE_UPDATE, _request(target, decision), result_type=ResolveToolEffectResult
            )
    except WorkflowUpdateFailedError as error:
        message = f"the decision was refused: {getattr(error.cause, 'message', error.cause)}"
        raise CommandError(message) from error
    except ApplicationError as error:  # of our converter, which checks what it encodes
        message = f"the decision was not sent: {error.message}"
        raise WrongUsageError(message) from error
    except (TimeoutError, NoAnswer) as error:
        raise UnreachableError(_no_worker(target)) from error
    except RPCError as error:
        if error.status is RPCStatusCode.UNAVAILABLE:
            raise UnreachableError(str(error)) from error
        message = f"the decision was not taken: {error.message}. Look again with `perdure show`"
        raise CommandError(message) from error


def _request(target: _Target, decision: _Decision) -> "ResolveToolEffectRequest":
    from workflows.parking import ResolveToolEffectRequest  # noqa: PLC0415

    effect = target.effect
    return ResolveToolEffectRequest(
        run_id=effect.run_id,
        call=place_of(effect),
        decision=decision.kind,
        result=decision.result,
        error=decision.error,
        by=decision.by,
        why=decision.why,
        workspace_id=effect.workspace_id,
    )


def _no_worker(target: _Target) -> str:
    queue = target.execution.task_queue if target.execution else None
    return (
        f"{target} got no answer within {ANSWER_TIMEOUT.total_seconds():.0f} s: is there a worker "
        f"on task queue {queue!r}? The decision may be taken when there is one; "
        f"`perdure show {target.effect.run_id}` tells"
    )
