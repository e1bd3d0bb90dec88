"""What commits have written and the search log does not have yet: logged behind their backs.

A commit does not wait for it. A search in the same process waits for what it is about; one in
another process, and whoever comes after a process that died, finds the snapshots still marked as
not logged.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from pymongo import UpdateMany
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError

from stores.mongo.documents import Document
from stores.mongo.failures import DUPLICATE_KEY
from stores.mongo.gathering import Gathering, NotGatheredError

Collection = AsyncCollection[Document]
Item = TypeVar("Item")

MOST_WAITING = 100
"""Commits whose messages are kept to be logged; of more it is left to the next one or to a search,
which read them from the database."""

LONGEST_PAUSE_SECONDS = 0.25
"""How long a write waits for those of other runs, to be sent with them; nobody waits for it."""

_STOP_SECONDS = 2.0
"""How long a store that is closed waits for them."""


Unmark = tuple[str, Sequence[int]]
"""A run, and the sequences of its live snapshots that are logged."""


class SearchUpkeep:
    """What is being logged in this process, by workspace and conversation."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], tuple[str, str]] = {}
        self._hurrying = 0
        self._is_hurried = asyncio.Event()
        self._inserts = Gathering[Document, bool](
            self._wait, most=MOST_WAITING, longest=LONGEST_PAUSE_SECONDS
        )
        self._unmarks = Gathering[Unmark, bool](
            self._wait, most=MOST_WAITING, longest=LONGEST_PAUSE_SECONDS
        )

    async def insert(self, log: Collection, document: Document) -> bool:
        """Insert it with those of others; whether its place was free."""
        do = partial(insert_where_free, log)
        return await _with_others(self._inserts, document, do, run_id=document["run_id"])

    async def unmark(self, snapshots: Collection, logged: Unmark) -> bool:
        """Take `unindexed` from snapshots that are logged; false when some may not have had it."""
        do = partial(_unmark_all, snapshots)
        return await _with_others(self._unmarks, logged, do, run_id=logged[0])

    async def _wait(self, seconds: float) -> None:
        if seconds:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_hurried.wait(), seconds)

    @contextmanager
    def _hurry(self) -> Generator[None]:
        self._hurrying += 1
        self._is_hurried.set()
        try:
            yield
        finally:
            self._hurrying -= 1
            if not self._hurrying:
                self._is_hurried.clear()

    def begin(
        self, place: tuple[str, str], work: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None] | None:
        """Do it in a task, which raises nothing; or leave it when too much is waiting."""
        if len(self._tasks) >= MOST_WAITING:
            work.close()
            return None
        task = asyncio.create_task(work)
        self._tasks[task] = place
        task.add_done_callback(self._tasks.pop)
        return task

    async def settle(self, workspace_id: str, conversation_id: str | None) -> None:
        """Wait for what is being logged of a conversation, or of a workspace."""
        tasks = [
            task
            for task, (workspace, conversation) in self._tasks.items()
            if workspace == workspace_id and conversation_id in {None, conversation}
        ]
        if tasks:
            with self._hurry():
                await asyncio.wait(tasks)

    async def aclose(self) -> None:
        """Wait for all of it for a moment; what takes longer is left."""
        tasks = list(self._tasks)
        if not tasks:
            return
        with self._hurry():
            _, slow = await asyncio.wait(tasks, timeout=_STOP_SECONDS)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


async def _with_others(
    gathering: Gathering[Item, bool],
    item: Item,
    do: Callable[[Sequence[Item]], Awaitable[Sequence[bool]]],
    *,
    run_id: str,
) -> bool:
    """Do it with what is about other runs, or alone where that fails."""
    try:
        return await gathering.call(item, do, keys=frozenset({run_id}))
    except NotGatheredError:
        return (await do([item]))[0]


async def insert_where_free(log: Collection, documents: Sequence[Document]) -> list[bool]:
    """Insert each whose place is free; which those were.

    Raises:
        pymongo.errors.PyMongoError: MongoDB failed; some may be there.
    """
    free = [True] * len(documents)
    try:
        await log.insert_many(documents, ordered=False)
    except BulkWriteError as error:
        problems = error.details["writeErrors"]
        if error.details["writeConcernErrors"] or any(
            each["code"] != DUPLICATE_KEY for each in problems
        ):
            raise
        for each in problems:
            free[each["index"]] = False
    return free


async def _unmark_all(snapshots: Collection, logged: Sequence[Unmark]) -> list[bool]:
    """Unmark all, and say of all whether each was there and marked."""
    change: Document = {"$unset": {"unindexed": ""}}
    writes = [
        UpdateMany(
            {"run_id": run_id, "live": True, "sequence": {"$in": list(each)}, "unindexed": True},
            change,
        )
        for run_id, each in logged
    ]
    done = await snapshots.bulk_write(writes, ordered=False)
    return [done.matched_count == sum(len(each) for _, each in logged)] * len(logged)
