"""How many history events a tool step costs."""

from dataclasses import dataclass

from temporalio.api.enums.v1 import EventType

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.ours import our_side, persisted_agent, plain_agent
from benchmarks.scripted import PERSISTED, PLAIN, Plan
from benchmarks.side import RunHandle

BUDGET = 15

SHORT, LONG = Plan(steps=20), Plan(steps=40)
"""Their difference holds only what a step costs: starts and ends cancel out."""


@dataclass(frozen=True, kw_only=True)
class _Counts:
    events: float
    activities: float
    markers: float


async def measure_events(bench: Bench) -> list[Figure]:
    """Events, activities and markers of one more step."""
    async with our_side(
        bench.client, bench.mongodb_uri, [persisted_agent()], plain=[plain_agent()]
    ) as ours:
        counts = await _of_a_step(await ours.run(PERSISTED, SHORT), await ours.run(PERSISTED, LONG))
        plain = await _of_a_step(await ours.run(PLAIN, SHORT), await ours.run(PLAIN, LONG))
    reference = None
    if bench.reference is not None:
        short, long = await bench.reference.run(SHORT), await bench.reference.run(LONG)
        reference = await _of_a_step(short, long)

    def figure(name: str, field: str, budget: float | None = None) -> Figure:
        return Figure(
            name=f"{name} of a tool step",
            unit="",
            measured=getattr(counts, field),
            budget=budget,
            reference=getattr(reference, field, None),
            detail=f"{getattr(plain, field):g} without persistence",
        )

    return [
        figure("history events", "events", BUDGET),
        figure("activities", "activities"),
        figure("local commits (markers)", "markers"),
    ]


async def _of_a_step(short: RunHandle, long: RunHandle) -> _Counts:
    fewer, more = await _counts(short), await _counts(long)
    steps = LONG.steps - SHORT.steps
    return _Counts(
        events=(more.events - fewer.events) / steps,
        activities=(more.activities - fewer.activities) / steps,
        markers=(more.markers - fewer.markers) / steps,
    )


async def _counts(handle: RunHandle) -> _Counts:
    types = [event.event_type async for event in handle.fetch_history_events()]
    return _Counts(
        events=len(types),
        activities=types.count(EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED),
        markers=types.count(EventType.EVENT_TYPE_MARKER_RECORDED),
    )
