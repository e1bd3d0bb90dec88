"""What a conversation's client is told when something was not done."""

from temporalio.client import WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode


class ConversationRefusedError(Exception):
    """The conversation refused what was asked; `kind` is the error of docs/errors.md."""

    def __init__(self, kind: str, reason: str) -> None:
        self.kind = kind
        self.reason = reason
        super().__init__(kind, reason)

    def __str__(self) -> str:
        """The reason in words."""
        return self.reason


class TurnFailedError(Exception):
    """A turn ended without an answer; the message names its run and says why."""

    def __init__(self, run_id: str, kind: str, reason: str) -> None:
        self.run_id = run_id
        self.kind = kind
        self.reason = reason
        super().__init__(run_id, kind, reason)

    def __str__(self) -> str:
        """What happened to which run."""
        return f"run {self.run_id!r} {self.reason}; `perdure show {self.run_id}` tells more"


def is_aborted(error: BaseException | None) -> bool:
    """Whether the workflow closed before it took the update, or while it did."""
    if isinstance(error, ApplicationError):
        return error.type == "AcceptedUpdateCompletedWorkflow"
    if isinstance(error, WorkflowUpdateRPCTimeoutOrCancelledError):
        return True
    closed = {RPCStatusCode.NOT_FOUND, RPCStatusCode.ABORTED, RPCStatusCode.UNAVAILABLE}
    return isinstance(error, RPCError) and error.status in closed


def refusal(cause: BaseException | None) -> ConversationRefusedError:
    """What an update or a reading activity failed with, for the caller."""
    if isinstance(cause, ApplicationError):
        return ConversationRefusedError(cause.type or "ApplicationError", cause.message)
    return ConversationRefusedError(type(cause).__name__, str(cause))


def failure(run_id: str, cause: BaseException | None) -> TurnFailedError:
    """What a turn's run failed with, for the caller; not that an activity failed, but why."""
    while isinstance(cause, ActivityError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, CancelledError):
        return TurnFailedError(run_id, "CancelledError", "was cancelled")
    kind = cause.type if isinstance(cause, ApplicationError) and cause.type else "failed"
    return TurnFailedError(run_id, kind, f"failed: {cause}")
