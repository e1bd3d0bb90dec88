"""What every workflow gets: its journal is drained before it ends, however it ends."""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import (
    ExecuteWorkflowInput,
    HandleUpdateInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from workflows.approvals import approvals_of_execution
from workflows.hops import hops_of_execution
from workflows.journal import find_journal
from workflows.parking import parking_of_execution


class JournalInterceptor(Interceptor):
    """Adds no command of its own: a workflow that records nothing is untouched."""

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002, ARG002 - the SDK's signature
    ) -> type[WorkflowInboundInterceptor]:
        """The class that the SDK makes for each execution."""
        return _JournalInbound


class _JournalInbound(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        # A decision may come in the task in which its call begins to wait, and before that: the
        # ledger told of the call, and the task that told it was lost.
        parking_of_execution().listen()
        approvals_of_execution().listen()
        try:
            result = await super().execute_workflow(input)
        except workflow.ContinueAsNewError:
            if await _drain(wait_for_handlers=True):
                raise asyncio.CancelledError from None  # the next execution would not know of it
            raise
        except asyncio.CancelledError:
            # Eviction cancels too; then the wait inside raises and nothing is written.
            await _drain_after_failure()
            raise
        except Exception as error:
            await _drain_after_failure()
            run_id = _failed_run(error)
            if run_id is None or isinstance(error, FailureError):
                # Not what a run ended with: an error of the user's own workflow code fails the
                # workflow task, as Temporal does by default, so that a corrected worker can go on.
                raise
            name = type(error).__name__
            message = f"run {run_id!r} failed: {name}: {error}"
            raise ApplicationError(message, type=name, non_retryable=True) from error
        await _drain(wait_for_handlers=True)  # a cancellation comes too late for a result
        return result

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        hops_of_execution().updates += 1
        return await super().handle_update_handler(input)


async def _drain(*, wait_for_handlers: bool) -> bool:
    """Drain the journal where there is one; whether the workflow was cancelled meanwhile."""
    journal = find_journal()
    if journal is None:
        return False
    if wait_for_handlers:
        await workflow.wait_condition(workflow.all_handlers_finished)
    return await journal.drain()


async def _drain_after_failure() -> None:
    """As `_drain`; the error that ends the workflow is told, not one of the drain.

    Handlers are not waited for: what they wait for may be what the failure has prevented.
    """
    try:
        await _drain(wait_for_handlers=False)
    except ApplicationError:
        workflow.logger.exception("A boundary operation was refused while the workflow failed")


def _failed_run(error: BaseException | None) -> str | None:
    """The run that ended with this error, or with one that it was raised from."""
    journal = find_journal()
    if journal is None or journal.run_failure is None:
        return None
    run_id, failure = journal.run_failure
    while error is not None:
        if error is failure:
            return run_id
        error = error.__cause__
    return None
