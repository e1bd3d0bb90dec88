"""A replica set of three loses its primary under a load of eight runs at a time."""

import tempfile
from pathlib import Path

import pytest

from benchmarks.failover import disturb, kill_primary, temporal_and_place
from benchmarks.replica_set import ReplicaSet
from benchmarks.scripted import Plan

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

PLAN = Plan(steps=12)


async def test_runs_go_on_with_the_next_primary_and_nothing_is_lost_or_doubled() -> None:
    # Not pytest's own directories: those are kept for three sessions.
    with tempfile.TemporaryDirectory(prefix="perdure-failover-") as directory:
        members = ReplicaSet(Path(directory))
        try:
            await members.start()
            async with temporal_and_place(Path(directory), members.uri) as (_, place):
                killed = await disturb(place, lambda: kill_primary(members), plan=PLAN)
        finally:
            await members.kill()
    assert killed.differing == 0
    assert killed.pause > killed.usual  # so the load has met the election
