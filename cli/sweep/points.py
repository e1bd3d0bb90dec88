"""The fault points: where in the script, at which moment, what happens."""

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cli.sweep.script import ONCE_TOOLS, REPEATABLE_TOOLS, STEPS
from stores.faulty import Fault

Moment = Literal["before", "after", "reported"]
"""Before the write; after it and before its report; after the report."""

Disturbance = Literal[
    "kill", "mongodb", "late", "held", "repeat", "zombie", "cancel", "reset", "update", "stop"
]
"""What happens: the worker gets SIGKILL; MongoDB is killed and restarted; a write is late; its
answer is; a write comes again, late; the worker is frozen and goes on when another one has taken
over; and what a case adds: the run is cancelled, or reset, an update waits, the worker stops."""

Mode = Literal["local", "regular", "hopping"]

FAULT = "fault"
"""The name of a point's only fault."""

WORKER_DISTURBANCES: tuple[Disturbance, ...] = ("kill", "zombie")

ROOT, CHILD = "sweep", "helper"
"""Agents of the two runs of a point: the run that is started, and its delegate."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation that the undisturbed run committed, as the listening plan noted it."""

    agent: str
    number: int
    kind: str
    key: str


@dataclass(frozen=True, kw_only=True)
class Point:
    """One fault point.

    Args:
        place: what is struck, for people: boundary and key, gate and call, body, model request.
        agent: whose run is struck.
        parks: the call that must wait for a decision, `None` where none may.
        late: what the store must answer to the write that comes late, if any does.
        is_counted: whether the ledger must count the end of a stale attempt.
        mode: how commits of the run go: local activities first, or regular ones; or that the run
            goes on in another execution after every second model request.
    """

    place: str
    moment: Moment
    disturbance: Disturbance
    fault: Fault
    agent: str = ROOT
    parks: str | None = None
    late: frozenset[str] = frozenset()
    is_counted: bool = False
    is_released_early: bool = False
    mode: Mode = "local"
    kills_after: bool = False

    @property
    def may_park(self) -> frozenset[str]:
        """Calls that may be lost with the worker: the struck one, those beside it, the next one.

        A kill that follows a report comes when that has been seen, and by then the run is further:
        a `once` tool may have begun, which the ledger has to say where its call waits.
        """
        calls = {self.parks} if self.parks else set[str]()
        if self.is_beside:
            calls.add(CALL_BESIDE)
        if self.moment == "reported" and self.disturbance in WORKER_DISTURBANCES:
            calls |= {SLOW_CALL, CALL_BESIDE}
        return frozenset(calls)

    @property
    def is_beside(self) -> bool:
        """Whether the worker may be lost while a `once` tool runs beside what is struck."""
        step = CALL_BESIDE.partition("/")[0]
        places = (self.fault.call, self.fault.key, self.place.split()[-1])
        is_in_step = any(each and each.startswith(f"{step}/") for each in places)
        return is_in_step and self.disturbance in WORKER_DISTURBANCES

    @property
    def name(self) -> str:
        """Unique among the points."""
        words = [self.place, self.moment, self.disturbance]
        words += [self.mode] if self.mode != "local" else []
        words += ["altered"] if self.fault.alters else []
        words += ["early"] if self.is_released_early else []
        words += ["then killed"] if self.kills_after else []
        return " ".join(words)

    @property
    def group(self) -> str:
        """Row of the table: what is struck, without which one."""
        return self.place.split()[0]


def all_points(operations: Sequence[Operation]) -> list[Point]:
    """Every point, in order; `operations` are those of the undisturbed run."""
    commits = representatives(operations)
    points = [
        *(point for commit in commits for point in at_commit(commit)),
        *_at_identity(),
        *(point for call in _gated_calls() for point in _at_gate(*call)),
        *(point for call in _calls() for point in _in_body(*call)),
        *_in_model(),
        *_at_hops(),
        *_cases(),
    ]
    doubled = [name for name, n in Counter(each.name for each in points).items() if n > 1]
    if doubled:
        message = f"fault points must have names of their own; doubled are {doubled}"
        raise ValueError(message)
    return points


def sample(points: Sequence[Point], count: int, seed: int) -> list[Point]:
    """So many points, the same for the same seed; every kind of disturbance before any twice."""
    generator = random.Random(seed)  # noqa: S311 - no secret
    left = list(points)
    generator.shuffle(left)
    chosen: list[Point] = []
    used = Counter[str]()
    while left and len(chosen) < count:
        rarest = min(left, key=lambda each: used[f"{each.disturbance} {each.moment}"])
        used[f"{rarest.disturbance} {rarest.moment}"] += 1
        left.remove(rarest)
        chosen.append(rarest)
    return chosen


def representatives(operations: Sequence[Operation]) -> list[Operation]:
    """One operation of each commit: of the boundary that stands for the fewest commits so far."""
    commits: dict[tuple[str, int], list[Operation]] = {}
    for each in operations:
        commits.setdefault((each.agent, each.number), []).append(each)
    used = Counter[str]()
    chosen: list[Operation] = []
    for group in commits.values():
        rarest = min(group, key=lambda each: used[each.kind])
        used[rarest.kind] += 1
        chosen.append(rarest)
    return chosen


