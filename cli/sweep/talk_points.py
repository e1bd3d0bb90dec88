"""The fault points of a conversation: calls of its rows, commits of its turns, requests, bodies."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cli.sweep.points import (
    ROOT,
    Disturbance,
    Moment,
    Operation,
    Point,
    at_commit,
    representatives,
    struck_by,
)
from cli.sweep.talk_script import TALK
from stores.faulty import Fault

ROWS = ("open", "admit", "find_message", "begin_variant", "finish_variant")
"""Methods of the conversation store that a conversation lives by, each one transaction."""

_AT_ROWS: tuple[tuple[Moment, Disturbance], ...] = (
    ("before", "kill"),
    ("after", "kill"),
    ("reported", "kill"),
    ("before", "mongodb"),
    ("after", "mongodb"),
    ("reported", "mongodb"),
    ("before", "late"),
    ("after", "held"),
    ("reported", "repeat"),
    ("before", "zombie"),
    ("after", "zombie"),
)


@dataclass(frozen=True, kw_only=True)
class TalkPoint(Point):
    """A point of a conversation; `agent` is the message whose run is struck.

    `passes`: so many calls of the same method go by before.
    """

    passes: int = 0

    @property
    def is_of_rows(self) -> bool:
        """Whether the conversation's rows are struck, not a run."""
        return self.fault.method in ROWS

    @property
    def writes_late(self) -> bool:
        """Whether a call is made when all is over."""
        comes_late = self.disturbance in {"late", "repeat"}
        return comes_late or (self.disturbance == "zombie" and self.moment == "before")

    def faults(self, fault: Fault) -> tuple[Fault, ...]:
        """What a worker's plan is given: the fault, behind those that let earlier calls go by."""
        passing = (f"pass-{number}" for number in range(self.passes))
        by = tuple(Fault(name=each, action="note", method=fault.method) for each in passing)
        return (*by, fault)


def talk_points(calls: Sequence[str], operations: Sequence[Operation]) -> list[Point]:
    """Every point, in order.

    Args:
        calls: the methods of the rows that an undisturbed conversation called, in order.
        operations: what its turns' runs committed; the agent is the message.
    """
    points: list[Point] = [
        *_at_rows(calls),
        *(
            _of_talk(point)
            for message in TALK
            for commit in representatives([each for each in operations if each.agent == message])
            for point in at_commit(commit)
        ),
        *_in_models(),
        *_in_bodies(),
    ]
    doubled = [name for name, n in Counter(each.name for each in points).items() if n > 1]
    if doubled:
        message = f"fault points must have names of their own; doubled are {doubled}"
        raise ValueError(message)
    return points


def _of_talk(point: Point) -> TalkPoint:
    given = {name: getattr(point, name) for name in Point.__dataclass_fields__}
    return TalkPoint(**given)


def _at_rows(calls: Sequence[str]) -> Iterator[TalkPoint]:
    seen = Counter[str]()
    for method in calls:
        for moment, disturbance in _AT_ROWS:
            yield TalkPoint(
                place=f"{method} conversation {seen[method] + 1}",
                moment=moment,
                disturbance=disturbance,
                fault=struck_by(moment, disturbance, method=method).model_copy(
                    update={"outlives_caller": disturbance in {"late", "held", "zombie"}}
                ),
                agent=ROOT,
                passes=seen[method],
            )
        seen[method] += 1


def _in_models() -> Iterator[TalkPoint]:
    disturbances: tuple[Disturbance, ...] = ("kill", "mongodb", "zombie")
    for message, steps in TALK.items():
        for request in range(len(steps) + 1):
            for disturbance in disturbances:
                yield TalkPoint(
                    place=f"model {message} {request + 1}",
                    moment="before",
                    disturbance=disturbance,
                    fault=struck_by("before", disturbance, method=f"model:{message}:{request}"),
                    agent=message,
                )


def _in_bodies() -> Iterator[TalkPoint]:
    for message, steps in TALK.items():
        for index, (tool, _) in enumerate(call for calls in steps for call in calls):
            yield TalkPoint(
                place=f"body-of {tool} {message}",
                moment="before",
                disturbance="kill",
                fault=struck_by("before", "kill", method=f"body:call-{message}-{index}"),
                agent=message,
            )
