"""The budget table: on a terminal, as JSON, and in the documentation."""

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.figures import Baseline, Figure
from cli.output import print_json, print_table, print_text

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

COLUMNS = ("figure", "budget", "measured", "reference", "ratio", "", "detail")
BASELINE_COLUMNS = ("before", "load", "ping ms", "p95", "workflow ms", "p95")

VERSIONS = ("pydantic-ai", "temporalio", "pymongo")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one benchmark found, and how the machine was just before it."""

    benchmark: str
    baseline: Baseline
    figures: Sequence[Figure]


def print_report(results: Sequence[Result]) -> None:
    """Both tables, for a person."""
    print_table(COLUMNS, _figure_rows(results))
    print_table(BASELINE_COLUMNS, _baseline_rows(results), title=f"The machine: {_machine()}")
    missed = [figure.name for figure in _figures(results) if figure.verdict == "missed"]
    print_text(f"\nMissed: {'; '.join(missed)}" if missed else "\nNo budget is missed.")


def print_report_json(results: Sequence[Result]) -> None:
    """All that was found, for a program."""
    documents = [
        {
            "benchmark": result.benchmark,
            "baseline": asdict(result.baseline),
            "figures": [
                {**asdict(each), "ratio": each.ratio, "verdict": each.verdict}
                for each in result.figures
            ],
        }
        for result in results
    ]
    print_json({"machine": _machine(), "measured_at": datetime.now(UTC), "results": documents})


def write_page(results: Sequence[Result]) -> None:
    """Put the tables between the markers of `docs/benchmarks.md`.

    Raises:
        ValueError: the page lacks a marker.
    """
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        message = f"{PAGE} must hold {BEGIN!r} and {END!r}, for the figures to go in between"
        raise ValueError(message)
    block = [
        f"{datetime.now(UTC):%Y-%m-%d}, {_machine()}.",
        _markdown(COLUMNS, _figure_rows(results)),
        "Just before each benchmark:",
        _markdown(BASELINE_COLUMNS, _baseline_rows(results)),
    ]
    PAGE.write_text("\n\n".join([before + begin, *block, end + after]))


def _figures(results: Sequence[Result]) -> list[Figure]:
    return [figure for result in results for figure in result.figures]


def _figure_rows(results: Sequence[Result]) -> list[list[str]]:
    return [
        [
            each.name,
            "" if each.budget is None else f"≤ {_value(each.budget, each.unit)}",
            _value(each.measured, each.unit),
            "" if each.reference is None else _value(each.reference, each.unit),
            "" if each.ratio is None else f"{each.ratio:.2f}",
            each.verdict,
            each.detail,
        ]
        for each in _figures(results)
    ]


def _baseline_rows(results: Sequence[Result]) -> list[list[str]]:
    return [
        [
            result.benchmark,
            *(
                f"{value:.1f}"
                for value in (
                    result.baseline.load,
                    result.baseline.ping_median,
                    result.baseline.ping_p95,
                    result.baseline.workflow_median,
                    result.baseline.workflow_p95,
                )
            ),
        ]
        for result in results
    ]


def _value(value: float, unit: str) -> str:
    digits = 0 if value == int(value) else 2
    return f"{value:.{digits}f} {unit}".strip()


def _markdown(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(columns), ["---"] * len(list(columns)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _machine() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    return (
        f"{os.cpu_count()} cores of {platform.system()} on {platform.machine()}, "
        f"Python {platform.python_version()}, {versions}"
    )
