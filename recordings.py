"""Recorded histories: runs of your agents as they were, to be replayed on every later code.

Each recording is `NAME.N.json`, Temporal's own form without traces of the machine, with its outline
`NAME.N.txt` beside it, which people can read and compare. Payloads lie in it as they are: what was
stored beside the history or encrypted is put in its place, so a replay needs no server and no key.
"""

import json
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic_ai import Agent
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.client import Client, WorkflowFailureError, WorkflowHistory
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.worker import Worker

from cli.replay_gate import Checked, ReplayGate
from cli.servers import LocalServers
from client import connect
from converter import build_data_converter, close_payloads
from settings import Settings
from stores.memory_chunks import InMemoryChunkStore
from stores.mongo.steps import MongoStepStore
from worker import build_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.history_payloads import payloads_in
from workflows.names import SEARCH_ATTRIBUTES
from workflows.outline import outline_of

OF_THIS_MACHINE = {"identity": "worker", "stackTrace": "", "requestId": "request"}
"""Fields that say where a history was recorded, and what stands there instead. No replay reads
them."""

WORKER = "1@worker"
"""In place of a process and its host."""


class RecordingError(Exception):
    """A recording is missing, holds what it must not, or no longer replays."""


class Recordings:
    """The recordings in one directory.

    Args:
        directory: made when the first is written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def paths(self, name: str | None = None) -> list[Path]:
        """The recordings of that name, or all, oldest first."""
        found = self.directory.glob("*.json" if name is None else f"{name}.*.json")
        return sorted(found, key=lambda path: (path.name.split(".")[0], _number_of(path)))

    async def keep(self, client: Client, workflow_id: str, *, name: str | None = None) -> Path:
        """Fetch a workflow's newest execution and write it down; never over one that is there.

        Args:
            client: with the data converter of those who wrote the history.
            workflow_id: of the workflow.
            name: of the recording; the workflow's id by default.

        Raises:
            RecordingError: a trace of this machine is left in it.
            StoreError: a payload of it cannot be read.
        """
        history = await client.get_workflow_handle(workflow_id).fetch_history()
        whole = await with_plain_payloads(history, client.data_converter)
        text = scrubbed(whole)
        name = name or workflow_id
        before = self.paths(name)
        number = _number_of(before[-1]) + 1 if before else 1
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{name}.{number}.json"
        path.write_text(text)
        path.with_suffix(".txt").write_text(outline_of(whole))
        return path

    async def record(
        self,
        agents: Sequence[Agent[Any, Any]],
        *,
        workflows: Iterable[type] = (),
        activities: Iterable[Callable[..., object]] = (),
        **runs: AgentRunInput,
    ) -> list[Path]:
        """Run agents on servers of this call's own, and keep each run's history under its name.

        Whatever a run ends with is kept: a failure is a history, too.

        Raises:
            LocalServerError: the servers that `perdure dev` starts could not be started.
        """
        with tempfile.TemporaryDirectory(prefix="perdure-record-") as home:
            async with LocalServers(Path(home), search_attributes=SEARCH_ATTRIBUTES) as servers:
                settings = Settings(
                    temporal_address=servers.addresses.temporal_address,
                    mongodb_uri=servers.addresses.mongodb_uri,
                    graceful_shutdown_seconds=1,
                )
                store = MongoStepStore(
                    db_url=settings.mongodb_uri, database=settings.mongodb_database
                )
                client = await connect(settings, chunks=store.chunks)
                try:
                    await store.initialise()
                    worker = build_worker(
                        client, store, agents, settings, workflows=workflows, activities=activities
                    )
                    return await self._run(client, worker, settings.task_queue, runs)
                finally:
                    await close_payloads(client.data_converter)
                    await store.aclose()

    async def _run(
        self, client: Client, worker: Worker, task_queue: str, runs: dict[str, AgentRunInput]
    ) -> list[Path]:
        async with worker:
            for name, request in runs.items():
                handle = await client.start_workflow(
                    AgentRunWorkflow.run, request, id=name, task_queue=task_queue
                )
                try:
                    await handle.result()
                except WorkflowFailureError:
                    continue
        return [await self.keep(client, name) for name in runs]

    async def check(
        self,
        agents: Sequence[Agent[Any, Any]],
        *,
        name: str | None = None,
        workflows: Iterable[type] = (),
        activities: Iterable[Callable[..., object]] = (),
    ) -> list[Checked]:
        """Replay the recordings on this code, without any server.

        Args:
            agents: what the worker serves.
            name: only the recordings of that name.
            workflows: a user's own workflow classes.
            activities: a user's own activities.

        Raises:
            RecordingError: there is none, one does not go the same way, or an outline is not that
                of the recording beside it. The message tells of all.
        """
        paths = self.paths(name)
        if not paths:
            message = (
                f"{self.directory} holds no recording of {name or 'anything'}; record one: tests "
                "with the fixture `recordings` do with PERDURE_RECORD=1 in their environment"
            )
            raise RecordingError(message)
        settings = Settings(mongodb_uri="mongodb://unused")
        converter = build_data_converter(settings, chunks=InMemoryChunkStore())
        gate = ReplayGate(agents, converter, workflows=workflows, activities=activities)
        checked: list[Checked] = []
        problems: list[str] = []
        for path in paths:
            history = WorkflowHistory.from_json(path.name.split(".")[0], path.read_text())
            found = await gate.check(history)
            checked.append(found)
            if found.outcome != "same":
                problems.append(f"{path.name}: {_told(found)}")
            outline = path.with_suffix(".txt")
            if not outline.exists() or outline.read_text() != outline_of(history):
                problems.append(f"{outline.name} is not the outline of {path.name}")
        if problems:
            raise RecordingError("\n".join(problems))
        return checked


async def with_plain_payloads(
    history: WorkflowHistory, converter: DataConverter
) -> WorkflowHistory:
    """The history with each payload as it was before it was encrypted or stored elsewhere."""
    events: list[HistoryEvent] = []
    for event in history.events:
        copied = HistoryEvent()
        copied.CopyFrom(event)
        for payload in payloads_in(copied):
            found: list[RawValue] = await converter.decode([payload], [RawValue])
            payload.CopyFrom(_scrubbed_payload(found[0].payload))
        events.append(copied)
    return WorkflowHistory(history.workflow_id, events)


def scrubbed(history: WorkflowHistory, *, also: Iterable[str] = ()) -> str:
    """The history as JSON, without traces of the machine that it was recorded on.

    Args:
        history: is left as it is.
        also: more words that must not be in it.

    Raises:
        RecordingError: a trace is left, in a field or in a payload.
    """
    copied = History(events=history.events)
    parsed = json.loads(WorkflowHistory(history.workflow_id, copied.events).to_json())
    text = json.dumps(_scrubbed(parsed), indent=1) + "\n"
    host = socket.gethostname()
    text = re.sub(rf"\d+@{re.escape(host)}", WORKER, text)  # in an error's words
    payloads = b"\n".join(each.data for event in copied.events for each in payloads_in(event))
    traces = (host, str(Path.cwd()), str(Path.home()), str(Path(sys.prefix)), *also)
    for trace in traces:
        if trace in text or trace.encode() in payloads:
            message = (
                f"the recording of {history.workflow_id} still holds {trace!r}; record a run whose "
                "tools and prompts do not name it"
            )
            raise RecordingError(message)
    return text


def _scrubbed(value: object) -> object:
    if isinstance(value, list):
        return [_scrubbed(each) for each in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, object]", value)
    if fields.get("kind") == "TASK_QUEUE_KIND_STICKY":
        return {**fields, "name": "sticky"}
    return {
        key: OF_THIS_MACHINE[key] if key in OF_THIS_MACHINE else _scrubbed(each)
        for key, each in fields.items()
    }


def _scrubbed_payload(payload: Payload) -> Payload:
    """Without the process and the host of a worker, which errors may name."""
    host = re.escape(socket.gethostname().encode())
    data = re.sub(rb"\d+@" + host, WORKER.encode(), payload.data)
    return Payload(metadata=payload.metadata, data=data)


def _number_of(path: Path) -> int:
    number = path.name.removesuffix(".json").rpartition(".")[2]
    return int(number) if number.isdecimal() else 0


def _told(checked: Checked) -> str:
    place = f" (event {checked.event_id}: {checked.event})" if checked.event else ""
    step = "" if checked.step_index is None else f" at step {checked.step_index}"
    after = f", after {checked.boundary} {checked.key}{step}" if checked.boundary else ""
    return f"{checked.outcome}: {checked.problem}{place}{after}"
