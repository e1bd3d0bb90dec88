"""The Temporal header that carries lineage from a workflow to its activities and children.

Headers are no part of what a replay compares: a history that was recorded without them replays, and
adding one changes no command.
"""

from typing import Any

from temporalio import activity, workflow
from temporalio.worker import (
    ActivityInboundInterceptor,
    ContinueAsNewInput,
    ExecuteActivityInput,
    Interceptor,
    StartActivityInput,
    StartChildWorkflowInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ActivityConfig

from activities.boundaries import BOUNDARIES
from activities.errors import as_application_error
from activities.worker_store import WorkerStore
from stores.errors import StoreError
from stores.protocols import StepStore
from workflows.effects import with_attempts
from workflows.hops import hops_of_execution
from workflows.journal import find_journal
from workflows.lineage import (
    Lineage,
    Scope,
    ToolAttempt,
    agent_of_activity,
    current_scope,
    entered,
    inherited_lineage,
    is_model_activity,
    is_tool_activity,
    lineage_in,
)
from workflows.names import LINEAGE_HEADER
from workflows.payloads import going_to


class LineageInterceptor(Interceptor):
    """Sets the header in workflows, and in activities the scope that it describes.

    Args:
        store: the worker's store; `None` where no activity runs, as in a replayer.
    """

    def __init__(self, store: StepStore | None = None) -> None:
        self._store = store

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002, ARG002 - the SDK's signature
    ) -> type[WorkflowInboundInterceptor]:
        """The class that the SDK makes for each execution."""
        return _LineageWorkflowInbound

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Wrap the chain."""
        return next if self._store is None else _LineageActivityInbound(next, self._store)


# In workflows


class _LineageWorkflowInbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_LineageOutbound(outbound))


class _LineageOutbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002 - the SDK's name
        _tell_activity(input)
        scope = current_scope.get()
        if scope and is_tool_activity(input.activity):
            _follow(input, scope.options)
        _route(input, scope.lineage.tool_name if scope else None)
        with going_to(f"activity {input.activity!r}"):
            return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002 - the SDK's name
        _tell_activity(input)
        return super().start_local_activity(input)

    async def start_child_workflow(
        self,
        input: StartChildWorkflowInput,  # noqa: A002 - the SDK's name
    ) -> workflow.ChildWorkflowHandle[Any, Any]:
        scope = current_scope.get()
        _tell(input, scope.lineage if scope else _outside_runs())
        with going_to(f"child workflow {input.workflow!r}"):
            child = await super().start_child_workflow(input)
        hops_of_execution().watch(child)
        return child

    def continue_as_new(self, input: ContinueAsNewInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        inherited = inherited_lineage()
        if inherited is not None:
            _tell(input, inherited)
        return super().continue_as_new(input)


def _tell_activity(input: StartActivityInput | StartLocalActivityInput) -> None:  # noqa: A002 - as above
    """Set the header; not for a boundary, whose request says all, and which any task may start."""
    if input.activity in BOUNDARIES:
        return
    scope = current_scope.get()
    if scope is None:
        lineage = _outside_runs()
    elif is_model_activity(input.activity):
        lineage = scope.for_next_request()
    else:
        lineage = scope.for_next_activity()
    _tell(input, lineage)


def _follow(input: StartActivityInput, options: ActivityConfig) -> None:  # noqa: A002 - as above
    """Set the options of a tool's effect policy, over those of the agent's activities."""
    retries = options.get("retry_policy")
    if retries is not None:
        input.retry_policy = with_attempts(input.retry_policy, retries)
    if "cancellation_type" in options:
        input.cancellation_type = options["cancellation_type"]


def _route(input: StartActivityInput, tool_name: str | None) -> None:  # noqa: A002 - as above
    """Send what an agent or a tool does to the queue that the execution's facts name for it.

    A queue that the agent's own activity config names is kept.
    """
    journal = find_journal()
    facts = journal.facts if journal else None
    if (
        facts is None
        or not facts.routes
        or input.task_queue not in {None, workflow.info().task_queue}
    ):
        return
    agent = agent_of_activity(input.activity)
    keys = [f"agent:{agent}"] if agent else []
    if tool_name is not None and is_tool_activity(input.activity):
        keys.insert(0, f"tool:{tool_name}")
    for key in keys:
        if key in facts.routes:
            input.task_queue = facts.routes[key]
            return


def _outside_runs() -> Lineage:
    """The tenant of this execution, and the run that started it as a child, if one did."""
    inherited = inherited_lineage() or Lineage()
    journal = find_journal()
    if journal is None or journal.workspace_id == inherited.workspace_id:
        return inherited.outside_call()
    return Lineage(workspace_id=journal.workspace_id)


def _tell(
    input: StartActivityInput  # noqa: A002 - the SDK's name
    | StartLocalActivityInput
    | StartChildWorkflowInput
    | ContinueAsNewInput,
    lineage: Lineage,
) -> None:
    if lineage != Lineage():
        input.headers = {**input.headers, LINEAGE_HEADER: lineage.to_payload()}


# In activities


class _LineageActivityInbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, store: StepStore) -> None:  # noqa: A002 - the SDK's name
        super().__init__(next)
        self._store = store

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        lineage = lineage_in(input.headers) or Lineage()
        scope = Scope(
            lineage=lineage,
            store=WorkerStore(self._store.for_workspace(lineage.workspace_id)),
            attempt=None if lineage.effect_key is None else _attempt(),
        )
        try:
            with entered(scope):
                return await super().execute_activity(input)
        except StoreError as error:  # of a delegate: retried only where that may help
            raise as_application_error(error) from error


def _attempt() -> ToolAttempt | None:
    info = activity.info()
    if info.workflow_run_id is None:
        return None
    return ToolAttempt(
        branch=info.workflow_run_id, number=info.attempt, started_at=info.started_time
    )
