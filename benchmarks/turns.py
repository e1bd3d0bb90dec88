"""A long conversation: what its last turns cost against its first, and what it carries."""

import resource
from collections.abc import AsyncIterator
from time import perf_counter
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


async def measure_turns(bench: Bench) -> list[Figure]:
    """Turns of one conversation with a window, in order, and bare runs of the same agent."""
    count = QUICK_TURNS if bench.is_quick else TURNS
    async with our_side(bench.client, bench.mongodb_uri, [chat_agent()]) as side:
        bare = [await _bare_run(side) for _ in range(AROUND + 5)][5:]
        conversation = DurableConversation.connect(
            side.client,
            agent="chat",
            conversation_id=uuid4().hex,
            max_turns=WINDOW,
            task_queue=side.task_queue,
            recycle_turns=RECYCLE,
        )
        seconds: list[float] = []
        carried: list[int] = []
        memory_mb: list[float] = []
        for number in range(count):
            seconds.append(await _turn(conversation, f"message {number}"))
            if number % RECYCLE == 0:
                carried.append(await _carried(conversation))
                memory_mb.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
                note(f"turn {number}: {1000 * seconds[-1]:.0f} ms")
        lengths = [each async for each in _history_lengths(side.client, conversation)]
    first, last = median(seconds[5 : 5 + AROUND]), median(seconds[-AROUND:])
    return [
        Figure(
            name=f"turn {count} against turn 10, window of {WINDOW}",
            unit="x",
            measured=last / first,
            budget=GROWTH_BUDGET,
            detail=f"{1000 * last:.0f} ms against {1000 * first:.0f} ms, medians of {AROUND}",
        ),
        Figure(
            name="a turn over a bare agent_run",
            unit="ms",
            measured=1000 * (first - median(bare)),
            budget=OVERHEAD_BUDGET_MS,
            detail=f"{1000 * first:.0f} ms against {1000 * median(bare):.0f} ms",
        ),
        Figure(
            name=f"events of a conversation's longest history, {RECYCLE} turns each",
            unit="events",
            measured=max(lengths),
            detail=f"{len(lengths)} executions for {count} turns",
        ),
        Figure(name="handles that its workflow carries", unit="", measured=max(carried)),
        Figure(
            name="largest memory of worker and client, end over first quarter",
            unit="x",
            measured=memory_mb[-1] / memory_mb[len(memory_mb) // 4],
            detail=f"{memory_mb[-1]:.0f} MB",
        ),
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


async def _turn(conversation: DurableConversation, text: str) -> float:
    """Seconds from the message to its answer; the history is not read."""
    began = perf_counter()
    ticket = await conversation.submit(text)
    await conversation.output(text, ticket)
    return perf_counter() - began


async def _carried(conversation: DurableConversation) -> int:
    handle = conversation.client.get_workflow_handle(conversation.workflow_id)
    status: ConversationStatus = await handle.query("status", result_type=ConversationStatus)
    return status.carried


async def _history_lengths(client: Client, conversation: DurableConversation) -> AsyncIterator[int]:
    """Events of each execution of the conversation."""
    async for each in client.list_workflows(f"WorkflowId = '{conversation.workflow_id}'"):
        yield each.history_length
