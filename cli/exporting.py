"""`perdure export` and `perdure import`: a run or a conversation as a file, and back."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import current_settings, opened_mongodb
from cli.failures import NotFoundError, WrongUsageError
from cli.options import AsJson, Workspace
from cli.output import print_json, print_text

if TYPE_CHECKING:
    from settings import Settings


def export_command(
    *,
    name: Annotated[
        str,
        typer.Argument(metavar="RUN|CONVERSATION", help="Its id.", show_default=False),
    ],
    to: Annotated[
        Path, typer.Option("--to", help="The file to write; it must not exist.", show_default=False)
    ],
    media: Annotated[
        bool, typer.Option("--media/--no-media", help="Whether large content goes into it.")
    ] = True,
    people: Annotated[
        bool, typer.Option("--people", help="Keep principals and who decided something.")
    ] = False,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Write a run with its delegates, or a conversation with its runs, to a file.

    JSON Lines, with a digest at the end. Of people and of known secrets it says nothing.
    """
    if to.exists():
        message = f"{str(to)!r} is there already; name another file"
        raise WrongUsageError(message)
    counts = asyncio.run(
        export(current_settings(), workspace, name, to, with_media=media, tells_people=people)
    )
    if as_json:
        print_json({"file": str(to), "lines": counts})
        return
    told = ", ".join(
        f"{count} {_plural(kind)}" for kind, count in counts.items() if kind != "export"
    )
    print_text(f"wrote {to}: {told}")


def _plural(kind: str) -> str:
    return kind if kind.endswith("s") or kind == "media" else f"{kind}s"


async def export(
    settings: "Settings",
    workspace: str,
    name: str,
    to: Path,
    *,
    with_media: bool,
    tells_people: bool,
) -> dict[str, int]:
    """Write the file, whole or not at all; the lines of it by kind."""
    from stores.errors import RunNotFoundError  # noqa: PLC0415
    from stores.export_file import ExportWriter  # noqa: PLC0415

    draft = to.with_name(f".{to.name}.part")
    try:
        async with opened_mongodb(settings) as opened:
            store = opened.for_workspace(workspace)
            exporter = store.exporter(with_media=with_media, tells_people=tells_people)
            with draft.open("wb") as file:
                writer = ExportWriter(file, has_media=with_media)
                async for line in exporter.lines(name):
                    writer.write(line)
                writer.finish()
        draft.rename(to)
    except RunNotFoundError as error:
        message = f"workspace {workspace!r} has no run and no conversation {name!r}"
        raise NotFoundError(message) from error
    finally:
        draft.unlink(missing_ok=True)
    return writer.counts


def import_command(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `export` wrote.")],
    as_new: Annotated[
        bool, typer.Option("--as-new", help="Give its runs and its conversation new ids.")
    ] = False,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Import a file of `perdure export`, whole or not at all.

    It is read and checked before anything is written. Runs that are here already are refused.
    """
    if not file.is_file():
        message = f"there is no file {str(file)!r}"
        raise WrongUsageError(message)
    ids = asyncio.run(imported(current_settings(), workspace, file, as_new=as_new))
    if as_json:
        print_json({"workspace_id": workspace, "runs": ids})
        return
    print_text(f"imported {len(ids)} runs into workspace {workspace!r}")
    for each in ids.values():
        print_text(f"  {each}")


async def imported(
    settings: "Settings", workspace: str, file: Path, *, as_new: bool
) -> dict[str, str]:
    """The ids of the runs here, by the ones in the file."""
    async with opened_mongodb(settings) as opened:
        store = opened.for_workspace(workspace)
        await store.verify()
        now = datetime.now(UTC)  # noqa: TID251 - the command line has no other clock
        return await store.restorer(as_new=as_new).run(file, now=now)
