"""Delegates: an agent that another one has as a tool, and that runs as a workflow of its own."""

import asyncio
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio
from pydantic import TypeAdapter
from pydantic_ai import Agent, FunctionToolset, RunContext, Tool
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.usage import RunUsage, UsageLimits
from pydantic_core import PydanticSerializationError, to_jsonable_python
from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    TimeoutError,  # noqa: A004 - the SDK's: the child ran out of time
    WorkflowAlreadyStartedError,
)
from temporalio.workflow import (
    ChildWorkflowCancellationType,
    ChildWorkflowHandle,
    ParentClosePolicy,
)

from activities.history import LoadUsageRequest, LoadUsageResult
from stores.operations import StartToolEffect
from stores.reading.task_keys import CALL_METADATA
from workflows import names, policies
from workflows.agent_run_models import AgentRunInput, AgentRunOutput
from workflows.agents import AgentSetupError, deps_factory_of, find_agent
from workflows.journal import journal_of_execution
from workflows.submission import current_run_id, current_submission, delegation_depth

MAX_DELEGATION_DEPTH = 8
"""Delegates below a run that nobody delegated. Without a bound an agent that delegates to itself
would go on until the money is spent."""

SETUP_ERRORS = frozenset({"UnknownAgentError", "InvalidDepsError", "InvalidInputError"})
"""Of a child. No model can mend them, so they fail the parent whatever `on_failure` says."""

_USAGE = TypeAdapter(RunUsage)


class DelegateFailedError(Exception):
    """A delegate's run ended without a result; the message names agent, run and reason."""


class DelegationTooDeepError(Exception):
    """A delegate would have been more than `MAX_DELEGATION_DEPTH` delegations deep."""


def delegate(
    agent: str | Agent[Any, Any],
    *,
    description: str,
    name: str | None = None,
    deps: Callable[[RunContext[Any]], object] | None = None,
    conversation: Literal["own", "shared"] = "own",
    on_failure: Literal["raise", "tell"] = "raise",
) -> Tool[Any]:
    """A tool that has `agent` work on a prompt: `Agent(..., tools=[delegate("researcher", ...)])`.

    In a workflow it runs a child workflow `agent_run`: with its own run id, history and record, in
    the same workspace, for the same principal; the run that called it is its parent. What it uses
    counts for the parent as well. Outside a workflow the agent runs in this process.

    Args:
        agent: its name, which the worker has to serve, or the agent itself.
        description: tells the model what it may ask the delegate for.
        name: of the tool; `ask_` and the agent's name by default.
        deps: makes what the delegate's `deps_type` takes, of the caller's context; in a workflow it
            is workflow code, and its result travels as JSON.
        conversation: the delegate's: its own, or that of the caller.
        on_failure: `raise` fails the caller's run when the delegate's fails; `tell` gives the model
            the reason as the tool's failure.

    Raises:
        AgentSetupError: the agent has no name.
    """
    agent_name = agent if isinstance(agent, str) else agent.name
    if not agent_name:
        message = "a delegate needs a name: Agent(name=...), or delegate('its name', ...)"
        raise AgentSetupError(message)
    delegation = Delegation(
        agent_name=agent_name,
        agent=None if isinstance(agent, str) else agent,
        make_deps=deps,
        conversation=conversation,
        on_failure=on_failure,
    )
    return Tool(
        delegation.ask,
        name=name or "ask_" + re.sub(r"[^a-zA-Z0-9_-]", "_", agent_name),
        description=description,
        metadata={"temporal": False, "effect": "once"},
    )


def check_delegates(agents: Iterable[Agent[Any, Any]]) -> None:
    """Refuse agents whose delegates are not among them.

    Raises:
        AgentSetupError: names the agent and the delegate.
    """
    served = {agent.name: agent for agent in agents}
    for agent in served.values():
        for delegation in _delegations(agent):
            found = served.get(delegation.agent_name)
            pair = f"agent {agent.name!r} delegates to {delegation.agent_name!r}"
            if found is None:
                known = ", ".join(sorted(str(each) for each in served))
                message = (
                    f"{pair}, which this worker does not serve; it serves: {known}. Add the "
                    "delegate to PERDURE_AGENTS"
                )
                raise AgentSetupError(message)
            if delegation.agent is not None and delegation.agent is not found:
                message = (
                    f"{pair}, and the worker serves another agent of that name; give both the "
                    "same one, or delegate by name"
                )
                raise AgentSetupError(message)


def _delegations(agent: Agent[Any, Any]) -> Iterator["Delegation"]:
    """Those among the agent's tools; dynamic toolsets make theirs only in a run."""
    toolsets: list[FunctionToolset[Any]] = []

    def visit(toolset: AbstractToolset[Any]) -> None:
        if isinstance(toolset, FunctionToolset):
            toolsets.append(toolset)

    for toolset in agent.toolsets:
        toolset.apply(visit)
    for toolset in toolsets:
        for tool in toolset.tools.values():
            owner = getattr(tool.function, "__self__", None)
            if isinstance(owner, Delegation):
                yield owner


