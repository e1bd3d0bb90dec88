"""The worker: settings, client, store, agents, activities, then work until told to stop."""

import asyncio
import contextlib
import linecache
import logging
import signal
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    ListSearchAttributesRequest,
)
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Interceptor, Replayer, Worker

from activities.boundaries import BoundaryActivities, HopBounds
from activities.conversations import ConversationActivities
from activities.heartbeat import HeartbeatInterceptor
from activities.history import HistoryActivities
from activities.naming import NamingActivities
from activities.payloads import PayloadInterceptor, PayloadSettling
from activities.reconciling import ReconcileActivities
from activities.retaining import RetentionActivities
from activities.searching import SearchActivities
from activities.streaming import DEFAULT_LIFETIME
from agents.registry import load_agents
from client import connect
from converter import DATA_CONVERTER, for_replay
from redacting import build_redaction, mask_log, refuse_plain_payloads
from retaining import retention_of
from sandbox import workflow_runner
from settings import Settings
from stores.errors import StoreConfigurationError
from stores.local import LocalStepStore
from stores.media.opening import open_media_store
from stores.opening import open_step_store
from stores.protocols import StepStore
from stores.retention_policies import load_policies
from workflows import names
from workflows.agent_run_models import AgentRunInput
from workflows.agents import find_deps_factory, find_reconcile, register_agents
from workflows.delegates import check_delegates
from workflows.deps import DepsInterceptor
from workflows.gate import ToolGateInterceptor
from workflows.headers import LineageInterceptor
from workflows.interceptor import JournalInterceptor
from workflows.registry import WORKFLOWS
from workflows.streaming import StreamInterceptor

logger = logging.getLogger("perdure.worker")

IMPORTED_EARLY = (linecache, tracemalloc, warnings)
"""On Python 3.11 validating a workflow can fail at random where it is the first to import one
of these (temporalio/sdk-python issue 585)."""

_VISIBILITY_DEADLINE_SECONDS = 30
"""How long `init` waits until the server knows new search attributes."""


def interceptors(
    store: StepStore | None = None,
    converter: DataConverter = DATA_CONVERTER,
    *,
    stream_lifetime: timedelta = DEFAULT_LIFETIME,
) -> list[Interceptor]:
    """What worker and replayer put around workflows and activities; a replayer has no store."""
    settling = PayloadSettling(converter)
    both: list[Interceptor] = [
        JournalInterceptor(),
        HeartbeatInterceptor(),
        LineageInterceptor(store),
        PayloadInterceptor(settling),
    ]
    if store is None:
        return both
    return [
        *both,
        # Deps are made before the gate: a factory that fails leaves a call that nobody has begun.
        DepsInterceptor(find_deps_factory, AgentRunInput),
        ToolGateInterceptor(store, settling=settling),
        StreamInterceptor(store, lifetime=stream_lifetime),
    ]


def build_worker(
    client: Client,
    store: StepStore,
    agents: Sequence[Agent[Any, Any]],
    settings: Settings,
    *,
    search_attributes: tuple[str, ...] = (),
    workflows: Iterable[type] = (),
    activities: Iterable[Callable[..., object]] = (),
) -> Worker:
    """A worker for `agents` that writes to `store`.

    Args:
        search_attributes: names that the server knows; runs set no others.
        workflows: a user's own workflow classes, beside Perdure's.
        activities: a user's own activities.

    Raises:
        AgentSetupError: an agent cannot be run; the message names it.
        StoreConfigurationError: the store is one for a single machine.
    """
    _refuse_local(store)
    register_agents(agents)
    check_delegates(agents)
    boundaries = BoundaryActivities(
        store,
        boundary_mode=settings.boundary_mode,
        search_attributes=search_attributes,
        tool_effects=settings.tool_effects,
        hop_bounds=HopBounds(
            events=settings.hop_after_events,
            size_bytes=settings.hop_after_bytes,
            updates=settings.hop_after_updates,
            requests=settings.hop_after_requests,
        ),
    )
    reconciling = ReconcileActivities(find_reconcile)
    history = HistoryActivities(store)
    conversations = ConversationActivities(store)
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=[*WORKFLOWS, *workflows],
        activities=[
            *boundaries.activities,
            history.load_history,
            history.load_usage,
            history.load_snapshot,
            reconciling.reconcile_tool_effect,
            SearchActivities(store).search_conversation_history,
            *conversations.activities,
            NamingActivities(store).name_conversation,
            RetentionActivities(retention_of(settings, store, client)).apply_retention,
            *activities,
        ],
        plugins=[AgentPlugin(agent) for agent in agents],
        interceptors=interceptors(
            store, client.data_converter, stream_lifetime=settings.stream_lifetime
        ),
        workflow_runner=workflow_runner(client.data_converter),
        max_cached_workflows=settings.max_cached_workflows,
        max_concurrent_workflow_tasks=settings.max_concurrent_workflow_tasks,
        max_concurrent_activities=settings.max_concurrent_activities,
        graceful_shutdown_timeout=settings.graceful_shutdown,
        build_id=settings.build_id,
    )


