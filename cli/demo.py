"""`perdure demo`: a run whose worker is killed in the middle, and what is lost: nothing."""

import asyncio
import secrets
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connections import connected_client, initialised, opened_store, silence_core
from cli.data_directory import without_password
from cli.dev import worker_process
from cli.failures import CommandError
from cli.inspection import Inspection, ask_temporal, inspect, print_inspection
from cli.options import AsJson
from cli.output import note, print_json, print_text
from cli.processes import ChildProcess
from cli.progress import FIRST_PAUSE, EventFollower
from stores.identifiers import DEFAULT_WORKSPACE

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHandle

    from cli.executions import PendingActivity
    from settings import Settings
    from stores.protocols import StepStore
    from workflows.agent_run_models import AgentRunOutput

AGENT = "scripted"
PROMPT = "3 brass lamps to Oslo"

PATIENCE = timedelta(seconds=60)
"""For each half of the run. It takes ten seconds, of which the worker's start is the most."""

WELL_WITHIN = timedelta(seconds=1)
"""How long a tool must have run before its worker is killed: only the slow one lasts that long."""


def demo_command(
    *,
    pause_seconds: Annotated[
        float,
        typer.Option(
            envvar="PERDURE_DEMO_PAUSE_SECONDS", min=2, max=30, help="How long the slow tool takes."
        ),
    ] = 4,
    data_dir: Annotated[
        Path, typer.Option(envvar="PERDURE_DATA_DIR", help="The demo's data is kept in demo/ here.")
    ] = Path(".perdure"),
    as_json: AsJson = False,
) -> None:
    """Kill a worker in the middle of a run.

    Another worker finishes the run, and what the store holds of it is shown and checked: nothing is
    missing, nothing is doubled. Takes half a minute. Real servers are started for it, or yours are
    used where PERDURE_TEMPORAL_ADDRESS or PERDURE_MONGODB_URI is set. Exit code 1 when anything of
    the run is missing or doubled.
    """
    from settings import Settings  # noqa: PLC0415 - slow to load

    home = data_dir.absolute() / "demo"
    settings = Settings(
        data_dir=home,
        agents="agents.scripted:agent",
        task_queue=f"perdure-demo-{secrets.token_hex(4)}",
        graceful_shutdown_seconds=5,
        # Without a cache the server does not wait ten seconds for the dead worker's own queue.
        max_cached_workflows=0,
    )
    inspection, output = asyncio.run(_perform(settings, pause_seconds))
    problems = find_problems(inspection)
    if as_json:
        print_json({**inspection.as_document(), "output": output, "problems": problems})
    else:
        _print_end(inspection, output, home)
    if problems:
        message = f"run {inspection.run_id!r} is not whole: {'; '.join(problems)}"
        raise CommandError(message)
    note(
        f"\nNothing is missing and nothing is doubled: {len(inspection.events)} events, "
        f"{len(inspection.effects)} tool effects, {len(inspection.snapshots)} snapshots."
    )


def find_problems(inspection: Inspection) -> list[str]:
    """What is missing or doubled in the store for a run that went through, each in words."""
    kinds = Counter[str](event.kind for event in inspection.events)
    problems = [
        f"{kinds[kind]} events {kind}, expected {expected}"
        for kind, expected in (
            ("run_started", 1),
            ("run_completed", 1),
            ("run_failed", 0),
            ("model_request_started", kinds["model_request_completed"]),
            ("model_request_failed", 0),
            ("tool_call_started", len(inspection.effects)),
            ("tool_call_completed", len(inspection.effects)),
        )
        if kinds[kind] != expected
    ]
    calls = Counter(effect.tool_call_id for effect in inspection.effects)
    problems += [f"{count} effects of call {call!r}" for call, count in calls.items() if count > 1]
    problems += [
        f"effect of call {effect.tool_call_id!r} is {effect.status}"
        for effect in inspection.effects
        if effect.status != "completed"
    ]
    if inspection.state != "completed":
        problems.append(f"state {inspection.state}")
    if not inspection.effects or not inspection.snapshots:
        problems.append("no effects or no snapshots")
    return problems


