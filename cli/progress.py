"""A run's events as they come, for somebody who waits."""

import asyncio
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING

from cli.output import note, offset

if TYPE_CHECKING:
    from stores.protocols import StepStore
    from stores.records import StepEvent

FIRST_PAUSE = timedelta(milliseconds=200)
LONGEST_PAUSE = timedelta(seconds=2)
"""Between two looks at the store: at once for what a person watches, rare for a run of hours."""


def describe_event(event: "StepEvent", start: datetime) -> str:
    """One line: when, in which step, what, of which tool call, and the error if there was one."""
    call = f"  {event.tool_name} ({event.tool_call_id})" if event.tool_name else ""
    error = f"  {event.error}" if event.error else ""
    at = f"{offset(event.timestamp, start):>11}"
    return f"{at}  step {event.step_index:<3} {event.kind}{call}{error}"


class EventFollower:
    """Tells each new event of a run once.

    It reads by the run's own sequence, so what it told is what the store holds, in its order.
    """

    def __init__(self, store: "StepStore", run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._last_sequence = -1
        self._start: datetime | None = None

    async def tell(self) -> int:
        """Note the events that came since the last call; return how many."""
        events = await self._store.list_events(run_id=self._run_id)
        new = [event for event in events if event.sequence > self._last_sequence]
        for event in new:
            self._start = self._start or event.timestamp
            note(describe_event(event, self._start))
            self._last_sequence = event.sequence
        return len(new)

    async def follow(self, *, hint_after: timedelta | None = None, hint: str = "") -> None:
        """Tell events until cancelled; `hint` once, when there is none for so long."""
        pause = FIRST_PAUSE
        hint_at = monotonic() + hint_after.total_seconds() if hint_after else None
        while True:
            found = await self.tell()
            if found:
                hint_at = None
            elif hint_at is not None and monotonic() > hint_at:
                note(hint)
                hint_at = None
            pause = FIRST_PAUSE if found else min(pause * 1.3, LONGEST_PAUSE)
            await asyncio.sleep(pause.total_seconds())  # noqa: TID251 - the store has no feed yet
