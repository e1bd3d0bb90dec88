"""`perdure search`: find what a conversation ever said. Needs no worker."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import current_settings, opened_store
from cli.failures import NotFoundError, WrongUsageError
from cli.options import AsJson, Workspace
from cli.output import note, print_json, print_text

if TYPE_CHECKING:
    from settings import Settings
    from stores.search.query import HistoryQuery, SearchAnswer


def search_command(
    *,
    conversation: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help="Its id.", show_default=False)
    ],
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="Words to find.", show_default=False)
    ],
    run: Annotated[str | None, typer.Option(help="Only this run of the conversation.")] = None,
    context: Annotated[
        int, typer.Option(min=0, help="Messages shown before and after each match.")
    ] = 2,
    matches: Annotated[int, typer.Option(min=0, help="Most excerpts.")] = 10,
    analyzer: Annotated[
        str, typer.Option(help="standard, or regex: runs of word characters as they are.")
    ] = "standard",
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Search the messages of a conversation.

    Also those that a compaction has taken out since; each word by itself, best matches first.
    """
    from stores.search.analysis import ANALYZERS  # noqa: PLC0415 - slow to load
    from stores.search.query import HistoryQuery  # noqa: PLC0415

    if analyzer not in ANALYZERS:
        message = f"--analyzer {analyzer!r} is none of {', '.join(ANALYZERS)}"
        raise WrongUsageError(message)
    asked = HistoryQuery(
        text=query,
        conversation_id=conversation,
        run_id=run,
        max_matches=matches,
        context_lines=context,
        analyzer=analyzer,
    )
    answer = asyncio.run(_search(current_settings(), workspace, asked))
    if not answer.messages and asked.terms:
        which = f"conversation {conversation!r}"
        if run is not None:
            which = f"run {run!r} in {which}"
        message = f"workspace {workspace!r} has no saved messages of {which}"
        raise NotFoundError(message)
    if as_json:
        print_json(answer)
        return
    print_text(answer.text)
    if not asked.terms:
        note("Nothing was searched.")


async def _search(settings: "Settings", workspace: str, query: "HistoryQuery") -> "SearchAnswer":
    from stores.search.answering import search_history  # noqa: PLC0415 - slow to load
    from stores.search.source import SnapshotHistorySource  # noqa: PLC0415

    async with opened_store(settings, workspace) as store:
        return await search_history(SnapshotHistorySource(store), query)
