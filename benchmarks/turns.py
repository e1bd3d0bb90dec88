"""A long conversation: what its last turns cost against its first, and what it carries."""

import resource
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time
from uuid import uuid4

from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio.client import Client

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median
from benchmarks.ours import our_side
from benchmarks.side import Side
from cli.output import note
from workflows.agent_run_models import AgentRunInput, AgentRunOutput
from workflows.conversation_models import ConversationStatus
from workflows.durable import durable
from workflows.durable_conversation import DurableConversation
from workflows.names import AGENT_RUN
from workflows.window import ChatDeps, keep_recent_turns

TURNS, QUICK_TURNS = 1000, 100
WINDOW = 5
RECYCLE = 25
AROUND = 20
"""Turns whose median stands for a place in the conversation."""

GROWTH_BUDGET = 1.2
OVERHEAD_BUDGET_MS = 200.0


def _answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart(f"reply to {len(messages)} messages")])


def chat_agent() -> Agent[ChatDeps, str]:
    return Agent(
        FunctionModel(_answer, model_name="scripted"),
        name="chat",
        deps_type=ChatDeps,
        capabilities=[*durable(ProcessHistory(keep_recent_turns))],
    )


@dataclass(kw_only=True)
class _Measured:
    """One value for each turn."""

    seconds: list[float] = field(default_factory=list[float])
    cpu_seconds: list[float] = field(default_factory=list[float])
    """Of the process that is worker and client, all its threads."""
    run_ids: list[str] = field(default_factory=list[str])
    carried: list[int] = field(default_factory=list[int])
    memory_mb: list[float] = field(default_factory=list[float])
    stored_bytes: list[float] = field(default_factory=list[float])
    """`dataSize` of the database, at every recycling."""


async def measure_turns(bench: Bench) -> list[Figure]:
    """Turns of one conversation with a window, in order, and bare runs of the same agent."""
    count = QUICK_TURNS if bench.is_quick else TURNS
    database = f"turns_{uuid4().hex}"
    async with our_side(bench.client, bench.mongodb_uri, [chat_agent()], database=database) as side:
        bare = [await _bare_run(side) for _ in range(AROUND + 5)][5:]
        conversation = DurableConversation.connect(
            side.client,
            agent="chat",
            conversation_id=uuid4().hex,
            max_turns=WINDOW,
            task_queue=side.task_queue,
            recycle_turns=RECYCLE,
        )
        measured = _Measured()
        for number in range(count):
            await _turn(conversation, f"message {number}", measured)
            if number % RECYCLE == 0:
                measured.carried.append(await _carried(conversation))
                measured.memory_mb.append(resident_mb())
                stats = await bench.mongodb[database].command("dbStats")
                measured.stored_bytes.append(stats["dataSize"])
                note(f"turn {number}: {1000 * measured.seconds[-1]:.0f} ms")
        histories = await _histories(side.client, conversation.workflow_id)
        first_runs, last_runs = [
            [await _size_of(side.client, each) for each in runs]
            for runs in (measured.run_ids[5 : 5 + AROUND], measured.run_ids[-AROUND:])
        ]
    await bench.mongodb.drop_database(database)
    return [
        *_growth(count, measured, first_runs, last_runs),
        Figure(
            name="a turn over a bare agent_run",
            unit="ms",
            measured=1000 * (median(measured.seconds[5 : 5 + AROUND]) - median(bare)),
            budget=OVERHEAD_BUDGET_MS,
            detail=f"{1000 * median(measured.seconds[5 : 5 + AROUND]):.0f} ms against "
            f"{1000 * median(bare):.0f} ms",
        ),
        Figure(
            name=f"events of a conversation's longest history, {RECYCLE} turns each",
            unit="events",
            measured=max(each.event_count for each in histories),
            detail=f"{len(histories)} executions for {count} turns, the largest of "
            f"{max(each.size_bytes for each in histories) / 1000:.0f} KB",
        ),
        Figure(name="handles that its workflow carries", unit="", measured=max(measured.carried)),
        Figure(
            name="memory of worker and client, last quarter over second",
            unit="x",
            measured=_share(measured.memory_mb, 3) / _share(measured.memory_mb, 1),
            budget=GROWTH_BUDGET,
            detail=f"{_share(measured.memory_mb, 1):.0f} MB and then "
            f"{_share(measured.memory_mb, 3):.0f} MB resident, medians",
        ),
    ]


