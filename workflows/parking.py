"""Parked calls: a run waits for somebody to say what became of a tool call."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from jsonschema import ValidationError
from jsonschema.validators import validator_for
from pydantic import BaseModel
from temporalio import workflow

from stores.identifiers import DEFAULT_WORKSPACE
from stores.records import ResolutionDecision
from workflows import names
from workflows.executions import of_execution
from workflows.payloads import SubmittedInput
from workflows.waiting import Waiting, WaitingCall


class ResolveToolEffectRequest(SubmittedInput):
    """What somebody decided about a call.

    `call` is the tool call id, or `step/call index` where ids repeat. `result` goes with
    `completed` and becomes what the model sees; `error` goes with `failed`. `workspace_id` is set
    by the trusted submitter.
    """

    run_id: str
    call: str
    decision: ResolutionDecision
    result: Any = None
    error: str | None = None
    by: str | None = None
    why: str | None = None
    workspace_id: str = DEFAULT_WORKSPACE


class ResolveToolEffectResult(BaseModel):
    """The call that was decided on."""

    run_id: str
    tool_call_id: str
    tool_name: str
    step_index: int
    call_index: int
    decision: ResolutionDecision


@dataclass(kw_only=True)
class ParkedCall(WaitingCall):
    """A call whose outcome is unknown. `problem` says why, in words for people."""

    problem: str
    parked_at: datetime
    return_schema: dict[str, Any] = field(default_factory=dict[str, Any])
    decision: ResolveToolEffectRequest | None = None


@dataclass(kw_only=True)
class Parking(Waiting[ParkedCall]):
    """The parked calls of a workflow execution, of all its runs."""

    awaited: str = "decision"
    error_type: str = "ResolutionRefusedError"

    async def wait(
        self, call: ParkedCall, *, longest: timedelta | None
    ) -> ResolveToolEffectRequest | None:
        """What somebody decides, `None` when nobody does in time.

        Repeats: the first valid answer counts.
        """
        await self.until_decided(call, announce=lambda: _announce(call), longest=longest)
        return call.decision

    def listen(self) -> None:
        """Take decisions, or refuse them; from the workflow's first moment on."""
        workflow.set_update_handler(  # pyright: ignore[reportUnknownMemberType] - the SDK's
            names.RESOLVE_UPDATE, self._resolve, validator=self._check
        )

    async def _resolve(self, request: ResolveToolEffectRequest) -> ResolveToolEffectResult:
        call = self.decide(request)
        call.decision = request
        return ResolveToolEffectResult(
            run_id=call.run_id,
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            step_index=call.step_index,
            call_index=call.call_index,
            decision=request.decision,
        )

    def _check(self, request: ResolveToolEffectRequest) -> None:
        call = self.check_waits(request)
        if request.decision == "failed" and not request.error:
            raise self.refusal(request, "needs an error text to be resolved as failed")
        misfits = _misfits(request, call) if request.decision == "completed" else None
        if misfits:
            problem = f"cannot be completed with this result: it does not fit {call.tool_name!r}'s"
            raise self.refusal(request, f"{problem} return type at {misfits}")


def parking_of_execution() -> Parking:
    """The parking of the workflow that runs this code; made at the first call."""
    return of_execution(Parking, "parking")


def _announce(call: ParkedCall) -> None:
    workflow.logger.warning(
        "run %r needs attention: the outcome of call %s of tool %r is unknown. Decide with: "
        "perdure resolve %s --completed JSON | --failed TEXT | --run-again",
        call.run_id,
        call.place,
        call.tool_name,
        call.words,
    )
    meter = workflow.metric_meter()
    meter.create_counter("perdure_tool_effects_parked", "Calls with an unknown outcome").add(1)


def _misfits(request: ResolveToolEffectRequest, call: ParkedCall) -> str:
    """Where the result does not fit: path and rule, not the value, since failures are read."""
    if not call.return_schema:
        return ""
    validator = validator_for(call.return_schema)(call.return_schema)
    problems: list[ValidationError] = list(validator.iter_errors(request.result))
    return ", ".join(f"{each.json_path} ({each.validator})" for each in problems)