@dataclass(frozen=True, kw_only=True)
class Delegation:
    """What `delegate` was given; `ask` is the tool's function."""

    agent_name: str
    agent: Agent[Any, Any] | None
    make_deps: Callable[[RunContext[Any]], object] | None
    conversation: Literal["own", "shared"]
    on_failure: Literal["raise", "tell"]

    async def ask(self, ctx: RunContext[Any], prompt: str) -> object:
        """The delegate's output, as JSON.

        Args:
            ctx: of the caller.
            prompt: What the delegate is to do. It sees nothing else of this conversation.
        """
        depth = delegation_depth.get() + 1
        if depth > MAX_DELEGATION_DEPTH:
            message = (
                f"run {current_run_id.get() or ctx.run_id!r} would delegate to "
                f"{self.agent_name!r} at depth {depth}; {MAX_DELEGATION_DEPTH} is the most. Does "
                "an agent delegate to itself without an end?"
            )
            raise DelegationTooDeepError(message)
        if workflow.in_workflow():
            return await self._ask_child(ctx, prompt, depth)
        return await self._ask_here(ctx, prompt, depth)

    # --- in a workflow ---

    async def _ask_child(self, ctx: RunContext[Any], prompt: str, depth: int) -> object:
        journal = journal_of_execution()
        submission = current_submission.get()
        effect = _effect_of(ctx)
        run_id = child_run_id(
            effect.run_id, workflow.random_seed(), effect.step_index, effect.call_index
        )
        request = AgentRunInput(
            agent=self.agent_name,
            prompt=prompt,
            conversation_id=ctx.conversation_id if self.conversation == "shared" else None,
            parent_run_id=effect.run_id,
            workspace_id=journal.workspace_id,
            principal=submission.principal if submission else None,
            deps=self._json_deps(ctx),
            usage_limits=_remaining(ctx),
            delegation_depth=depth,
            metadata={CALL_METADATA: f"{effect.step_index}/{effect.call_index}"},
        )
        try:
            output = await _run_child(run_id, request)
        except (ChildWorkflowError, WorkflowAlreadyStartedError) as error:
            ctx.usage.incr(await _recorded_usage(run_id, journal.workspace_id))
            raise self._failure(run_id, error) from error
        ctx.usage.incr(output.usage)
        return output.output

    def _json_deps(self, ctx: RunContext[Any]) -> object:
        if self.make_deps is None:
            return None
        try:
            return to_jsonable_python(self.make_deps(ctx))
        except PydanticSerializationError as error:
            message = (
                f"deps for delegate {self.agent_name!r} cannot be encoded as JSON, in which they "
                f"travel to its workflow: {error}"
            )
            raise ApplicationError(message, type="InvalidDepsError", non_retryable=True) from error

    def _failure(self, run_id: str, error: FailureError) -> Exception:
        """What the tool raises."""
        cause = error.cause if isinstance(error, ChildWorkflowError) else error
        message = (
            f"delegate {self.agent_name!r} (run {run_id!r}) {_ended(cause)}; "
            f"`perdure show {run_id}` tells more"
        )
        kind = cause.type if isinstance(cause, ApplicationError) else None
        if self.on_failure == "tell" and kind not in SETUP_ERRORS:
            return ToolFailed(message)
        return DelegateFailedError(message)

    # --- outside ---

    async def _ask_here(self, ctx: RunContext[Any], prompt: str, depth: int) -> object:
        agent = self.agent or self._registered()
        run_id = f"delegate-{uuid.uuid4().hex}"  # noqa: TID251 - never in a workflow
        usage = RunUsage()
        token = delegation_depth.set(depth)
        try:
            result = await agent.run(
                prompt,
                run_id=run_id,
                conversation_id=ctx.conversation_id if self.conversation == "shared" else run_id,
                deps=await self._live_deps(ctx, agent),
                usage=usage,
                usage_limits=_remaining(ctx),
            )
        except Exception as error:
            if self.on_failure == "raise":
                raise
            name = type(error).__name__
            message = f"delegate {self.agent_name!r} (run {run_id!r}) failed: {name}: {error}"
            raise ToolFailed(message) from error
        finally:
            delegation_depth.reset(token)
            ctx.usage.incr(usage)
        return to_jsonable_python(result.output)

    async def _live_deps(self, ctx: RunContext[Any], agent: Agent[Any, Any]) -> object:
        made = self.make_deps(ctx) if self.make_deps else None
        factory = deps_factory_of(agent)
        return await factory.live(made) if factory else made

    def _registered(self) -> Agent[Any, Any]:
        try:
            return find_agent(self.agent_name)
        except ApplicationError as error:
            message = (
                f"delegate {self.agent_name!r} is not known in this process, which is no worker "
                "that serves it; give delegate() the agent itself instead of its name"
            )
            raise AgentSetupError(message) from error


