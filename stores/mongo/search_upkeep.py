"""What commits have written and the search log does not have yet: logged behind their backs.

A commit does not wait for it. A search in the same process waits for what it is about; one in
another process, and whoever comes after a process that died, finds the snapshots still marked as
not logged.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

MOST_WAITING = 100
"""Commits whose messages are kept to be logged; of more it is left to the next one or to a search,
which read them from the database."""

_STOP_SECONDS = 2.0
"""How long a store that is closed waits for them."""


class SearchUpkeep:
    """What is being logged in this process, by workspace and conversation."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], tuple[str, str]] = {}

    def begin(
        self, place: tuple[str, str], work: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None] | None:
        """Do it in a task, which raises nothing; or leave it when too much is waiting."""
        if len(self._tasks) >= MOST_WAITING:
            work.close()
            return None
        task = asyncio.create_task(work)
        self._tasks[task] = place
        task.add_done_callback(self._tasks.pop)
        return task

    async def settle(self, workspace_id: str, conversation_id: str | None) -> None:
        """Wait for what is being logged of a conversation, or of a workspace."""
        tasks = [
            task
            for task, (workspace, conversation) in self._tasks.items()
            if workspace == workspace_id and conversation_id in {None, conversation}
        ]
        if tasks:
            await asyncio.wait(tasks)

    async def aclose(self) -> None:
        """Wait for all of it for a moment; what takes longer is left."""
        tasks = list(self._tasks)
        if not tasks:
            return
        _, slow = await asyncio.wait(tasks, timeout=_STOP_SECONDS)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
