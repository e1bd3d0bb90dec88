"""Asking the outside world what became of a tool call whose outcome is unknown."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from temporalio import activity
from temporalio.exceptions import ApplicationError


@dataclass(frozen=True, kw_only=True)
class UnknownCall:
    """A call that may have happened: what a tool's check is told.

    `effect_key` is the key that the tool gave to the outside world, if it used one.
    """

    tool_name: str
    tool_call_id: str
    run_id: str
    arguments: dict[str, Any]
    effect_key: str


@dataclass(frozen=True)
class Completed:
    """The call happened; `result` is what it returned, as JSON values."""

    result: Any = None


@dataclass(frozen=True)
class NotDone:
    """The call did not happen, and may run now."""


@dataclass(frozen=True)
class NotKnown:
    """Nobody can tell: a person has to decide."""


Finding = Completed | NotDone | NotKnown

Reconcile = Callable[[UnknownCall], Awaitable[Finding]]
"""A tool's check. It only looks; it is repeated when it fails."""


class ReconcileRequest(BaseModel):
    """Which check to run, and on what. Frozen: recorded histories hold it."""

    model_config = ConfigDict(frozen=True)

    agent_name: str
    tool_name: str
    tool_call_id: str
    run_id: str
    arguments: dict[str, Any]
    effect_key: str


class ReconcileResult(BaseModel):
    """What the check found."""

    finding: Literal["completed", "not_done", "unknown"]
    result: Any = None


class ReconcileActivities:
    """Runs the checks of the worker's agents.

    Args:
        find: the check of an agent's tool, `None` when there is none.
    """

    def __init__(self, find: Callable[[str, str], Reconcile | None]) -> None:
        self._find = find

    @activity.defn(name="reconcile_tool_effect")
    async def reconcile_tool_effect(self, request: ReconcileRequest) -> ReconcileResult:
        """Ask a tool's check. Reads only, as far as the check does.

        Raises:
            ApplicationError: type `NoReconcileError`, the tool has none here. Not retryable.
        """
        reconcile = self._find(request.agent_name, request.tool_name)
        if reconcile is None:
            message = f"tool {request.tool_name!r} of agent {request.agent_name!r} has no reconcile"
            raise ApplicationError(message, type="NoReconcileError", non_retryable=True)
        call = UnknownCall(
            tool_name=request.tool_name,
            tool_call_id=request.tool_call_id,
            run_id=request.run_id,
            arguments=request.arguments,
            effect_key=request.effect_key,
        )
        match await reconcile(call):
            case Completed(result):
                return ReconcileResult(finding="completed", result=result)
            case NotDone():
                return ReconcileResult(finding="not_done")
            case NotKnown():
                return ReconcileResult(finding="unknown")
        # A check is the user's code: it may answer anything.
        message = (
            f"reconcile of tool {request.tool_name!r} must answer Completed, NotDone or NotKnown"
        )
        raise ApplicationError(message, type="InvalidFindingError", non_retryable=True)
