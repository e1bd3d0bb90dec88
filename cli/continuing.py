"""`perdure continue` and `perdure fork`: start a run from the history of another one."""

import asyncio
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connections import current_settings, known_run
from cli.failures import CommandError, NotFoundError, WrongUsageError
from cli.ledger import Calls, entries_of, print_effects
from cli.options import AsJson, RunId, Workspace
from cli.output import print_facts, print_json
from cli.standings import unasked
from cli.submit import (
    Submission,
    checked_run_id,
    fresh_run_id,
    parsed_deps,
    run_request,
    start_run,
)

if TYPE_CHECKING:
    from stores.continuing import StartingPoint
    from stores.protocols import StepStore
    from stores.records import RunRecord
    from workflows.agent_run_models import AgentRunInput

PROMPT_HELP = (
    "What to ask next; - reads it from standard input. Without one, unanswered calls are executed "
    "or the model is asked again."
)

Agent = Annotated[str | None, typer.Option(help="Agent of the new run; the same by default.")]
NewRunId = Annotated[
    str | None, typer.Option("--run-id", help="Id of the new run; a fresh readable one by default.")
]
Deps = Annotated[str | None, typer.Option(help="JSON that the agent's deps_type takes.")]
Model = Annotated[str | None, typer.Option(help="pydantic-ai model in place of the agent's own.")]
IncludeInterrupted = Annotated[
    bool, typer.Option("--include-interrupted", help="Also from a history with unanswered calls.")
]
AcceptUnresolved = Annotated[
    bool,
    typer.Option(
        "--accept-unresolved", help="Go on past tool calls of which nobody knows the outcome."
    ),
]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait for the output, or print the id alone.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what it would start from, and start nothing.")
]


def continue_command(
    *,
    run_id: RunId,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help=PROMPT_HELP, show_default=False)
    ] = None,
    include_interrupted: IncludeInterrupted = False,
    accept_unresolved: AcceptUnresolved = False,
    agent: Agent = None,
    new_run_id: NewRunId = None,
    deps: Deps = None,
    model: Model = None,
    wait: Wait = True,
    dry_run: DryRun = False,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Continue a run, in its conversation.

    The new run begins with the newest history of the old one. A run is continued once: who comes
    second is told which run was first.
    """
    _start(
        run_id,
        {
            "continue_from": run_id,
            "prompt": prompt,
            "include_interrupted": include_interrupted,
            "accept_unresolved": accept_unresolved,
            "agent": agent,
            "deps": parsed_deps(deps),
            "model": model,
            "workspace_id": workspace,
        },
        _Manner(new_run_id=new_run_id, wait=wait, dry_run=dry_run, as_json=as_json),
    )


def fork_command(
    *,
    run_id: RunId,
    at_step: Annotated[int | None, typer.Option(help="The newest snapshot of this step.")] = None,
    at_snapshot: Annotated[int | None, typer.Option(help="Sequence of a snapshot.")] = None,
    prompt: Annotated[str | None, typer.Option(metavar="PROMPT", help=PROMPT_HELP)] = None,
    include_interrupted: IncludeInterrupted = False,
    accept_unresolved: AcceptUnresolved = False,
    agent: Agent = None,
    new_run_id: NewRunId = None,
    conversation_id: Annotated[
        str | None, typer.Option(help="Conversation of the new run; one of its own by default.")
    ] = None,
    deps: Deps = None,
    model: Model = None,
    wait: Wait = True,
    dry_run: DryRun = False,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Branch a new run off from a run, at its newest snapshot or at any other.

    `perdure snapshots RUN` lists them. The run itself stays as it is, and may be forked as often
    as you like.
    """
    _start(
        run_id,
        {
            "fork_from": run_id,
            "at_step": at_step,
            "at_snapshot": at_snapshot,
            "prompt": prompt,
            "include_interrupted": include_interrupted,
            "accept_unresolved": accept_unresolved,
            "agent": agent,
            "conversation_id": conversation_id,
            "deps": parsed_deps(deps),
            "model": model,
            "workspace_id": workspace,
        },
        _Manner(new_run_id=new_run_id, wait=wait, dry_run=dry_run, as_json=as_json),
    )


@dataclass(frozen=True, kw_only=True)
class _Manner:
    """How to start it."""

    new_run_id: str | None
    wait: bool
    dry_run: bool
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class _Beginning:
    """What the new run would begin with; `refusal` is why it would not begin at all."""

    source: "RunRecord"
    point: "StartingPoint"
    refusal: Exception | None


