"""Approvals: a run waits for somebody to say whether a tool call may run.

pydantic-ai asks for one where a tool has `requires_approval=True` or raises `ApprovalRequired`. One
is good for one call with the arguments that it was asked for, and for nothing else.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from pydantic import BaseModel
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.tools import DeferredToolApprovalResult, ToolDenied
from temporalio import workflow

from stores.digests import arguments_digest
from stores.identifiers import DEFAULT_WORKSPACE
from stores.records import EffectPolicy, ToolEffectResolution
from workflows import names
from workflows.executions import of_execution
from workflows.payloads import SubmittedInput
from workflows.recorder import Failure, RunRecorder, ToolCallPlace
from workflows.waiting import Waiting, WaitingCall

ApprovalDecision = Literal["approved", "denied"]

NOT_APPROVED = Failure(text="not approved", error_type="NotApproved")
"""What is recorded of a call that nobody approved before its run went on or ended."""


class DecideApprovalRequest(SubmittedInput):
    """What somebody decided about a call that waits for approval.

    `call` is the tool call id, or `step/call index` where ids repeat. `arguments_digest` is that of
    the arguments that the person saw, as the ledger has it. `message` goes with `denied`, to the
    model. `workspace_id` is set by the trusted submitter.
    """

    run_id: str
    call: str
    decision: ApprovalDecision
    arguments_digest: str
    message: str | None = None
    by: str | None = None
    why: str | None = None
    workspace_id: str = DEFAULT_WORKSPACE


class DecideApprovalResult(BaseModel):
    """The call that was decided on."""

    run_id: str
    tool_call_id: str
    tool_name: str
    step_index: int
    call_index: int
    decision: ApprovalDecision


@dataclass(kw_only=True)
class UnapprovedCall(WaitingCall):
    """A call that waits for approval of these arguments."""

    arguments_digest: str
    asked_at: datetime
    decision: DecideApprovalRequest | None = None


@dataclass(kw_only=True)
class Approvals(Waiting[UnapprovedCall]):
    """The calls of a workflow execution, of all its runs, that wait for approval."""

    awaited: str = "approval"
    error_type: str = "ApprovalRefusedError"

    def listen(self) -> None:
        """See `Parking.listen`."""
        workflow.set_update_handler(  # pyright: ignore[reportUnknownMemberType] - the SDK's
            names.APPROVE_UPDATE, self._decide, validator=self._check
        )

    async def wait(self, call: UnapprovedCall) -> DecideApprovalRequest:
        """What somebody decides. Repeats: the first valid answer counts."""
        await self.until_decided(call, announce=lambda: _announce(call))
        if call.decision is None:
            message = f"call {call.place} of run {call.run_id!r} waits no more, and undecided"
            raise RuntimeError(message)
        return call.decision

    async def _decide(self, request: DecideApprovalRequest) -> DecideApprovalResult:
        call = self.decide(request)
        call.decision = request
        return DecideApprovalResult(
            run_id=call.run_id,
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            step_index=call.step_index,
            call_index=call.call_index,
            decision=request.decision,
        )

    def _check(self, request: DecideApprovalRequest) -> None:
        call = self.check_waits(request)
        if request.arguments_digest != call.arguments_digest:
            problem = "has other arguments than those that were decided on; look at it again"
            raise self.refusal(request, problem)


def approvals_of_execution() -> Approvals:
    """The approvals of the workflow that runs this code; made at the first call."""
    return of_execution(Approvals, "approvals")


@dataclass(frozen=True, kw_only=True)
class PendingCall:
    """A call of a run that may only run when it is approved.

    Args:
        place: which call.
        effect: its policy.
        arguments: JSON text.
        round: of its attempts, when it runs.
        is_approved: whether somebody has.
    """

    place: ToolCallPlace
    effect: EffectPolicy | None
    arguments: str
    round: int
    is_approved: bool = False

    @property
    def digest(self) -> str:
        """Of the arguments, as the ledger has it."""
        return arguments_digest(self.arguments)

    def check(self, arguments: str) -> None:
        """Return when the approval is for these arguments.

        Raises:
            ToolFailed: it is for others; the model is told so, and the tool does not run.
        """
        if self.is_approved and arguments_digest(arguments) != self.digest:
            message = "The call was approved with other arguments, and did not run."
            raise ToolFailed(message)


@dataclass(kw_only=True)
class RunApprovals:
    """The calls of one run that wait for approval, or have it and did not run yet."""

    _pending: dict[str, PendingCall] = field(default_factory=dict[str, PendingCall])
    """By tool call id, which is unique within a step."""

    def begun(self, tool_call_id: str) -> PendingCall | None:
        """The call, when it has asked for its approval itself."""
        return self._pending.get(tool_call_id)

    def add(self, call: PendingCall) -> None:
        """Let a call wait to be asked about."""
        self._pending[call.place.tool_call_id] = call

    def take(self, tool_call_id: str) -> PendingCall | None:
        """The call, whose approval is used up now; `None` when it was asked nothing here."""
        return self._pending.pop(tool_call_id, None)

    async def ask(
        self, calls: Sequence[PendingCall], *, recorder: RunRecorder, workspace_id: str
    ) -> list[DeferredToolApprovalResult | bool]:
        """What somebody says of each call, in their order; returns when all are decided on."""
        asking = [self._decided(call, recorder, workspace_id) for call in calls]
        tasks = [asyncio.create_task(each) for each in asking]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _decided(
        self, call: PendingCall, recorder: RunRecorder, workspace_id: str
    ) -> DeferredToolApprovalResult | bool:
        place = call.place
        self.add(call)
        await recorder.approval_asked(place, effect=call.effect, arguments=call.arguments)
        decision = await approvals_of_execution().wait(
            UnapprovedCall(
                run_id=recorder.run_id,
                workspace_id=workspace_id,
                tool_call_id=place.tool_call_id,
                tool_name=place.tool_name,
                step_index=place.step_index,
                call_index=place.call_index,
                arguments_digest=call.digest,
                asked_at=workflow.now(),
            )
        )
        said = ToolEffectResolution(decision=decision.decision, by=decision.by, why=decision.why)
        if decision.decision == "approved":
            self.add(replace(call, is_approved=True))
            await recorder.tool_approved(place, said)
            return True
        self.take(place.tool_call_id)
        denied = ToolDenied(decision.message) if decision.message else ToolDenied()
        failure = Failure(text=f"denied: {denied.message}", error_type="Denied")
        await recorder.tool_ended(place, "resolved", failure, resolution=said)
        return denied

    async def close(self, recorder: RunRecorder, failure: Failure) -> None:
        """Record that the calls that are left do not run."""
        left, self._pending = self._pending, {}
        for call in left.values():
            await recorder.tool_ended(call.place, "failed", failure)


def _announce(call: UnapprovedCall) -> None:
    workflow.logger.warning(
        "run %r needs attention: call %s of tool %r waits for approval. Decide with: "
        "perdure approve %s, or: perdure deny %s",
        call.run_id,
        call.place,
        call.tool_name,
        call.words,
        call.words,
    )
    meter = workflow.metric_meter()
    meter.create_counter("perdure_approvals_asked", "Calls that waited for approval").add(1)
