"""What went wrong at a point, if anything: the run against the one that nothing disturbed."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from cli.sweep.script import ONCE_TOOLS
from cli.sweep.traces import Trail


@dataclass(kw_only=True)
class Outcome:
    """What became of a point. Each list holds what is wrong, in words; empty is right.

    Attributes:
        fired: how often the fault struck: once.
        twice: calls of `once` tools whose body ran more than once.
        astray: how the run did not end as the undisturbed one, or did not park where it should.
        parked: the call that waited for a decision.
        detected_s: seconds from the worker's death to the next attempt of what it was doing.
    """

    point: str
    group: str
    disturbance: str
    fired: int = 0
    lost: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    divergent: list[str] = field(default_factory=list[str])
    twice: list[str] = field(default_factory=list[str])
    astray: list[str] = field(default_factory=list[str])
    parked: str | None = None
    detected_s: float | None = None
    seconds: float = 0

    @property
    def is_well(self) -> bool:
        """Whether the fault struck and nothing is wrong."""
        wrong = (self.lost, self.doubled, self.divergent, self.twice, self.astray)
        return self.fired == 1 and not any(wrong)

    @property
    def problems(self) -> list[str]:
        """All that is wrong, in words."""
        kinds = ("lost", "doubled", "divergent", "twice", "astray")
        found = [f"{kind}: {each}" for kind in kinds for each in getattr(self, kind)]
        return found if self.fired else [*found, "the fault never struck"]

    def as_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, line: str) -> "Outcome":
        """From that line."""
        return cls(**json.loads(line))

    def compare(self, found: Mapping[str, Trail], expected: Mapping[str, Trail]) -> None:
        """Note what differs between the trails of the point's runs, by agent."""
        for agent, trail in expected.items():
            if agent not in found:
                self.lost.append(f"the run of {agent}")
            else:
                self._compare(agent, found[agent], trail)
        self.doubled += [f"the run of {each}" for each in found if each not in expected]

    def _compare(self, agent: str, found: Trail, expected: Trail) -> None:
        lists = (
            ("event", found.events, expected.events),
            ("effect", found.effects, expected.effects),
            ("snapshot", found.snapshots, expected.snapshots),
        )
        for kind, rows, wanted in lists:
            self.compare_rows(f"{kind} of {agent}", rows, wanted)
        if found.run != expected.run:
            self.divergent.append(f"run of {agent} is {found.run}, not {expected.run}")
        if found.history != expected.history:
            self.divergent.append(f"final history of {agent}")

    def compare_rows(
        self, kind: str, rows: list[tuple[object, ...]], wanted: list[tuple[object, ...]]
    ) -> None:
        """Note what differs between rows, of which the first value is the name."""
        counts = Counter(row[0] for row in rows)
        expected = {row[0]: row for row in wanted}
        self.lost += [f"{kind} {key}" for key in expected if not counts[key]]
        self.doubled += [f"{kind} {key}" for key, count in counts.items() if count > 1]
        self.divergent += [
            f"{kind} {row[0]}: {_short(row)}" for row in rows if expected.get(row[0]) != row
        ]

    def count_bodies(self, bodies: Counter[str], tools: Mapping[str, str]) -> None:
        """Note calls of `once` tools that ran twice.

        Args:
            bodies: how often each call's body began.
            tools: what each call's tool is.
        """
        for call, tool in tools.items():
            if tool in ONCE_TOOLS and bodies[call] > 1:
                self.twice.append(f"{tool} {call}: {bodies[call]} times")


def _short(row: tuple[object, ...]) -> str:
    text = str(row)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_SHOWN = 160


def with_parked_call(expected: Mapping[str, Trail], agent: str, call: str) -> dict[str, Trail]:
    """The trails that a run leaves of which somebody settled a call as its tool would have."""
    step, _, index = call.partition("/")
    trail = expected[agent]
    unknown = (f"{step}:tool_call_failed:{index}:0", "tool_call_failed", int(step), index)
    effects = [(e[0], e[1], "resolved") if e[0] == call else e for e in trail.effects]
    return {
        **expected,
        agent: replace(trail, events=sorted([*trail.events, unknown]), effects=effects),
    }


def without_marks(trail: Trail) -> Trail:
    """Without the mark that a person gave a result."""
    snapshots: list[tuple[object, ...]] = [
        (key, state, json.dumps(_unmarked(json.loads(str(messages)))))
        for key, state, messages in trail.snapshots
    ]
    return replace(trail, snapshots=snapshots, history=_unmarked(trail.history))


def _unmarked(value: object) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return {key: _unmarked(each) for key, each in fields.items() if key != "metadata"}
    if isinstance(value, list):
        return [_unmarked(each) for each in cast("list[object]", value)]
    return value
