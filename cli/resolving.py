"""`perdure resolve`: say what became of a tool call whose outcome nobody knows."""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Never

import typer

from cli.deciding import By, CallName, DryRun, Target, Why, decider, target_call, tell
from cli.failures import CommandError, WrongUsageError
from cli.options import AsJson, RunId, Workspace
from cli.output import note, print_facts, print_json, print_text
from cli.standings import OPEN, place_of

if TYPE_CHECKING:
    from stores.records import ResolutionDecision, ToolEffectRecord, ToolEffectResolution

LONGEST_SUMMARY = 500
"""Characters of a result that the ledger keeps where no run takes it."""


def resolve_command(
    *,
    run_id: RunId,
    call: CallName,
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
    by: By = None,
    why: Why = None,
    dry_run: DryRun = False,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Decide on a tool call whose outcome is unknown.

    `perdure unresolved` lists them. A run that waits goes on: the model gets your answer as that
    of the tool, marked as yours. Of a run that is over the ledger alone is settled, and the model
    gets your answer in the run that continues it. The first decision counts.
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

        return ToolEffectResolution(
            decision=self.kind,
            by=self.by,
            why=self.why,
            result=_text(self.result) if self.kind == "completed" else None,
        )


def _decision(
    *, completed: str | None, failed: str | None, run_again: bool, by: str | None, why: str | None
) -> _Decision:
    if [completed is not None, failed is not None, run_again].count(True) != 1:
        message = "say exactly one of --completed JSON, --failed TEXT and --run-again"
        raise WrongUsageError(message)
    who = decider(by)
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


def _text(result: object) -> str:
    return json.dumps(result, ensure_ascii=False)


def _refuse_constant(name: str) -> Never:
    message = f"{name} is a number in JavaScript only"
    raise ValueError(message)


async def _resolve(
    run_id: str, call: str, decision: _Decision, workspace: str, *, is_dry: bool
) -> Target:
    def waits(effect: "ToolEffectRecord") -> bool:
        return effect.status in OPEN and not effect.awaits_approval

    async with target_call(run_id, call, workspace, waits=waits, awaited="decision") as target:
        _check(target, decision)
        if is_dry:
            return target
        if target.is_over:
            await _settle(target, decision)
        else:
            await _tell(target, decision)
    return target


def _check(target: Target, decision: _Decision) -> None:
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


async def _settle(target: Target, decision: _Decision) -> None:
    from stores.decisions import settle_tool_effect  # noqa: PLC0415

    ours = decision.resolution()
    stands = await settle_tool_effect(
        target.store,
        target.effect,
        ours,
        now=datetime.now(UTC),  # noqa: TID251 - when the person decided
        error=decision.error,
        effect_summary=ours.result and ours.result[:LONGEST_SUMMARY],
    )
    if stands != ours:
        message = f"{target} was decided by {stands.by} already: {stands.decision}"
        raise CommandError(message)


async def _tell(target: Target, decision: _Decision) -> None:
    from workflows.names import RESOLVE_UPDATE  # noqa: PLC0415
    from workflows.parking import ResolveToolEffectRequest, ResolveToolEffectResult  # noqa: PLC0415

    effect = target.effect
    request = ResolveToolEffectRequest(
        run_id=effect.run_id,
        call=place_of(effect),
        decision=decision.kind,
        result=decision.result,
        error=decision.error,
        by=decision.by,
        why=decision.why,
        workspace_id=effect.workspace_id,
    )
    await tell(target, RESOLVE_UPDATE, request, result_type=ResolveToolEffectResult)
