"""Agents for workflows that a user wrote: one that hears, inside the workflow, what it was told."""

from datetime import timedelta
from typing import Protocol, cast

from pydantic_ai import ModelRetry
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityConfig

from tests.helpers.script import make_agent
from tests.helpers.speaking import make_speaker

SURVIVING = ActivityConfig(
    heartbeat_timeout=timedelta(seconds=2),
    retry_policy=RetryPolicy(
        initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=1)
    ),
)
"""A lost worker is noticed in 2 s instead of 5 s and 15 s, and any number of them is survived: a
crash test kills more than are lost in years."""


class Listener(Protocol):
    """What a workflow must have for `listen`."""

    heard: list[str]


SCRIPT = make_agent("script", activities=SURVIVING)
LISTENER = make_agent("listener", activities=SURVIVING)


@LISTENER.tool_plain(metadata={"temporal": False, "effect": "read"}, sequential=True, retries=9)
async def listen(text: str) -> str:
    """Give the text back; ask for another try once the workflow has heard something.

    It runs in the workflow, and alone, so that several calls make several commits in one task.
    """
    heard = cast("Listener", workflow.instance()).heard
    if heard:
        message = f"heard {', '.join(heard)}"
        raise ModelRetry(message)
    return text


SPEAKER = make_speaker(activities=SURVIVING)

AGENTS = [SCRIPT, LISTENER, SPEAKER]
"""What a worker process of a crash test runs."""

SCRIPT_IN_PRODUCTION = make_agent("script")
"""With the timeouts and retries that an agent has by default."""
