"""`SnapshotSaved`: what observers of a run are told once a snapshot is stored."""

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import CapabilityEvent
from pydantic_ai.tools import RunContext
from temporalio import workflow

from stores.records import SnapshotState
from workflows.names import STEP_PERSISTENCE

logger = logging.getLogger(__name__)

Notice = Callable[[], Awaitable[None]]
"""Tells the observers; never raises what they raise."""


@dataclass(kw_only=True)
class SnapshotSaved(
    CapabilityEvent, namespace="perdure", name="snapshot_saved", dispatch="immediate"
):
    """A snapshot is stored; in a workflow: the commit that holds it is.

    Subscribe with `hooks.on.event(SnapshotSaved)`. The store is what counts: a notice may come
    again on a replay, and an observer that fails changes nothing but the log.
    """

    persistence_run_id: str
    conversation_id: str | None
    step_index: int
    state: SnapshotState


def notice_of(ctx: RunContext[Any], event: SnapshotSaved) -> Notice | None:
    """What tells a run's observers of an event; `None` in a workflow where nobody listens.

    In a workflow the event goes to listeners alone. In the run's stream it would reach an event
    stream handler, and each of its calls is an activity: a command that running workflows lack.
    """
    root = ctx.root_capability
    in_workflow = workflow.in_workflow()
    if in_workflow and (root is None or not root.listens_to(event)):
        return None

    async def tell() -> None:
        try:
            if in_workflow and root is not None:
                event.capability_id = STEP_PERSISTENCE
                await root.on_event(ctx, event=event)
            else:
                await ctx.emit(event)
        except Exception:
            log = workflow.logger if in_workflow else logger
            log.exception("An observer of run %r failed", event.persistence_run_id)

    return tell


@dataclass
class Notices:
    """Notices that are being given in a workflow: none holds up a commit, all hold up the end."""

    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def __len__(self) -> int:
        """How many have not ended."""
        return len(self._tasks)

    def give(self, notice: Notice, context: contextvars.Context) -> None:
        """Begin to tell, in the context of the code that saved."""

        async def told() -> None:
            await notice()

        task = asyncio.get_running_loop().create_task(told(), context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """End observers that wait for something."""
        for task in self._tasks:
            task.cancel()
