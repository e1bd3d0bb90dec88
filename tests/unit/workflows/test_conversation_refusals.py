"""What a caller of a conversation is told when a turn's run fails."""

from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, RetryState

from workflows.conversation_refusals import failure


def activity_error(cause: BaseException) -> ActivityError:
    error = ActivityError(
        "Activity task failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="worker",
        activity_type="model_request",
        activity_id="1",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    error.__cause__ = cause
    return error


def test_a_failed_turn_says_why_not_that_an_activity_failed() -> None:
    told = failure("turn-1", activity_error(ApplicationError("no model is set", type="UserError")))

    assert told.kind == "UserError"
    assert "no model is set" in str(told)
    assert "turn-1" in str(told)
    assert "Activity task failed" not in str(told)


def test_a_turn_whose_activity_was_cancelled_was_cancelled() -> None:
    assert failure("turn-1", activity_error(CancelledError("cancelled"))).kind == "CancelledError"
