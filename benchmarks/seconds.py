"""How much longer a run takes with persistence than without."""

from dataclasses import dataclass, field

from benchmarks.bench import Bench
from benchmarks.figures import Figure, median, percentile
from benchmarks.ours import our_side, persisted_agent, plain_agent
from benchmarks.scripted import PERSISTED, PLAIN, Plan
from benchmarks.side import Side
from cli.output import note

BUDGET = 1.10
"""Held against the 10th percentile: a miss is one that noise does not explain."""

PLAN = Plan(steps=40)

PAIRS, QUICK_PAIRS, REFERENCE_PAIRS = 15, 5, 3


@dataclass
class _Pairs:
    """Seconds with and without persistence, each pair taken within one minute."""

    persisted: list[float] = field(default_factory=list[float])
    plain: list[float] = field(default_factory=list[float])

    async def add(self, side: Side) -> None:
        """Another pair; every second one begins with the plain run."""
        order = [(PERSISTED, self.persisted), (PLAIN, self.plain)]
        for agent, seconds in order if len(self.plain) % 2 == 0 else reversed(order):
            seconds.append(await side.seconds(agent, PLAN))

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.persisted, self.plain, strict=True)]

    def describe(self) -> str:
        return f"{median(self.persisted):.2f} s against {median(self.plain):.2f} s"


async def measure_seconds(bench: Bench) -> list[Figure]:
    """The median of paired ratios; the reference's pairs are taken in between."""
    ours, reference = _Pairs(), _Pairs()
    count = QUICK_PAIRS if bench.is_quick else PAIRS
    async with our_side(
        bench.client, bench.mongodb_uri, [persisted_agent()], plain=[plain_agent()]
    ) as side:
        await _Pairs().add(side)  # a first run loads what later ones find loaded
        for index in range(count):
            await ours.add(side)
            if bench.reference is not None and index % (count // REFERENCE_PAIRS) == 0:
                await reference.add(await bench.reference.side())
            note(f"    pair {index + 1} of {count}: {ours.ratios[-1]:.3f}")
    low, high = (percentile(ours.ratios, share) for share in (0.1, 0.9))
    detail = f"10th {low:.3f}, 90th {high:.3f}; {ours.describe()}"
    if reference.ratios:
        detail += f"; reference {reference.describe()}"
    return [
        Figure(
            name=f"seconds of a {PLAN.steps}-step run, with / without persistence",
            unit="x",
            measured=median(ours.ratios),
            budget=BUDGET,
            judged=low,
            reference=median(reference.ratios) if reference.ratios else None,
            detail=detail,
        )
    ]
