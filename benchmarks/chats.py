"""Many conversations at once: turns a second, next to the reference's documented pattern."""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from uuid import uuid4

from benchmarks.bench import Bench
from benchmarks.chat_workflow import BenchmarkChatWorkflow
from benchmarks.chatting import CHATTING, make_chatting_agent
from benchmarks.figures import Figure
from benchmarks.ours import our_side
from benchmarks.side import LONGEST_RUN, Side
from workflows.durable import durable
from workflows.durable_conversation import DurableConversation

CONVERSATIONS = 50
TURNS, QUICK_TURNS = 5, 3
"""Of each conversation."""

Talk = Callable[[Side, int], Awaitable[None]]
"""Holds one conversation of so many turns."""


async def measure_chats(bench: Bench) -> list[Figure]:
    """Turns a second of `CONVERSATIONS` conversations that all talk at once, each turn streamed."""
    turns = QUICK_TURNS if bench.is_quick else TURNS
    async with our_side(bench.client, bench.mongodb_uri, [make_chatting_agent(durable())]) as ours:
        measured = await _turns_a_second(ours, _ours, turns)
    reference = None
    if bench.reference is not None:
        reference = await _turns_a_second(await bench.reference.side(), _theirs, turns)
    return [
        Figure(
            name=f"turns a second, {CONVERSATIONS} conversations at once",
            unit="/s",
            measured=measured,
            reference=reference,
            detail=f"{turns} turns each, streamed, nobody reads along",
        )
    ]


async def _turns_a_second(side: Side, talk: Talk, turns: int) -> float:
    await talk(side, 1)  # a first turn loads what later ones find loaded
    start = perf_counter()
    async with asyncio.TaskGroup() as talking:
        for _ in range(CONVERSATIONS):
            talking.create_task(_whole(talk(side, turns)))
    return CONVERSATIONS * turns / (perf_counter() - start)


async def _whole(talking: Awaitable[None]) -> None:
    await asyncio.wait_for(talking, LONGEST_RUN.total_seconds())


async def _ours(side: Side, turns: int) -> None:
    conversation = DurableConversation.connect(
        side.client, agent=CHATTING, conversation_id=uuid4().hex, task_queue=side.task_queue
    )
    for number in range(turns):
        text = f"message {number}"
        await conversation.output(text, await conversation.submit(text))


async def _theirs(side: Side, turns: int) -> None:
    handle = await side.client.start_workflow(
        BenchmarkChatWorkflow.run,
        CHATTING,
        id=f"chat-{uuid4().hex}",
        task_queue=side.task_queue,
        execution_timeout=LONGEST_RUN,
    )
    for number in range(turns):
        await handle.execute_update("say", f"message {number}", result_type=str)  # pyright: ignore[reportUnknownMemberType] - the SDK's
    await handle.terminate()