def _start(run_id: str, fields: dict[str, Any], manner: _Manner) -> None:
    settings = current_settings()
    if fields["prompt"] == "-":
        fields["prompt"] = sys.stdin.read()
    # Checked before a server is asked; the agent may only be known to the run's record.
    draft = run_request(**{**fields, "agent": fields["agent"] or "-"})
    if manner.new_run_id is not None:
        checked_run_id(manner.new_run_id)
    beginning = asyncio.run(_look(run_id, draft))
    agent = fields["agent"] or beginning.source.agent_name
    if agent is None:
        message = f"run {run_id!r} has no agent's name on its record; say which with --agent"
        raise WrongUsageError(message)
    submission = Submission(
        settings=settings,
        run_id=manner.new_run_id or fresh_run_id(agent),
        is_fresh=manner.new_run_id is None,
        request=draft.model_copy(update={"agent": agent}),
    )
    if manner.dry_run:
        _print_beginning(submission, beginning, as_json=manner.as_json)
        return
    if beginning.refusal is not None:
        raise CommandError(str(beginning.refusal)) from beginning.refusal
    start_run(submission, wait=manner.wait, as_json=manner.as_json)


async def _look(run_id: str, draft: "AgentRunInput") -> _Beginning:
    """Where the run would begin; the workflow decides again, and finally."""
    from stores.continuing import find_starting_point  # noqa: PLC0415

    async with known_run(run_id, draft.workspace_id) as (store, source):
        try:
            point = await find_starting_point(
                store,
                run_id=run_id,
                include_interrupted=draft.include_interrupted,
                at_snapshot=draft.at_snapshot,
                at_step=draft.at_step,
            )
        except LookupError as error:
            raise NotFoundError(str(error)) from error
        refusal = await _refusal(store, draft, point)
    return _Beginning(source=source, point=point, refusal=refusal)


async def _refusal(
    store: "StepStore", draft: "AgentRunInput", point: "StartingPoint"
) -> Exception | None:
    from pydantic_ai.exceptions import UserError  # noqa: PLC0415

    from stores.continuing import find_continuation  # noqa: PLC0415
    from stores.errors import AlreadyContinuedError, UnresolvedEffectsError  # noqa: PLC0415
    from workflows.pending import check_prompt  # noqa: PLC0415

    if draft.continue_from is not None:
        winner = await find_continuation(store, run_id=draft.continue_from)
        if winner is not None:
            return AlreadyContinuedError(draft.continue_from, winner.run_id)
    try:
        if not draft.accept_unresolved:
            point.check_unresolved()
        if draft.prompt is not None:
            check_prompt(point.messages)
    except (UnresolvedEffectsError, UserError) as error:
        return error
    return None


def _print_beginning(submission: Submission, beginning: _Beginning, *, as_json: bool) -> None:
    snapshot, unresolved = beginning.point.snapshot, beginning.point.unresolved
    pending = _pending(beginning)
    if as_json:
        place = ("run_id", "sequence", "step_index", "state", "timestamp")
        print_json(
            {
                **submission.as_document(),
                "snapshot": {
                    **{name: getattr(snapshot, name) for name in place},
                    "message_count": len(beginning.point.messages),
                    "pending_calls": pending,
                },
                "unresolved": [asdict(each) for each in unresolved],
                "refusal": str(beginning.refusal) if beginning.refusal else None,
            }
        )
        return
    print_facts(
        [
            ("Would start", f"{submission.run_id} of agent {submission.request.agent}"),
            ("From", f"snapshot {snapshot.sequence} of run {snapshot.run_id}"),
            ("Step", f"{snapshot.step_index}, {snapshot.state}"),
            ("Messages", str(len(beginning.point.messages))),
            ("Pending calls", ", ".join(pending)),
            ("Unresolved", str(len(unresolved)) if unresolved else "none"),
            ("Refused", str(beginning.refusal) if beginning.refusal else None),
        ]
    )
    if unresolved:
        standings = [unasked(each, problem=None) for each in unresolved]
        print_effects(entries_of(Calls(effects=unresolved), standings), title="Unresolved")


def _pending(beginning: _Beginning) -> list[str]:
    from stores.continuing import pending_calls  # noqa: PLC0415

    calls = pending_calls(beginning.point.messages)
    return [f"{call.tool_name} ({call.tool_call_id})" for call in calls]
