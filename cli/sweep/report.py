"""The sweep's table: for a person, and as one document for a program."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from cli.output import note, print_json, print_table, print_text
from cli.sweep.judging import Outcome

COLUMNS = (
    "struck",
    "by",
    "points",
    "fired",
    "lost",
    "doubled",
    "divergent",
    "run twice",
    "otherwise ended",
    "parked",
    "noticed within s",
)

DETECTED_WITHIN_S = 10
"""The heartbeat timeout of a tool, and five seconds more."""


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """A row for each kind of point, the sum of all, and what is wrong."""
    groups = _groups(outcomes)
    rows = [(name, by, *_counts(group)) for (name, by), group in groups]
    print_table(COLUMNS, [*rows, ("all", "", *_counts(outcomes))])
    for outcome in outcomes:
        if not outcome.is_well:
            print_text(f"\n{outcome.point}")
            for problem in outcome.problems:
                print_text(f"  {problem}")


def print_outcomes_json(outcomes: Sequence[Outcome], **more: object) -> None:
    """All outcomes, with the sums."""
    sums = dict(zip(COLUMNS[2:], _counts(outcomes), strict=True))
    print_json({**more, "sums": sums, "well": all_well(outcomes), "outcomes": list(outcomes)})


def all_well(outcomes: Iterable[Outcome]) -> bool:
    """Whether nothing is wrong at any point, and every lost worker was noticed in time."""
    return all(each.is_well and (each.detected_s or 0) <= DETECTED_WITHIN_S for each in outcomes)


def tell(outcome: Outcome, done: int, total: int) -> None:
    """One line of progress."""
    words = "ok" if outcome.is_well else f"WRONG: {'; '.join(outcome.problems)[:300]}"
    note(f"{done}/{total}  {outcome.point}  {outcome.seconds:.0f} s  {words}")


def _groups(outcomes: Sequence[Outcome]) -> list[tuple[tuple[str, str], list[Outcome]]]:
    def key(outcome: Outcome) -> tuple[str, str]:
        return outcome.group, outcome.disturbance

    ordered = sorted(outcomes, key=key)
    return [(name, list(group)) for name, group in groupby(ordered, key)]


def _counts(outcomes: Sequence[Outcome]) -> tuple[Any, ...]:
    detected = [each.detected_s for each in outcomes if each.detected_s is not None]
    return (
        len(outcomes),
        sum(each.fired for each in outcomes),
        sum(len(each.lost) for each in outcomes),
        sum(len(each.doubled) for each in outcomes),
        sum(len(each.divergent) for each in outcomes),
        sum(len(each.twice) for each in outcomes),
        sum(bool(each.astray) for each in outcomes),
        sum(each.parked is not None for each in outcomes),
        max(detected, default=None),
    )
