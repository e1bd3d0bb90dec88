"""`python -m benchmarks.search`: searches beside the reference's, on one mongod and one corpus."""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import tempfile
from asyncio import events
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any
from uuid import uuid4

from benchmarks.reference_environment import reference_python
from benchmarks.search_corpus import START, Run, queries, runs_of
from cli.servers import LocalServers
from settings import Settings
from stores.commits import Commit
from stores.histories import ranges_of
from stores.mongo.steps import MongoStepStore
from stores.operations import PositionedMessage, RegisterRun, SaveSnapshot
from stores.search.analysis import AnalyzerName
from stores.search.answering import search_history
from stores.search.query import HistoryQuery, SearchAnswer
from stores.search.source import SnapshotHistorySource
from workflows.names import SEARCH_ATTRIBUTES

ROOT = Path(__file__).parents[1]
MESSAGES_OF_INDEX = 1_000
"""Saved with and without the index, to compare."""

BUDGETS = {1_000: (50, 20), 10_000: (400, 50), 100_000: (2_000, 60)}
"""By messages: how many times faster than the reference, hot and cold."""


async def save(store: MongoStepStore, number: int, snapshots: Run) -> list[float]:
    """A run as a plain `agent.run` saves it: a commit for each boundary; seconds of each.

    The index is done with one before the next: a model takes longer.
    """
    seconds: list[float] = []
    run_id = f"run-{number:06}"
    at = START + timedelta(minutes=number)
    register = RegisterRun(
        run_id=run_id, sequence=0, registration_id=run_id, conversation_id="bench", started_at=at
    )
    await store.commit(Commit(operations=(register,), now=at, branch=run_id))
    known = 0
    for step, history in enumerate(snapshots):
        entries = tuple(
            PositionedMessage(position=place, message=history[place])
            for place in range(known, len(history))
        )
        known = len(history)
        saved = SaveSnapshot(
            run_id=run_id, sequence=step + 1, key=str(step), step_index=step, state="complete",
            ranges=ranges_of(range(known)), entries=entries,
        )  # fmt: skip
        commit = Commit(operations=(saved,), now=at, branch=run_id)
        await store.history_index.indexer.settle(None)
        seconds.append(await timed(lambda: store.commit(commit)))  # noqa: B023
    return seconds


async def index_seconds(uri: str, shape: str) -> tuple[float, float]:
    """Seconds of a commit without the index and with it, by turns in two databases; medians."""
    stores = [MongoStepStore(db_url=uri, database=f"search_{uuid4().hex}") for _ in range(2)]
    for store in stores:
        await store.initialise()
    plain: Any = stores[0]
    plain._commits._indexer = None  # noqa: SLF001 - no option says so
    seconds: list[list[float]] = [[], []]
    for number, snapshots in enumerate(runs_of(MESSAGES_OF_INDEX, shape)):
        for store, found in zip(stores, seconds, strict=True):
            found.extend(await save(store, number, snapshots))
    for store in stores:
        database = connected(store)
        await database.client.drop_database(database.name)
        await store.aclose()
    without, beside = map(statistics.median, seconds)
    return without, beside


def connected(store: Any) -> Any:  # noqa: ANN401 - of the driver
    """Its database."""
    return store._connection.database  # noqa: SLF001


async def find(store: MongoStepStore, text: str, **options: Any) -> SearchAnswer:  # noqa: ANN401 - a query's
    query = HistoryQuery(text=text, conversation_id="bench", **options)
    answer = await search_history(SnapshotHistorySource(store), query)
    if answer.note is not None and "scope" not in options:
        raise RuntimeError(answer.note)
    return answer


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    start = perf_counter()
    await call()
    return perf_counter() - start


