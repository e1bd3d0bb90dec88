"""One answer of a conversation: its run as a child workflow, whatever happens to the parent."""

import asyncio
import json
from dataclasses import dataclass

import anyio
from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
)
from temporalio.workflow import (
    ChildWorkflowCancellationType,
    ChildWorkflowHandle,
    ParentClosePolicy,
)

from activities.conversations import AnswerHandle, AwaitRunRequest, AwaitRunResult
from stores.conversation_records import VariantStatus
from stores.rebuilding import TURN_METADATA
from workflows import names, policies
from workflows.agent_run_models import AgentRunInput, AgentRunOutput
from workflows.conversation_models import ConversationSettings
from workflows.turn_input import TurnPlace


@dataclass(frozen=True, kw_only=True)
class TurnOutcome:
    """How a turn's run ended."""

    status: VariantStatus
    error: str | None = None
    undelivered: tuple[str, ...] = ()


def turn_input(
    answer: AnswerHandle,
    settings: ConversationSettings,
    *,
    conversation_id: str,
    workspace_id: str,
) -> AgentRunInput:
    """What the child is started with: ids, not text."""
    place = {
        "position": answer.position,
        "number": answer.number,
        "order": answer.order,
        "message_id": answer.message_id,
        "turn_public_id": answer.turn_public_id,
        "variant_public_id": answer.variant_public_id,
        "asked_at": answer.asked_at.isoformat(),
    }
    return AgentRunInput(
        agent=settings.agent,
        conversation_id=conversation_id,
        workspace_id=workspace_id,
        principal=answer.principal,
        deps=settings.deps,
        metadata={TURN_METADATA: json.dumps(place)},
        model=settings.model,
        model_settings=settings.model_settings,
        usage_limits=settings.limits,
        stream=True,
        turn=TurnPlace(
            position=answer.position,
            number=answer.number,
            max_turns=settings.max_turns,
            max_tokens=settings.max_tokens,
        ),
    )


async def run_turn(run_id: str, request: AgentRunInput) -> TurnOutcome:
    """Run the child to its end; one that is there already is waited for.

    A cancellation of the parent is handed down once, and told when the child has ended.

    Raises:
        asyncio.CancelledError: the conversation's workflow was cancelled, and the child with it.
    """
    starting = asyncio.create_task(_start(run_id, request))
    try:
        handle = await asyncio.shield(starting)
        return await _outcome(run_id, handle)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True):
            await asyncio.gather(starting, return_exceptions=True)
            asking = workflow.get_external_workflow_handle(run_id).cancel()
            await asyncio.gather(asking, return_exceptions=True)
            if not starting.cancelled() and starting.exception() is None:
                await asyncio.gather(_outcome(run_id, starting.result()), return_exceptions=True)
        raise


async def _outcome(
    run_id: str, handle: ChildWorkflowHandle[object, AgentRunOutput] | None
) -> TurnOutcome:
    if handle is None:
        waiting = workflow.start_activity(
            "await_run",
            AwaitRunRequest(run_id=run_id),
            result_type=AwaitRunResult,
            start_to_close_timeout=policies.AWAIT_RUN_TIMEOUT,
            heartbeat_timeout=policies.HEARTBEAT_TIMEOUT,
            retry_policy=policies.READ_RETRIES,
        )
        ended: AwaitRunResult = await asyncio.shield(waiting)
        return TurnOutcome(status=ended.status, error=ended.error)
    try:
        output = await asyncio.shield(handle)
    except ChildWorkflowError as error:
        cause = error.cause
        if isinstance(cause, CancelledError):
            return TurnOutcome(status="cancelled")
        kind = f"{cause.type}: " if isinstance(cause, ApplicationError) and cause.type else ""
        return TurnOutcome(status="failed", error=f"{kind}{cause}")
    return TurnOutcome(status="completed", undelivered=output.undelivered_steers)


async def _start(
    run_id: str, request: AgentRunInput
) -> ChildWorkflowHandle[object, AgentRunOutput] | None:
    """Start the child; `None`: it was started before, by an execution that is gone.

    A conversation that ends without a word asks its turn to end, it never terminates one.
    """
    try:
        return await workflow.start_child_workflow(
            names.AGENT_RUN,
            request,
            id=run_id,
            result_type=AgentRunOutput,
            cancellation_type=ChildWorkflowCancellationType.WAIT_CANCELLATION_COMPLETED,
            parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        )
    except WorkflowAlreadyStartedError:
        return None
