"""The sweep over a conversation: every point in its turn, several at once."""

import asyncio
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.sweep.judging import Outcome
from cli.sweep.points import Point
from cli.sweep.stage import Lane, open_lanes
from cli.sweep.sweeping import TRIES, Ledger
from cli.sweep.talk_points import TalkPoint, talk_points
from cli.sweep.talking import TalkPerformance, UndisturbedTalk, talk_undisturbed


@dataclass(kw_only=True)
class TalkSweep:
    """A sweep over the points of a conversation that `choose` leaves.

    Args:
        jobs: how many points are performed at once.
        tell: is told of each outcome: how many are done, of how many.
    """

    choose: Callable[[list[Point]], list[Point]]
    ledger: Ledger
    jobs: int
    tell: Callable[[Outcome, int, int], None]

    async def run(self) -> list[Outcome]:
        """Perform what is not done; the outcomes of all, in the points' order."""
        with tempfile.TemporaryDirectory(
            prefix="perdure-chaos-", ignore_cleanup_errors=True
        ) as home:
            async with open_lanes(Path(home), self.jobs) as lanes:
                return await self._run_in(lanes)

    async def _run_in(self, lanes: Sequence[Lane]) -> list[Outcome]:
        undisturbed, calls, operations = await talk_undisturbed(lanes[0])
        points = self.choose(talk_points(calls, operations))
        left = [each for each in points if each.name not in self.ledger.outcomes]
        random.Random(len(points)).shuffle(left)  # noqa: S311 - so that all kinds come early
        waiting = iter(left)

        async def work(lane: Lane) -> None:
            for point in waiting:
                if isinstance(point, TalkPoint):
                    outcome = await _perform(lane, point, undisturbed)
                    self.ledger.add(outcome)
                    done = sum(each.name in self.ledger.outcomes for each in points)
                    self.tell(outcome, done, len(points))

        async with asyncio.TaskGroup() as working:
            for lane in lanes:
                working.create_task(work(lane))
        return [self.ledger.outcomes[each.name] for each in points]


async def _perform(lane: Lane, point: TalkPoint, undisturbed: UndisturbedTalk) -> Outcome:
    for _ in range(TRIES - 1):
        outcome = await TalkPerformance(lane=lane, point=point).perform(undisturbed)
        if outcome.fired:
            return outcome
    return await TalkPerformance(lane=lane, point=point).perform(undisturbed)
