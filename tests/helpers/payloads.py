"""Histories whose payloads are stored beside them, and what reads them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai import Agent
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from converter import DATA_CONVERTER, build_data_converter, close_payloads
from payload_codec import is_reference
from settings import Settings
from worker import build_replayer


@asynccontextmanager
async def another_process(
    settings: Settings, base: DataConverter = DATA_CONVERTER
) -> AsyncGenerator[DataConverter]:
    """What reads a history without having written it."""
    converter = build_data_converter(settings, base=base)
    try:
        yield converter
    finally:
        await close_payloads(converter)


async def failure_of_replay(
    history: WorkflowHistory, agents: Sequence[Agent[Any, Any]], converter: DataConverter
) -> str:
    """What a replay says; `None` when it goes through."""
    replayer = build_replayer(agents, converter=converter)
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    return str(result.replay_failure)


def references(history: WorkflowHistory) -> int:
    """Stored payloads among the inputs of activities; results and prompts are others."""
    return sum(
        is_reference(payload)
        for event in history.events
        for payload in event.activity_task_scheduled_event_attributes.input.payloads
    )