@dataclass(frozen=True, kw_only=True)
class _Demo:
    """One performance: the servers run, the worker is started and killed by it."""

    settings: "Settings"
    client: "Client"
    store: "StepStore"
    worker: ChildProcess
    run_id: str
    follower: EventFollower

    async def perform(self) -> tuple[Inspection, object]:
        """Go through it, saying what is done; return the run and its output."""
        note(f"\nSubmitting run {self.run_id}: agent {AGENT}, prompt {PROMPT!r}")
        handle = await self._submit()
        note("Starting a worker ...")
        self.worker.spawn()
        note(f"Worker {self.worker.pid}. The run's events, as MongoDB has them:\n")
        tool = await self._slow_tool()
        await self.worker.kill()
        note(
            f"\nWorker {self.worker.pid} got SIGKILL in the middle of tool {tool!r}. "
            "With no worker, `perdure show` says:\n"
        )
        for line in describe_standing(await self._inspect()):
            note(f"  {line}")
        note("\nStarting another worker ...")
        self.worker.spawn()
        note(f"Worker {self.worker.pid}. It gets the tool once heartbeats are 5 s overdue:\n")
        output = await self._finish(handle)
        note("\nThe run is complete. Stopping the worker and the servers ...")
        return await self._inspect(), output

    async def _inspect(self) -> Inspection:
        return await inspect(self.settings, self.store, self.run_id)

    async def _submit(self) -> "WorkflowHandle[Any, AgentRunOutput]":
        from workflows.agent_run_models import AgentRunInput, AgentRunOutput  # noqa: PLC0415
        from workflows.names import AGENT_RUN  # noqa: PLC0415

        return await self.client.start_workflow(
            AGENT_RUN,
            AgentRunInput(agent=AGENT, prompt=PROMPT),
            id=self.run_id,
            task_queue=self.settings.task_queue,
            result_type=AgentRunOutput,
        )

    async def _slow_tool(self) -> str:
        """Tell events until a tool has been running for a while; return its name.

        It has ended neither in the store nor in Temporal then, so the kill will lose it.
        """
        deadline = monotonic() + PATIENCE.total_seconds()
        running_since: dict[str, float] = {}
        while monotonic() < deadline:
            for activity in await self._tell():
                if activity.tool_name is None or activity.state != "running":
                    continue
                began = running_since.setdefault(activity.tool_name, monotonic())
                if monotonic() - began > WELL_WITHIN.total_seconds():
                    return activity.tool_name
            self._check_worker()
            await asyncio.sleep(FIRST_PAUSE.total_seconds())  # noqa: TID251 - nothing to wait on
        raise self._impatience(1)

    async def _finish(self, handle: "WorkflowHandle[Any, AgentRunOutput]") -> object:
        """Tell events until the run has ended; return its output."""
        telling = asyncio.create_task(self._tell_retries())
        try:
            async with asyncio.timeout(PATIENCE.total_seconds()):
                result = await handle.result()
        except TimeoutError as error:
            raise self._impatience(2) from error
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
        await self.follower.tell()
        return result.output

    async def _tell_retries(self) -> None:
        """Tell events, and each new attempt of an activity, until cancelled."""
        told: set[tuple[str, str, int]] = set()
        while True:
            for activity in await self._tell():
                state = (activity.what, activity.state, activity.attempt)
                if activity.attempt > 1 and state not in told:
                    note(f"  Temporal: {activity}")
                    told.add(state)
            await asyncio.sleep(FIRST_PAUSE.total_seconds())  # noqa: TID251 - nothing to wait on

    async def _tell(self) -> "tuple[PendingActivity, ...]":
        """Tell the new events; return what Temporal has pending."""
        await self.follower.tell()
        execution, _ = await ask_temporal(self.settings, self.run_id)
        return execution.pending_activities if execution else ()

    def _impatience(self, half: int) -> CommandError:
        return CommandError(
            f"half {half} of the demo was not over within {PATIENCE.total_seconds():.0f} s. "
            f"{self.worker.last_words()}"
        )

    def _check_worker(self) -> None:
        if not self.worker.is_running:
            raise CommandError(self.worker.describe_end())


def describe_standing(inspection: Inspection) -> list[str]:
    """The lines that matter of a run that is stuck: state, what it is doing, open tool calls."""
    doing = inspection.execution.doing if inspection.execution else []
    return [
        f"State   {inspection.state}",
        *(f"Doing   {line}" for line in doing),
        *(
            f"Effect  {each.effect.tool_name} ({each.effect.tool_call_id}): {each.standing.words}"
            for each in inspection.ledger
            if each.effect.status != "completed"
        ),
    ]


async def _perform(settings: "Settings", pause_seconds: float) -> tuple[Inspection, object]:
    """Set the stage, perform, and stop everything, however it ends."""
    from cli.servers import LocalServers  # noqa: PLC0415 - slow to load
    from workflows.names import SEARCH_ATTRIBUTES  # noqa: PLC0415 - slow to load

    silence_core()
    note(f"Starting Temporal and MongoDB, with their data in {settings.data_dir} ...")
    servers = LocalServers(
        settings.data_dir,
        temporal_address=settings.temporal_address,
        mongodb_uri=settings.mongodb_uri,
        temporal_namespace=settings.temporal_namespace,
        search_attributes=SEARCH_ATTRIBUTES,
    )
    async with AsyncExitStack() as running:
        await running.enter_async_context(servers)
        found = servers.addresses
        mongodb = without_password(found.mongodb_uri)
        note(f"Temporal answers at {found.temporal_address}, MongoDB at {mongodb}")
        settings = settings.model_copy(
            update={"temporal_address": found.temporal_address, "mongodb_uri": found.mongodb_uri}
        )
        note(f"Prepared: {len(await initialised(settings))} collections and indexes were made")
        store = await running.enter_async_context(opened_store(settings, DEFAULT_WORKSPACE))
        worker = worker_process(settings, {"PERDURE_DEMO_PAUSE_SECONDS": str(pause_seconds)})
        running.push_async_callback(worker.stop)
        run_id = f"demo-{secrets.token_hex(4)}"
        demo = _Demo(
            settings=settings,
            client=await connected_client(settings),
            store=store,
            worker=worker,
            run_id=run_id,
            follower=EventFollower(store, run_id),
        )
        return await demo.perform()


def _print_end(inspection: Inspection, output: object, home: Path) -> None:
    print_inspection(inspection)
    print_text(f"\nOutput\n{output}")
    run_id = inspection.run_id
    print_text(
        f"""
Where to look further
  perdure dev --data-dir {home}   starts these servers again, with a worker; then, elsewhere:
  perdure --data-dir {home} show {run_id}
  perdure --data-dir {home} messages {run_id}
  perdure --data-dir {home} replay {run_id}"""
    )
