"""One tool call of a run: recorded, gated, and settled where its outcome is unknown."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed
from pydantic_ai.messages import ToolCallPart, ToolReturn
from pydantic_ai.tools import (
    DeferredToolApprovalResult,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolDefinition,
    ToolDenied,
)
from pydantic_core import to_jsonable_python
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from activities.reconciling import ReconcileRequest, ReconcileResult
from stores.decisions import RESOLVED_BY
from stores.records import EffectPolicy, ToolEffectResolution
from workflows import effects, policies
from workflows.approvals import PendingCall, RunApprovals
from workflows.effects import OUTCOME_UNKNOWN
from workflows.lineage import Lineage, Scope, entered, scope_of
from workflows.names import AGENT_RUN, APPROVALS_PATCH, RESULTS_PATCH
from workflows.parking import ParkedCall, ResolveToolEffectRequest, parking_of_execution
from workflows.payloads import check_result
from workflows.recorder import CANCELLED, Failure, RunRecorder, ToolCallPlace


@dataclass(frozen=True, kw_only=True)
class ToolCalls:
    """The tool calls of one run.

    Args:
        lineage: the run's.
        settled: policies that the worker was told, by tool.
        is_gated: whether the run knows of effect policies; one that began before them does not, and
            outside a workflow nothing is attempted twice.
        agent_name: whose tools these are, to find a check of an unknown outcome.
        reconciled: names of tools that have such a check.
        approvals: calls of the run that wait for approval.
    """

    recorder: RunRecorder
    lineage: Lineage
    settled: Mapping[str, EffectPolicy]
    is_gated: bool
    agent_name: str | None
    reconciled: frozenset[str]
    approvals: RunApprovals

    async def execute(
        self,
        ctx: RunContext[Any],
        part: ToolCallPart,
        tool: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:  # noqa: ANN401 - a tool returns anything
        """Record the start, a barrier, before the tool runs, and how it ended, however it ends.

        A call that is cancelled in flight is `unknown`: it may have happened. One that is cancelled
        before it began is `failed`. Eviction records nothing.
        """
        pending = self.approvals.take(part.tool_call_id) if ctx.tool_call_approved else None
        place = ToolCallPlace.of(ctx, part, tool_name=tool.name)
        policy = self._policy_of(tool)
        call = _Call(
            calls=self,
            ctx=ctx,
            place=place,
            tool=tool,
            policy=policy,
            declared=policy or effects.declared_effect(tool),
            arguments=_arguments_of(args),
            round=pending.round if pending else 0,
        )
        has_begun = False
        try:
            await call.begin(pending)
            has_begun = True
            result, resolution = await call.settled_result(args, handler)
        except _DeferredError as deferred:
            raise deferred.signal from None
        except _DeniedError as error:
            return error.denied
        except asyncio.CancelledError:
            await self.recorder.tool_ended(place, "unknown" if has_begun else "failed", CANCELLED)
            raise
        except _ResolvedAsFailedError as error:
            await self.recorder.tool_ended(
                place, "resolved", error.failure, resolution=error.resolution
            )
            raise ToolFailed(error.failure.text) from None
        except Exception as error:
            is_unknown = policy not in {None, "read"} and _is_lost(error)
            await self.recorder.tool_ended(
                place, "unknown" if is_unknown else "failed", Failure.of(error)
            )
            raise
        await self.recorder.tool_ended(
            place, "resolved" if resolution else "completed", resolution=resolution
        )
        return result

    async def decide_approvals(
        self, ctx: RunContext[Any], parts: Sequence[ToolCallPart]
    ) -> DeferredToolResults | None:
        """What somebody says of calls that need approval; `None` where this run does not wait."""
        if not parts or not self.waits_for_approval(ctx):
            return None
        calls = [await self._pending(ctx, part) for part in parts]
        decided = await self.ask(calls)
        ids = [part.tool_call_id for part in parts]
        return DeferredToolResults(approvals=dict(zip(ids, decided, strict=True)))

    async def ask(self, calls: Sequence[PendingCall]) -> list[DeferredToolApprovalResult | bool]:
        """What somebody says of each call; returns when all are decided on."""
        return await self.approvals.ask(
            calls, recorder=self.recorder, workspace_id=self.lineage.workspace_id
        )

    def waits_for_approval(self, ctx: RunContext[Any]) -> bool:
        """Whether a call that needs approval waits for it, and does not end the run.

        A user's own workflow whose agent may end with the requests is asked by it.
        """
        if not self.is_gated:
            return False
        is_ours = workflow.info().workflow_type == AGENT_RUN
        if not is_ours and _may_end_with_requests(ctx.agent):
            return False
        return workflow.patched(APPROVALS_PATCH)

    async def _pending(self, ctx: RunContext[Any], part: ToolCallPart) -> PendingCall:
        begun = self.approvals.begun(part.tool_call_id)
        if begun is not None:
            return begun
        manager = ctx.tool_manager
        if manager is None:
            message = f"tool call {part.tool_call_id!r} ({part.tool_name}) has no tool manager"
            raise RuntimeError(message)
        # What people are asked about is what the tool will be called with.
        validated = await manager.validate_tool_call(part)
        if validated.tool is None or validated.validated_args is None:
            message = f"tool call {part.tool_call_id!r} ({part.tool_name}) is valid no more"
            raise RuntimeError(message)
        tool = validated.tool.tool_def
        return PendingCall(
            place=ToolCallPlace.of(ctx, part, tool_name=tool.name),
            effect=self._policy_of(tool),
            arguments=_arguments_of(validated.validated_args),
            round=0,
        )

    def _policy_of(self, tool: ToolDefinition) -> EffectPolicy | None:
        return effects.effect_of(tool, self.settled) if self.is_gated else None


@dataclass(frozen=True, kw_only=True)
class _Call:
    calls: ToolCalls
    ctx: RunContext[Any]
    place: ToolCallPlace
    tool: ToolDefinition
    policy: EffectPolicy | None
    declared: EffectPolicy | None
    arguments: str
    round: int

    async def begin(self, pending: PendingCall | None) -> None:
        """Barrier: returns when the tool may run. A call that waited for approval has begun."""
        recorder = self.calls.recorder
        if pending is None:
            await recorder.tool_started(self.place, effect=self.declared, arguments=self.arguments)
        elif pending.is_approved:
            pending.check(self.arguments)
        else:
            said = ToolEffectResolution(decision="approved", why="by a handler of the agent")
            await recorder.tool_approved(self.place, said)

    async def settled_result(
        self, args: dict[str, Any], handler: WrapToolExecuteHandler
    ) -> tuple[Any, ToolEffectResolution | None]:
        """What the tool returned, or what somebody says that it did."""
        try:
            with entered(self._scope()):
                result = await handler(args)
            self._check(result)
        except ApprovalRequired as signal:
            if not self.calls.waits_for_approval(self.ctx):
                raise
            await self._defer(signal)
            return await self._once_more().settled_result(args, handler)
        except ActivityError as error:
            if not _is_unknown(error):
                raise
            unknown = error
        else:
            return result, None
        decision = await self._decide(unknown)
        resolution = ToolEffectResolution(
            decision=decision.decision, by=decision.by, why=decision.why
        )
        match decision.decision:
            case "completed":
                marked = {RESOLVED_BY: {"by": decision.by, "why": decision.why}}
                return ToolReturn(decision.result, metadata=marked), resolution
            case "failed":
                text = decision.error or "failed"
                raise _ResolvedAsFailedError(Failure(text=text, error_type="Resolved"), resolution)
            case "run_again":
                await self.calls.recorder.tool_runs_again(self.place, resolution)
                return await self._once_more().settled_result(args, handler)

    def _check(self, result: object) -> None:
        """Refuse what a tool in the workflow returned and no payload can hold.

        Raises:
            ApplicationError: see `check_result`.
        """
        if not workflow.in_workflow() or not effects.runs_in_workflow(self.tool):
            return
        try:
            check_result(self.tool.name, result)
        except ApplicationError:
            if workflow.patched(RESULTS_PATCH):
                raise

    def _once_more(self) -> "_Call":
        """The call in a round of its own: what came of the round before is not its outcome."""
        return replace(self, round=self.round + 1)

    async def _defer(self, signal: ApprovalRequired) -> None:
        """Return when the call may run again.

        Raises:
            _DeferredError: pydantic-ai is to ask for the approval.
            _DeniedError: the call, which was approved once, was denied now.
        """
        pending = PendingCall(
            place=self.place, effect=self.policy, arguments=self.arguments, round=self.round + 1
        )
        if not self.ctx.tool_call_approved:
            self.calls.approvals.add(pending)
            raise _DeferredError(signal)
        # pydantic-ai asks once a call, and would end the run now.
        (decided,) = await self.calls.ask([pending])
        self.calls.approvals.take(self.place.tool_call_id)
        if isinstance(decided, ToolDenied):
            raise _DeniedError(decided)

    def _scope(self) -> Scope:
        policy = self.policy
        options = effects.activity_options(policy, self.tool) if policy else None
        return scope_of(self._lineage, self.calls.recorder, options=options)

    @property
    def _lineage(self) -> Lineage:
        return self.calls.lineage.in_call(
            *self.place.identity,
            tool_name=self.place.tool_name,
            effect=self.policy,
            round=self.round,
        )

    async def _decide(self, unknown: ActivityError) -> ResolveToolEffectRequest:
        """Ask the tool's own check, then people.

        Raises:
            ActivityError: nobody decided in time: the call stays unknown, and the run fails.
        """
        failure = Failure.of(unknown)
        found, problem = await self._reconcile()
        if found is not None:
            await self.calls.recorder.tool_unknown(self.place, failure, is_parked=False)
            return found
        if problem:
            failure = replace(failure, text=f"{failure.text}; its reconcile failed: {problem}")
        longest = effects.longest_wait(self.tool)
        if longest is not None and not longest:
            raise unknown
        await self.calls.recorder.tool_unknown(self.place, failure, is_parked=True)
        parked = ParkedCall(
            run_id=self.calls.recorder.run_id,
            workspace_id=self.calls.lineage.workspace_id,
            tool_call_id=self.place.tool_call_id,
            tool_name=self.place.tool_name,
            step_index=self.place.step_index,
            call_index=self.place.call_index,
            problem=failure.text,
            parked_at=workflow.now(),
            return_schema=self.tool.return_schema or {},
        )
        decision = await parking_of_execution().wait(parked, longest=longest)
        if decision is None:
            raise unknown
        return decision

    async def _reconcile(self) -> tuple[ResolveToolEffectRequest | None, str | None]:
        """What the tool's check found, and what went wrong with it."""
        if self.tool.name not in self.calls.reconciled:
            return None, None
        request = ReconcileRequest(
            agent_name=self.calls.agent_name or "",
            tool_name=self.tool.name,
            tool_call_id=self.place.tool_call_id,
            run_id=self.calls.recorder.run_id,
            arguments=json.loads(self.arguments),
            effect_key=effects.call_key(self._lineage),
        )
        try:
            result: ReconcileResult = await workflow.execute_activity(
                "reconcile_tool_effect",
                request,
                result_type=ReconcileResult,
                start_to_close_timeout=policies.RECONCILE_TIMEOUT,
                heartbeat_timeout=policies.HEARTBEAT_TIMEOUT,
                retry_policy=policies.RECONCILE_RETRIES,
            )
        except ActivityError as error:
            return None, Failure.of(error).text
        if result.finding == "unknown":
            return None, None
        decision = ResolveToolEffectRequest(
            run_id=self.calls.recorder.run_id,
            call=f"{self.place.step_index}/{self.place.call_index}",
            decision="completed" if result.finding == "completed" else "run_again",
            result=result.result,
            by="reconcile",
        )
        return decision, None


