"""What settings come to as options of Temporal's worker."""

import os
from pathlib import Path

from temporalio.common import VersioningBehavior
from temporalio.worker import PollerBehaviorAutoscaling, PollerBehaviorSimpleMaximum

from settings import Settings
from worker_options import worker_options
from worker_processes import run_processes, settings_of_process
from workflows.fairness import priority_of


def test_slots_are_fixed_or_follow_the_machine() -> None:
    fixed = worker_options(Settings(max_concurrent_activities=7))
    assert fixed["max_concurrent_activities"] == 7
    assert "tuner" not in fixed
    tuned = worker_options(Settings(tuner="resource", max_concurrent_activities=7))
    assert "max_concurrent_activities" not in tuned
    tuner = tuned["tuner"]
    assert tuner is not None
    assert tuner._get_activities_max() == 7


def test_pollers_are_as_many_as_told_or_scale() -> None:
    assert worker_options(Settings(max_pollers=3))[
        "workflow_task_poller_behavior"
    ] == PollerBehaviorSimpleMaximum(maximum=3)
    scaling = Settings(max_pollers=40, poller_autoscaling=True)
    assert worker_options(scaling)["activity_task_poller_behavior"] == PollerBehaviorAutoscaling(
        minimum=1, maximum=40, initial=5
    )


def test_a_deployment_pins_and_no_deployment_names_a_build_alone() -> None:
    plain = worker_options(Settings(build_id="b"))
    assert plain["build_id"] == "b"
    assert "deployment_config" not in plain
    config = worker_options(Settings(build_id="b", deployment="d"))["deployment_config"]
    assert config is not None
    assert config.use_worker_versioning
    assert config.version.to_canonical_string() == "d.b"
    assert config.default_versioning_behavior is VersioningBehavior.PINNED


def test_a_role_for_workflows_polls_for_no_activities() -> None:
    assert worker_options(Settings(role="workflows"))["no_remote_activities"] is True
    assert worker_options(Settings(role="activities"))["no_remote_activities"] is False


def test_each_workspace_has_a_share_of_its_own() -> None:
    ours = priority_of("acme", priority=1, weights={"acme": 2.5})
    assert (ours.priority_key, ours.fairness_key, ours.fairness_weight) == (1, "acme", 2.5)
    long = priority_of("w" * 200).fairness_key
    assert long is not None
    assert len(long.encode()) == 64
    assert long != priority_of("w" * 201).fairness_key


def _end_at_once(settings: Settings, number: int) -> int:
    Path(os.environ["PERDURE_TEST_NOTES"], f"{number}-{settings.health_port}").touch()
    return number


def test_processes_have_ports_of_their_own_and_one_that_ends_ends_all(tmp_path: Path) -> None:
    settings = Settings(processes=2, health_port=9000, graceful_shutdown_seconds=0)
    assert [settings_of_process(settings, each).health_port for each in range(2)] == [9000, 9001]
    before = os.environ.get("PERDURE_TEST_NOTES")
    os.environ["PERDURE_TEST_NOTES"] = str(tmp_path)
    try:
        code = run_processes(_end_at_once, settings)
    finally:
        if before is None:
            del os.environ["PERDURE_TEST_NOTES"]
    assert code == 1
    assert {path.name for path in tmp_path.iterdir()} & {"0-9000", "1-9001"}
