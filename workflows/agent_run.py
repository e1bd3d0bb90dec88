"""The workflow `agent_run`: one run of one agent."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from pydantic import TypeAdapter, ValidationError
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, UserContent
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import UsageLimits
    from pydantic_core import to_jsonable_python

    from activities.history import (
        LoadHistoryRequest,
        LoadHistoryResult,
        LoadSnapshotRequest,
        LoadSnapshotResult,
    )
    from stores.identifiers import check_identifier
    from stores.rebuilding import PATH_METADATA
    from stores.records import RunState
    from workflows import names, policies
    from workflows.agent_run_models import (
        AgentRunInput,
        AgentRunOutput,
        AgentRunStatus,
        UnresolvedToolEffect,
    )
    from workflows.agents import deps_factory_of, find_agent
    from workflows.approvals import approvals_of_execution
    from workflows.deps import DepsReference
    from workflows.hops import (
        NEWEST,
        HopState,
        ResumedAgent,
        Resumption,
        core_run_id,
        end_before_it_went_on,
        hops_of_execution,
    )
    from workflows.journal import Journal, journal_of_execution
    from workflows.parking import parking_of_execution
    from workflows.payloads import belong_to, describe
    from workflows.pending import check_prompt
    from workflows.steering import Steer, steering_of_execution
    from workflows.submission import (
        RunOrigin,
        RunSubmission,
        current_submission,
        delegation_depth,
    )
    from workflows.turn_input import begin_turn


@workflow.defn(name=names.AGENT_RUN)
class AgentRunWorkflow:
    """Runs an agent; the run id is the workflow id.

    States: `running` from the start, then `completed`, `failed` or `cancelled` with the workflow.
    """

    @workflow.init
    def __init__(self, request: AgentRunInput) -> None:
        self._request = request
        self._state: RunState = "running"
        self._attributes: frozenset[str] = frozenset()

    @workflow.run
    async def run(self, request: AgentRunInput) -> AgentRunOutput:
        """Run the agent to its end."""
        _refuse_repetition()
        _refuse_foreign_hop(request)
        journal = journal_of_execution()
        journal.workspace_id = request.workspace_id
        belong_to(request.workspace_id)
        parking_of_execution().on_change = self._attend
        approvals_of_execution().on_change = self._attend
        try:
            output = await self._run(request, journal)
            await journal.drain()  # a refusal there still fails the run
        except asyncio.CancelledError:
            self._settle("cancelled")
            raise
        except FailureError:
            self._settle("failed")
            raise
        except workflow.NondeterminismError:
            raise
        except Exception as error:
            self._settle("failed")
            name = type(error).__name__
            message = f"run {workflow.info().workflow_id!r} failed: {name}: {error}"
            raise ApplicationError(message, type=name, non_retryable=True) from error
        self._settle("completed")
        # Now, since a steer may have come while the end of the run was being committed.
        undelivered = steering_of_execution().undelivered
        return output.model_copy(update={"undelivered_steers": undelivered})

    async def _run(self, request: AgentRunInput, journal: Journal) -> AgentRunOutput:
        run_id = _checked_run_id(workflow.info().workflow_id)
        agent = find_agent(request.agent)
        deps = _validated_deps(agent, _given_deps(agent, request))
        beginning = await _load_history(request, run_id)
        conversation_id = beginning.conversation_id
        await self._open(journal, run_id, request, conversation_id)
        self._allow_hops(run_id, request, beginning)
        current_submission.set(
            RunSubmission(
                run_id=run_id,
                parent_run_id=request.parent_run_id,
                principal=request.principal,
                metadata={**request.metadata, **beginning.metadata},
                origin=beginning.origin,
                stream=request.stream,
            )
        )
        delegation_depth.set(request.delegation_depth)
        hop = request.hop
        runner = agent if hop is None else ResumedAgent(agent, run_id, hop)
        result = await runner.run(
            beginning.prompt,
            message_history=beginning.history,
            run_id=run_id if hop is None else core_run_id(run_id, hop.count, beginning.messages),
            usage=hop.usage if hop else None,
            conversation_id=conversation_id,
            deps=deps,
            model=request.model,
            model_settings=cast("ModelSettings | None", request.model_settings),
            usage_limits=request.usage_limits or UsageLimits(request_limit=None),
        )
        messages = result.all_messages()
        return AgentRunOutput(
            run_id=run_id,
            conversation_id=conversation_id,
            output=to_jsonable_python(result.output),
            usage=result.usage,
            message_count=len(messages),
        )

    @workflow.signal(name=names.STEER_SIGNAL)
    def steer(self, steer: Steer) -> None:
        """What a user says to the run in progress."""
        steering_of_execution().take(steer)

    @workflow.query(name=names.STATUS_QUERY)
    def status(self) -> AgentRunStatus:
        """How the run stands."""
        run_id = workflow.info().workflow_id
        return AgentRunStatus(run_id=run_id, agent=self._request.agent, state=self._state)

    @workflow.query(name=names.UNRESOLVED_TOOL_EFFECTS_QUERY)
    def unresolved_tool_effects(self) -> list[UnresolvedToolEffect]:
        """Tool calls in flight."""
        return [
            UnresolvedToolEffect(
                tool_call_id=effect.tool_call_id,
                tool_name=effect.tool_name,
                step_index=effect.step_index,
                call_index=effect.call_index,
            )
            for effect in journal_of_execution().open_effects
        ]

    async def _open(
        self, journal: Journal, run_id: str, request: AgentRunInput, conversation_id: str
    ) -> None:
        """Journal the identity; its answer says which search attributes this run may set."""
        identity = await journal.identify(
            run_id, request.hop.registration_id if request.hop else None
        )
        self._attributes = frozenset(identity.search_attributes)
        self._upsert(
            {
                names.AGENT_ATTRIBUTE.name: request.agent,
                names.CONVERSATION_ATTRIBUTE.name: conversation_id,
                names.PARENT_ATTRIBUTE.name: request.parent_run_id,
                names.STATE_ATTRIBUTE.name: self._state,
            }
        )

    def _allow_hops(self, run_id: str, request: AgentRunInput, beginning: "_Beginning") -> None:
        """Let the run go on in other executions; what they are given is this input and a state."""

        def leave(state: HopState) -> NoReturn:
            kept = {
                "prompt": None,  # it is in the history
                "conversation_id": beginning.conversation_id,
                "hop": state,
            }
            workflow.continue_as_new(
                request.model_copy(update=kept), initial_versioning_behavior=NEWEST
            )

        hops = hops_of_execution()
        hops.run_id = run_id
        hops.leave = leave
        facts = journal_of_execution().facts
        hops.bounds = facts.hop_bounds if facts else None
        if request.hop is not None:
            hops.resumption = Resumption(state=request.hop, messages=beginning.messages)

    def _attend(self) -> None:
        waits = parking_of_execution().calls or approvals_of_execution().calls
        state: RunState = "needs_attention" if waits else "running"
        if state != self._state:
            self._settle(state)

    def _settle(self, state: RunState) -> None:
        self._state = state
        self._upsert({names.STATE_ATTRIBUTE.name: state})

    def _upsert(self, values: dict[str, str | None]) -> None:
        updates = [
            key.value_set(value)
            for key in names.SEARCH_ATTRIBUTES
            if key.name in self._attributes and (value := values.get(key.name)) is not None
        ]
        if updates:
            workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType] - the SDK's union


def _refuse_repetition() -> None:
    """A retry policy, a cron schedule or a second attempt would repeat side effects."""
    info = workflow.info()
    found = [
        name
        for name, is_set in (
            ("a retry policy", info.retry_policy is not None),
            ("a cron schedule", bool(info.cron_schedule)),
            ("a second attempt", info.attempt > 1),
        )
        if is_set
    ]
    if found:
        message = (
            f"run {info.workflow_id!r} was started with {' and '.join(found)}; agent_run takes "
            "none, since it would run tools again. Start it without: a run survives crashes anyway"
        )
        raise ApplicationError(message, type="RepetitionRefusedError", non_retryable=True)


def _refuse_foreign_hop(request: AgentRunInput) -> None:
    """Only an execution that continues another one, as the server tells, may be given a state."""
    if request.hop is not None and workflow.info().continued_run_id is None:
        message = (
            f"run {workflow.info().workflow_id!r} was started with `hop`, which a run hands on to "
            "itself alone. Leave it out; `continue_from` goes on from another run"
        )
        raise ApplicationError(message, type="InvalidInputError", non_retryable=True)


def _checked_run_id(run_id: str) -> str:
    try:
        return check_identifier("run_id", run_id)
    except ValueError as error:
        raise ApplicationError(
            str(error), type="InvalidIdentifierError", non_retryable=True
        ) from error


def _given_deps(agent: Agent[Any, Any], request: AgentRunInput) -> object:
    if request.deps is None and request.turn is not None:
        return request.turn.deps_for(agent)
    return request.deps


def _validated_deps(agent: Agent[Any, Any], deps: object) -> object:
    """The deps, or with a factory a reference to them."""
    factory = deps_factory_of(agent)
    if factory is None and deps is None and agent.deps_type is type(None):
        return None
    expected, what = (
        (factory.input_type, "what deps_factory takes,")
        if factory
        else (agent.deps_type, "deps_type")
    )
    try:
        value = TypeAdapter[Any](expected).validate_python(deps)
        return DepsReference.to(str(agent.name), deps, value) if factory else value
    except ValidationError as error:
        name = getattr(expected, "__name__", expected)
        message = f"deps do not fit {what} {name} of agent {agent.name!r}: {describe(error)}"
        raise ApplicationError(message, type="InvalidDepsError", non_retryable=True) from error


@dataclass(frozen=True, kw_only=True)
class _Beginning:
    history: list[ModelMessage] | None
    conversation_id: str
    origin: RunOrigin = field(default_factory=RunOrigin)
    prompt: str | Sequence[UserContent] | None = None
    metadata: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def messages(self) -> list[ModelMessage]:
        return self.history or []


async def _load_history(request: AgentRunInput, run_id: str) -> _Beginning:
    """What the run begins with.

    A continuation stays in its conversation; any other run that names none opens one of its own id.
    One that was begun in another execution goes on with its own history.
    """
    if request.hop is not None:
        try:
            history = await _load_own_history(request.hop, run_id, request.workspace_id)
        except (Exception, asyncio.CancelledError) as error:
            await end_before_it_went_on(run_id, request.hop, error)
            raise
        return _Beginning(history=history, conversation_id=request.conversation_id or run_id)
    source = request.continue_from or request.fork_from
    conversation_id = request.conversation_id or run_id
    if request.turn is not None:
        begun = await begin_turn(
            request.turn, conversation_id=conversation_id, workspace_id=request.workspace_id
        )
        return _Beginning(
            history=begun.messages or None,
            conversation_id=conversation_id,
            origin=RunOrigin(),
            prompt=begun.prompt,
            metadata={PATH_METADATA: str(begun.path_revision)},
        )
    if source is None:
        return _Beginning(history=None, conversation_id=conversation_id, prompt=request.prompt)
    try:
        loaded = await workflow.execute_activity(
            "load_history",
            LoadHistoryRequest(
                run_id=source,
                include_interrupted=request.include_interrupted,
                workspace_id=request.workspace_id,
                at_snapshot=request.at_snapshot,
                at_step=request.at_step,
                accept_unresolved=request.accept_unresolved,
            ),
            result_type=LoadHistoryResult,
            start_to_close_timeout=policies.READ_TIMEOUT,
            retry_policy=policies.READ_RETRIES,
        )
    except ActivityError as error:
        raise error.cause if isinstance(error.cause, ApplicationError) else error from error
    if request.prompt is not None:
        check_prompt(loaded.messages)
    inherited = loaded.conversation_id if request.continue_from else None
    return _Beginning(
        history=loaded.messages,
        conversation_id=request.conversation_id or inherited or run_id,
        origin=RunOrigin(
            continued_from=request.continue_from,
            forked_from=request.fork_from,
            from_snapshot=loaded.snapshot_sequence,
        ),
        prompt=request.prompt,
    )


async def _load_own_history(state: HopState, run_id: str, workspace_id: str) -> list[ModelMessage]:
    """The snapshot that the execution before has left; by reference, however large it is."""
    try:
        loaded: LoadSnapshotResult = await workflow.execute_activity(
            "load_snapshot",
            LoadSnapshotRequest(
                run_id=run_id,
                sequence=state.recording.snapshot_sequence,
                key=state.recording.snapshot_key,
                workspace_id=workspace_id,
            ),
            result_type=LoadSnapshotResult,
            start_to_close_timeout=policies.READ_TIMEOUT,
            heartbeat_timeout=policies.HEARTBEAT_TIMEOUT,
            retry_policy=policies.READ_RETRIES,
        )
    except ActivityError as error:
        raise error.cause if isinstance(error.cause, ApplicationError) else error from error
    return loaded.messages
