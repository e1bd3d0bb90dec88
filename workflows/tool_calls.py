"""One tool call of a run: recorded, gated, and settled where its outcome is unknown."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ModelResponse, ToolCallPart, ToolReturn
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_core import to_jsonable_python
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from activities.reconciling import ReconcileRequest, ReconcileResult
from stores.records import EffectPolicy, ToolEffectResolution
from workflows import effects, policies
from workflows.effects import OUTCOME_UNKNOWN
from workflows.lineage import Lineage, Scope, entered, scope_of
from workflows.parking import ParkedCall, ResolveToolEffectRequest, parking_of_execution
from workflows.recorder import CANCELLED, Failure, RunRecorder, ToolCallPlace

RESOLVED_BY = "perdure_resolution"
"""Key in a tool return's metadata: a person or a check gave this result, not the tool."""


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
    """

    recorder: RunRecorder
    lineage: Lineage
    settled: Mapping[str, EffectPolicy]
    is_gated: bool
    agent_name: str | None
    reconciled: frozenset[str]

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
        place = ToolCallPlace(
            step_index=ctx.run_step,
            call_index=_call_index(ctx, part),
            tool_call_id=part.tool_call_id,
            tool_name=tool.name,
        )
        policy = effects.effect_of(tool, self.settled) if self.is_gated else None
        declared = policy or effects.declared_effect(tool)
        arguments = json.dumps(to_jsonable_python(args, fallback=repr))
        call = _Call(
            calls=self, place=place, tool=tool, policy=policy, arguments=arguments, round=0
        )
        has_begun = False
        try:
            await self.recorder.tool_started(place, effect=declared, arguments=arguments)
            has_begun = True
            result, resolution = await call.settled_result(args, handler)
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


@dataclass(frozen=True, kw_only=True)
class _Call:
    calls: ToolCalls
    place: ToolCallPlace
    tool: ToolDefinition
    policy: EffectPolicy | None
    arguments: str
    round: int

    async def settled_result(
        self, args: dict[str, Any], handler: WrapToolExecuteHandler
    ) -> tuple[Any, ToolEffectResolution | None]:
        """What the tool returned, or what somebody says that it did."""
        try:
            with entered(self._scope()):
                return await handler(args), None
        except ActivityError as error:
            if not _is_unknown(error):
                raise
            unknown = error
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
                again = replace(self, round=self.round + 1)
                return await again.settled_result(args, handler)

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


def _is_unknown(error: ActivityError) -> bool:
    return isinstance(error.cause, ApplicationError) and error.cause.type == OUTCOME_UNKNOWN


def _is_lost(error: Exception) -> bool:
    """Whether the error says nothing of what the tool did."""
    return isinstance(error, ActivityError) and (
        _is_unknown(error) or isinstance(error.cause, TemporalTimeoutError)
    )


def _call_index(ctx: RunContext[Any], call: ToolCallPart) -> int:
    """Position of the call in the newest model response."""
    for message in reversed(ctx.messages):
        if isinstance(message, ModelResponse):
            calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
            for index, part in enumerate(calls):
                if part.tool_call_id == call.tool_call_id:
                    return index
            break
    msg = f"tool call {call.tool_call_id!r} ({call.tool_name}) is in no response of the run"
    raise RuntimeError(msg)
