"""`perdure dev`: servers and a worker in the foreground, for work on agents."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.data_directory import Addresses, without_password
from cli.failures import ExitCode, UnreachableError, WrongUsageError
from cli.options import AsJson
from cli.output import note, print_facts, print_json
from cli.processes import ChildProcess

if TYPE_CHECKING:
    from cli.local_model import LocalModelServer
    from cli.servers import LocalServers
    from settings import Settings

DEV_AGENTS = (
    "agents.scripted:agent,agents.assistant:agent,agents.orders:agent,"
    "agents.conversation.agent:chat_agent"
)
"""The bundled agents, unless PERDURE_AGENTS names others."""

TEMPORAL_PORT = 17233
MONGODB_PORT = 27217
"""Not the products' usual ports: a server that somebody works with is likely to have those. Fixed
nonetheless, so that other tools can be pointed at them, and below the range of ports that outgoing
connections take. Perdure's own commands find the servers by the data directory."""

WORKER = Path(__file__).parent.parent / "worker.py"

STOP_MARGIN = timedelta(seconds=10)
"""What a worker gets on top of its activities' grace period, to close its connections."""


@dataclass(frozen=True)
class _Options:
    """What `dev_command` is asked for beyond the settings."""

    temporal_port: int
    mongodb_port: int
    api_port: int | None
    ui: bool
    local_model: bool
    as_json: bool


