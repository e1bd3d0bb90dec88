"""Parked calls: a run waits for somebody to say what became of a tool call.

An update answers. What it may say is checked in its validator, so a wrong answer costs no history.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from jsonschema import ValidationError
from jsonschema.validators import validator_for
from pydantic import BaseModel
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from stores.identifiers import DEFAULT_WORKSPACE
from stores.records import ResolutionDecision
from workflows import names
from workflows.payloads import SubmittedInput


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
class ParkedCall:
    """A call whose outcome is unknown. `problem` says why, in words for people."""

    run_id: str
    workspace_id: str
    tool_call_id: str
    tool_name: str
    step_index: int
    call_index: int
    problem: str
    parked_at: datetime
    return_schema: dict[str, Any] = field(default_factory=dict[str, Any])
    decision: ResolveToolEffectRequest | None = None

    @property
    def place(self) -> str:
        """Step and call index, as a person names them."""
        return f"{self.step_index}/{self.call_index}"

    def is_of(self, request: ResolveToolEffectRequest) -> bool:
        """Whether it is a call of the run that is meant."""
        return (self.run_id, self.workspace_id) == (request.run_id, request.workspace_id)

    def is_named(self, call: str) -> bool:
        """Whether somebody means it by this place or tool call id."""
        return call in {self.place, self.tool_call_id}


@dataclass(kw_only=True)
class Parking:
    """The parked calls of a workflow execution, of all its runs."""

    on_change: Callable[[], None] | None = None
    """Called when the first call is parked and when the last one is not any more."""
    _calls: list[ParkedCall] = field(default_factory=list[ParkedCall])
    _decided: list[ParkedCall] = field(default_factory=list[ParkedCall])
    """So that who answers too late is told what was decided, and by whom."""
    _has_handler: bool = False

    @property
    def calls(self) -> tuple[ParkedCall, ...]:
        """In the order in which they were parked."""
        return tuple(self._calls)

    async def wait(
        self, call: ParkedCall, *, longest: timedelta | None
    ) -> ResolveToolEffectRequest | None:
        """What somebody decides, `None` when nobody does in time.

        Repeats: the first valid answer counts.
        """
        self._listen()
        self._calls.append(call)
        self._announce(call)
        try:
            await workflow.wait_condition(lambda: call.decision is not None, timeout=longest)
        except TimeoutError:
            pass
        finally:
            self._calls.remove(call)
        if call.decision is not None:
            self._decided.append(call)
        self._tell_change(len(self._calls))
        return call.decision

    def _announce(self, call: ParkedCall) -> None:
        workflow.logger.warning(
            "run %r needs attention: the outcome of call %s of tool %r is unknown. Decide with: "
            "perdure resolve %s %s --completed JSON | --failed TEXT | --run-again",
            call.run_id,
            call.place,
            call.tool_name,
            call.run_id,
            call.place,
        )
        meter = workflow.metric_meter()
        meter.create_counter("perdure_tool_effects_parked", "Calls with an unknown outcome").add(1)
        self._tell_change(len(self._calls) - 1)

    def _tell_change(self, others: int) -> None:
        if not others and self.on_change:
            self.on_change()

    def _listen(self) -> None:
        if self._has_handler:
            return
        self._has_handler = True
        workflow.set_update_handler(  # pyright: ignore[reportUnknownMemberType] - the SDK's
            names.RESOLVE_UPDATE, self._resolve, validator=self._check
        )

    async def _resolve(self, request: ResolveToolEffectRequest) -> ResolveToolEffectResult:
        call = self._find(request)
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
        call = self._find(request)
        if call.decision is not None:
            by = f" by {call.decision.by}" if call.decision.by else ""
            raise _refusal(request, f"was decided{by} already: {call.decision.decision}")
        if request.decision == "failed" and not request.error:
            raise _refusal(request, "needs an error text to be resolved as failed")
        if request.decision == "completed":
            _check_result(request, call)

    def _find(self, request: ResolveToolEffectRequest) -> ParkedCall:
        """The call that is meant; one of another workspace is as one that does not exist."""
        mine = [each for each in self._calls if each.is_of(request)]
        found = [each for each in mine if each.is_named(request.call)]
        decided = [each for each in self._decided if each.is_of(request)]
        found = found or [each for each in decided if each.is_named(request.call)][-1:]
        if len(found) == 1:
            return found[0]
        if found:
            places = ", ".join(each.place for each in found)
            raise _refusal(request, f"is ambiguous; name one of {places}")
        waiting = ", ".join(f"{each.place} ({each.tool_name})" for each in mine) or "none"
        raise _refusal(request, f"waits for no decision; waiting calls of that run: {waiting}")


def parking_of_execution() -> Parking:
    """The parking of the workflow that runs this code; made at the first call."""
    instance = workflow.instance()
    parking = getattr(instance, _ATTRIBUTE, None)
    if not isinstance(parking, Parking):
        parking = Parking()
        setattr(instance, _ATTRIBUTE, parking)
    return parking


_ATTRIBUTE = "__perdure_parking__"
"""On the workflow's instance, as the journal is."""


def _check_result(request: ResolveToolEffectRequest, call: ParkedCall) -> None:
    if not call.return_schema:
        return
    validator = validator_for(call.return_schema)(call.return_schema)
    problems: list[ValidationError] = list(validator.iter_errors(request.result))
    if problems:
        # Path and rule, not the value: failures are read by many.
        where = ", ".join(f"{each.json_path} ({each.validator})" for each in problems)
        problem = f"cannot be completed with this result: it does not fit {call.tool_name!r}'s"
        raise _refusal(request, f"{problem} return type at {where}")


def _refusal(request: ResolveToolEffectRequest, problem: str) -> ApplicationError:
    message = f"call {request.call!r} of run {request.run_id!r} {problem}"
    return ApplicationError(message, type="ResolutionRefusedError", non_retryable=True)