LATE = frozenset({"stale", "suppress"})
"""Answers to a late write that has to change nothing."""

LATE_WHEN_FROZEN = LATE | {"StoreUnavailableError"}
"""Of a process that was frozen with it, the time for the write may be over when it goes on."""


def at_commit(at: Operation) -> Iterator[Point]:
    """All that strikes one commit, at one of its operations."""
    # A registration's key is its run id, which is another one each time.
    key = None if at.kind == "register_run" else at.key
    place = f"{at.kind} {at.agent} {key or ''}".strip()

    def point(moment: Moment, disturbance: Disturbance, **values: object) -> Point:
        fault = struck_by(moment, disturbance).model_copy(update={"holds": at.kind, "key": key})
        late = _late_answers(disturbance, moment)
        given: dict[str, object] = {"place": place, "agent": at.agent, "late": late, **values}
        return Point(moment=moment, disturbance=disturbance, fault=fault, **given)  # type: ignore[arg-type]

    moments: tuple[Moment, ...] = ("before", "after", "reported")
    for moment in moments:
        yield point(moment, "kill")
        yield point(moment, "mongodb")
    yield point("before", "late")
    yield point("after", "held")
    yield point("reported", "repeat")
    yield point("before", "zombie")
    yield point("after", "zombie")
    yield point("before", "kill", mode="regular")
    yield point("after", "kill", mode="regular")
    yield point("before", "mongodb", mode="regular")
    yield point("after", "mongodb", mode="regular")


def _late_answers(disturbance: Disturbance, moment: Moment) -> frozenset[str]:
    """What may be answered to a commit that comes late; empty when none does."""
    if disturbance in {"late", "repeat"}:
        return LATE
    is_frozen = disturbance == "zombie" and moment == "before"
    return LATE_WHEN_FROZEN if is_frozen else frozenset()


def struck_by(moment: Moment, disturbance: Disturbance, **values: object) -> Fault:
    """What strikes the call; the rest is done from outside, when it has struck."""
    when = "before" if moment == "before" else "after"
    found: dict[str, object] = {"name": FAULT, "when": when, **values}
    match disturbance:
        case "kill" if moment != "reported":
            found["action"] = "kill"
        case "zombie":
            is_commit = "method" not in values
            found |= {"action": "freeze", "outlives_caller": is_commit}
        case "repeat":
            found["action"] = "repeat"
        case "late" | "held":
            found |= {"action": "wait", "outlives_caller": True}
        case "mongodb" if moment != "reported":
            found |= {"action": "wait", "then_fails": moment == "after"}
        case "cancel" | "reset":
            found["action"] = "wait"
        case _:
            found["action"] = "note"
    return Fault.model_validate(found)


def _at_identity() -> Iterator[Point]:
    struck: tuple[tuple[Moment, Disturbance], ...] = (
        ("before", "kill"),
        ("after", "kill"),
        ("reported", "kill"),
        ("before", "mongodb"),
        ("reported", "mongodb"),
        ("before", "zombie"),
        ("after", "zombie"),
    )
    for moment, disturbance in struck:
        fault = struck_by(moment, disturbance, method="activity:registration_identity")
        place = "registration_identity sweep"
        yield Point(place=place, moment=moment, disturbance=disturbance, fault=fault)


def _calls(agent: str = ROOT) -> Iterator[tuple[str, str]]:
    """Place and tool of each call."""
    for step, calls in enumerate(STEPS[agent], start=1):
        yield from ((f"{step}/{index}", tool) for index, (tool, _) in enumerate(calls))


def _gated_calls() -> Iterator[tuple[str, str]]:
    """Calls of which each attempt is recorded; a read's are only when it has failed."""
    recorded = ONCE_TOOLS | REPEATABLE_TOOLS
    return ((call, tool) for call, tool in _calls() if tool in recorded)


_REPORTED: tuple[Moment, ...] = ("reported",)


def _at_gate(call: str, tool: str) -> Iterator[Point]:
    is_once = tool in ONCE_TOOLS
    between = {("enter", "after"), ("leave", "before")}
    moments: tuple[Moment, ...] = ("before", "after")
    disturbances: tuple[Disturbance, ...] = ("kill", "mongodb", "zombie")
    reported: tuple[Disturbance, ...] = ("kill", "mongodb", "repeat")
    struck = [
        *itertools.product(("enter", "leave"), moments, disturbances),
        *itertools.product(("leave",), _REPORTED, reported),
    ]
    for method, moment, disturbance in struck:
        is_lost = disturbance in WORKER_DISTURBANCES and (method, moment) in between
        is_late = disturbance == "zombie" and (method, moment) == ("leave", "before")
        fault = struck_by(moment, disturbance, method=method, call=call)
        yield Point(
            place=f"{method} {tool} {call}",
            moment=moment,
            disturbance=disturbance,
            fault=fault,
            parks=call if is_once and is_lost else None,
            late=frozenset({str(is_once)} if is_late else ()),
            is_counted=not is_once and is_lost and disturbance == "zombie",
        )


