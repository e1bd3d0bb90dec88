"""Where the project's own files are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("activities", "agents", "api", "cli", "stores", "telemetry", "workflows")
ENTRY_POINTS = (
    "client.py",
    "converter.py",
    "health.py",
    "payload_codec.py",
    "payload_driver.py",
    "recordings.py",
    "redacting.py",
    "replay_testing.py",
    "retaining.py",
    "sandbox.py",
    "settings.py",
    "telemetry_names.py",
    "temporal_tls.py",
    "worker.py",
    "worker_options.py",
    "worker_processes.py",
)


def product_modules() -> list[Path]:
    """Every Python file that a worker or an operator runs."""
    in_packages = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted(in_packages + [ROOT / name for name in ENTRY_POINTS])


def python_files() -> list[Path]:
    """Every Python file of the project, tests and benchmarks included."""
    others = [path for folder in ("benchmarks", "tests") for path in (ROOT / folder).rglob("*.py")]
    return product_modules() + sorted(others)


def documents() -> list[Path]:
    """Every Markdown file that a reader may be sent to."""
    folders = [path for folder in ("deploy", "docs") for path in (ROOT / folder).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *folders])


def within_project(path: Path) -> str:
    """The path as a failing test should print it."""
    return path.relative_to(ROOT).as_posix()
