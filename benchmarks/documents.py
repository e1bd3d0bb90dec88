"""How large the largest documents of a very long run are."""

from datetime import UTC, datetime
from uuid import uuid4

from pydantic_ai.messages import ModelRequest, UserPromptPart

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from stores.commits import Commit, CommitPosition
from stores.histories import Range
from stores.opening import open_step_store
from stores.operations import PositionedMessage, SaveSnapshot
from stores.protocols import StepStore

BUDGET_KB = 1000.0
"""MongoDB takes 16 MiB."""

MESSAGES, QUICK_MESSAGES = 100_000, 20_000
AT_ONCE = 1000


class LongRun:
    """A run that saves a history of many messages, a commit at a time."""

    def __init__(self, store: StepStore) -> None:
        self._store = store
        self._run_id = uuid4().hex
        self._saves = 0

    async def save(self, ranges: list[Range], new: range = range(0)) -> None:
        """Save a history; the messages at the positions `new` come with it."""
        self._saves += 1
        now = datetime.now(UTC)
        entries = tuple(
            PositionedMessage(
                position=each,
                message=ModelRequest(parts=[UserPromptPart(f"message {each}", timestamp=now)]),
            )
            for each in new
        )
        operation = SaveSnapshot(
            run_id=self._run_id,
            sequence=self._saves,
            key=str(self._saves),
            step_index=self._saves,
            state="complete",
            ranges=tuple(ranges),
            entries=entries,
        )
        position = CommitPosition(
            execution_id=self._run_id,
            branch=self._run_id,
            branch_time=now,
            number=self._saves,
            history_length=self._saves,
            queued_at=now,
        )
        await self._store.commit(Commit(operations=(operation,), now=now, position=position))


async def measure_documents(bench: Bench) -> list[Figure]:
    """The largest document of a run: while it grew, and after a processor has rewritten it."""
    count = QUICK_MESSAGES if bench.is_quick else MESSAGES
    database = f"documents_{uuid4().hex}"
    store = open_step_store("mongodb", db_url=bench.mongodb_uri, database=database)
    middle = count // 2
    try:
        await store.initialise()
        run = LongRun(store)
        for start in range(0, count, AT_ONCE):
            await run.save([(0, start + AT_ONCE)], range(start, start + AT_ONCE))
        grown = await _largest(bench, database, f"{count} messages, a growing history")
        await run.save(
            [(0, middle), (count, count + 1), (middle + 1, count)], range(count, count + 1)
        )
        once = await _largest(bench, database, f"{count} messages, one in the middle rewritten")
        await run.save(_rewritten(count), range(count + 1, count + 2))
        throughout = await _largest(bench, database, f"{count} messages, every other rewritten")
        return [grown, once, throughout]
    finally:
        await store.aclose()
        await bench.mongodb.drop_database(database)


def _rewritten(count: int) -> list[Range]:
    """Every other message has got a place behind the others: no two neighbours are left."""
    pairs = zip(range(count // 2), range(count // 2, count), strict=True)
    return [(each, each + 1) for pair in pairs for each in pair]


async def _largest(bench: Bench, database: str, name: str) -> Figure:
    pipeline = [{"$group": {"_id": None, "largest": {"$max": {"$bsonSize": "$$ROOT"}}}}]
    sizes: dict[str, int] = {}
    for collection in await bench.mongodb[database].list_collection_names():
        async for found in await bench.mongodb[database][collection].aggregate(pipeline):
            sizes[collection] = found["largest"]
    where = max(sizes, key=lambda each: sizes[each])
    return Figure(
        name=f"largest document: {name}",
        unit="KB",
        measured=sizes[where] / 1000,
        budget=BUDGET_KB,
        detail=f"in {where}",
    )
