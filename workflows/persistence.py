"""The step-persistence capability: an agent's life as boundary operations.

Inside a workflow the operations go to the execution's journal, outside one to the store itself, so
the same agent persists in a plain `agent.run` too.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from pydantic_ai import CallToolsNode, ModelRequestNode
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import (
    AgentNode,
    NodeResult,
    WrapRunHandler,
    WrapToolExecuteHandler,
)
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import (
    AgentDepsT,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolDefinition,
)
from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

from activities.reconciling import Reconcile
from stores.errors import InvalidIdentifierError
from stores.identifiers import check_identifier, derive_run_id
from stores.opening import open_step_store, store_of_spec
from stores.protocols import StepStore
from stores.records import SnapshotState
from workflows.approvals import NOT_APPROVED, RunApprovals
from workflows.delegation import (
    default_conversation_id,
    default_run_id,
    lineage_of_run,
    outer_run_id,
    worker_writer,
)
from workflows.direct import DirectWriter, StaleAttemptError
from workflows.hops import gone_on, hop_when_due
from workflows.journal import journal_of_execution
from workflows.lineage import Lineage, current_scope, entered, scope_of
from workflows.metadata import check_metadata
from workflows.names import EFFECT_POLICIES_PATCH, STEP_PERSISTENCE
from workflows.notices import SnapshotSaved, notice_of
from workflows.pending import MissingToolsError, check_pending_calls
from workflows.recorder import CANCELLED, Failure, RunRecorder, usage_of
from workflows.steering import let_steer
from workflows.streaming import streamed
from workflows.submission import RunOrigin, current_run_id, current_submission
from workflows.tool_calls import ToolCalls
from workflows.transcript import is_settled
from workflows.writing import BoundaryWriter


@dataclass
class StepPersistence(AbstractCapability[AgentDepsT]):
    """Append-only events, continuable snapshots and a ledger of tool effects for each run.

    Args:
        store: where runs outside a workflow are written; `None` means a fresh in-memory store.
            Inside a workflow the worker's store is always the one written to, and a worker refuses
            an agent whose capability brings another. In a worker's activity `None` means that one.
        agent_name: recorded on the run; when set, it also goes into the derived run id.
        run_id: the id of this one run; reusing an instance that has one is refused.
        parent_run_id: the run that delegated this one; inferred when `None`.
        metadata: stored on the run and given back with each of its events.
        capture_frontier: also save the history before each model request and each response's calls
            before they run.
        reconcile: checks by tool, asked what became of a call whose outcome is unknown.
        id: only to tell several instances on one agent apart.
    """

    store: StepStore | None = None
    agent_name: str | None = None
    run_id: str | None = None
    parent_run_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    capture_frontier: bool = False
    reconcile: Mapping[str, Reconcile] = field(default_factory=dict[str, Reconcile])
    id: str | None = field(default=STEP_PERSISTENCE, kw_only=True)
    _memory: StepStore | None = field(default=None, init=False, repr=False, compare=False)
    _lineage: Lineage = field(default_factory=Lineage, init=False, repr=False, compare=False)
    _principal: str | None = field(default=None, init=False, repr=False, compare=False)
    _origin: RunOrigin = field(default_factory=RunOrigin, init=False, repr=False, compare=False)
    _is_gated: bool = field(default=False, init=False, repr=False, compare=False)
    _is_streamed: bool = field(default=False, init=False, repr=False, compare=False)
    _agent_name: str | None = field(default=None, init=False, repr=False, compare=False)
    """Of the agent that runs, whatever name is recorded."""
    _recorder: RunRecorder | None = field(default=None, init=False, repr=False, compare=False)
    _approvals: RunApprovals = field(
        default_factory=RunApprovals, init=False, repr=False, compare=False
    )
    _history: list[ModelMessage] | None = field(default=None, init=False, repr=False, compare=False)
    """The core's own list, which it mutates: at a failure it is the history as it was then."""

    def __post_init__(self) -> None:
        """Check what the caller gave."""
        if self.run_id is not None:
            check_identifier("run_id", self.run_id)
        if self.parent_run_id is not None:
            check_identifier("parent_run_id", self.parent_run_id)
        check_metadata(self.metadata)

    @classmethod
    def from_spec(
        cls,
        backend: Literal["memory", "file", "sqlite"] = "memory",
        *,
        directory: str | None = None,
        database: str | None = None,
        max_snapshots_per_run: int | None = None,
        **options: Any,  # noqa: ANN401 - whatever the class takes
    ) -> "StepPersistence[Any]":
        """The capability that a serialised spec describes.

        Args:
            backend: where runs outside a workflow are written; a store on MongoDB is made in code.
            directory: `file` alone: where the directories of the runs are.
            database: `sqlite` alone: the file.
            max_snapshots_per_run: prune older snapshots with each save; `None` keeps all.
            options: other arguments of the class.

        Raises:
            ValueError: another backend, or one that lacks an argument or does not take it. Nothing
                falls back to memory: a slip of the pen would go unnoticed until a run is missing.
        """
        store = store_of_spec(
            backend,
            directory=directory,
            database=database,
            max_snapshots_per_run=max_snapshots_per_run,
        )
        return cls(store=store, **options)

    # --- identity ---

    async def for_run(self, ctx: RunContext[AgentDepsT]) -> AbstractCapability[AgentDepsT]:
        """The capability of one run, with its ids settled. Writes nothing.

        Raises:
            InvalidIdentifierError: an id is malformed (in a workflow as an `ApplicationError`,
                which fails it: any other error would repeat the workflow task without end).
        """
        try:
            return self._for_run(ctx)
        except (InvalidIdentifierError, RuntimeError) as error:
            if not workflow.in_workflow():
                raise
            raise ApplicationError(
                str(error), type=type(error).__name__, non_retryable=True
            ) from error

    def _for_run(self, ctx: RunContext[AgentDepsT]) -> "StepPersistence[AgentDepsT]":
        ids = {"conversation_id": ctx.conversation_id, "run_id": self.run_id or ctx.run_id}
        for kind, value in ids.items():
            if value is not None:
                check_identifier(kind, value)
        submission = current_submission.get() if current_run_id.get() is None else None
        name = ctx.agent.name if ctx.agent else None
        run = replace(self, agent_name=self.agent_name or name)
        run._agent_name = name  # noqa: SLF001 - of this class
        if submission is not None:
            run.run_id = submission.run_id
            run.metadata = {**self.metadata, **submission.metadata}
            run.parent_run_id = self.parent_run_id or submission.parent_run_id or outer_run_id()
            run._principal = submission.principal  # noqa: SLF001 - of this class
            run._origin = submission.origin  # noqa: SLF001 - of this class
            run._is_streamed = submission.stream  # noqa: SLF001 - of this class
        else:
            run.run_id = self.run_id or self._derived_run_id(ctx)
            run.parent_run_id = self.parent_run_id or outer_run_id()
        run._lineage = lineage_of_run(  # noqa: SLF001 - of this class
            run.run_id, conversation_id=ctx.conversation_id, parent_run_id=run.parent_run_id
        )
        run._recorder = RunRecorder(run.run_id, self._writer(run.run_id))  # noqa: SLF001 - of this class
        return run

    def get_default_run_id(self) -> str | None:
        """For a delegate in a tool activity an id that is the same on every attempt."""
        return default_run_id() if self.store is None and self.run_id is None else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """For a delegate in a tool activity an id that is the same on every attempt."""
        return default_conversation_id(run_id) if self.store is None else None

    def _derived_run_id(self, ctx: RunContext[AgentDepsT]) -> str:
        if ctx.run_id is None:
            message = "StepPersistence needs a run id, and the run's context has none"
            raise RuntimeError(message)
        if self.agent_name is None:
            return check_identifier("run_id", ctx.run_id)
        return derive_run_id(self.agent_name, ctx.run_id)

    def _writer(self, run_id: str) -> BoundaryWriter:
        if workflow.in_workflow():
            return journal_of_execution()
        writer = worker_writer(run_id) if self.store is None else None
        return writer or DirectWriter(self.outside_store)

    @property
    def outside_store(self) -> StepStore:
        """Where runs outside a worker go: `store`, or one in memory made at first use.

        In an activity that no worker's store reaches, such as one in a process of its own, it is
        fresh for each run: the process may live for months.
        """
        if self.store is not None:
            return self.store
        if activity.in_activity():
            return open_step_store("memory")
        if self._memory is None:
            self._memory = open_step_store("memory")
        return self._memory

    @property
    def recorder(self) -> RunRecorder:
        """The recorder of this run; only a capability that `for_run` returned has one."""
        if self._recorder is None:
            message = "StepPersistence records nothing before for_run"
            raise RuntimeError(message)
        return self._recorder

    def compaction_transcript_handle(self) -> str | None:
        """The run id, for the receipt of a compaction; `None` before `for_run` has settled it.

        It names what is stored of the run: a history from before the compaction may be pruned.
        """
        return self._recorder.run_id if self._recorder else self.run_id

    # --- the run ---

    async def wrap_run(
        self,
        ctx: RunContext[AgentDepsT],  # noqa: ARG002 - the core's signature
        *,
        handler: WrapRunHandler,
    ) -> AgentRunResult[Any]:
        """Let delegates find their parent, and the journal know what the run ended with."""
        with entered(scope_of(self._lineage)):
            try:
                return await handler()
            except Exception as error:
                if workflow.in_workflow():
                    journal_of_execution().run_failure = (self.recorder.run_id, error)
                raise

    async def before_run(self, ctx: RunContext[AgentDepsT]) -> None:
        """Register the run; one that goes on from another execution is registered already.

        A taken run id is an error here outside a workflow, inside one at the first barrier.
        """
        self._is_gated = workflow.in_workflow() and workflow.patched(EFFECT_POLICIES_PATCH)
        let_steer(self.recorder.run_id, ctx)
        if gone_on(self.recorder):
            return
        await self.recorder.register(
            conversation_id=ctx.conversation_id,
            parent_run_id=self.parent_run_id,
            agent_name=self.agent_name,
            metadata=self.metadata,
            principal=self._principal,
            origin=self._origin,
        )

    async def after_run(
        self, ctx: RunContext[AgentDepsT], *, result: AgentRunResult[Any]
    ) -> AgentRunResult[Any]:
        """Save the final history where no boundary has, and record the end."""
        messages = result.all_messages()
        if not self.recorder.transcript.equals(messages):
            await self._save(ctx, messages)
        await self.recorder.event("run_completed", usage=usage_of(ctx))
        return result

    async def on_run_error(
        self, ctx: RunContext[AgentDepsT], *, error: BaseException
    ) -> AgentRunResult[Any]:
        """Save the history as it was at the failure, and record the failure. Waits for nothing.

        Control flow of the workflow (continue-as-new, eviction) is no failure and records nothing,
        and neither may an attempt that a later one has taken over.
        """
        if isinstance(error, StaleAttemptError):
            raise error
        if isinstance(error, asyncio.CancelledError):
            failure = CANCELLED
        elif isinstance(error, Exception):
            failure = Failure.of(error)
        else:
            raise error
        messages = self._history or []
        has_response = any(isinstance(message, ModelResponse) for message in messages)
        try:
            if has_response or (self.capture_frontier and messages):
                await self._save(ctx, messages)
        finally:  # an observer of the snapshot may be cancelled with the run
            is_cancelled = failure is CANCELLED
            await self._approvals.close(self.recorder, CANCELLED if is_cancelled else NOT_APPROVED)
            await self.recorder.failed(failure, usage_of(ctx))
        raise error

    # --- model requests ---

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Barrier: all that the run has recorded is stored before the model is asked.

        Where a hop is due, the run leaves this execution here and comes here again in the next.
        """
        self._observe(ctx)
        await hop_when_due(ctx, self.recorder, partial(self._save, ctx, ctx.messages))
        if self.capture_frontier:
            await self._save(ctx, ctx.messages)
        sequence = await self.recorder.event("model_request_started", barrier=True)
        scope = current_scope.get()
        if self._is_streamed and scope is not None and sequence is not None:
            scope.begin_request(sequence)
        return request_context

    def get_wrapper_model(self, model: Model) -> Model | None:
        """In the activity of a model request whose run streams, the model that tells of it."""
        return streamed(model)

    async def after_model_request(
        self,
        ctx: RunContext[AgentDepsT],  # noqa: ARG002 - the core's signature
        *,
        request_context: ModelRequestContext,  # noqa: ARG002 - the core's signature
        response: ModelResponse,
    ) -> ModelResponse:
        """Record the answer."""
        await self.recorder.event("model_request_completed")
        return response

    async def on_model_request_error(
        self,
        ctx: RunContext[AgentDepsT],  # noqa: ARG002 - the core's signature
        *,
        request_context: ModelRequestContext,  # noqa: ARG002 - the core's signature
        error: Exception,
    ) -> ModelResponse:
        """Record the failure. What the request held is in the history that a failing run saves."""
        await self.recorder.event("model_request_failed", failure=Failure.of(error))
        raise error

    # --- tools ---

    async def before_node_run(
        self, ctx: RunContext[AgentDepsT], *, node: "AgentNode[AgentDepsT]"
    ) -> "AgentNode[AgentDepsT]":
        """Refuse to execute calls of an earlier run whose tools the agent does not have.

        Raises:
            MissingToolsError: there are such calls; no model has been asked yet.
        """
        if isinstance(node, CallToolsNode) and ctx.run_step == 0:
            try:
                check_pending_calls(node.model_response.tool_calls, ctx.tools)
            except MissingToolsError:
                self._history = None  # nothing has happened: nothing new to go on from
                raise
        return node

    async def wrap_tool_execute(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:  # noqa: ANN401 - a tool returns anything
        """Make the call by way of `ToolCalls`."""
        return await self._calls.execute(ctx, call, tool_def, args, handler)

    @property
    def _calls(self) -> ToolCalls:
        facts = journal_of_execution().facts if self._is_gated else None
        return ToolCalls(
            recorder=self.recorder,
            lineage=self._lineage,
            settled=facts.tool_effects if facts else {},
            is_gated=self._is_gated,
            agent_name=self._agent_name,
            reconciled=frozenset(self.reconcile),
            approvals=self._approvals,
        )

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Wait, in a workflow, until somebody has approved or denied the calls that need it.

        `None`: nothing is decided here, as with calls that are executed elsewhere.
        """
        return await self._calls.decide_approvals(ctx, requests.approvals)

    async def after_node_run(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        node: "AgentNode[AgentDepsT]",
        result: "NodeResult[AgentDepsT]",
    ) -> "NodeResult[AgentDepsT]":
        """Save the settled history after a batch of tool calls, their results folded in."""
        self._observe(ctx)
        if self.capture_frontier and isinstance(node, ModelRequestNode):
            await self._save(ctx, ctx.messages)
        if isinstance(node, CallToolsNode):
            await self._approvals.close(self.recorder, NOT_APPROVED)
            messages = list(ctx.messages)
            if isinstance(result, ModelRequestNode):
                messages.append(result.request)
            if is_settled(messages):
                await self._save(ctx, messages, state="complete")
        return result

    async def _save(
        self,
        ctx: RunContext[AgentDepsT],
        messages: list[ModelMessage],
        *,
        state: SnapshotState | None = None,
    ) -> None:
        """Save a history, and tell of it: `complete` when all its calls are answered."""
        if state is None:
            state = "complete" if is_settled(messages) else "interrupted"
        saved = SnapshotSaved(
            persistence_run_id=self.recorder.run_id,
            conversation_id=ctx.conversation_id,
            step_index=self.recorder.step_index,
            state=state,
        )
        await self.recorder.save(messages, state, then=notice_of(ctx, saved))

    def _observe(self, ctx: RunContext[AgentDepsT]) -> None:
        self._history = ctx.messages
        # After a node the context is the one from before it, which a model request has outrun.
        self.recorder.step_index = max(self.recorder.step_index, ctx.run_step)
