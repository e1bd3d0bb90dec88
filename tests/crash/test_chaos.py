"""A short part of the crash sweep, and whether the sweep finds faults that are planted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.source_tree import ROOT
from tests.cli.test_commands import INHERITED

pytestmark = [pytest.mark.crash, pytest.mark.timeout(400)]

POINTS = os.environ.get("PERDURE_TEST_POINTS", "6")
SEED = os.environ.get("PERDURE_TEST_SEED", "4")


def chaos(tmp_path: Path, *arguments: str) -> Any:
    """What `perdure chaos` prints as JSON; it ended well."""
    command = str(Path(sys.executable).with_name("perdure"))
    done = subprocess.run(
        [command, "chaos", *arguments, "--json", "--data-dir", str(tmp_path)],
        cwd=ROOT,
        env=INHERITED,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def test_short_part_of_the_sweep_finds_nothing(tmp_path: Path) -> None:
    found = chaos(tmp_path, "--points", POINTS, "--seed", SEED, "--jobs", "3")
    assert found["well"] is True
    assert found["sums"]["points"] == found["sums"]["fired"] == int(POINTS)


def test_sweep_finds_every_planted_fault(tmp_path: Path) -> None:
    found = chaos(tmp_path, "--self-test", "--jobs", "4")
    assert len(found["found"]) == 4
    assert all(found["found"].values())