async def ours(
    uri: str, messages: int, shape: str, asked: list[str], *, analyzer: AnalyzerName, unrelated: int
) -> dict[str, Any]:
    database = f"search_{uuid4().hex}"
    store = MongoStepStore(db_url=uri, database=database, search_analyzer=analyzer)
    await store.initialise()
    number = -1
    for number, snapshots in enumerate(runs_of(messages, shape)):
        await save(store, number, snapshots)
    await find(store, asked[0], analyzer=analyzer)
    await find(store, asked[0], analyzer=analyzer)

    async def best(query: str) -> float:
        return min([await timed(lambda: find(store, query, analyzer=analyzer)) for _ in range(3)])

    hot = [await best(each) for each in asked]
    cold: list[float] = []
    for query in asked[:5]:
        fresh = MongoStepStore(db_url=uri, database=database, search_analyzer=analyzer)
        await fresh.get_run(run_id="nobody")  # connected
        cold.append(await timed(lambda: find(fresh, query, analyzer=analyzer)))  # noqa: B023
        await fresh.aclose()
    # A model that searches does so later; who searches at once waits for what is being logged.
    topped: list[float] = []
    at_once: list[float] = []
    for extra, snapshots in enumerate(runs_of(200, "flat")):
        await save(store, number + 1 + extra, snapshots)
        if extra % 2:
            await store.history_index.indexer.settle(None)
        seconds = await timed(lambda: find(store, asked[1], analyzer=analyzer))
        (topped if extra % 2 else at_once).append(seconds)
    block = await longest_slice(lambda: find(store, asked[1], analyzer=analyzer))
    everything = [
        await timed(lambda: find(store, each, analyzer=analyzer, scope="all"))  # noqa: B023
        for each in asked[:3]
    ]
    answers = [(await find(store, each, analyzer=analyzer)).text for each in asked]
    without, beside = await index_seconds(uri, shape)
    found = {
        "hot": statistics.median(hot), "cold": statistics.median(cold),
        "after 20": statistics.median(topped), "at once": statistics.median(at_once),
        "commit": beside, "without index": without, "slice": block,
        "all": statistics.median(everything), "answers": answers,
    }  # fmt: skip
    connection = connected(store)
    if unrelated:
        row = await connection["runs"].find_one({})
        others = [
            {**row, "_id": f"other-{n}", "conversation_id": f"other-{n}", "registration_id": str(n)}
            for n in range(unrelated)
        ]
        await connection["runs"].insert_many(others)
        found["beside others"] = statistics.median([await best(each) for each in asked])
    await connection.client.drop_database(database)
    await store.aclose()
    return found


async def longest_slice(call: Callable[[], Awaitable[object]]) -> float:
    """CPU seconds of the event loop's thread in one go, while the call runs."""
    longest = 0.0
    run = events.Handle._run  # noqa: SLF001

    def measured(handle: events.Handle) -> None:
        nonlocal longest
        start = thread_time()
        run(handle)
        longest = max(longest, thread_time() - start)

    setattr(events.Handle, "_run", measured)  # noqa: B010 - no type allows it
    try:
        await call()
    finally:
        setattr(events.Handle, "_run", run)  # noqa: B010
    return longest


async def reference(uri: str, messages: int, shape: str, count: int) -> dict[str, Any]:
    python = reference_python(Settings().data_dir)
    database = f"reference_{uuid4().hex}"
    process = await asyncio.create_subprocess_exec(
        str(python), "-m", "benchmarks.search_reference", uri, database, str(messages), shape,
        str(count), cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    output, _ = await process.communicate()
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def places(answer: str) -> list[tuple[str, ...]]:
    """Score and run of each excerpt, and its first line."""
    blocks = re.findall(r"\[score: ([\d.]+) \| run: (\S+) [^\n]*\n(\[\d+\])", answer)
    return [tuple(each) for each in blocks]


async def main(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="perdure-search-") as home:
        if arguments.uri:
            await measure(arguments.uri, arguments)
            return
        async with LocalServers(Path(home), search_attributes=SEARCH_ATTRIBUTES) as servers:
            await measure(servers.addresses.mongodb_uri, arguments)


async def measure(uri: str, arguments: argparse.Namespace) -> None:
    for messages in arguments.messages:
        count = {1_000: 20, 10_000: 10}.get(messages, 5)
        asked = queries(messages, count)
        options = {"analyzer": arguments.analyzer, "unrelated": arguments.unrelated}
        own = await ours(uri, messages, arguments.shape, asked, **options)
        line = ", ".join(
            f"{name} {value * 1000:.1f} ms" for name, value in own.items() if name != "answers"
        )
        print(f"{messages:>7} {arguments.shape}: {line}", flush=True)
        if arguments.quick:
            continue
        other = await reference(uri, messages, arguments.shape, min(count, arguments.reference))
        seconds = statistics.median(other["seconds"])
        hot, cold = BUDGETS.get(messages, (0, 0))
        same = sum(
            places(a) == places(b) for a, b in zip(own["answers"], other["answers"], strict=False)
        )
        print(
            f"        reference {seconds:.3f} s: hot {seconds / own['hot']:.0f} x (budget {hot}), "
            f"cold {seconds / own['cold']:.0f} x (budget {cold}); ranked alike "
            f"{same}/{len(other['answers'])}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--shape", choices=["flat", "steps", "window"], default="flat")
    parser.add_argument("--analyzer", choices=["standard", "regex"], default="standard")
    parser.add_argument("--unrelated", type=int, default=0, help="runs of other conversations")
    parser.add_argument("--reference", type=int, default=5, help="searches of the reference")
    parser.add_argument("--quick", action="store_true", help="without the reference")
    parser.add_argument("--uri", help="a MongoDB to use instead of one of its own")
    asyncio.run(main(parser.parse_args()))
