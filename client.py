"""Connecting to Temporal, with the one data converter that every process shares."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_ai.durable_exec.temporal import PydanticAIPayloadConverter, PydanticAIPlugin
from pydantic_core import PydanticSerializationError
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import DataConverter, DefaultFailureConverter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from settings import Settings
from workflows.payloads import SubmittedInput, check_size, describe


class PerdurePayloadConverter(PydanticAIPayloadConverter):
    """Pydantic's JSON, with errors that end a run instead of repeating its task without end."""

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """Encode; what cannot be encoded or is too large is an error here, and is not tried again.

        Inside a workflow a value that cannot be encoded stays pydantic's error: pydantic-ai knows
        which values it passes, and says so when it fails the run.
        """
        kinds = ", ".join(type(value).__name__ for value in values)
        try:
            payloads = super().to_payloads(values)
        except PydanticSerializationError as error:
            if workflow.in_workflow():
                raise
            message = f"A payload of ({kinds}) cannot be encoded as JSON: {error}"
            raise ApplicationError(
                message, type="UnserializableValueError", non_retryable=True
            ) from error
        check_size([len(payload.data) for payload in payloads], f"A payload of ({kinds})")
        return payloads

    def from_payloads(
        self, payloads: Sequence[Payload], type_hints: list[type] | None = None
    ) -> list[Any]:
        """Decode; a submitted input that does not fit fails its workflow, with the bad path."""
        try:
            return super().from_payloads(payloads, type_hints)
        except ValidationError as error:
            if any(_is_submitted(hint) for hint in type_hints or ()):
                message = f"invalid input: {describe(error)}"
                raise ApplicationError(
                    message, type="InvalidInputError", non_retryable=True
                ) from error
            raise


def _is_submitted(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, SubmittedInput)


DATA_CONVERTER = DataConverter(
    payload_converter_class=PerdurePayloadConverter,
    failure_converter_class=DefaultFailureConverter,
)
"""Used by everything that reads or writes a history."""


class TemporalUnavailableError(Exception):
    """Temporal could not be reached, or the namespace does not exist."""


async def connect(settings: Settings, *, lazy: bool = False) -> Client:
    """A client for the settings' address and namespace.

    Raises:
        TemporalUnavailableError: nothing answers at the address, or the namespace does not exist;
            the message says which, and what to set.
    """
    address = settings.temporal_address or "127.0.0.1:7233"
    try:
        client = await Client.connect(
            address,
            namespace=settings.temporal_namespace,
            data_converter=DATA_CONVERTER,
            plugins=[PydanticAIPlugin()],
            lazy=lazy,
        )
    except RuntimeError as error:
        message = (
            f"Temporal does not answer at {address}: {_reason(error)}. Start one with "
            "`perdure dev`, or set PERDURE_TEMPORAL_ADDRESS to yours"
        )
        raise TemporalUnavailableError(message) from error
    if not lazy:
        await _check_namespace(client, address)
    return client


def _reason(error: RuntimeError) -> str:
    """The operating system's words where the SDK's core wraps them in its own structures."""
    found = re.search(r'message: "([^"]+)"', str(error))
    return found[1] if found else str(error)


async def _check_namespace(client: Client, address: str) -> None:
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest  # noqa: PLC0415

    try:
        await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=client.namespace)
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            return
        message = (
            f"Temporal at {address} has no namespace {client.namespace!r}. Create it with "
            f"`temporal operator namespace create --namespace {client.namespace}`, or set "
            "PERDURE_TEMPORAL_NAMESPACE to one that exists"
        )
        raise TemporalUnavailableError(message) from error
