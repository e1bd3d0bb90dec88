"""Workers in the test's own process, and what tests ask of their histories."""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig
from temporalio.worker import Worker

from converter import DATA_CONVERTER
from settings import Settings
from stores.protocols import StepStore
from worker import build_replayer, build_worker


@asynccontextmanager
async def running_worker(
    client: Client,
    store: StepStore,
    agents: Sequence[Agent[Any, Any]],
    task_queue: str,
    **options: Any,
) -> AsyncGenerator[Worker]:
    """A worker built as production builds it, polling `task_queue`."""
    given = {key: options.pop(key) for key in list(options) if key in Settings.model_fields}
    defaults = {"task_queue": task_queue, "graceful_shutdown_seconds": 1}
    settings = Settings.model_validate({**defaults, **given})
    async with build_worker(client, store, agents, settings, **options) as worker:
        yield worker


async def replay(
    handle: WorkflowHandle[Any, Any], agents: Sequence[Agent[Any, Any]]
) -> WorkflowHistory:
    """Fetch the history and replay it on this code; an exception is a divergence."""
    history = await handle.fetch_history()
    await build_replayer(agents).replay_workflow(history)
    return history


async def metered(client: Client) -> tuple[Client, MetricBuffer]:
    """The client with a runtime of its own, whose metrics can be read; buffered is what is new."""
    buffer = MetricBuffer(10_000)
    connected = await Client.connect(
        client.service_client.config.target_host,
        namespace=client.namespace,
        data_converter=DATA_CONVERTER,
        plugins=[PydanticAIPlugin()],
        runtime=Runtime(telemetry=TelemetryConfig(metrics=buffer)),
    )
    return connected, buffer


def counted(buffer: MetricBuffer, name: str) -> int:
    """What was added to a counter since the buffer was read last."""
    updates = buffer.retrieve_updates()
    return sum(int(each.value) for each in updates if each.metric.name == name)


def count_events(history: WorkflowHistory) -> Counter[str]:
    """How often each type of event is in a history, by its name in Temporal's API."""
    return Counter(EventType.Name(event.event_type) for event in history.events)


def count_scheduled_activities(history: WorkflowHistory) -> Counter[str]:
    """How often each activity type was scheduled (local ones leave markers instead)."""
    return Counter(
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    )
