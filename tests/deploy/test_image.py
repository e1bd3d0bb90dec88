"""The image: its file, what goes into it, and its steps, run in an environment of their own."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.architecture.source_tree import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"

Step = tuple[str, str]
"""An instruction and its argument."""


def stages() -> list[list[Step]]:
    """The steps of each stage, its `FROM` first."""
    lines = [each for each in DOCKERFILE.read_text().splitlines() if not each.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found: list[list[Step]] = []
    for line in filter(None, joined.splitlines()):
        instruction, _, argument = line.partition(" ")
        if instruction == "FROM":
            found.append([])
        found[-1].append((instruction, argument))
    return found


def context_patterns() -> list[str]:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return [line.removeprefix("!") for line in lines if line.startswith("!")]


def context_files() -> Iterator[Path]:
    """Files of the repository that reach the build, relative to its root."""
    git = shutil.which("git") or "git"
    listed = subprocess.run(
        [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in filter(None, listed):
        patterns = context_patterns()
        if (ROOT / name).exists() and any(
            name.startswith(f"{each}/") or ("/" not in name and fnmatch(name, each)) or name == each
            for each in patterns
        ):
            yield Path(name)


def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "hadolint", DOCKERFILE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_worker_runs_as_an_ordinary_user() -> None:
    *_, last = stages()

    assert ("USER", "10001:10001") in last
    assert ("CMD", '["python", "worker.py"]') in last
    assert ("STOPSIGNAL", "SIGTERM") in last


def test_everything_that_is_installed_goes_into_the_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["tool"]["hatch"]["build"]["only-include"]
    files = [str(each) for each in context_files()]

    for name in wanted:
        assert any(each == name or each.startswith(f"{name}/") for each in files), name


def test_tests_and_documents_stay_out_of_the_image() -> None:
    folders = {each.parts[0] for each in context_files() if len(each.parts) > 1}

    code = {"activities", "agents", "api", "cli", "stores", "telemetry", "workflows"}
    assert folders <= {*code, "requirements"}


@pytest.fixture
def root() -> Iterator[Path]:
    """Not pytest's own directory: those are kept for three sessions, hundreds of MB each."""
    with tempfile.TemporaryDirectory(prefix="perdure-image-") as directory:
        yield Path(directory)


@pytest.mark.timeout(900)  # a hundred packages, from the network where none is cached
def test_its_steps_make_a_worker_that_needs_to_write_nowhere(root: Path) -> None:
    build, last = stages()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for name in list(environment):
        if name.startswith(("PERDURE_", "VIRTUAL_ENV", "PYTHON")):
            del environment[name]
    for instruction, argument in build:
        _do(root, instruction, argument, environment)
    for _, argument in (each for each in last if each[0] == "ENV"):
        environment |= dict(re.findall(r"([A-Z_]+)=(\S+)", argument))
    environment["PATH"] = f"{root}/venv/bin:{os.environ['PATH']}"
    environment["PERDURE_TEMPORAL_ADDRESS"] = "127.0.0.1:1"
    environment["PERDURE_MONGODB_URI"] = "mongodb://127.0.0.1:1/?replicaSet=rs0"

    before = _written(root)
    helped = _run(root, environment, "perdure", "--help")
    assert helped.returncode == 0, helped.stderr
    worker = _run(root, environment, "python", "worker.py")
    assert worker.returncode == 1
    assert "Temporal does not answer at 127.0.0.1:1" in worker.stderr
    assert _written(root) == before
    packages = {each.name for each in (root / "venv").rglob("site-packages/*")}
    assert packages.isdisjoint({"pip", "pytest", "fiftyone"})


def _do(root: Path, instruction: str, argument: str, environment: dict[str, str]) -> None:
    app = root / "app"
    match instruction:
        case "FROM" | "ENV":
            pass
        case "WORKDIR":
            assert argument == "/app"
            app.mkdir()
        case "COPY":
            names = (
                list(context_files())
                if argument == ". ."
                else [Path(argument.split(maxsplit=1)[0])]
            )
            for name in names:
                (app / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, app / name)
        case "RUN":
            command = argument.replace("/venv", f"{root}/venv").replace(" /app", f" {root}/app")
            done = _run(root, environment, "sh", "-c", command)
            assert done.returncode == 0, done.stdout + done.stderr
        case _:
            pytest.fail(f"{instruction} is not run here")


def _run(
    root: Path, environment: dict[str, str], *command: str
) -> subprocess.CompletedProcess[str]:
    program = shutil.which(command[0], path=environment["PATH"]) or command[0]
    return subprocess.run(
        [program, *command[1:]],
        cwd=root / "app",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _written(root: Path) -> dict[Path, int]:
    """When each file was written last."""
    return {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
