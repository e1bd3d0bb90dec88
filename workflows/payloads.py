"""How large a payload may be, where it goes, and what must not be decoded without an end."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import ApplicationError

from stores.identifiers import DEFAULT_WORKSPACE

LARGEST_INLINE_BYTES = 2 * 1024 * 1024
"""Temporal's limit for the payloads of one call (`limit.blobSize.error`). Beyond it the server
refuses the workflow task that schedules the call, and the task is repeated without end; so payloads
are measured when they are made, where an error fails the run."""

LARGEST_PAYLOADS_BYTES = 64 * 1024 * 1024
"""Of one call, where payloads are stored beside the history: ten times what a model with a million
tokens reads. It bounds what one call makes a worker hold in memory, a few times over."""

PLACE_KEY = "perdure-place"
"""Metadata of a payload that is not stored beside the history; the value is a `Place`."""

WORKSPACE_KEY = "perdure-workspace"
"""Metadata of a payload: whose key encrypts it, where that is not the default workspace."""

Place = Literal["local", "inline"]
"""`local`: the input of a local activity, which never leaves the process, so it has no limit and is
not encoded; `inline`: in the history itself, however large."""

_place: ContextVar[Place | None] = ContextVar("perdure_payload_place", default=None)

_boundary: ContextVar[str | None] = ContextVar("perdure_payload_boundary", default=None)

_ATTRIBUTE = "__perdure_workspace__"
"""On the workflow's instance, which handlers of updates reach, too."""


class SubmittedInput(BaseModel):
    """Input of a workflow that comes from outside: what does not fit fails the workflow.

    Everything else that cannot be decoded fails the workflow task, so that a worker with the right
    code can go on.
    """


@contextmanager
def staying(place: Place) -> Generator[None]:
    """Payloads made inside go through no store: what is committed must not wait for another one."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


@contextmanager
def going_to(boundary: str) -> Generator[None]:
    """Errors about payloads made inside name what they are for, such as `activity 'x'`."""
    token = _boundary.set(boundary)
    try:
        yield
    finally:
        _boundary.reset(token)


def belong_to(workspace_id: str) -> None:
    """Payloads that this workflow makes from now on are encrypted with the workspace's key."""
    setattr(workflow.instance(), _ATTRIBUTE, workspace_id)


def label(payload: Payload, workspace_id: str) -> None:
    """Write into the payload's metadata what codec and storage go by; they see nothing else."""
    place = _place.get()
    if place is not None:
        payload.metadata[PLACE_KEY] = place.encode()
    if workflow.in_workflow():
        workspace_id = getattr(workflow.instance(), _ATTRIBUTE, workspace_id)
    if workspace_id != DEFAULT_WORKSPACE:
        payload.metadata[WORKSPACE_KEY] = workspace_id.encode()


def describe(error: ValidationError) -> str:
    """Path and problem of each bad value, without the values: failures are read by many."""
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'input'}: {each['msg']}"
        for each in error.errors(include_url=False, include_context=False, include_input=False)
    )


def check_size(parts: Sequence[tuple[str, int]], limit_bytes: int) -> None:
    """Refuse payloads that are together above the limit, unless they stay local.

    Args:
        parts: type and size in bytes of each value of one call.
        limit_bytes: where they are stored beside the history; inline Temporal's own holds.

    Raises:
        ApplicationError: type `PayloadTooLargeError`. Not retryable.
    """
    place = _place.get()
    limit = limit_bytes if place is None else LARGEST_INLINE_BYTES
    total = sum(size for _, size in parts)
    if total <= limit or place == "local":
        return
    name, size = max(parts, key=lambda each: each[1])
    message = (
        f"{_boundary.get() or 'a payload'}: {total} bytes are too large; the limit is {limit}. The "
        f"largest part is a {name} of {size} bytes. Keep tool results and prompts smaller, or pass "
        "large content by reference"
    )
    raise ApplicationError(message, type="PayloadTooLargeError", non_retryable=True)


def check_result(tool_name: str, result: object) -> None:
    """Refuse what a tool in the workflow returned and no payload can hold.

    What activities return is measured there. This would come up later: in the commit of the history
    that holds it, after which nothing more of the run can be recorded.

    Raises:
        ApplicationError: type `PayloadTooLargeError` or `UnserializableValueError`. Not retryable.
    """
    boundary = f"result of tool {tool_name!r}"
    try:
        with going_to(boundary):
            # First without encoding: 200 MB would take longer than a workflow may think.
            check_size([(type(result).__name__, _least_bytes(result))], LARGEST_PAYLOADS_BYTES)
            # In a list: bytes alone would be a payload, and are no JSON.
            workflow.payload_converter().to_payload([result])
    except PydanticSerializationError as error:
        message = f"{boundary}: a {type(result).__name__} cannot be encoded as JSON: {error}"
        raise ApplicationError(
            message, type="UnserializableValueError", non_retryable=True
        ) from error


def _least_bytes(value: object) -> int:
    """How many bytes the texts of a value have at least."""
    size_bytes, open_values = 0, [value]
    while open_values:
        each = open_values.pop()
        if isinstance(each, str | bytes):
            size_bytes += len(each)
        elif isinstance(each, Mapping):
            open_values += cast("Mapping[object, object]", each).values()
        elif isinstance(each, list | tuple):
            open_values += cast("Sequence[object]", each)
    return size_bytes
