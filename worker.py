"""The worker: settings, client, store, agents, activities, then work until told to stop."""

import asyncio
import linecache
import logging
import os
import signal
import tracemalloc
import warnings
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai import Agent
from pydantic_ai.durable_exec.temporal import AgentPlugin, PydanticAIPlugin
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.worker import Interceptor, Replayer, Worker, WorkerConfig

from activities.boundaries import BoundaryActivities, HopBounds
from activities.conversations import ConversationActivities
from activities.heartbeat import HeartbeatInterceptor
from activities.history import HistoryActivities
from activities.naming import NamingActivities
from activities.payloads import PayloadInterceptor, PayloadSettling
from activities.reconciling import ReconcileActivities
from activities.retaining import Retain, RetentionActivities
from activities.searching import SearchActivities
from activities.sessions import SessionActivities
from activities.streaming import DEFAULT_LIFETIME
from agents.registry import load_agents
from client import connect, existing_search_attributes, register_search_attributes
from converter import DATA_CONVERTER, for_replay
from health import ACTIVITY_POLLERS, WORKFLOW_POLLERS, HealthServer, WorkerHealth
from redacting import build_redaction, mask_log, refuse_plain_payloads
from retaining import retention_of
from sandbox import workflow_runner
from settings import InvalidSettingsError, Settings, load_settings, option_parser
from stores.errors import StoreConfigurationError
from stores.local import LocalStepStore
from stores.media.opening import open_media_store
from stores.memory import InMemoryStepStore
from stores.opening import open_step_store
from stores.protocols import StepStore
from stores.reading.reader import Library
from stores.retention_policies import load_policies
from telemetry.instruments import MeteringInterceptor
from telemetry.logs import set_up_logs
from telemetry.observing import StoreObserver, observe_health, observe_payloads
from telemetry.providers import Telemetry, begin_telemetry
from worker_options import worker_options
from worker_processes import run_processes
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

if TYPE_CHECKING:
    from stores.mongo.steps import MongoStepStore

logger = logging.getLogger("perdure.worker")

IMPORTED_EARLY = (linecache, tracemalloc, warnings)
"""On Python 3.11 validating a workflow can fail at random where it is the first to import one
of these (temporalio/sdk-python issue 585)."""


def worker_interceptors(
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
    is_metered: bool = False,
) -> Worker:
    """A worker for `agents` that writes to `store`.

    Args:
        search_attributes: names that the server knows; runs set no others.
        workflows: a user's own workflow classes, beside Perdure's.
        activities: a user's own activities.
        is_metered: whether somebody reads metrics or spans of this process.

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
        routes=settings.routes,
        hop_bounds=HopBounds(
            events=settings.hop_after_events,
            size_bytes=settings.hop_after_bytes,
            updates=settings.hop_after_updates,
            requests=settings.hop_after_requests,
            newest_build=settings.hop_to_newest_build,
        ),
    )
    around = worker_interceptors(
        store, client.data_converter, stream_lifetime=settings.stream_lifetime
    )
    config: WorkerConfig = {
        **worker_options(settings),
        "client": client,
        "workflows": [] if settings.role == "activities" else [*WORKFLOWS, *workflows],
        "activities": [
            *_activities(store, boundaries, retention_of(settings, store, client)),
            *activities,
        ],
        "plugins": [AgentPlugin(agent) for agent in agents],
        "interceptors": [*around, MeteringInterceptor()] if is_metered else around,
        "workflow_runner": workflow_runner(client.data_converter),
    }
    return Worker(**config)


def _activities(
    store: StepStore, boundaries: BoundaryActivities, retain: Retain
) -> list[Callable[..., object]]:
    """Perdure's own; those of agents come with their plugins."""
    history = HistoryActivities(store)
    sessions = SessionActivities(Library(store=store))
    return [
        *boundaries.activities,
        history.load_history,
        history.load_usage,
        history.load_snapshot,
        ReconcileActivities(find_reconcile).reconcile_tool_effect,
        SearchActivities(store).search_conversation_history,
        sessions.session_search,
        sessions.session_read,
        *ConversationActivities(store).activities,
        NamingActivities(store).name_conversation,
        RetentionActivities(retain).apply_retention,
    ]


def activity_arguments(
    agents: Sequence[Agent[Any, Any]], activities: Iterable[Callable[..., object]] = ()
) -> dict[str, list[type] | None]:
    """By name what each activity of a worker takes; `None` where its function does not say.

    Args:
        agents: that the worker serves.
        activities: a user's own.
    """
    store = InMemoryStepStore()
    plugins = [AgentPlugin(agent) for agent in agents]
    of_agents = [cast("Sequence[Callable[..., object]]", each.activities) for each in plugins]
    functions = [
        *_activities(store, BoundaryActivities(store), _retain_nothing),
        *(each for of_agent in of_agents for each in of_agent),
        *activities,
    ]
    definitions = [getattr(each, _DEFINITION) for each in functions]
    return {str(each.name): each.arg_types for each in definitions}


async def _retain_nothing(_: Callable[[str], None]) -> dict[str, dict[str, int]]:
    """For who asks an activity only what it takes."""
    return {}


