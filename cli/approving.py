"""`perdure approve`, `perdure deny`: say whether a tool call may run."""

import asyncio
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.deciding import By, CallName, DryRun, Target, Why, decider, target_call, tell
from cli.failures import CommandError, WrongUsageError
from cli.options import AsJson, RunId, Workspace
from cli.output import print_facts, print_json, print_text
from cli.standings import place_of

if TYPE_CHECKING:
    from stores.records import ToolEffectRecord
    from workflows.approvals import ApprovalDecision

Digest = Annotated[
    str | None,
    typer.Option(
        metavar="HEX",
        help="Of the arguments that you saw, or its beginning; those that the ledger shows now by "
        "default.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is decided, by whom and why; `message` is for the model."""

    decision: "ApprovalDecision"
    by: str
    why: str | None
    message: str | None = None


def approve_command(
    *,
    run_id: RunId,
    call: CallName,
    digest: Digest = None,
    by: By = None,
    why: Why = None,
    dry_run: DryRun = False,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Let a tool call run that waits for approval.

    `perdure unresolved` lists them, with their arguments. An approval is for one call with these
    arguments, and is used up when it runs. The first decision counts. The calls of a step run when
    all of them are decided.
    """
    decision = Decision(decision="approved", by=decider(by), why=why)
    target = asyncio.run(decide(run_id, call, decision, workspace, digest, is_dry=dry_run))
    _print(target, decision, as_json=as_json, is_dry=dry_run)


def deny_command(
    *,
    run_id: RunId,
    call: CallName,
    message: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the model is told.")
    ] = None,
    digest: Digest = None,
    by: By = None,
    why: Why = None,
    dry_run: DryRun = False,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Keep a tool call from running that waits for approval; its run goes on.

    Of a run that is over the ledger alone is told, so that the call leaves the list.
    """
    decision = Decision(decision="denied", by=decider(by), why=why, message=message)
    target = asyncio.run(decide(run_id, call, decision, workspace, digest, is_dry=dry_run))
    _print(target, decision, as_json=as_json, is_dry=dry_run)


def _print(target: Target, decision: Decision, *, as_json: bool, is_dry: bool) -> None:
    digest = target.effect.arguments_digest
    if as_json:
        said = {**asdict(decision), "arguments_digest": digest, "dry_run": is_dry}
        print_json({**target.as_document(), **said})
    elif is_dry:
        print_facts(
            [
                ("Would decide", f"{target}: {decision.decision}"),
                ("By", decision.by),
                ("Why", decision.why),
                ("Arguments", target.effect.arguments_summary),
                ("Their digest", digest),
                ("It stands", target.standing.words),
                ("By way of", target.way),
            ]
        )
    else:
        print_text(f"{target}: {decision.decision}, by {decision.by}")


async def decide(
    run_id: str,
    call: str,
    decision: Decision,
    workspace: str,
    digest: str | None,
    *,
    is_dry: bool,
) -> Target:
    """Decide on a call that waits for approval.

    Args:
        digest: of the arguments that were seen, or its beginning; `None`: whatever they are now.
        is_dry: check, and decide nothing.

    Raises:
        CommandError: it does not wait, or was not decided.
    """

    def waits(effect: "ToolEffectRecord") -> bool:
        return effect.awaits_approval

    async with target_call(run_id, call, workspace, waits=waits, awaited="approval") as target:
        _check(target, decision, digest)
        if is_dry:
            return target
        if target.is_over:
            await _settle(target, decision)
        else:
            await _tell(target, decision)
    return target


def _check(target: Target, decision: Decision, digest: str | None) -> None:
    found = target.effect.arguments_digest or ""
    if digest is not None and not (digest and found.startswith(digest)):
        message = f"{target} has other arguments: their digest is {found}. Look at it again"
        raise WrongUsageError(message)
    if target.is_over and decision.decision == "approved":
        message = (
            f"{target} cannot run: its run is over. `perdure continue {target.effect.run_id}` asks "
            "again where it executes the call; `perdure deny` takes it off the list"
        )
        raise CommandError(message)


async def _settle(target: Target, decision: Decision) -> None:
    from stores.decisions import settle_tool_effect  # noqa: PLC0415
    from stores.records import ToolEffectResolution  # noqa: PLC0415

    said = ToolEffectResolution(decision="denied", by=decision.by, why=decision.why)
    now = datetime.now(UTC)  # noqa: TID251 - when the person decided
    stands = await settle_tool_effect(target.store, target.effect, said, now=now, error="denied")
    if stands != said:
        message = f"{target} was decided by {stands.by} already: {stands.decision}"
        raise CommandError(message)


async def _tell(target: Target, decision: Decision) -> None:
    from workflows.approvals import DecideApprovalRequest, DecideApprovalResult  # noqa: PLC0415
    from workflows.names import APPROVE_UPDATE  # noqa: PLC0415

    effect = target.effect
    fields: dict[str, Any] = {
        **asdict(decision),
        "run_id": effect.run_id,
        "call": place_of(effect),
        "arguments_digest": effect.arguments_digest,
        "workspace_id": effect.workspace_id,
    }
    request = DecideApprovalRequest.model_validate(fields)
    await tell(target, APPROVE_UPDATE, request, result_type=DecideApprovalResult)
