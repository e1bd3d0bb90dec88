"""How large the input of a snapshot save is, early and late in a run."""

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import temporalio.client
import temporalio.worker
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import (
    StartActivityInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from activities.boundaries import CommitBoundariesRequest, SaveSnapshotRequest
from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.ours import our_side, persisted_agent
from benchmarks.scripted import PERSISTED, Plan, make_agent
from benchmarks.side import RunHandle
from stores.operations import SaveSnapshot
from workflows.durable import durable
from workflows.payloads import staying

BUDGET = 1.2

PLAN = Plan(steps=40)
EARLY, LATE = 5, 40

KEPT_RESULTS = 3
KEPT_MESSAGES = 20


async def shorten_old_results(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Replace all but the newest tool results by a short text, as compaction does."""
    holders = [each for each in messages if isinstance(each, ModelRequest) and _results(each)]
    old = {id(each) for each in holders[:-KEPT_RESULTS]}
    return [
        _shortened(each) if isinstance(each, ModelRequest) and id(each) in old else each
        for each in messages
    ]


def _results(message: ModelRequest) -> list[ToolReturnPart]:
    return [part for part in message.parts if isinstance(part, ToolReturnPart)]


def _shortened(message: ModelRequest) -> ModelRequest:
    return replace(message, parts=[_left_out(part) for part in _results(message)])


def _left_out(result: ToolReturnPart) -> ToolReturnPart:
    return replace(result, content="(left out)")


async def copy_messages(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Make every message anew, equal to what it was."""
    return copy.deepcopy(messages)


async def keep_newest(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Drop all but the newest messages."""
    return messages[-KEPT_MESSAGES:]


PROCESSORS = {
    "old results shortened": shorten_old_results,
    "every message copied": copy_messages,
    f"newest {KEPT_MESSAGES} messages kept": keep_newest,
}
"""By how they rewrite the history before each model request."""


@dataclass
class SnapshotSizes(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    """Notes the encoded size of every commit that saves a snapshot, by workflow id, in order."""

    sizes_bytes: dict[str, list[int]] = field(
        default_factory=lambda: defaultdict[str, list[int]](list)
    )

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002, ARG002 - the SDK's signature
    ) -> type[WorkflowInboundInterceptor]:
        """A class that knows this object: the SDK makes one instance an execution."""
        sizes_bytes = self.sizes_bytes

        class Outbound(WorkflowOutboundInterceptor):
            def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002
                _measure(input.args, sizes_bytes)
                return super().start_activity(input)

            def start_local_activity(
                self,
                input: StartLocalActivityInput,  # noqa: A002
            ) -> workflow.ActivityHandle[Any]:
                _measure(input.args, sizes_bytes)
                return super().start_local_activity(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound


def _measure(arguments: Sequence[Any], sizes_bytes: dict[str, list[int]]) -> None:
    for request in arguments:
        if _saves_snapshot(request):
            with staying("local"):
                payload = workflow.payload_converter().to_payload(request)
            sizes_bytes[workflow.info().workflow_id].append(len(payload.data))


def _saves_snapshot(request: object) -> bool:
    return isinstance(request, SaveSnapshotRequest) or (
        isinstance(request, CommitBoundariesRequest)
        and any(isinstance(each, SaveSnapshot) for each in request.operations)
    )


async def measure_snapshots(bench: Bench) -> list[Figure]:
    """Size at step 40 over size at step 5, for a history that grows and for some rewritten ones."""
    agents: dict[str, Agent[None, str]] = {PERSISTED: persisted_agent()}
    for index, processor in enumerate(PROCESSORS.values()):
        name = f"processed-{index}"
        agents[name] = make_agent(name, durable(ProcessHistory(processor)))
    sizes = SnapshotSizes()
    config = bench.client.config()
    config["interceptors"] = [sizes]
    client = Client(**config)
    async with our_side(client, bench.mongodb_uri, list(agents.values())) as side:
        found = {name: sizes.sizes_bytes[(await side.run(name, PLAN)).id] for name in agents}
    reference = None
    if bench.reference is not None:
        reference = await _reference_sizes(await bench.reference.run(PLAN))
    names = ["a growing history", *PROCESSORS]
    return [
        _figure(name, each, reference if name == names[0] else None)
        for name, each in zip(names, found.values(), strict=True)
    ]


def _figure(name: str, sizes: list[int], reference: list[int] | None) -> Figure:
    early, late = sizes[EARLY - 1], sizes[LATE - 1]
    detail = f"{early} and {late} bytes"
    if reference:
        detail += f"; reference {reference[EARLY - 1]} and {reference[LATE - 1]} bytes"
    return Figure(
        name=f"snapshot {LATE} / snapshot {EARLY}, input of the save: {name}",
        unit="x",
        measured=late / early,
        budget=BUDGET,
        reference=reference[LATE - 1] / reference[EARLY - 1] if reference else None,
        detail=detail,
    )


async def _reference_sizes(handle: RunHandle) -> list[int]:
    """Of the reference's saves, which are regular activities and stand in the history."""
    scheduled = [
        event.activity_task_scheduled_event_attributes
        async for event in handle.fetch_history_events()
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    return [
        sum(len(payload.data) for payload in each.input.payloads)
        for each in scheduled
        if "save_snapshot" in each.activity_type.name
    ]
