"""Where the commands find Temporal and MongoDB, and what they say when there is none.

What takes long to import is imported where it is used: help and usage errors need none of it, and
reading commands have two seconds in all.
"""

import asyncio
import os
import reprlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

from cli.data_directory import running_servers
from cli.failures import CommandError, NotFoundError, UnreachableError, WrongUsageError

if TYPE_CHECKING:
    from pydantic import ValidationError
    from temporalio.client import Client, Plugin

    from settings import Settings
    from stores.mongo.steps import MongoStepStore
    from stores.protocols import StepStore
    from stores.records import RunRecord

DEFAULT_TEMPORAL_ADDRESS = "127.0.0.1:7233"
"""Temporal's own default."""

READ_TIMEOUT = timedelta(seconds=2)
"""Of one question to Temporal by a reading command, which shows the store's part without it."""


def current_settings() -> "Settings":
    """The settings, with the addresses of a running `perdure dev` where none are set.

    Raises:
        WrongUsageError: a `PERDURE_` variable does not fit.
    """
    from settings import InvalidSettingsError, load_settings  # noqa: PLC0415

    try:
        settings = load_settings()
    except InvalidSettingsError as error:
        message = f"the settings do not fit: {error}"
        raise WrongUsageError(message) from error
    if settings.temporal_address and settings.mongodb_uri:
        return settings
    servers = running_servers(settings.data_dir)
    if servers is None:
        return settings
    found: dict[str, str] = {"mongodb_uri": settings.mongodb_uri or servers.mongodb_uri}
    if settings.temporal_address is None:
        found["temporal_address"] = servers.temporal_address
        if "temporal_namespace" not in settings.model_fields_set:
            found["temporal_namespace"] = servers.temporal_namespace
    return settings.model_copy(update=found)


def misfits(error: "ValidationError") -> str:
    """What pydantic found wrong, each with the path of the bad value."""
    lines: list[str] = []
    for each in error.errors():
        name = path = ".".join(str(step) for step in each["loc"])
        message = each["msg"].removeprefix("Value error, ")
        # A check of the whole input has no path, and its message says what it is about.
        lines.append(
            f"{name}: {message} (found {reprlib.repr(each['input'])})" if path else message
        )
    return "; ".join(lines)


@asynccontextmanager
async def opened_store(settings: "Settings", workspace: str) -> AsyncGenerator["StepStore"]:
    """The store of the settings' MongoDB, bound to a workspace.

    Raises:
        UnreachableError: no MongoDB is configured, and no `perdure dev` runs.
        InvalidIdentifierError: the workspace's id is malformed.
    """
    async with opened_mongodb(settings) as store:
        yield store.for_workspace(workspace)


@asynccontextmanager
async def known_run(run_id: str, workspace: str) -> AsyncGenerator["tuple[StepStore, RunRecord]"]:
    """The store, and the run in it.

    Raises:
        NotFoundError: the workspace has no such run.
    """
    settings = current_settings()
    async with opened_store(settings, workspace) as store:
        run = await store.get_run(run_id=run_id)
        if run is None:
            asked = f"`perdure show {run_id}` also asks Temporal"
            raise NotFoundError(not_found_message(settings, store, run_id, asked))
        yield store, run


def not_found_message(
    settings: "Settings", store: "StepStore", run_id: str, problem: str | None = None
) -> str:
    """Where a run was looked for, and what to try."""
    asked = problem or f"nor does Temporal's namespace {settings.temporal_namespace!r}"
    return (
        f"workspace {store.workspace_id!r} of database {settings.mongodb_database!r} has no run "
        f"{run_id!r}; {asked}. `perdure runs` lists the runs; --workspace names another workspace"
    )


