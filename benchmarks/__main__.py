"""`python -m benchmarks`: measure against the budgets, side by side with the reference."""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from benchmarks.bench import Bench, open_bench
from benchmarks.commits import measure_commits
from benchmarks.documents import measure_documents
from benchmarks.effects import measure_effects
from benchmarks.events import measure_events
from benchmarks.figures import Figure
from benchmarks.hops import measure_hops
from benchmarks.reference_environment import reference_python
from benchmarks.report import Result, print_report, print_report_json, write_page
from benchmarks.retention import measure_retention
from benchmarks.runs import measure_runs
from benchmarks.seconds import measure_seconds
from benchmarks.sizes import measure_sizes
from benchmarks.snapshots import measure_snapshots
from benchmarks.storage import measure_storage
from benchmarks.streaming import measure_streaming
from benchmarks.throughput import measure_throughput
from benchmarks.turns import measure_turns
from cli.failures import CommandError, ExitCode
from cli.output import note
from settings import Settings

BENCHMARKS: dict[str, Callable[[Bench], Awaitable[Sequence[Figure]]]] = {
    "events": measure_events,
    "seconds": measure_seconds,
    "snapshots": measure_snapshots,
    "storage": measure_storage,
    "commits": measure_commits,
    "throughput": measure_throughput,
    "runs": measure_runs,
    "documents": measure_documents,
    "hops": measure_hops,
    "streaming": measure_streaming,
    "effects": measure_effects,
    "sizes": measure_sizes,
    "turns": measure_turns,
    "retention": measure_retention,
}


def main() -> int:
    """Measure and print; 1 when a budget is missed or nothing could be measured."""
    arguments = _arguments()
    names: list[str] = arguments.names or list(BENCHMARKS)
    try:
        python = None if arguments.quick else reference_python(Settings().data_dir)
        with tempfile.TemporaryDirectory(prefix="perdure-benchmarks-") as home:
            results = asyncio.run(_measure(names, Path(home), python))
    except CommandError as error:
        note(f"benchmarks: {error}")
        return error.exit_code
    if arguments.json:
        print_report_json(results)
    else:
        print_report(results)
    if arguments.markdown:
        write_page(results)
    verdicts = [figure.verdict for result in results for figure in result.figures]
    return ExitCode.FAILED if "missed" in verdicts else ExitCode.DONE


async def _measure(names: Sequence[str], home: Path, python: Path | None) -> list[Result]:
    results: list[Result] = []
    async with open_bench(home, python) as bench:
        for name in names:
            note(f"Measuring {name}")
            baseline = await bench.baseline()
            figures = await BENCHMARKS[name](bench)
            results.append(Result(benchmark=name, baseline=baseline, figures=figures))
    return results


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = ", ".join(BENCHMARKS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {known}")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, no reference")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--markdown", action="store_true", help="also write the tables to docs/benchmarks.md"
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is named {', '.join(map(repr, unknown))}; known are {known}")
    if arguments.markdown and (arguments.names or arguments.quick):
        parser.error("--markdown goes with a whole run: leave names and --quick out")
    return arguments


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a process that used a Temporal client may crash on its way out (see cli.main)
