"""The sweep: every point in its turn, several at once, and a file that says what is done."""

import asyncio
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cli.sweep.judging import Outcome
from cli.sweep.performing import Performance, Undisturbed, perform_undisturbed
from cli.sweep.points import CHILD, ROOT, Operation, Point
from cli.sweep.stage import Lane, open_lanes
from cli.sweep.workers import CALLS

TRIES = 3
"""Of a point whose fault does not strike: where calls run side by side, commits may group
otherwise."""

Select = Callable[[Sequence[Operation]], list[Point]]
"""Which points are performed, of a script that commits these operations."""


@dataclass(kw_only=True)
class Ledger:
    """What is done, a line of JSON each, so that a sweep takes up where it stopped.

    Args:
        path: of the file; `None` keeps nothing.
    """

    path: Path | None = None
    outcomes: dict[str, Outcome] = field(default_factory=dict[str, Outcome])

    @classmethod
    def resumed(cls, path: Path) -> "Ledger":
        """With what the file holds of points that went well; the others are performed again."""
        ledger = cls(path=path)
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                outcome = Outcome.of_json(line)
            except (json.JSONDecodeError, TypeError):
                continue
            if outcome.is_well:
                ledger.outcomes[outcome.point] = outcome
        return ledger

    def add(self, outcome: Outcome) -> None:
        """Keep it."""
        self.outcomes[outcome.point] = outcome
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(outcome.as_json() + "\n")


@dataclass(kw_only=True)
class Sweep:
    """A sweep over the points that `select` names.

    Args:
        jobs: how many points are performed at once.
        tell: is told of each outcome: how many are done, of how many.
        planted: what is wrong with the store of the points' workers, a key of `PLANTED`.
    """

    select: Select
    ledger: Ledger
    jobs: int
    tell: Callable[[Outcome, int, int], None]
    planted: str | None = None

    async def run(self) -> list[Outcome]:
        """Perform what is not done; the outcomes of all, in the points' order."""
        with tempfile.TemporaryDirectory(
            prefix="perdure-chaos-", ignore_cleanup_errors=True
        ) as home:
            async with open_lanes(Path(home), self.jobs) as lanes:
                return await self.run_in(lanes)

    async def run_in(self, lanes: Sequence[Lane]) -> list[Outcome]:
        """As `run`, in lanes that are open."""
        undisturbed, operations = await observe(lanes[0])
        hopping, _ = await perform_undisturbed(lanes[0], "hopping")
        points = self.select(operations)
        left = [each for each in points if each.name not in self.ledger.outcomes]
        random.Random(len(points)).shuffle(left)  # noqa: S311 - so that all kinds come early
        waiting = iter(left)
        total = len(points)

        async def work(lane: Lane) -> None:
            for point in waiting:
                expected = hopping if point.mode == "hopping" else undisturbed
                outcome = await self._perform(lane, point, expected)
                self.ledger.add(outcome)
                done = sum(each.name in self.ledger.outcomes for each in points)
                self.tell(outcome, done, total)

        async with asyncio.TaskGroup() as working:
            for lane in lanes:
                working.create_task(work(lane))
        return [self.ledger.outcomes[each.name] for each in points]

    async def _perform(self, lane: Lane, point: Point, undisturbed: Undisturbed) -> Outcome:
        for _ in range(TRIES - 1):
            performance = Performance(lane=lane, point=point, planted=self.planted)
            outcome = await performance.perform(undisturbed)
            if outcome.fired:
                return outcome
        return await Performance(lane=lane, point=point, planted=self.planted).perform(undisturbed)


async def observe(lane: Lane) -> tuple[Undisturbed, list[Operation]]:
    """A run that nothing disturbs, and what it committed."""
    undisturbed, directory = await perform_undisturbed(lane)
    lines = [json.loads(line) for line in (directory / CALLS).read_text().splitlines()]
    root: str = lines[0]["run_id"]
    operations = [
        Operation(
            agent=ROOT if line["run_id"] == root else CHILD,
            number=line["number"],
            kind=line["kind"],
            key=line["key"],
        )
        for line in lines
    ]
    return undisturbed, operations
