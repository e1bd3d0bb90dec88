"""`perdure import-harness`: take over the runs of a database of pydantic-ai-harness."""

import asyncio
from dataclasses import asdict
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import current_settings, opened_store
from cli.failures import ExitCode, NotFoundError, WrongUsageError
from cli.options import AsJson, Workspace
from cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from stores.importing import ImportReport, RowCounts
    from stores.mongo.harness import HarnessDatabase

TELL_EVERY = timedelta(seconds=2)
"""A line of progress: often enough to see that it goes on."""


def import_harness_command(
    *,
    uri: Annotated[
        str,
        typer.Option(envvar="PERDURE_HARNESS_URI", help="Connection string of the source."),
    ],
    database: Annotated[str, typer.Option(help="Database there; nothing is written to it.")],
    workspace: Workspace = "default",
    media: Annotated[
        str | None,
        typer.Option(
            help="Where the harness kept large content, if not in that database: disk:PATH or "
            "s3://BUCKET/PREFIX."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check everything, and write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Import the runs of a pydantic-ai-harness database.

    Runs, events, snapshots and tool effects that its MongoStepStore wrote keep their ids, keys,
    times and order; large content goes to the media store of this side. What is here already is
    left alone: the same import again changes nothing, and one that was interrupted goes on. What
    cannot be imported is listed with its id and left out; the exit code is 1 then.
    """
    report = asyncio.run(_import(uri, database, media, workspace, dry_run=dry_run))
    if as_json:
        print_json({"dry_run": dry_run, "workspace": workspace, **asdict(report)})
    else:
        _print(report, dry_run=dry_run)
    if report.problem_count:
        raise typer.Exit(ExitCode.FAILED)


async def _import(
    uri: str, database: str, media: str | None, workspace: str, *, dry_run: bool
) -> "ImportReport":
    from stores.importing import Importer  # noqa: PLC0415 - slow to load

    source = await _opened(uri, database, media)
    try:
        async with opened_store(current_settings(), workspace) as store:
            await store.verify()
            watch = _Progress().tell
            return await Importer(source, store, dry_run=dry_run, watch=watch).run()
    finally:
        await source.aclose()


async def _opened(uri: str, database: str, media: str | None) -> "HarnessDatabase":
    from stores.errors import StoreConfigurationError  # noqa: PLC0415 - slow to load
    from stores.media.opening import open_media_store  # noqa: PLC0415
    from stores.mongo.harness import HarnessDatabase  # noqa: PLC0415

    try:
        elsewhere = open_media_store(media or "mongodb")
        source = HarnessDatabase(
            db_url=uri, database=database, media=None if elsewhere == "auto" else elsewhere
        )
        problem = await source.find_problem()
    except (ValueError, StoreConfigurationError) as error:
        message = f"the source cannot be opened: {error}"
        raise WrongUsageError(message) from error
    if problem:
        await source.aclose()
        message = f"{problem}; --database names one that MongoStepStore of the harness wrote"
        raise NotFoundError(message)
    return source


class _Progress:
    """A line now and then."""

    def __init__(self) -> None:
        self._told_at = monotonic()

    def tell(self, report: "ImportReport") -> None:
        if monotonic() < self._told_at + TELL_EVERY.total_seconds():
            return
        self._told_at = monotonic()
        note(
            f"    {report.runs_read:,} of {report.runs_found:,} runs, "
            f"{report.rows_imported:,} rows, {report.problem_count:,} problems"
        )


def _print(report: "ImportReport", *, dry_run: bool) -> None:
    counts: list[tuple[str, RowCounts]] = [
        ("runs", report.runs),
        ("events", report.events),
        ("snapshots", report.snapshots),
        ("tool effects", report.tool_effects),
    ]
    print_table(
        ("", "would import" if dry_run else "imported", "here before", "left out"),
        [(name, each.imported, each.unchanged, each.left_out) for name, each in counts],
    )
    if report.runs_continued:
        note(f"{report.runs_continued} of the runs that were here before got new rows.")
    if not report.problems:
        return
    print_table(
        ("what", "run", "collection", "document", "why"),
        [(e.kind, e.run_id, e.collection, e.document, e.problem) for e in report.problems],
        title="Left out",
    )
    rest = report.problem_count - len(report.problems)
    if rest:
        note(f"{rest} more were left out; repair these, then import again.")
