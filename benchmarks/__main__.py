"""`python -m benchmarks`: measure against the budgets, side by side with the reference."""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from benchmarks.bench import Bench, open_bench
from benchmarks.chats import measure_chats
from benchmarks.commits import measure_commits
from benchmarks.documents import measure_documents
from benchmarks.effects import measure_effects
from benchmarks.events import measure_events
from benchmarks.failover import measure_failover
from benchmarks.figures import Figure
from benchmarks.history import measure_history
from benchmarks.hops import measure_hops
from benchmarks.limits import measure_limits
from benchmarks.load import measure_growth, measure_load, measure_soak
from benchmarks.media import measure_media
from benchmarks.outage import measure_outage
from benchmarks.parallel import measure_parallel
from benchmarks.reads import measure_reads
from benchmarks.reference_environment import reference_python
from benchmarks.report import Result, print_report, print_report_json, write_page
from benchmarks.retention import measure_retention
from benchmarks.runs import measure_runs
from benchmarks.seconds import measure_seconds
from benchmarks.sizes import measure_sizes
from benchmarks.sizing import measure_sizing
from benchmarks.snapshots import measure_snapshots
from benchmarks.storage import measure_storage
from benchmarks.streaming import measure_streaming
from benchmarks.throughput import measure_throughput
from benchmarks.turns import measure_turns
from benchmarks.verifying import measure_verifying
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
    "limits": measure_limits,
    "parallel": measure_parallel,
    "outage": measure_outage,
    "media": measure_media,
    "turns": measure_turns,
    "retention": measure_retention,
    "reads": measure_reads,
    "sizing": measure_sizing,
    "load": measure_load,
    "soak": measure_soak,
    "growth": measure_growth,
    "failover": measure_failover,
    "history": measure_history,
    "chats": measure_chats,
    "verifying": measure_verifying,
}

BY_NAME_ALONE = ("load", "soak", "growth", "failover")
"""Those that take the machine for a quarter of an hour and more each."""


WITHOUT_REFERENCE = {"failover", "growth", "reads", "retention", "sizing", "soak", "verifying"}
"""Those that have nothing of it beside them; it takes a minute to install, once."""


def main() -> int:
    """Measure and print; 1 when a budget is missed or nothing could be measured."""
    arguments = _arguments()
    names: list[str] = arguments.names or [each for each in BENCHMARKS if each not in BY_NAME_ALONE]
    try:
        with_reference = not arguments.quick and not set(names) <= WITHOUT_REFERENCE
        python = reference_python(Settings().data_dir) if with_reference else None
        with tempfile.TemporaryDirectory(prefix="perdure-benchmarks-") as home:
            results = asyncio.run(_measure(names, Path(home), python, arguments))
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


async def _measure(
    names: Sequence[str], home: Path, python: Path | None, arguments: argparse.Namespace
) -> list[Result]:
    results: list[Result] = []
    async with open_bench(
        home, python, is_quick=arguments.quick, soak_minutes=arguments.soak_minutes
    ) as bench:
        for name in names:
            note(f"Measuring {name}")
            baseline = await bench.baseline()
            figures = await BENCHMARKS[name](bench)
            results.append(Result(benchmark=name, baseline=baseline, figures=figures))
    return results


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = ", ".join(BENCHMARKS)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which ones: {known}; all but {', '.join(BY_NAME_ALONE)} by default",
    )
    parser.add_argument("--quick", action="store_true", help="fewer repeats, no reference")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--markdown", action="store_true", help="also write the tables to docs/benchmarks.md"
    )
    parser.add_argument(
        "--soak-minutes", type=float, default=30, help="how long `soak` goes on (default 30)"
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