@asynccontextmanager
async def opened_mongodb(
    settings: "Settings", *, masks_as_workers: bool = False
) -> AsyncGenerator["MongoStepStore"]:
    """The same with what only MongoDB offers, bound to the default workspace.

    Args:
        settings: name the servers, and what is masked.
        masks_as_workers: it has to be exactly what workers mask, as they know all secrets.

    Raises:
        UnreachableError: no MongoDB is configured, and no `perdure dev` runs.
        StoreConfigurationError: the settings name no media store, or a variable of
            PERDURE_REDACT_ENV is not set where it has to be.
    """
    from stores.mongo.steps import MongoStepStore  # noqa: PLC0415

    if settings.mongodb_uri is None:
        message = (
            "no MongoDB is known: PERDURE_MONGODB_URI is not set, and no `perdure dev` runs with "
            f"its data in {str(settings.data_dir.absolute())!r}. Set the one, start the other, or "
            "name its directory with --data-dir"
        )
        raise UnreachableError(message)
    from redacting import build_redaction  # noqa: PLC0415
    from stores.media.opening import open_media_store  # noqa: PLC0415

    store = MongoStepStore(
        db_url=settings.mongodb_uri,
        database=settings.mongodb_database,
        media_store=open_media_store(settings.media),
        media_threshold_bytes=settings.media_threshold_bytes,
        redaction=build_redaction(settings, is_strict=masks_as_workers),
    )
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def submitting_client(settings: "Settings") -> AsyncGenerator["Client"]:
    """The same for what starts runs: their traces begin here, where spans are exported.

    Raises:
        UnreachableError: as `connected_client`.
        WrongUsageError: OpenTelemetry's variables do not fit.
    """
    if not any(name.startswith("OTEL_EXPORTER_OTLP") for name in os.environ):
        yield await connected_client(settings)
        return
    from telemetry.providers import TelemetryError, begin_telemetry  # noqa: PLC0415

    try:
        telemetry = begin_telemetry(settings, service="perdure", exports_metrics=False)
    except TelemetryError as error:
        raise WrongUsageError(str(error)) from error
    async with telemetry.running():
        yield await connected_client(settings, telemetry.plugins)


async def connected_client(settings: "Settings", plugins: Sequence["Plugin"] = ()) -> "Client":
    """A client that encodes and decodes as the worker does.

    Raises:
        UnreachableError: Temporal does not answer, or the namespace does not exist.
    """
    from client import connect  # noqa: PLC0415
    from temporal_tls import TemporalUnavailableError  # noqa: PLC0415

    silence_core()
    try:
        return await connect(settings, plugins=plugins)
    except TemporalUnavailableError as error:
        raise UnreachableError(str(error)) from error


async def describing_client(settings: "Settings") -> "Client":
    """A client for questions whose answers hold no payload, not connected yet.

    It has no data converter: importing that one takes as long as all the questions.
    """
    from temporalio.client import Client  # noqa: PLC0415

    from temporal_tls import TemporalUnavailableError, tls_of  # noqa: PLC0415

    silence_core()
    try:
        return await Client.connect(
            settings.temporal_address or DEFAULT_TEMPORAL_ADDRESS,
            namespace=settings.temporal_namespace,
            tls=tls_of(settings),
            api_key=settings.temporal_api_key,
            lazy=True,
        )
    except TemporalUnavailableError as error:
        raise UnreachableError(str(error)) from error


async def initialised(settings: "Settings") -> list[str]:
    """Make indexes and search attributes; a line for each that was missing.

    Raises:
        UnreachableError: a server does not answer.
        CommandError: Temporal does not allow it.
        StoreConfigurationError: MongoDB does not, or is unfit.
    """
    from temporalio.service import RPCError  # noqa: PLC0415

    from temporal_tls import TemporalUnavailableError  # noqa: PLC0415
    from worker import initialise  # noqa: PLC0415

    silence_core()
    try:
        return await initialise(settings)
    except TemporalUnavailableError as error:
        raise UnreachableError(str(error)) from error
    except RPCError as error:
        message = (
            f"search attributes of namespace {settings.temporal_namespace!r} could not be made: "
            f"{error.message}. Runs go without them; or have Temporal's operator register them"
        )
        raise CommandError(message) from error


@cache
def silence_core() -> None:
    """Keep the log of the SDK's core off standard output, where it would break a document."""
    from temporalio.runtime import Runtime, TelemetryConfig  # noqa: PLC0415

    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))


@asynccontextmanager
async def asking(client: "Client") -> AsyncGenerator[None]:
    """Say that Temporal does not answer, whichever way that shows.

    Raises:
        UnreachableError: it took too long, refused the connection, or lacks the namespace.
    """
    from temporalio.service import RPCError, RPCStatusCode  # noqa: PLC0415

    address = client.service_client.config.target_host
    try:
        async with asyncio.timeout(READ_TIMEOUT.total_seconds()):
            yield
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
            raise
        raise UnreachableError(_no_answer(client, address, error.message)) from error
    except TimeoutError as error:
        reason = f"no answer within {READ_TIMEOUT.total_seconds():.0f} s"
        raise UnreachableError(_no_answer(client, address, reason)) from error
    except RuntimeError as error:  # what the SDK raises when it cannot connect
        raise UnreachableError(_no_answer(client, address, str(error))) from error


def _no_answer(client: "Client", address: str, reason: str) -> str:
    return (
        f"Temporal at {address} (namespace {client.namespace!r}) could not be asked: {reason}. "
        "Start one with `perdure dev`, or set PERDURE_TEMPORAL_ADDRESS and "
        "PERDURE_TEMPORAL_NAMESPACE"
    )
