"""Connecting to Temporal, with the one data converter that every process shares."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Sequence

from pydantic_ai.durable_exec.temporal import PydanticAIPlugin
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.client import Client, Plugin
from temporalio.converter import DataConverter
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode

from converter import build_data_converter
from settings import Settings
from stores.payload_store import ChunkStore
from temporal_tls import TemporalUnavailableError, certificate_problem, tls_of
from workflows import names

logger = logging.getLogger("perdure.client")


async def connect(
    settings: Settings,
    *,
    lazy: bool = False,
    chunks: ChunkStore | None = None,
    converter: DataConverter | None = None,
    runtime: Runtime | None = None,
    plugins: Sequence[Plugin] = (),
) -> Client:
    """A client for the settings' address and namespace.

    Args:
        settings: what to connect to, and how payloads are kept.
        lazy: connect with the first call.
        chunks: see `converter.build_data_converter`; without it, `converter.close_payloads` closes
            what the client opens for payloads.
        converter: in place of the settings' own.
        runtime: Temporal's, where its metrics are read; see `telemetry.providers`.
        plugins: beside pydantic-ai's.

    Raises:
        StoreConfigurationError, UnknownPayloadKeyError: the keys for payloads are no keys.
        TemporalUnavailableError: nothing answers at the address, its certificate or ours is not
            accepted, or the namespace does not exist; the message says which, and what to set.
    """
    address = settings.temporal_address or "127.0.0.1:7233"
    tls = tls_of(settings)
    try:
        client = await Client.connect(
            address,
            namespace=settings.temporal_namespace,
            data_converter=converter or build_data_converter(settings, chunks=chunks),
            plugins=[PydanticAIPlugin(), *plugins],
            runtime=runtime,
            tls=tls,
            api_key=settings.temporal_api_key,
            lazy=lazy,
        )
    except RuntimeError as error:
        certificate = certificate_problem(str(error)) if tls else None
        if certificate is not None:
            message = f"Temporal at {address} was not trusted, or does not trust us: {certificate}"
            raise TemporalUnavailableError(message) from error
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


async def existing_search_attributes(client: Client) -> tuple[str, ...]:
    """Which of Perdure's search attributes the server knows, in their fixed order.

    None where the server does not tell: a hosted one may hide its operator service.
    """
    request = ListSearchAttributesRequest(namespace=client.namespace)
    try:
        response = await client.operator_service.list_search_attributes(request)
    except RPCError as error:
        logger.warning("Temporal does not tell its search attributes (%s); none is set", error)
        return ()
    return tuple(
        key.name for key in names.SEARCH_ATTRIBUTES if key.name in response.custom_attributes
    )


async def register_search_attributes(client: Client) -> list[str]:
    """Register the missing search attributes and wait until the server knows them."""
    missing = {key.name for key in names.SEARCH_ATTRIBUTES} - set(
        await existing_search_attributes(client)
    )
    if not missing:
        return []
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    request = AddSearchAttributesRequest(
        namespace=client.namespace, search_attributes=dict.fromkeys(sorted(missing), keyword)
    )
    with contextlib.suppress(_AlreadyExists):
        await _add_search_attributes(client, request)
    async with asyncio.timeout(_VISIBILITY_DEADLINE_SECONDS):
        while missing - set(await existing_search_attributes(client)):  # noqa: ASYNC110
            await asyncio.sleep(0.2)  # noqa: TID251 - the server offers nothing to wait on
    return [f"registered search attributes {', '.join(sorted(missing))}"]


class _AlreadyExists(Exception):  # noqa: N818 - a signal, not an error
    """Another `init` was faster."""


async def _add_search_attributes(client: Client, request: AddSearchAttributesRequest) -> None:
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        if error.status is RPCStatusCode.ALREADY_EXISTS:
            raise _AlreadyExists from error
        raise


_VISIBILITY_DEADLINE_SECONDS = 30
"""How long `init` waits until the server knows new search attributes."""