def dev_command(
    *,
    temporal_port: Annotated[
        int,
        typer.Option(envvar="PERDURE_TEMPORAL_PORT", min=0, max=65535, help="0: any free one."),
    ] = TEMPORAL_PORT,
    mongodb_port: Annotated[
        int,
        typer.Option(envvar="PERDURE_MONGODB_PORT", min=0, max=65535, help="0: any free one."),
    ] = MONGODB_PORT,
    api_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Of the history API, 0: any free one. [default: PERDURE_API_PORT]",
        ),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option(envvar="PERDURE_DATA_DIR", help="State, kept between starts, and logs.")
    ] = Path(".perdure"),
    ui: Annotated[
        bool, typer.Option("--ui", envvar="PERDURE_UI", help="Temporal's pages, at port + 1000.")
    ] = False,
    local_model: Annotated[
        bool,
        typer.Option(
            "--local-model",
            envvar="PERDURE_LOCAL_MODEL",
            help="Serve a small model here for the assistant (needs the extra local-model).",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Keep Temporal, MongoDB, a worker and the history API in the foreground; Ctrl-C stops all.

    Servers of your own are used where PERDURE_TEMPORAL_ADDRESS or PERDURE_MONGODB_URI is set.
    Other commands with the same data directory find the servers by themselves.
    """
    options = _Options(temporal_port, mongodb_port, api_port, ui, local_model, as_json)
    settings = _settings(data_dir)
    exit_code = asyncio.run(_until_interrupted(_keep_running(settings, options)))
    raise typer.Exit(exit_code)


def worker_process(settings: "Settings", env: Mapping[str, str] | None = None) -> ChildProcess:
    """Return a worker, not started, that has these settings and logs to `data_dir/logs`.

    Args:
        settings: passed on whole, as `PERDURE_` variables.
        env: more variables, on top of these and of this process's own.
    """
    return ChildProcess(
        "The worker",
        [sys.executable, WORKER],
        log_path=settings.data_dir / "logs" / "worker.log",
        env={**os.environ, **_variables(settings), **(env or {})},
        stop_within=settings.graceful_shutdown + STOP_MARGIN,
    )


def _api_process(settings: "Settings") -> ChildProcess:
    """The history API, not started, that has these settings and logs beside the worker."""
    return ChildProcess(
        "The history API",
        [sys.executable, "-m", "cli.main", "api"],
        log_path=settings.data_dir / "logs" / "api.log",
        env={**os.environ, "PYTHONPATH": str(WORKER.parent), **_variables(settings)},
    )


def _variables(settings: "Settings") -> dict[str, str]:
    """The settings as `PERDURE_` variables; what is no text is JSON."""
    told = settings.model_dump(mode="json", exclude_none=True)
    return {
        f"PERDURE_{name.upper()}": json.dumps(value) if isinstance(value, dict) else str(value)
        for name, value in told.items()
    }


def _settings(data_dir: Path) -> "Settings":
    # What takes long to import is imported where it is used: every command loads this module.
    from settings import InvalidSettingsError, load_settings  # noqa: PLC0415

    try:
        return load_settings().model_copy(update={"data_dir": data_dir.absolute()})
    except InvalidSettingsError as error:
        message = f"the settings do not fit: {error}"
        raise WrongUsageError(message) from error


async def _until_interrupted(work: Coroutine[Any, Any, ExitCode]) -> ExitCode:
    """Run until SIGINT, SIGTERM or SIGHUP, which are a normal end; a second one does not wait."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return ExitCode.DONE


async def _keep_running(settings: "Settings", options: _Options) -> ExitCode:
    """Start everything, say where it is, and return when a part of it ends by itself.

    Whatever the end, the parts are stopped in the reverse order of their start.
    """
    servers = _servers(settings, options)
    model = _local_model(settings) if options.local_model else None
    async with AsyncExitStack() as running:
        note("Starting Temporal and MongoDB ...")
        await running.enter_async_context(servers)
        addresses = servers.addresses
        parts: list[ChildProcess] = [*servers.started]
        if model:
            note("Starting the local model ...")
            running.push_async_callback(model.stop)
            await model.start()
            parts.append(model)

        settings = _connected(settings, addresses, options)
        await _initialise(settings)
        worker = worker_process(settings, model.environment if model else None)
        api = _api_process(settings)
        running.push_async_callback(api.stop)
        running.push_async_callback(worker.stop)
        running.callback(note, "Stopping the worker, then the servers ...")
        worker.spawn()
        api.spawn()
        _announce(settings, addresses, worker, as_json=options.as_json)
        ended = await _first_to_end([worker, api, *parts])
        note(ended.describe_end())
        return ExitCode.FAILED


async def _initialise(settings: "Settings") -> None:
    from client import TemporalUnavailableError  # noqa: PLC0415
    from stores.errors import StoreUnavailableError  # noqa: PLC0415
    from worker import initialise  # noqa: PLC0415

    note("Preparing indexes and search attributes ...")
    try:
        made = await initialise(settings)
    except (StoreUnavailableError, TemporalUnavailableError) as error:
        raise UnreachableError(str(error)) from error
    note(f"  {len(made)} were missing and are made" if made else "  all there")


def _servers(settings: "Settings", options: _Options) -> "LocalServers":
    from cli.servers import LocalServers  # noqa: PLC0415
    from workflows.names import SEARCH_ATTRIBUTES  # noqa: PLC0415

    return LocalServers(
        settings.data_dir,
        temporal_port=options.temporal_port,
        mongodb_port=options.mongodb_port,
        temporal_address=settings.temporal_address,
        mongodb_uri=settings.mongodb_uri,
        temporal_namespace=settings.temporal_namespace,
        search_attributes=SEARCH_ATTRIBUTES,
        with_ui=options.ui,
    )


def _local_model(settings: "Settings") -> "LocalModelServer":
    from cli.local_model import LocalModelServer  # noqa: PLC0415

    return LocalModelServer(settings.data_dir)


def _connected(settings: "Settings", addresses: Addresses, options: _Options) -> "Settings":
    from cli.servers import free_port  # noqa: PLC0415

    port = settings.api_port if options.api_port is None else options.api_port
    found = {
        "api_port": port or free_port(),
        "temporal_address": addresses.temporal_address,
        "mongodb_uri": addresses.mongodb_uri,
        "agents": settings.agents or DEV_AGENTS,
    }
    return settings.model_copy(update=found)


async def _first_to_end(processes: Sequence[ChildProcess]) -> ChildProcess:
    """Wait until one of our children ends by itself, and return it."""
    child_changed = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, child_changed.set)
    while True:
        child_changed.clear()
        for process in processes:
            if not process.is_running:
                return process
        await child_changed.wait()


def _announce(
    settings: "Settings", addresses: Addresses, worker: ChildProcess, *, as_json: bool
) -> None:
    if as_json:
        told = {"data_dir": settings.data_dir, "worker_pid": worker.pid}
        print_json({**asdict(addresses), **told, "api": _api_address(settings)})
        return
    note("Perdure runs. Ctrl-C stops it, and its data is kept.")
    mongodb = without_password(addresses.mongodb_uri)
    print_facts(
        [
            ("Temporal", f"{addresses.temporal_address}, namespace {addresses.temporal_namespace}"),
            ("pages", addresses.temporal_ui),
            ("MongoDB", f"{mongodb}, database {settings.mongodb_database}"),
            ("worker", f"process {worker.pid}, task queue {settings.task_queue}"),
            ("agents", settings.agents),
            ("history API", _api_address(settings)),
            ("data", str(settings.data_dir)),
            ("logs", str(worker.log_path.parent)),
        ]
    )


def _api_address(settings: "Settings") -> str:
    return f"http://{settings.api_host}:{settings.api_port}"
