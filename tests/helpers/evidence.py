"""What a run left behind, as `perdure chaos` compares it."""

from collections.abc import Sequence
from typing import Any

from pydantic_ai import Agent
from temporalio.client import WorkflowHistory

from cli.sweep import traces
from cli.sweep.traces import STAMPS, Trail, content_of, operations_of, path_of, trail_of
from stores.protocols import StepStore

__all__ = [
    "STAMPS",
    "Trail",
    "content_of",
    "operations_of",
    "path_of",
    "stored_and_replayed",
    "trail_of",
]


async def stored_and_replayed(
    store: StepStore,
    history: WorkflowHistory,
    agents: Sequence[Agent[Any, Any]],
    workflows: Sequence[type] = (),
) -> tuple[dict[str, Trail], dict[str, Trail]]:
    """For each run of one execution what is live, and what a replay would write."""
    return await traces.stored_and_replayed(store, [history], agents, workflows)
