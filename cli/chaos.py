"""`perdure chaos`: the crash sweep."""

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.connections import silence_core
from cli.failures import CommandError
from cli.options import AsJson
from cli.output import note

JOBS = 6
"""Points mostly wait for timeouts: two cores perform so many at once."""


def chaos_command(
    *,
    points: Annotated[
        int | None,
        typer.Option(
            envvar="PERDURE_CHAOS_POINTS",
            min=1,
            help="Only so many, drawn by --seed.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(envvar="PERDURE_CHAOS_ONLY", help="Only points whose name holds this text."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(envvar="PERDURE_CHAOS_SEED", help="Of what is drawn; printed."),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(envvar="PERDURE_CHAOS_JOBS", min=1, max=32, help="Points performed at once."),
    ] = JOBS,
    resume: Annotated[
        bool,
        typer.Option(help="Take up where the last sweep stopped.", envvar="PERDURE_CHAOS_RESUME"),
    ] = False,
    self_test: Annotated[
        bool,
        typer.Option(
            "--self-test",
            envvar="PERDURE_CHAOS_SELF_TEST",
            help="Plant four faults in the store, one after the other, and find each.",
        ),
    ] = False,
    random_runs: Annotated[
        int | None,
        typer.Option(
            "--random",
            envvar="PERDURE_CHAOS_RANDOM",
            min=1,
            help="Instead: so many runs, whose workers are killed at random.",
            show_default=False,
        ),
    ] = None,
    at_once: Annotated[
        int,
        typer.Option(envvar="PERDURE_CHAOS_AT_ONCE", min=1, help="Runs at once with --random."),
    ] = 8,
    conversation: Annotated[
        bool,
        typer.Option(
            "--conversation",
            envvar="PERDURE_CHAOS_CONVERSATION",
            help="Sweep over a conversation of three turns instead of a run.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", envvar="PERDURE_DRY_RUN", help="List the points.")
    ] = False,
    data_dir: Annotated[
        Path, typer.Option(envvar="PERDURE_DATA_DIR", help="The state file is kept in chaos/ here.")
    ] = Path(".perdure"),
    as_json: AsJson = False,
) -> None:
    """Break everything once at every place, and check that nothing shows.

    A scripted agent runs undisturbed, then once for each fault point: the worker is killed, MongoDB
    is killed and restarted, or an attempt writes late, before a write, after it, and after its
    report. What each run leaves is compared with the undisturbed one. Real servers are started for
    it, one MongoDB for each of --jobs, in a temporary directory. Exit code 1 when anything is
    missing, doubled, different, run twice or not ended, or when a fault never struck.
    """
    silence_core()
    drawn = seed if seed is not None else secrets.randbelow(2**31)
    if self_test:
        from cli.sweep.self_test import find_planted  # noqa: PLC0415 - slow to load

        is_well = asyncio.run(find_planted(jobs=jobs, as_json=as_json))
    elif random_runs is not None:
        from cli.sweep.random_kills import kill_at_random  # noqa: PLC0415 - slow to load

        note(f"Seed {drawn}")
        is_well = asyncio.run(
            kill_at_random(random_runs, at_once=at_once, seed=drawn, as_json=as_json)
        )
    else:
        is_well = _sweep(
            points=points,
            only=only,
            seed=drawn,
            jobs=jobs,
            state=_state(data_dir, "conversation" if conversation else "outcomes", resume=resume),
            as_json=as_json,
            dry_run=dry_run,
            conversation=conversation,
        )
    if not is_well:
        message = "the sweep found something, see above"
        raise CommandError(message)


def _state(data_dir: Path, name: str, *, resume: bool) -> Path:
    """The state file, empty unless the last sweep is taken up."""
    path = data_dir.absolute() / "chaos" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not resume:
        path.unlink(missing_ok=True)
    return path


def _sweep(
    *,
    points: int | None,
    only: str | None,
    seed: int,
    jobs: int,
    state: Path,
    as_json: bool,
    dry_run: bool,
    conversation: bool,
) -> bool:
    from cli.output import print_text  # noqa: PLC0415
    from cli.sweep.points import Operation, Point, all_points, sample  # noqa: PLC0415
    from cli.sweep.report import all_well, print_outcomes, print_outcomes_json, tell  # noqa: PLC0415
    from cli.sweep.sweeping import Ledger, Sweep  # noqa: PLC0415 - slow to load
    from cli.sweep.talk_sweep import TalkSweep  # noqa: PLC0415

    def select(operations: "Sequence[Operation]") -> "list[Point]":
        return choose(all_points(operations))

    def choose(all_there_are: "list[Point]") -> "list[Point]":
        found = [each for each in all_there_are if not only or only in each.name]
        if points is not None:
            note(f"Seed {seed}")
            found = sample(found, points, seed)
        note(f"{len(found)} points, {jobs} at once")
        if dry_run:
            for point in found:
                print_text(point.name)
            return []
        return found

    ledger = Ledger.resumed(state)
    if conversation:
        sweeping = TalkSweep(choose=choose, ledger=ledger, jobs=jobs, tell=tell).run()
    else:
        sweeping = Sweep(select=select, ledger=ledger, jobs=jobs, tell=tell).run()
    outcomes = asyncio.run(sweeping)
    if dry_run:
        return True
    if as_json:
        print_outcomes_json(outcomes, seed=seed)
    else:
        print_outcomes(outcomes)
    return all_well(outcomes)
