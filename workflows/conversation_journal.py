"""The writes of a conversation: one at a time, each first as a short local activity."""

import asyncio
from typing import TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from workflows import policies
from workflows.payloads import staying

Answer = TypeVar("Answer", bound=BaseModel)


class ConversationJournal:
    """Calls activities that write; a store that is away is waited for by the server's retries."""

    def __init__(self) -> None:
        self._is_free = asyncio.Lock()

    async def write(self, name: str, request: BaseModel, answer: type[Answer]) -> Answer:
        """Have the activity `name` do its write, and give its answer.

        Raises:
            ApplicationError: the store refused it; the type is the store's error.
        """
        async with self._is_free:
            result = await attempt_locally(name, request, answer)
            return result if result is not None else await _regular(name, request, answer)


async def attempt_locally(name: str, request: BaseModel, answer: type[Answer]) -> Answer | None:
    """One short local attempt; `None` when it may succeed later."""
    try:
        with staying("local"):
            result: Answer = await workflow.execute_local_activity(
                name,
                request,
                result_type=answer,
                start_to_close_timeout=policies.LOCAL_COMMIT_TIMEOUT,
                retry_policy=policies.LOCAL_COMMIT_RETRIES,
            )
            return result
    except FailureError as error:
        # A replay raises the failure itself, without the ActivityError around it (see the journal).
        cause = error.cause if isinstance(error, ActivityError) else error
        if isinstance(cause, ApplicationError) and cause.non_retryable:
            raise cause from error
        if not isinstance(cause, FailureError):
            raise
        return None


async def _regular(name: str, request: BaseModel, answer: type[Answer]) -> Answer:
    try:
        result: Answer = await workflow.execute_activity(
            name,
            request,
            result_type=answer,
            start_to_close_timeout=policies.COMMIT_TIMEOUT,
            retry_policy=policies.COMMIT_RETRIES,
        )
    except ActivityError as error:
        raise error.cause if isinstance(error.cause, ApplicationError) else error from error
    return result