def _refuse_local(store: StepStore) -> None:
    if isinstance(store, LocalStepStore):
        message = (
            f"a worker cannot write to {type(store).__name__}: its runs may go on in any other "
            "worker, and those could not see what is kept on this machine. Use MongoDB"
        )
        raise StoreConfigurationError(message)


def build_replayer(
    agents: Sequence[Agent[Any, Any]],
    *,
    workflows: Iterable[type] = (),
    converter: DataConverter = DATA_CONVERTER,
) -> Replayer:
    """A replayer set up as the worker is, for histories of `agents` and of a user's `workflows`.

    Args:
        agents: those of the histories.
        workflows: a user's own workflow classes.
        converter: the worker's; the default reads histories that hold all their payloads.

    Raises:
        AgentSetupError: an agent cannot be run; the message names it.
    """
    register_agents(agents)
    converter = for_replay(converter)
    return Replayer(
        workflows=[*WORKFLOWS, *workflows],
        plugins=[PydanticAIPlugin(), *(AgentPlugin(agent) for agent in agents)],
        interceptors=interceptors(),
        workflow_runner=workflow_runner(converter),
        data_converter=converter,
        build_id="replay",
    )


async def initialise(settings: Settings) -> list[str]:
    """Make what a worker needs: indexes in MongoDB, search attributes in Temporal.

    Repeats: what is there already is left alone. Returns a line for each thing that was done.

    Raises:
        StoreConfigurationError, StoreUnavailableError: MongoDB is unfit or away.
        TemporalUnavailableError: Temporal is away, or the namespace is missing.
    """
    client = await connect(settings)
    store = open_step_store(
        "mongodb", db_url=settings.mongodb_uri, database=settings.mongodb_database
    )
    try:
        done = await store.initialise()
    finally:
        await store.aclose()
    return [*done, *await register_search_attributes(client)]


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


async def run_worker(settings: Settings, *, stop: asyncio.Event) -> None:
    """Work until `stop` is set: then poll no more, let activities finish, close the store last.

    Raises:
        AgentSetupError, StoreConfigurationError, StoreUnavailableError, TemporalUnavailableError:
            before anything was polled; the message says what to do.
    """
    from stores.mongo.steps import MongoStepStore  # noqa: PLC0415 - the driver takes long

    agents = load_agents(settings.agent_paths)
    refuse_plain_payloads(settings)
    load_policies(settings.retention)  # a policy that contradicts itself is told here, not at night
    redaction = build_redaction(settings)
    mask_log(redaction)
    store = MongoStepStore(
        db_url=settings.mongodb_uri,
        database=settings.mongodb_database,
        max_snapshots_per_run=settings.max_snapshots_per_run,
        media_store=open_media_store(settings.media),
        media_threshold_bytes=settings.media_threshold_bytes,
        redaction=redaction,
    )
    try:
        client = await connect(settings, chunks=store.chunks)
        await store.verify()
        attributes = await existing_search_attributes(client)
        if len(attributes) < len(names.SEARCH_ATTRIBUTES):
            logger.warning(
                "Temporal lacks search attributes of Perdure (found: %s); runs set only those. "
                "`perdure init` registers them",
                ", ".join(attributes) or "none",
            )
        worker = build_worker(client, store, agents, settings, search_attributes=attributes)
        known = ", ".join(sorted(agent.name or "" for agent in agents)) or "none"
        logger.info("Worker polls %r for agents: %s", settings.task_queue, known)
        async with worker:
            await stop.wait()
            logger.info(
                "Stopping: activities have %s s to finish", settings.graceful_shutdown_seconds
            )
    finally:
        await store.aclose()


async def _main(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run_worker(settings, stop=stop)


def main() -> int:
    """Run a worker from the environment; 0 when told to stop, 1 when it could not start."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        asyncio.run(_main(Settings()))
    except Exception as error:  # noqa: BLE001 - the last frame tells it in words
        logger.error("%s", error)  # noqa: TRY400 - a sentence for a person; no traceback
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
