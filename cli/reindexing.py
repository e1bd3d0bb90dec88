"""`perdure reindex`: make the index of the search anew, while workers go on."""

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

from cli.connections import current_settings, opened_mongodb
from cli.options import AsJson
from cli.output import note, print_json, print_text

if TYPE_CHECKING:
    from settings import Settings
    from stores.mongo.reindexing import Reindexed

_CONVERSATIONS_A_NOTE = 1000


def reindex_command(*, as_json: AsJson = False) -> None:
    """Make the index of the search anew.

    Needed once for a database from before there was one, and when the analyzer has changed. Until
    it is done, searches take longer and say so.
    """
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
