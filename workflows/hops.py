"""Continue-as-new of `agent_run`: a run goes on in another execution before a limit ends this one.

A hop happens where the run is settled, just before a model request: every call is answered, nothing
is parked, and all that was recorded is stored. What is handed on are numbers and the name of a
snapshot, never the history.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent
from pydantic_ai.agent import AgentRun, WrapperAgent
from pydantic_ai.messages import ModelMessage, ModelRequest
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RunUsage
from pydantic_core import to_jsonable_python
from temporalio import workflow
from temporalio.exceptions import is_cancelled_exception

from activities.boundaries import HopBounds
from workflows.approvals import approvals_of_execution
from workflows.executions import of_execution
from workflows.journal import journal_of_execution
from workflows.metering import count_hop
from workflows.parking import parking_of_execution
from workflows.recorder import CANCELLED, Failure, RunRecorder
from workflows.recording import RecordingState
from workflows.transcript import is_settled


class HopState(BaseModel):
    """What an execution of a run hands on to the next one. Frozen: histories hold it.

    `count` numbers the hops of a run from 1. The rest is what would be lost with the execution:
    what the recorder has counted, and what the core has.
    """

    model_config = ConfigDict(frozen=True)

    count: int = Field(ge=1)
    registration_id: str
    recording: RecordingState
    usage: RunUsage = Field(default_factory=RunUsage)
    output_retries: int = 0
    tool_retries: dict[str, int] = Field(default_factory=dict)
    """Failures since the last success, of tools that failed."""
    refused_tools: tuple[str, ...] = ()
    """Tools whose one free refusal (the core's, of a tool that is not available) is spent."""


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """What this execution of a run goes on from."""

    state: HopState
    messages: Sequence[ModelMessage]


Leave = Callable[[HopState], NoReturn]
"""Continues the workflow as new."""


@dataclass
class Hops:
    """The hops of the run that this execution is for; a user's own workflow makes none."""

    resumption: Resumption | None = None
    run_id: str | None = None
    bounds: HopBounds | None = None
    leave: Leave | None = None
    updates: int = 0
    """Updates that were accepted in this execution."""
    _requests: int = 0
    _children: list[workflow.ChildWorkflowHandle[Any, Any]] = field(
        default_factory=list[workflow.ChildWorkflowHandle[Any, Any]]
    )

    def watch(self, child: workflow.ChildWorkflowHandle[Any, Any]) -> None:
        """Note a child workflow: while it is open, the execution is not left."""
        self._children = [each for each in (*self._children, child) if not each.done()]

    async def before_request(
        self, ctx: RunContext[Any], recorder: RunRecorder, save: Callable[[], Awaitable[None]]
    ) -> None:
        """Leave the execution when that is due and the run is settled.

        Otherwise return; the next request asks again. `save` saves the history as it is.

        Raises:
            temporalio.workflow.ContinueAsNewError: it is left.
            asyncio.CancelledError: the workflow was cancelled meanwhile.
            ApplicationError: the store refused something of the run; it does not go on from that.
        """
        if self.leave is None or recorder.run_id != self.run_id:
            return
        self._requests += 1
        if self._requests == 1 and self.resumption is not None:
            _restore_tools(ctx, self.resumption.state)
        reason = self._due_for()
        if reason is None or self._is_held_up(ctx, recorder):
            return
        if not recorder.transcript.holds(ctx.messages):
            await save()
        journal = journal_of_execution()
        if await journal.drain():
            raise asyncio.CancelledError
        if self._is_held_up(ctx, recorder):  # by what came in meanwhile
            return
        identity = await journal.identify(recorder.run_id)
        tools = ctx.tool_manager
        count_hop(reason)
        self.leave(
            HopState(
                count=self.resumption.state.count + 1 if self.resumption else 1,
                registration_id=identity.registration_id,
                recording=recorder.state(),
                usage=ctx.usage,
                output_retries=ctx.retry,
                tool_retries=dict(tools.ctx.retries) if tools and tools.ctx else {},
                refused_tools=tuple(sorted(tools.availability_refused)) if tools else (),
            )
        )

    def _due_for(self) -> str | None:
        """Which bound is reached; none before the execution has made one request."""
        bounds = self.bounds
        if bounds is None or self._requests == 1:
            return None
        info = workflow.info()
        reached = {
            "suggested": info.is_continue_as_new_suggested(),
            "events": info.get_current_history_length() >= bounds.events,
            "bytes": info.get_current_history_size() >= bounds.size_bytes,
            "updates": self.updates >= bounds.updates,
            "requests": bounds.requests is not None and self._requests > bounds.requests,
            # A pinned execution does not move to a newer build by itself.
            "version": bounds.newest_build and info.is_target_worker_deployment_version_changed(),
        }
        return next((reason for reason, is_reached in reached.items() if is_reached), None)

    def _is_held_up(self, ctx: RunContext[Any], recorder: RunRecorder) -> bool:
        """Whether something is open that the next execution could not go on with."""
        newest = ctx.messages[-1] if ctx.messages else None
        self._children = [each for each in self._children if not each.done()]
        return bool(
            not isinstance(newest, ModelRequest)
            or _asks_again(newest)
            or not is_settled(ctx.messages)
            or ctx.pending_messages
            or not recorder.is_at_rest
            or journal_of_execution().open_effects
            or parking_of_execution().calls
            or approvals_of_execution().calls
            or self._children
            or not workflow.all_handlers_finished()
        )


def _asks_again(request: ModelRequest) -> bool:
    """Whether the model is asked to try again."""
    return any(
        part.part_kind in {"retry-prompt", "retry-feedback"} or getattr(part, "retry", None)
        for part in request.parts
    )


def _restore_tools(ctx: RunContext[Any], state: HopState) -> None:
    tools = ctx.tool_manager
    if tools is None:
        return
    tools.availability_refused.update(state.refused_tools)
    if tools.ctx is not None:
        tools.ctx.retries.update(state.tool_retries)


def gone_on(recorder: RunRecorder) -> bool:
    """Whether the recorder's run was begun in another execution; it has taken up what that left."""
    hops = hops_of_execution() if workflow.in_workflow() else Hops()
    if hops.resumption is None or recorder.run_id != hops.run_id:
        return False
    state = hops.resumption.state.recording
    journal_of_execution().go_on(recorder.run_id, state.next_sequence)
    recorder.go_on(state, hops.resumption.messages)
    return True


async def end_before_it_went_on(run_id: str, state: HopState, error: BaseException) -> None:
    """Record the end of a run whose history was not loaded, or that was cancelled meanwhile."""
    journal = journal_of_execution()
    await journal.identify(run_id, state.registration_id)
    journal.go_on(run_id, state.recording.next_sequence)
    recorder = RunRecorder(run_id, journal)
    recorder.step_index = state.recording.step_index
    failure = CANCELLED if is_cancelled_exception(error) else Failure.of(error)
    await recorder.failed(failure, to_jsonable_python(state.usage, exclude_none=True))


async def hop_when_due(
    ctx: RunContext[Any], recorder: RunRecorder, save: Callable[[], Awaitable[None]]
) -> None:
    """`Hops.before_request` of this execution; outside a workflow nothing."""
    if workflow.in_workflow():
        await hops_of_execution().before_request(ctx, recorder, save)


NEWEST = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
"""How an execution is gone on with: on the newest build, wherever this one was pinned."""


def hops_of_execution() -> Hops:
    """The hops of the workflow that runs this code; made at the first call."""
    return of_execution(Hops, "hops")


class ResumedAgent(WrapperAgent[Any, Any]):
    """An agent whose run goes on with the counts of the execution before.

    The core refuses a run id that its history holds already, so it is begun under `core_run_id`;
    before the first node the run gets its own id back, and what is stamped from then on holds it.
    """

    def __init__(self, agent: Agent[Any, Any], run_id: str, state: HopState) -> None:
        super().__init__(agent)
        self._run_id = run_id
        self._state = state

    @asynccontextmanager
    async def iter(self, *args: Any, **options: Any) -> AsyncGenerator[AgentRun[Any, Any]]:  # noqa: ANN401 - the core's
        """Begin the run, and set its counts before a node of it runs."""
        async with super().iter(*args, **options) as run:
            core = run.ctx.state
            core.run_id = self._run_id
            core.run_step = self._state.recording.step_index - 1
            core.output_retries_used = self._state.output_retries
            yield run


def core_run_id(run_id: str, count: int, messages: Sequence[ModelMessage]) -> str:
    """An id that the core accepts for a run whose own is in its history; the same on a replay."""
    taken = {message.run_id for message in messages}
    candidate = f"{run_id[:_KEPT_OF_ID]}~{count}"
    while candidate in taken:
        candidate += "~"
    return candidate


_KEPT_OF_ID = 180
"""Characters: what is added must not make it longer than an id may be."""
