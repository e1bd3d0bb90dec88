"""The Docker Compose file: of the right form, in the right order, confined."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.architecture.source_tree import ROOT

DEPLOY = ROOT / "deploy"


def services() -> dict[str, dict[str, Any]]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    found: dict[str, dict[str, Any]] = loaded["services"]
    return found


def test_it_has_the_form_of_a_compose_file() -> None:
    check = Path(sys.executable).parent / "check-jsonschema"
    done = subprocess.run(
        [check, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_workers_start_after_their_servers_and_init() -> None:
    found = services()
    done, healthy = "service_completed_successfully", "service_healthy"

    assert found["temporal-schema"]["depends_on"] == {"postgres": {"condition": healthy}}
    assert found["temporal"]["depends_on"] == {"temporal-schema": {"condition": done}}
    assert found["temporal-namespace"]["depends_on"] == {"temporal": {"condition": healthy}}
    assert found["init"]["depends_on"] == {
        "temporal-namespace": {"condition": done},
        "mongo": {"condition": healthy},
    }
    assert found["worker"]["depends_on"] == {"init": {"condition": done}}
    assert found["worker"]["environment"] == found["init"]["environment"]
    assert "--replSet" in found["mongo"]["command"]


def test_what_others_depend_on_by_health_has_a_check() -> None:
    found = services()
    for service in found.values():
        depends = service.get("depends_on", {})
        for name in depends:
            assert name in found
            if isinstance(depends, dict) and depends[name]["condition"] == "service_healthy":
                assert "healthcheck" in found[name]


def test_every_file_that_is_mounted_is_there() -> None:
    for service in services().values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), volume


def test_ports_are_open_to_this_machine_alone() -> None:
    for service in services().values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")


def test_workers_may_do_as_little_as_possible_and_have_time_to_end() -> None:
    worker = services()["worker"]

    assert worker["read_only"] is True
    assert worker["cap_drop"] == ["ALL"]
    assert worker["security_opt"] == ["no-new-privileges:true"]
    assert worker["stop_grace_period"] == "45s"  # 30 s of PERDURE_GRACEFUL_SHUTDOWN_SECONDS


def test_images_are_of_a_version() -> None:
    for name, service in services().items():
        assert service["image"] == "perdure" or ":" in service["image"], name
        assert not service["image"].endswith(":latest"), name
