"""How large a payload may be, and what must not be decoded into an endless retry."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from pydantic import BaseModel, ValidationError
from temporalio.exceptions import ApplicationError

LARGEST_PAYLOADS_BYTES = 2 * 1024 * 1024
"""Temporal's limit for the payloads of one call (`limit.blobSize.error`). Beyond it the server
refuses the workflow task that schedules the call, and the task is repeated without end; so payloads
are measured when they are made, where an error fails the run."""

_stays_local: ContextVar[bool] = ContextVar("perdure_payload_stays_local", default=False)


class SubmittedInput(BaseModel):
    """Input of a workflow that comes from outside: what does not fit fails the workflow.

    Everything else that cannot be decoded fails the workflow task, so that a worker with the right
    code can go on.
    """


@contextmanager
def staying_local() -> Generator[None]:
    """Payloads made inside are inputs of local activities, which never travel and have no limit."""
    token = _stays_local.set(True)
    try:
        yield
    finally:
        _stays_local.reset(token)


def describe(error: ValidationError) -> str:
    """Path and problem of each bad value, without the values: failures are read by many."""
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'input'}: {each['msg']}"
        for each in error.errors(include_url=False, include_context=False, include_input=False)
    )


def check_size(sizes_bytes: Sequence[int], description: str) -> None:
    """Refuse payloads that are together above the limit, unless they stay local.

    Raises:
        ApplicationError: type `PayloadTooLargeError`. Not retryable.
    """
    total = sum(sizes_bytes)
    if total <= LARGEST_PAYLOADS_BYTES or _stays_local.get():
        return
    message = (
        f"{description} takes {total} bytes; Temporal's limit is {LARGEST_PAYLOADS_BYTES}. "
        "Pass large content by reference, or keep tool results and prompts smaller"
    )
    raise ApplicationError(message, type="PayloadTooLargeError", non_retryable=True)
