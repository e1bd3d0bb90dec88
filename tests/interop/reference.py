"""The environment that pydantic-ai-harness is installed in, and its side of the tests."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.reference_environment import reference_python

ROOT = Path(__file__).parents[2]

DATA_DIR = ROOT / ".perdure"
"""Where `make bench` makes that environment, too; it takes a minute, once."""


INHERITED = {
    name: value
    for name, value in os.environ.items()
    # Without compiled modules a process takes four times as long to start.
    if not name.startswith(("PERDURE_", "PYTHONDONTWRITEBYTECODE"))
}


def harness_side(*arguments: str) -> dict[str, Any]:
    """What `harness_side` prints, run there with our source tree on its path."""
    done = subprocess.run(
        [str(reference_python(DATA_DIR)), "-m", "tests.interop.harness_side", *arguments],
        cwd=ROOT,
        env={**INHERITED, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
