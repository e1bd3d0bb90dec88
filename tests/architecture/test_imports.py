import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source_tree import PACKAGES, ROOT

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

VIOLATIONS = {
    "layers": ("stores", "import activities"),
    "entry-points": ("workflows", "import settings"),
    "driver": ("activities", "import pymongo"),
    "protocols": ("workflows", "import stores.memory"),
    "independent-stores": ("stores/mongo", "import stores.memory"),
    "no-temporal-in-stores": ("stores", "import temporalio.activity"),
    "api": ("api", "import workflows.names"),
    "agents": ("agents", "import stores.records"),
}
"""For each contract a package and a line that must not stand in it."""


def lint_imports(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT_IMPORTS, "--no-cache", "--no-logo", *options],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_import_contracts_hold() -> None:
    linted = lint_imports(ROOT)

    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert f"{len(VIOLATIONS)} kept, 0 broken" in linted.stdout


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_a_planted_violation_breaks_its_contract(contract: str, tmp_path: Path) -> None:
    package, line = VIOLATIONS[contract]
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / package / "planted.py").write_text(line)

    linted = lint_imports(tmp_path, "--contract", contract)

    assert linted.returncode == 1, linted.stdout + linted.stderr
    assert ".planted -> " in linted.stdout, linted.stdout