class _ResolvedAsFailedError(Exception):
    def __init__(self, failure: Failure, resolution: ToolEffectResolution) -> None:
        self.failure = failure
        self.resolution = resolution
        super().__init__(failure.text)


class _DeferredError(Exception):
    """A call has asked to be approved: an answer, and no failure."""

    def __init__(self, signal: ApprovalRequired) -> None:
        self.signal = signal
        super().__init__()


class _DeniedError(Exception):
    def __init__(self, denied: ToolDenied) -> None:
        self.denied = denied
        super().__init__(denied.message)


def _arguments_of(args: dict[str, Any]) -> str:
    return json.dumps(to_jsonable_python(args, fallback=repr))


def _may_end_with_requests(agent: AbstractAgent[Any, Any] | None) -> bool:
    """Whether `DeferredToolRequests` is among the agent's output types."""
    output: object = agent.output_type if agent else None
    types = cast("Sequence[object]", output) if isinstance(output, Sequence) else get_args(output)
    return DeferredToolRequests in (*types, output)


def _is_unknown(error: ActivityError) -> bool:
    return isinstance(error.cause, ApplicationError) and error.cause.type == OUTCOME_UNKNOWN


def _is_lost(error: Exception) -> bool:
    """Whether the error says nothing of what the tool did."""
    return isinstance(error, ActivityError) and (
        _is_unknown(error) or isinstance(error.cause, TemporalTimeoutError)
    )
