"""The sweep's own parts: which points there are, what counts as wrong, and taking up again."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from cli.sweep.judging import Outcome, with_parked_call
from cli.sweep.planted import PLANTED
from cli.sweep.points import Operation, all_points, representatives, sample
from cli.sweep.self_test import FINDING
from cli.sweep.sweeping import Ledger
from cli.sweep.talk_points import TalkPoint, talk_points
from cli.sweep.talk_script import TALK
from cli.sweep.traces import Trail

OPERATIONS = [
    Operation(agent="sweep", number=1, kind="register_run", key="some run"),
    Operation(agent="sweep", number=1, kind="append_event", key="0:run_started::0"),
    Operation(agent="sweep", number=2, kind="start_tool_effect", key="3/1"),
    Operation(agent="sweep", number=2, kind="append_event", key="3:tool_call_started:1:0"),
    Operation(agent="sweep", number=3, kind="append_event", key="3:tool_call_started:2:0"),
]

TRAIL = Trail(
    run=("sweep", "completed"),
    events=[("0:run_started::0", "run_started", 0, "None")],
    effects=[("2/0", "charge", "completed")],
    snapshots=[("0:1:complete", "complete", "[]")],
    history=[],
)


def outcome() -> Outcome:
    return Outcome(point="p", group="g", disturbance="kill", fired=1)


def test_every_point_has_a_name_of_its_own_and_every_planted_fault_a_point() -> None:
    names = Counter(point.name for point in all_points(OPERATIONS))

    assert set(names.values()) == {1}
    assert {name for name, _ in FINDING.values()} <= {*names}
    assert FINDING.keys() == PLANTED.keys()


def test_every_point_of_a_conversation_has_a_name_and_strikes_the_call_that_it_counts_to() -> None:
    talk = [replace(each, agent=message) for message in TALK for each in OPERATIONS]
    points = talk_points(["open", "admit", "open", "finish_variant"], talk)

    names = Counter(each.name for each in points)
    assert set(names.values()) == {1}
    second = next(each for each in points if each.name == "open conversation 2 before kill")
    assert isinstance(second, TalkPoint)
    passing, fault = second.faults(second.fault)
    assert (passing.action, passing.method, fault.action) == ("note", "open", "kill")
    assert {"append_event two 3:tool_call_started:2:0 reported mongodb"} < {*names}


def test_every_commit_is_struck_at_a_boundary_that_stands_for_few() -> None:
    assert [each.kind for each in representatives(OPERATIONS)] == [
        "register_run",
        "start_tool_effect",
        "append_event",
    ]


def test_a_registration_is_struck_whatever_its_run_id() -> None:
    struck = [p.fault for p in all_points(OPERATIONS) if p.place == "register_run sweep"]

    assert len(struck) > 5
    assert {fault.key for fault in struck} == {None}


def test_sample_is_the_same_for_the_same_seed_and_holds_every_disturbance() -> None:
    points = all_points(OPERATIONS)
    kinds = {(point.disturbance, point.moment) for point in points}

    chosen = sample(points, len(kinds), seed=7)
    assert chosen == sample(points, len(kinds), seed=7)
    assert {(point.disturbance, point.moment) for point in chosen} == kinds
    assert chosen != sample(points, len(kinds), seed=8)


def test_only_a_lost_worker_may_have_the_call_beside_the_struck_one_wait() -> None:
    points = {point.name: point for point in all_points(OPERATIONS)}

    assert points["enter mark 3/1 before kill"].may_park == {"3/2"}
    assert points["enter mark 3/1 before mongodb"].may_park == frozenset()
    assert points["body charge 2/0 before kill"].may_park == {"2/0"}
    reported = "start_tool_effect sweep 3/1 reported"
    assert points[f"{reported} kill"].may_park == {"2/0", "3/2"}
    assert points[f"{reported} mongodb"].may_park == frozenset()


@pytest.mark.parametrize(
    ("found", "column", "words"),
    [
        (replace(TRAIL, events=[]), "lost", "event of sweep 0:run_started::0"),
        (replace(TRAIL, events=TRAIL.events * 2), "doubled", "event of sweep 0:run_started::0"),
        (
            replace(TRAIL, effects=[("2/0", "charge", "unknown")]),
            "divergent",
            "effect of sweep 2/0: ('2/0', 'charge', 'unknown')",
        ),
        (replace(TRAIL, history=["another"]), "divergent", "final history of sweep"),
    ],
)
def test_what_differs_from_the_undisturbed_run_is_told_by_kind(
    found: Trail, column: str, words: str
) -> None:
    judged = outcome()
    judged.compare({"sweep": found}, {"sweep": TRAIL})

    assert getattr(judged, column) == [words]
    assert not judged.is_well
    assert judged.problems == [f"{column}: {words}"]


def test_equal_runs_are_well_unless_the_fault_never_struck() -> None:
    judged = outcome()
    judged.compare({"sweep": TRAIL}, {"sweep": TRAIL})
    assert judged.is_well

    judged.fired = 0
    assert judged.problems == ["the fault never struck"]


def test_run_that_is_missing_is_lost_and_one_too_many_doubled() -> None:
    judged = outcome()
    judged.compare({"helper 2": TRAIL}, {"helper": TRAIL})

    assert judged.lost == ["the run of helper"]
    assert judged.doubled == ["the run of helper 2"]


def test_settled_call_is_expected_resolved_with_one_event_more() -> None:
    expected = with_parked_call({"sweep": TRAIL}, "sweep", "2/0")["sweep"]

    assert expected.effects == [("2/0", "charge", "resolved")]
    assert expected.events[1] == ("2:tool_call_failed:0:0", "tool_call_failed", 2, "0")


def test_once_body_that_ran_twice_is_told_and_another_tools_is_not() -> None:
    judged = outcome()
    tools = {"call-2-0": "charge", "call-3-1": "mark"}
    judged.count_bodies(Counter({"call-2-0": 2, "call-3-1": 2}), tools)

    assert judged.twice == ["charge call-2-0: 2 times"]


def test_sweep_takes_up_what_is_done_but_not_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    Ledger(path=path).add(outcome())
    with path.open("a") as file:
        file.write('{"point": "cut o')

    assert Ledger.resumed(path).outcomes == {"p": outcome()}