def _growth(
    count: int, measured: _Measured, first: "Sequence[_Size]", last: "Sequence[_Size]"
) -> list[Figure]:
    """The last turns over the first ones, in what does not depend on the machine and what does."""
    stored = [b - a for a, b in pairwise(measured.stored_bytes)]
    early, late = stored[0] / RECYCLE, stored[-1] / RECYCLE
    compared = [
        ("events of its run", "", [s.event_count for s in first], [s.event_count for s in last]),
        ("bytes of its run's history", "", *([s.size_bytes for s in e] for e in (first, last))),
        ("bytes that it leaves in MongoDB", "", [early], [late]),
        (
            "processor time, worker and client",
            "ms",
            *_of_places([1000 * each for each in measured.cpu_seconds]),
        ),
        ("time", "ms", *_of_places([1000 * each for each in measured.seconds])),
    ]
    return [
        Figure(
            name=f"turn {count} against turn 10, window of {WINDOW}: {name}",
            unit="x",
            measured=median(after) / median(before),
            budget=GROWTH_BUDGET,
            detail=f"{median(after):.0f} {unit} against {median(before):.0f} {unit}".replace(
                "  ", " "
            ),
        )
        for name, unit, before, after in compared
    ]


def _of_places(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    return values[5 : 5 + AROUND], values[-AROUND:]


def _share(values: Sequence[float], quarter: int) -> float:
    size = max(1, len(values) // 4)
    return median(values[quarter * size : (quarter + 1) * size])


def resident_mb() -> float:
    """Memory of this process now (Linux; elsewhere the largest it had)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * resource.getpagesize() / 1024**2


@dataclass(frozen=True, kw_only=True)
class _Size:
    """Of one execution's history."""

    event_count: int
    size_bytes: int


async def _size_of(client: Client, workflow_id: str) -> _Size:
    described = await client.get_workflow_handle(workflow_id).describe()
    size = described.raw_description.workflow_execution_info.history_size_bytes
    return _Size(event_count=described.history_length, size_bytes=size)


async def _histories(client: Client, workflow_id: str) -> list[_Size]:
    """Of each execution of the conversation; the server lists an execution soon after its end."""
    return [
        _Size(event_count=each.history_length, size_bytes=each.raw_info.history_size_bytes)
        async for each in client.list_workflows(f"WorkflowId = '{workflow_id}'")
    ]


async def _bare_run(side: Side) -> float:
    began = perf_counter()
    await side.client.execute_workflow(
        AGENT_RUN,
        AgentRunInput(agent="chat", prompt="hello", deps={}),
        id=f"bare-{uuid4().hex}",
        task_queue=side.task_queue,
        result_type=AgentRunOutput,
    )
    return perf_counter() - began


async def _turn(conversation: DurableConversation, text: str, measured: _Measured) -> None:
    """From the message to its answer; the history is not read."""
    began, cpu = perf_counter(), process_time()
    ticket = await conversation.submit(text)
    await conversation.output(text, ticket)
    measured.seconds.append(perf_counter() - began)
    measured.cpu_seconds.append(process_time() - cpu)
    measured.run_ids.append(ticket.answer.run_id)


async def _carried(conversation: DurableConversation) -> int:
    handle = conversation.client.get_workflow_handle(conversation.workflow_id)
    status: ConversationStatus = await handle.query("status", result_type=ConversationStatus)
    return status.carried
