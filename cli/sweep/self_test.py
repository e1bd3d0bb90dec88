"""Whether the sweep finds what it should: stores with a fault planted in them."""

import asyncio
import tempfile
from pathlib import Path

from cli.output import note, print_json, print_table
from cli.sweep.judging import Outcome
from cli.sweep.performing import Performance, Undisturbed
from cli.sweep.planted import PLANTED
from cli.sweep.points import Point, all_points, named
from cli.sweep.stage import Lane, open_lanes
from cli.sweep.sweeping import observe

FINDING: dict[str, tuple[str, str]] = {
    "a store that drops a write": ("register_run sweep reported repeat", "lost"),
    "a store without digests": (
        "late-attempt after-its-fallback before late altered early",
        "divergent",
    ),
    "a ledger without its fence": ("leave refuse 5/0 before zombie", "divergent"),
    "a retry that runs a once tool": ("body charge 2/0 before kill", "twice"),
}
"""For each planted fault the point at which it must show, and the column in which."""


async def find_planted(*, jobs: int, as_json: bool) -> bool:
    """Whether each planted fault was found."""
    with tempfile.TemporaryDirectory(prefix="perdure-chaos-", ignore_cleanup_errors=True) as home:
        async with open_lanes(Path(home), min(jobs, len(PLANTED))) as lanes:
            found = await _find(lanes)
    if as_json:
        print_json({"found": {name: is_found for name, (is_found, _) in found.items()}})
    else:
        rows = [
            (name, FINDING[name][0], "found" if is_found else "NOT FOUND", words)
            for name, (is_found, words) in found.items()
        ]
        print_table(("planted", "point", "", "as"), rows)
    return all(is_found for is_found, _ in found.values())


async def _find(lanes: list[Lane]) -> dict[str, tuple[bool, str]]:
    undisturbed, operations = await observe(lanes[0])
    points = named(all_points(operations))
    left = iter(PLANTED)
    found: dict[str, tuple[bool, str]] = {}

    async def work(lane: Lane) -> None:
        for planted in left:
            point_name, column = FINDING[planted]
            outcome = await _perform(lane, points[point_name], planted, undisturbed)
            problems: list[str] = getattr(outcome, column)
            found[planted] = bool(outcome.fired and problems), "; ".join(problems[:1])
            note(f"{planted}: {'found' if found[planted][0] else 'NOT FOUND'}")

    async with asyncio.TaskGroup() as working:
        for lane in lanes:
            working.create_task(work(lane))
    return {name: found[name] for name in PLANTED}


async def _perform(lane: Lane, point: Point, planted: str, undisturbed: Undisturbed) -> Outcome:
    return await Performance(lane=lane, point=point, planted=planted).perform(undisturbed)
