"""Deciding on a tool call from the command line: which call, how it stands, and telling its run."""

import asyncio
import getpass
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connections import connected_client, current_settings, describing_client, known_run
from cli.failures import CommandError, NotFoundError, UnreachableError, WrongUsageError
from cli.standings import Standing, find_host, is_over, place_of, standing_of

if TYPE_CHECKING:
    from pydantic import BaseModel

    from cli.executions import Execution
    from stores.protocols import StepStore
    from stores.records import RunRecord, ToolEffectRecord

ANSWER_TIMEOUT = timedelta(seconds=20)
"""A run answers in milliseconds; without a worker it answers when there is one again."""

CallName = Annotated[
    str,
    typer.Argument(
        metavar="CALL", help="Its step and index, as 2/0, or its id.", show_default=False
    ),
]
By = Annotated[str | None, typer.Option(metavar="WHO", help="Who decides; you by default.")]
Why = Annotated[str | None, typer.Option(metavar="TEXT", help="For the record.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what it would decide, and decide nothing.")
]


@dataclass(frozen=True, kw_only=True)
class Target:
    """The call that is meant, and where its run goes on, if it does."""

    store: "StepStore"
    record: "RunRecord"
    effect: "ToolEffectRecord"
    execution: "Execution | None"
    standing: Standing

    def __str__(self) -> str:
        """The call in words."""
        effect = self.effect
        return f"call {place_of(effect)} (tool {effect.tool_name}) of run {effect.run_id}"

    @property
    def is_over(self) -> bool:
        """Whether nothing of the run will happen any more."""
        return is_over(self.record, self.execution)

    @property
    def workflow_id(self) -> str | None:
        """Of the workflow that takes the decision; `None` when there is none any more."""
        return self.execution.workflow_id if self.execution and not self.is_over else None

    @property
    def way(self) -> str:
        """How the decision gets where it counts."""
        if self.workflow_id is None:
            return "the ledger alone: the run is over"
        return f"an update of workflow {self.workflow_id}"

    def as_document(self) -> dict[str, Any]:
        """What `--json` prints of it with the decision."""
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


@asynccontextmanager
async def target_call(
    run_id: str,
    call: str,
    workspace: str,
    *,
    waits: "Callable[[ToolEffectRecord], bool]",
    awaited: str,
) -> AsyncGenerator[Target]:
    """The call that is meant of those that wait, with its store open.

    Args:
        run_id: of a run of the workspace.
        call: as a person names it.
        workspace: of the person.
        waits: whether a call may be meant at all.
        awaited: what such a call waits for, in a word.

    Raises:
        NotFoundError: there is no such run or call, or the call does not wait.
        WrongUsageError: several calls are meant.
        UnreachableError: a server does not answer.
    """
    async with known_run(run_id, workspace) as (store, record):
        effects = await store.list_tool_effects(run_id=run_id)
        effect = _chosen(run_id, call, effects, waits, awaited)
        client = await describing_client(current_settings())
        execution = await find_host(client, store, run_id, record)
        yield Target(
            store=store,
            record=record,
            effect=effect,
            execution=execution,
            standing=standing_of(effect, record, execution),
        )


def decider(by: str | None) -> str:
    """Who decides: who is named, or who types.

    Raises:
        WrongUsageError: the name is empty.
    """
    who = _user() if by is None else by.strip()
    if not who:
        message = "--by is empty; say who decides"
        raise WrongUsageError(message)
    return who


async def tell(
    target: Target, update: str, request: "BaseModel", *, result_type: "type[BaseModel]"
) -> None:
    """Send a decision to the run, which checks it.

    Raises:
        CommandError: the run refused it.
        WrongUsageError: it is larger than Temporal takes, or cannot be encoded.
        UnreachableError: no worker answered.
    """
    from temporalio.client import WorkflowUpdateFailedError  # noqa: PLC0415
    from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError as NoAnswer  # noqa: PLC0415
    from temporalio.exceptions import ApplicationError  # noqa: PLC0415
    from temporalio.service import RPCError, RPCStatusCode  # noqa: PLC0415

    client = await connected_client(current_settings())
    handle = client.get_workflow_handle(target.workflow_id or target.effect.run_id)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT.total_seconds()):
            await handle.execute_update(update, request, result_type=result_type)  # pyright: ignore[reportUnknownMemberType] - the SDK's
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


def _chosen(
    run_id: str,
    call: str,
    effects: "Sequence[ToolEffectRecord]",
    waits: "Callable[[ToolEffectRecord], bool]",
    awaited: str,
) -> "ToolEffectRecord":
    found = [each for each in effects if call in {place_of(each), each.tool_call_id}]
    waiting = [each for each in found if waits(each)]
    if len(waiting) == 1:
        return waiting[0]
    if waiting:
        places = ", ".join(place_of(each) for each in waiting)
        message = f"call {call!r} of run {run_id!r} is ambiguous; name one of {places}"
        raise WrongUsageError(message)
    listed = [f"{place_of(each)} ({each.tool_name})" for each in effects if waits(each)]
    there = f"open calls of that run: {', '.join(listed) or 'none'}"
    if not found:
        message = f"run {run_id!r} has no call {call!r}; {there}"
        raise NotFoundError(message)
    message = f"call {call!r} of run {run_id!r} waits for no {awaited}: {_end(found[-1])}; {there}"
    raise NotFoundError(message)


def _end(effect: "ToolEffectRecord") -> str:
    if effect.awaits_approval:
        return "it has not run, and waits for `perdure approve` or `perdure deny`"
    said = effect.resolution
    if said is not None:
        return f"it {effect.status}, decided by {said.by}: {said.decision}"
    if effect.approval is not None:
        return f"it {effect.status}, {effect.approval.state} by {effect.approval.by}"
    return f"it {effect.status}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid {os.getuid()}"


def _no_worker(target: Target) -> str:
    queue = target.execution.task_queue if target.execution else None
    return (
        f"{target} got no answer within {ANSWER_TIMEOUT.total_seconds():.0f} s: is there a worker "
        f"on task queue {queue!r}? The decision may be taken when there is one; "
        f"`perdure show {target.effect.run_id}` tells"
    )