def _in_body(call: str, tool: str) -> Iterator[Point]:
    if tool == "ask_helper":
        return
    disturbances: tuple[Disturbance, ...] = ("kill", "zombie", "mongodb")
    for disturbance in disturbances if tool != "note" else ("kill",):
        is_lost = disturbance in WORKER_DISTURBANCES
        yield Point(
            place=f"body {tool} {call}",
            moment="before",
            disturbance=disturbance,
            fault=struck_by("before", disturbance, method=f"body:call-{call.replace('/', '-')}"),
            parks=call if tool in ONCE_TOOLS and is_lost else None,
            is_counted=tool in REPEATABLE_TOOLS and disturbance == "zombie",
        )


_FULLY_STRUCK = 2
"""Model requests by number: from there on they are alike, and only the worker is killed."""


def _in_model() -> Iterator[Point]:
    disturbances: tuple[Disturbance, ...] = ("kill", "zombie", "mongodb")
    for agent, steps in STEPS.items():
        for request in range(len(steps) + 1):
            for disturbance in disturbances if request < _FULLY_STRUCK else disturbances[:1]:
                fault = struck_by("before", disturbance, method=f"model:{agent}:{request}")
                place = f"model {agent} {request + 1}"
                yield Point(place=place, moment="before", disturbance=disturbance, fault=fault)


LEAVING = "append_event", "2:tool_call_completed:0:0"
"""The last commit of the task in which the run leaves its first execution."""

GOING_ON = "append_event", "3:model_request_started::0"
"""The first commit in the next one, which loads the history before."""


def _at_hops() -> Iterator[Point]:
    disturbances: tuple[Disturbance, ...] = ("kill", "mongodb", "zombie")
    moments: tuple[Moment, ...] = ("before", "after")
    for disturbance, moment in itertools.product(disturbances, moments):
        struck: dict[str, dict[str, str]] = {
            "leaving": {"holds": LEAVING[0], "key": LEAVING[1]},
            "arriving": {"method": "find_snapshot"},
            "going-on": {"holds": GOING_ON[0], "key": GOING_ON[1]},
        }
        for name, at in struck.items():
            is_commit = "holds" in at
            yield Point(
                place=f"continue-as-new {name}",
                moment=moment,
                disturbance=disturbance,
                fault=struck_by(moment, disturbance, **at),
                late=_late_answers(disturbance, moment) if is_commit else frozenset(),
                mode="hopping",
            )


CALL_BESIDE = "3/2"
"""A `once` tool that runs beside two others, longer than those."""

SLOW_CALL = "2/0"
"""A `once` tool that takes longer than it takes to look, alone in its step."""

TASK_OF_SEVERAL = "4:tool_call_completed:0:0", "5:model_request_started::0"
"""Of the commits in the task in which both calls of `note` run: the second one, the last one."""


def _cases() -> Iterator[Point]:
    yield from _late_cases()
    for key in TASK_OF_SEVERAL:
        for moment in ("before", "after"):
            fault = struck_by(moment, "cancel", holds="append_event", key=key)
            place = f"cancel in-a-task-that-is-lost {key}"
            yield Point(
                place=place, moment=moment, disturbance="cancel", fault=fault, kills_after=True
            )
    cancelled = struck_by("after", "update", method="body:call-3-2")
    place = "cancel three-tools-in-flight"
    yield Point(place=place, moment="after", disturbance="cancel", fault=cancelled)
    pending = struck_by("before", "reset", holds="start_tool_effect", key=SLOW_CALL)
    place = "reset regular-commit-pending"
    yield Point(place=place, moment="before", disturbance="reset", fault=pending)
    body = f"body:call-{SLOW_CALL.replace('/', '-')}"
    waiting = struck_by("before", "kill", method=body)
    place = "update waiting"
    yield Point(place=place, moment="before", disturbance="update", fault=waiting, parks=SLOW_CALL)
    for kills in (False, True):
        yield Point(
            place="shutdown in-body",
            moment="before",
            disturbance="stop",
            fault=struck_by("before", "stop", method=body),
            parks=SLOW_CALL if kills else None,
            kills_after=kills,
        )


def _late_cases() -> Iterator[Point]:
    """A local attempt that is late after its regular fallback, before and after the next commit."""
    for alters in (False, True):
        for is_early in (False, True):
            early = frozenset({"IdempotencyConflictError" if alters else "suppress"})
            fault = struck_by(
                "before", "late", holds="start_tool_effect", key=SLOW_CALL, alters=alters
            )
            yield Point(
                place="late-attempt after-its-fallback",
                moment="before",
                disturbance="late",
                fault=fault,
                late=early if is_early else frozenset({"stale"}),
                is_released_early=is_early,
            )


def named(points: Iterable[Point]) -> dict[str, Point]:
    """By name."""
    return {each.name: each for each in points}