_DEFINITION = "__temporal_activity_definition"
"""Where the SDK keeps what it knows of an activity's function."""


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
    interceptors: Iterable[Interceptor] = (),
) -> Replayer:
    """A replayer set up as the worker is, for histories of `agents` and of a user's `workflows`.

    Args:
        agents: those of the histories.
        workflows: a user's own workflow classes.
        converter: the worker's; the default reads histories that hold all their payloads.
        interceptors: beside the worker's own; they may listen, and add no command.

    Raises:
        AgentSetupError: an agent cannot be run; the message names it.
    """
    register_agents(agents)
    converter = for_replay(converter)
    return Replayer(
        workflows=[*WORKFLOWS, *workflows],
        plugins=[PydanticAIPlugin(), *(AgentPlugin(agent) for agent in agents)],
        interceptors=[*worker_interceptors(), *interceptors],
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


async def run_worker(
    settings: Settings, *, stop: asyncio.Event, telemetry: Telemetry | None = None
) -> None:
    """Work until `stop` is set: then poll no more, let activities finish, close the store last.

    Args:
        settings: all that there is to say.
        stop: ends it.
        telemetry: of this process; `None` where none was set up.

    Raises:
        AgentSetupError, HealthPortError, StoreConfigurationError, StoreUnavailableError,
            TemporalUnavailableError: before anything was polled; the message says what to do.
    """
    telemetry = telemetry or Telemetry()
    agents = load_agents(settings.agent_paths)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(telemetry.running())
        store = await stack.enter_async_context(_opened_store(settings))
        client = await connect(
            settings, chunks=store.chunks, runtime=telemetry.runtime, plugins=telemetry.plugins
        )
        await store.verify()
        health = await _begin_observing(stack, settings, telemetry, store)
        worker = build_worker(
            client,
            store,
            agents,
            settings,
            search_attributes=await _attributes(client),
            is_metered=telemetry.is_measured or telemetry.is_traced,
        )
        if telemetry.is_measured:
            observe_payloads(client.data_converter)
        _announce(settings, agents)
        async with worker:
            await stop.wait()
            if health is not None:
                health.is_draining = True
            logger.info(
                "Stopping: activities have %s s to finish; give the container more than that",
                settings.graceful_shutdown_seconds,
            )


@asynccontextmanager
async def _opened_store(settings: Settings) -> AsyncGenerator["MongoStepStore"]:
    from stores.mongo.steps import MongoStepStore  # noqa: PLC0415 - the driver takes long

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
        yield store
    finally:
        await store.aclose()


async def _begin_observing(
    stack: AsyncExitStack, settings: Settings, telemetry: Telemetry, store: "MongoStepStore"
) -> WorkerHealth | None:
    """Serve the health port, and read the store for metrics, until the stack is left."""
    if telemetry.is_measured and settings.metrics_store_seconds:
        every = timedelta(seconds=settings.metrics_store_seconds)
        await stack.enter_async_context(StoreObserver(store.read_standing, every=every).running())
    if settings.health_port is None or telemetry.reader is None:
        return None
    kinds = {
        "all": (WORKFLOW_POLLERS, ACTIVITY_POLLERS),
        "workflows": (WORKFLOW_POLLERS,),
        "activities": (ACTIVITY_POLLERS,),
    }
    health = WorkerHealth(
        kinds=kinds[settings.role], reader=telemetry.reader, check_store=store.verify
    )
    observe_health(health.answers)
    address = (settings.health_host, settings.health_port)
    loop = asyncio.get_running_loop()
    stack.enter_context(HealthServer(address, health=health, reader=telemetry.reader, loop=loop))
    return health


async def _attributes(client: Client) -> tuple[str, ...]:
    attributes = await existing_search_attributes(client)
    if len(attributes) < len(names.SEARCH_ATTRIBUTES):
        logger.warning(
            "Temporal lacks search attributes of Perdure (found: %s); runs set only those. "
            "`perdure init` registers them",
            ", ".join(attributes) or "none",
        )
    return attributes


def _announce(settings: Settings, agents: Sequence[Agent[Any, Any]]) -> None:
    known = ", ".join(sorted(agent.name or "" for agent in agents)) or "none"
    build = f", build {settings.deployment}:{settings.build_id}" if settings.deployment else ""
    role = "" if settings.role == "all" else f" for {settings.role}"
    logger.info("Worker polls %r%s for agents: %s%s", settings.task_queue, role, known, build)


async def _until_told(settings: Settings, telemetry: Telemetry) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await run_worker(settings, stop=stop, telemetry=telemetry)


def work(settings: Settings, number: int | None = None) -> int:
    """Run one worker process until it is told to stop; 0 then, 1 when it could not start.

    Args:
        settings: of this process.
        number: of the process, where there are several.
    """
    set_up_logs(
        form=settings.log_format,
        level=settings.log_level,
        with_content=settings.telemetry_content,
        process=number,
    )
    try:
        telemetry = begin_telemetry(
            settings, service="perdure-worker", is_scraped=settings.health_port is not None
        )
        asyncio.run(_until_told(settings, telemetry))
    except Exception as error:  # noqa: BLE001 - the last frame tells it in words
        logger.error("%s", error)  # noqa: TRY400 - a sentence for a person; no traceback
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run workers from options and environment; 0 when told to stop, 1 when they could not start.

    An option is its variable for the length of this process.
    """
    given = vars(option_parser("worker.py").parse_args(arguments))
    os.environ.update({name: value for name, value in given.items() if value is not None})
    set_up_logs(form="text", level="INFO", with_content=False)
    try:
        settings = load_settings()
    except InvalidSettingsError as error:
        logger.error("The settings do not fit: %s", error)  # noqa: TRY400 - as in `work`
        return 1
    return run_processes(work, settings) if settings.processes > 1 else work(settings)


if __name__ == "__main__":
    raise SystemExit(main())