async def _run_child(run_id: str, request: AgentRunInput) -> AgentRunOutput:
    """Run the child; a cancellation is handed down once, and told when the child has ended.

    The core's cancel scopes cancel a task again and again while it waits, and the SDK would pass on
    each, without an end. So the wait is shielded from the first one on.

    Raises:
        asyncio.CancelledError: this task was cancelled; the child was, too, or had ended.
        ChildWorkflowError: the child failed, or was ended by somebody else.
    """
    starting = asyncio.create_task(_start_child(run_id, request))
    try:
        return await asyncio.shield(await asyncio.shield(starting))
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await asyncio.gather(starting, return_exceptions=True)
            if not starting.cancelled() and starting.exception() is None:
                # By id: the SDK names the child's first execution, which a reset has closed.
                asking = workflow.get_external_workflow_handle(run_id).cancel()
                await asyncio.gather(asking, starting.result(), return_exceptions=True)
        raise


async def _start_child(
    run_id: str, request: AgentRunInput
) -> ChildWorkflowHandle[Any, AgentRunOutput]:
    """One id runs once; a parent that is gone without a word takes its delegates along."""
    return await workflow.start_child_workflow(
        names.AGENT_RUN,
        request,
        id=run_id,
        result_type=AgentRunOutput,
        static_summary=f"delegate: {request.agent}",
        cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
        parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
    )


def child_run_id(
    parent_run_id: str, seed: int, step_index: int | None, call_index: int | None
) -> str:
    """The id of a call's delegate. Frozen: histories hold it.

    Args:
        seed: of the workflow's random numbers; the same on every attempt of a workflow task, and
            another one from a reset point on. So a call before it finds the child that it had, and
            a call after it starts one of its own.
    """
    place = json.dumps([parent_run_id, seed, step_index, call_index])
    return "delegate-" + hashlib.sha256(place.encode()).hexdigest()[:32]


def _effect_of(ctx: RunContext[Any]) -> StartToolEffect:
    """The call that this is, as the ledger knows it."""
    run_id = current_run_id.get()
    for effect in journal_of_execution().open_effects:
        if (effect.run_id, effect.tool_call_id) == (run_id, ctx.tool_call_id):
            return effect
    message = (
        f"tool call {ctx.tool_call_id!r} ({ctx.tool_name}) is not in the ledger of run "
        f"{run_id or ctx.run_id!r}, so its delegate has no identity; make the agent with "
        "capabilities=[*durable()]"
    )
    raise AgentSetupError(message)


def _remaining(ctx: RunContext[Any]) -> UsageLimits | None:
    """What the caller may still use. The core checks the caller itself at its next request."""
    limits, used = ctx.usage_limits, ctx.usage
    if limits is None:
        return None
    spent = {
        "request_limit": used.requests,
        "tool_calls_limit": used.tool_calls,
        "input_tokens_limit": used.input_tokens,
        "output_tokens_limit": used.output_tokens,
        "total_tokens_limit": used.total_tokens,
        "cost_limit": used.cost or 0,
    }
    left = {
        name: max(limit - amount, 0)
        for name, amount in spent.items()
        if (limit := getattr(limits, name)) is not None
    }
    return replace(limits, **left)


async def _recorded_usage(run_id: str, workspace_id: str) -> RunUsage:
    """What a run had used when it ended without a result; its record tells."""
    loading = workflow.start_activity(
        "load_usage",
        LoadUsageRequest(run_id=run_id, workspace_id=workspace_id),
        result_type=LoadUsageResult,
        start_to_close_timeout=policies.READ_TIMEOUT,
        retry_policy=policies.READ_RETRIES,
    )
    try:
        loaded: LoadUsageResult = await asyncio.shield(loading)
    except asyncio.CancelledError:
        loading.cancel()
        raise
    return _USAGE.validate_python(loaded.usage or {})


def _ended(cause: BaseException | None) -> str:
    """How a child ended, in words."""
    match cause:
        case ApplicationError():
            kind = cause.type or "error"
            own = cause.message if kind in cause.message else f"{kind}: {cause.message}"
            return f"failed: {own}"
        case CancelledError():
            return "was cancelled"
        case TerminatedError():
            return "was terminated"
        case TimeoutError():
            return "timed out"
        case FailureError():
            inner = f": {_ended(cause.cause)}" if cause.cause else ""
            return f"failed: {cause.message}{inner}"
        case _:
            return f"failed: {cause}"
