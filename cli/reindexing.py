"""`perdure reindex`: make an index of a search anew, while workers go on."""

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import current_settings, opened_mongodb
from cli.options import AsJson
from cli.output import note, print_json, print_text

if TYPE_CHECKING:
    from settings import Settings
    from stores.mongo.keyword_reindexing import ReindexedKeywords
    from stores.mongo.reindexing import Reindexed

_CONVERSATIONS_A_NOTE = 1000


def reindex_command(
    *,
    keyword: Annotated[
        bool, typer.Option("--keyword", help="That of keyword search over conversations.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make the index of the search anew.

    Needed once for a database from before there was one, and when the analyzer has changed. Until
    it is done, searches take longer and say so; keyword searches are refused.
    """
    if keyword:
        found = asyncio.run(_reindex_keywords(current_settings()))
        if as_json:
            print_json(asdict(found))
            return
        print_text(f"indexed {found.turns} turns in {found.conversations} conversations")
        return
    done = asyncio.run(_reindex(current_settings()))
    if as_json:
        print_json(asdict(done))
        return
    print_text(
        f"indexed {done.messages} messages of {done.runs} runs in {done.conversations} "
        "conversations"
    )


async def _reindex(settings: "Settings") -> "Reindexed":
    def tell(done: "Reindexed") -> None:
        if done.conversations % _CONVERSATIONS_A_NOTE == 0:
            note(f"{done.conversations} conversations, {done.messages} messages")

    async with opened_mongodb(settings) as store:
        await store.verify()  # without its indexes, each step would read whole collections
        return await store.history_index.reindex(tell=tell)


async def _reindex_keywords(settings: "Settings") -> "ReindexedKeywords":
    def tell(done: "ReindexedKeywords") -> None:
        if done.conversations % _CONVERSATIONS_A_NOTE == 0:
            note(f"{done.conversations} conversations, {done.turns} turns")

    async with opened_mongodb(settings) as store:
        await store.verify()
        return await store.keywords.reindex(tell=tell)
