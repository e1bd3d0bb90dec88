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
from typing import Any, cast
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


class Ours:
    """Our side: a store with the conversation, its index in memory."""

    def __init__(self, uri: str, analyzer: AnalyzerName) -> None:
        self._uri = uri
        self._database = f"search_{uuid4().hex}"
        self._analyzer: AnalyzerName = analyzer
        self.store = self._opened()
        self._runs = 0

    def _opened(self) -> MongoStepStore:
        return MongoStepStore(
            db_url=self._uri, database=self._database, search_analyzer=self._analyzer
        )

    async def save(self, messages: int, shape: str) -> None:
        await self.store.initialise()
        for snapshots in runs_of(messages, shape):
            await save(self.store, self._runs, snapshots)
            self._runs += 1

    async def ask(self, query: str, **options: Any) -> float:  # noqa: ANN401 - a query's
        return await timed(lambda: find(self.store, query, analyzer=self._analyzer, **options))

    async def hot(self, query: str) -> float:
        return min([await self.ask(query) for _ in range(3)])

    async def cold(self, query: str) -> float:
        """In a process that has its connection and knows nothing of the conversation."""
        fresh = self._opened()
        await fresh.get_run(run_id="nobody")
        seconds = await timed(lambda: find(fresh, query, analyzer=self._analyzer))
        await fresh.aclose()
        return seconds

    async def answer(self, query: str) -> str:
        return (await find(self.store, query, analyzer=self._analyzer)).text

    async def after_commits(self, query: str) -> dict[str, float]:
        """Each time after 20 messages more.

        A model that searches does so later; who searches at once waits for what is being logged.
        """
        found: dict[str, list[float]] = {"after 20": [], "at once": [], "hot then": []}
        for extra, snapshots in enumerate(runs_of(200, "flat")):
            await save(self.store, self._runs, snapshots)
            self._runs += 1
            if extra % 2:
                await self.store.history_index.indexer.settle(None)
            found["after 20" if extra % 2 else "at once"].append(await self.ask(query))
            found["hot then"].append(await self.hot(query))
        return {name: statistics.median(each) for name, each in found.items()}

    async def beside_others(self, runs: int, asked: list[str]) -> float:
        """A hot search with so many runs of other conversations in the store."""
        collection = connected(self.store)["runs"]
        row = await collection.find_one({})
        others = [
            {**row, "_id": f"other-{n}", "conversation_id": f"other-{n}", "registration_id": str(n)}
            for n in range(runs)
        ]
        await collection.insert_many(others)
        return statistics.median([await self.hot(each) for each in asked])

    async def drop(self) -> None:
        await connected(self.store).client.drop_database(self._database)
        await self.store.aclose()


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


class Reference:
    """The other side: a process of its own environment with the same messages."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._input = cast("asyncio.StreamWriter", process.stdin)
        self._output = cast("asyncio.StreamReader", process.stdout)

    @classmethod
    async def start(cls, uri: str, messages: int, shape: str) -> "Reference":
        """Started, with everything saved."""
        python = reference_python(Settings().data_dir)
        database = f"reference_{uuid4().hex}"
        process = await asyncio.create_subprocess_exec(
            str(python), "-m", "benchmarks.search_reference", uri, database, str(messages), shape,
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 26,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        reference = cls(process)
        await reference._read()
        return reference

    async def _read(self) -> dict[str, Any]:
        line: dict[str, Any] = json.loads(await self._output.readline())
        return line

    async def ask(self, query: str) -> tuple[float, str]:
        """Seconds, and the answer."""
        self._input.write(json.dumps(query).encode() + b"\n")
        found = await self._read()
        return found["seconds"], found["answer"]

    async def stop(self) -> None:
        self._input.close()
        await self._process.wait()


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
        await measure_one(uri, messages, arguments)


async def measure_one(uri: str, messages: int, arguments: argparse.Namespace) -> None:
    """Both sides by turns: a machine may be twice as fast a minute later."""
    asked = queries(messages, max(arguments.searches, 1))
    side = Ours(uri, arguments.analyzer)
    await side.save(messages, arguments.shape)
    other = None if arguments.quick else await Reference.start(uri, messages, arguments.shape)
    warming = queries(messages, arguments.searches + 2)[-2:]
    for each in warming:
        await side.ask(each)
    seconds: dict[str, list[float]] = {
        each: [] for each in ("ping", "first", "hot", "cold", "reference")
    }
    alike = 0
    for number, query in enumerate(asked):
        seconds["ping"].append(await timed(lambda: connected(side.store).command("ping")))
        seconds["first"].append(await side.ask(query))
        seconds["hot"].append(await side.hot(query))
        seconds["cold"].append(await side.cold(query))
        if other is not None and number < arguments.reference:
            took, answer = await other.ask(query)
            seconds["reference"].append(took)
            alike += places(answer) == places(await side.answer(query))
    medians = {name: statistics.median(each) for name, each in seconds.items() if each}
    print(f"{messages:>7} {arguments.shape}: {words(medians)}", flush=True)
    if other is not None:
        await other.stop()
        took = medians["reference"]
        hot, cold = BUDGETS.get(messages, (0, 0))
        print(
            f"        {took / medians['hot']:.0f} x hot (budget {hot}), "
            f"{took / medians['first']:.0f} x for what was not asked before, "
            f"{took / medians['cold']:.0f} x cold (budget {cold}); "
            f"ranked alike {alike}/{len(seconds['reference'])}",
            flush=True,
        )
    further = await side.after_commits(asked[1])
    further["slice"] = await longest_slice(lambda: side.ask(asked[1]))
    further["all"] = statistics.median([await side.ask(each, scope="all") for each in asked[:3]])
    further["without index"], further["commit"] = await index_seconds(uri, arguments.shape)
    if arguments.unrelated:
        further["beside others"] = await side.beside_others(arguments.unrelated, asked)
    print(f"        {words(further)}", flush=True)
    await side.drop()


def words(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {value * 1000:.1f} ms" for name, value in seconds.items())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--shape", choices=["flat", "steps", "window"], default="flat")
    parser.add_argument("--analyzer", choices=["standard", "regex"], default="standard")
    parser.add_argument("--unrelated", type=int, default=0, help="runs of other conversations")
    parser.add_argument("--searches", type=int, default=20)
    parser.add_argument("--reference", type=int, default=20, help="of them asked of the reference")
    parser.add_argument("--quick", action="store_true", help="without the reference")
    parser.add_argument("--uri", help="a MongoDB to use instead of one of its own")
    asyncio.run(main(parser.parse_args()))
