"""`make bench-keyword`: keyword search beside PostgreSQL's `text[]` and GIN, on the same rows.

Both sides get the same lexemes and give one page of 20 places (turn, conversation, field) in order.
PostgreSQL is asked through `psql` over a socket of the file system, from a C program that measures
itself; ours is the whole call from Python: what changed is asked for, and candidates are found. A
third row has the whole search, with words read, excerpts cut and the cursor sealed.
"""

import argparse
import asyncio
import random
import re
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import UUID, uuid4

from bson import Binary, Int64
from pymongo import AsyncMongoClient

from benchmarks.postgresql import PostgreSQL, postgresql
from benchmarks.search_corpus import texts
from cli.servers import LocalServers
from stores.conversation_records import ConversationRecord, TurnRecord, VariantRecord
from stores.keyword.lexer import lexemes
from stores.keyword.queries import ConversationFilter, KeywordQuery
from stores.mongo.conversation_documents import (
    conversation_document,
    turn_document,
    variant_document,
)
from stores.mongo.keyword_index import KeywordMemory
from stores.mongo.keyword_rows import (
    LANES,
    ROWS,
    Lane,
    keys_of,
    lane_of,
    of_lanes,
    row_document,
    row_key,
)
from stores.mongo.keyword_upkeep import title_document
from stores.mongo.steps import MongoStepStore
from stores.public_ids import new_public_id
from stores.search.counting import term_key
from workflows.names import SEARCH_ATTRIBUTES

PAGE = 20
WORKSPACE = "bench"
ALL = ConversationFilter(principal="bench", everything=True)
SOME = ConversationFilter(
    principal="bench", conversation_ids=frozenset(f"talk-{number}" for number in range(50))
)
BUDGETS = (1.5, 1.0)
"""Median and worst, as multiples of PostgreSQL's."""

FEW_OTHERS = 1_000
"""Turns of others that a search is compared beside."""

_AT_ONCE = 1_000
_START = datetime(2026, 1, 1, tzinfo=UTC)
_TURNS = 20
"""Of a conversation."""


def queries(count: int) -> list[str]:
    """Of one to four words, rare and common ones."""
    dice = random.Random(7)  # noqa: S311 - no secret
    source = texts()
    pools = [re.findall(r"[a-z_]{3,}", next(source)) or ["self"] for _ in range(5_000)]
    asked: list[str] = []
    while len(asked) < count:
        pool = dice.choice(pools)
        words = " ".join(dice.choice(pool) for _ in range(1 + len(asked) % 4))
        if lexemes(words):
            asked.append(words)
    return asked


async def fill(
    database: Any,  # noqa: ANN401 - the driver's
    turns: int,
    *,
    prefix: str = "talk",
    workspace: str = WORKSPACE,
) -> list[tuple[str, ...]]:
    """Store turns as they are stored, and give their rows: order, conversation, field, lexemes."""
    source = texts()
    rows: list[tuple[str, ...]] = []
    written: dict[str, list[Any]] = {ROWS: []}
    lanes = await database[LANES].find(of_lanes(workspace)).to_list()
    sequences: dict[int, int] = {each["_id"]["lane"]: int(each["sequence"]) for each in lanes}
    public_id = of_conversation = ""
    for number in range(turns):
        conversation, position = f"{prefix}-{number // _TURNS}", number % _TURNS
        now = _START + timedelta(milliseconds=number)
        lane = lane_of(conversation)
        sequences[lane] = sequences.get(lane, 0) + 1
        at = Lane(index=lane, sequence=sequences[lane])
        if position == 0:
            public_id = of_conversation = new_public_id(now, after=public_id or None)
            head = ConversationRecord(
                conversation_id=conversation, workspace_id=workspace, public_id=public_id,
                agent="bench", created_at=_START, updated_at=_START, turn_count=_TURNS,
            )  # fmt: skip
            written.setdefault("conversations", []).append(conversation_document(head))
            written[ROWS].append(title_document(head, at))
        public_id = new_public_id(now, after=public_id or None)
        text = next(source)
        place: dict[str, Any] = {
            "conversation_id": conversation, "workspace_id": workspace, "position": position,
            "created_at": _START,
        }  # fmt: skip
        turn = TurnRecord(
            **place, public_id=public_id, message_id=str(number), prompt="", status="completed"
        )
        variant = VariantRecord(
            **place, number=1, public_id=str(uuid4()), run_id=str(number), order=position,
            status="completed", content=text,
        )  # fmt: skip
        written.setdefault("turns", []).append(turn_document(turn))
        written.setdefault("variants", []).append(variant_document(variant))
        found = lexemes(text)
        row = row_document(row_key(workspace, conversation, position, "content"), at)
        row |= {"number": 1, "order_id": public_id, "live": True, "parts": 1}
        row |= {"version": Binary(b""), "lexemes": keys_of(found)}
        written[ROWS].append(row)
        rows.append((public_id, of_conversation, "content", *sorted(found)))
        if number % _AT_ONCE == _AT_ONCE - 1 or number == turns - 1:
            for name, documents in written.items():
                await database[name].insert_many(documents, ordered=False)
            written = {ROWS: []}
    for lane, sequence in sequences.items():
        key = {"_id": {"workspace_id": workspace, "lane": lane}}
        change = {"$set": {"sequence": Int64(sequence)}}
        await database[LANES].update_one(key, change, upsert=True)
    return rows


def load(server: PostgreSQL, rows: list[tuple[str, ...]]) -> None:
    """The same rows in PostgreSQL."""
    lines = "\n".join(
        f"{row[0]}\t{row[1]}\t{row[2]}\t" + "{" + ",".join(f'"{each}"' for each in row[3:]) + "}"
        for row in rows
    )
    server.psql(
        "CREATE TABLE rows (k uuid, c uuid, f text, lex text[]);\nCOPY rows FROM stdin;\n"
        f"{lines}\n\\.\nCREATE INDEX ON rows USING gin (lex);\nCREATE INDEX ON rows (k, c, f);\n"
        "VACUUM ANALYZE rows;\n"
    )


def theirs(server: PostgreSQL, asked: list[str], repeats: int) -> list[tuple[float, list[str]]]:
    """Milliseconds of each query, the best of several, and what it found."""
    statements = ["\\timing on"]
    for text in asked:
        wanted = ",".join(f"'{each}'" for each in sorted(lexemes(text)))
        select = (
            f"SELECT k FROM rows WHERE lex @> ARRAY[{wanted}]::text[] "  # noqa: S608 - our own words
            f"ORDER BY k DESC, c DESC, f DESC LIMIT {PAGE};"
        )
        statements += ["\\echo begin", *[select] * repeats]
    answers = server.psql("\n".join(statements) + "\n").split("begin\n")[1:]
    found: list[tuple[float, list[str]]] = []
    for answer in answers:
        times = [float(each) for each in re.findall(r"Time: ([\d.]+) ms", answer)]
        ids = re.findall(r"^[0-9a-f-]{36}$", answer, re.MULTILINE)
        found.append((min(times), ids[: len(ids) // repeats]))
    return found


async def ours(
    ask: Callable[[KeywordQuery], Awaitable[list[str]]], asked: list[str], repeats: int
) -> list[tuple[float, list[str]]]:
    """The same of ours."""
    found: list[tuple[float, list[str]]] = []
    for text in asked:
        query = KeywordQuery(text=text)
        times: list[float] = []
        ids: list[str] = []
        for _ in range(repeats):
            start = perf_counter()
            ids = await ask(query)
            times.append((perf_counter() - start) * 1000)
        found.append((min(times), ids))
    return found


def told(name: str, found: list[tuple[float, list[str]]]) -> None:
    """One line of figures."""
    times = [each for each, _ in found]
    print(f"{name:<40} median {statistics.median(times):8.3f} ms, worst {max(times):8.3f} ms")


@dataclass(frozen=True, kw_only=True)
class Ours:
    """Our side: a store that keeps rows in memory, and one that does not."""

    store: MongoStepStore
    cold: MongoStepStore
    memory: KeywordMemory

    async def places(self, query: KeywordQuery, allowed: ConversationFilter = ALL) -> list[str]:
        """Ask what changed, and find one page of places."""
        return await self._places(self.store, query, allowed)

    async def some_places(self, query: KeywordQuery) -> list[str]:
        """The same for one who may read fifty conversations."""
        return await self._places(self.store, query, SOME)

    async def stored_places(self, query: KeywordQuery) -> list[str]:
        """The same from the multikey index."""
        return await self._places(self.cold, query, ALL)

    async def found_places(self, query: KeywordQuery) -> list[str]:
        """Find them without asking what changed."""
        keys = [term_key(each) for each in query.lexemes]
        found = self.memory.slot(WORKSPACE).view.find(keys, query, ALL, None, PAGE)
        return [each.order_id for each in found]

    async def _places(
        self, store: MongoStepStore, query: KeywordQuery, allowed: ConversationFilter
    ) -> list[str]:
        source = await store.keywords.source(WORKSPACE, query, allowed)
        found, _ = await source.candidates(None, PAGE)
        return [each.order_id for each in found[:PAGE]]

    async def pages(self, query: KeywordQuery) -> list[str]:
        """A whole search."""
        page = await self.store.keywords.search_history(WORKSPACE, query, ALL, page_size=PAGE)
        return [str(each.turn_public_id) for each in page.matches]

    async def some_pages(self, query: KeywordQuery) -> list[str]:
        """The same for one who may read fifty conversations."""
        page = await self.store.keywords.search_history(WORKSPACE, query, SOME, page_size=PAGE)
        return [str(each.turn_public_id) for each in page.matches]

    async def read_all(self, text: str) -> str:
        """Search until all rows are in memory, and say what that took."""
        slot = self.memory.slot(WORKSPACE)
        slot.lanes = None
        start, searches = perf_counter(), 0
        while slot.lanes is None:
            await self.pages(KeywordQuery(text=text))
            searches += 1
        seconds, size = perf_counter() - start, slot.view.size_bytes / 1e6
        return f"in memory after {searches} searches and {seconds:.2f} s: {size:.0f} MB"


async def measure(uri: str, arguments: argparse.Namespace, server: PostgreSQL) -> None:
    """All rows of the table."""
    name, repeats = f"keyword_{uuid4().hex}", arguments.repeats
    client = AsyncMongoClient[dict[str, Any]](uri)
    memories = (KeywordMemory(), KeywordMemory(memory_bytes=0))
    stores = [MongoStepStore(db_url=uri, database=name, keyword_memory=each) for each in memories]
    side = Ours(store=stores[0], cold=stores[1], memory=memories[0])
    await side.store.initialise()
    rows = await fill(client[name], arguments.turns)
    load(server, rows)
    asked = queries(arguments.queries)
    print(f"{len(rows)} turns {await side.read_all(asked[0])}")
    print(f"{'a ping of MongoDB':<40} median {await ping(client[name]):8.3f} ms")
    peer = theirs(server, asked, repeats)
    own = await ours(side.places, asked, repeats)
    told("PostgreSQL text[] + GIN", peer)
    told("ours, places", own)
    told("  of that, finding", await ours(side.found_places, asked, repeats))
    told("ours, whole pages", await ours(side.pages, asked, repeats))
    told("ours, places from the multikey index", await ours(side.stored_places, asked, 3))
    same = sum(
        [UUID(each) for each in a] == [UUID(each) for each in b]
        for (_, a), (_, b) in zip(own, peer, strict=True)
    )
    medians = [statistics.median(time for time, _ in each) for each in (own, peer)]
    worst = [max(time for time, _ in each) for each in (own, peer)]
    print(
        f"same pages {same}/{len(asked)}; median {medians[0] / medians[1]:.2f} x "
        f"(budget {BUDGETS[0]}), worst {worst[0] / worst[1]:.2f} x (budget {BUDGETS[1]})"
    )
    await client.drop_database(name)
    await client.aclose()
    for each in stores:
        await each.aclose()


async def flatness(uri: str, arguments: argparse.Namespace) -> None:
    """What one waits who may read fifty conversations, among few and among many turns of others.

    Half of those are in the same workspace and may not be read, half are in another one. Both sizes
    are there at once and take turns, so that noise meets both.
    """
    client = AsyncMongoClient[dict[str, Any]](uri)
    asked = queries(arguments.queries)
    sizes, sides = (FEW_OTHERS, arguments.others), list[Ours]()
    names = [f"keyword_{uuid4().hex}" for _ in sizes]
    for name, others in zip(names, sizes, strict=True):
        memory = KeywordMemory()
        store = MongoStepStore(db_url=uri, database=name, keyword_memory=memory)
        await store.initialise()
        await fill(client[name], _TURNS * len(SOME.conversation_ids))
        await fill(client[name], others // 2, prefix="other")
        await fill(client[name], others // 2, prefix="another", workspace="another")
        sides.append(Ours(store=store, cold=store, memory=memory))
        print(f"beside {others} turns of others, those {await sides[-1].read_all(asked[0])}")
    for what in ("places", "pages"):
        best: list[list[float]] = [[] for _ in sides]
        for text in asked:
            times: list[list[float]] = [[] for _ in sides]
            for _ in range(arguments.repeats):
                for side, taken in zip(sides, times, strict=True):
                    ask = side.some_places if what == "places" else side.some_pages
                    ((milliseconds, _),) = await ours(ask, [text], 1)
                    taken.append(milliseconds)
            for each, taken in zip(best, times, strict=True):
                each.append(min(taken))
        few, many = (statistics.median(each) for each in best)
        print(
            f"ours, {what}, 50 conversations may be read: median {many:.3f} ms beside {sizes[1]} "
            f"turns of others, {few:.3f} beside {sizes[0]}: {many / few:.2f} x"
        )
    for name, side in zip(names, sides, strict=True):
        await client.drop_database(name)
        await side.store.aclose()
    await client.aclose()


async def ping(database: Any) -> float:  # noqa: ANN401 - the driver's
    """Milliseconds of the least that a question costs."""
    times: list[float] = []
    for _ in range(60):
        start = perf_counter()
        await database.command("ping")
        times.append((perf_counter() - start) * 1000)
    return statistics.median(times)


async def main(arguments: argparse.Namespace) -> None:
    """Start both servers and measure."""
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-keyword-"))
        async with LocalServers(Path(home), search_attributes=SEARCH_ATTRIBUTES) as servers:
            uri = servers.addresses.mongodb_uri
            if not arguments.flat:
                server = stack.enter_context(postgresql("shared_buffers=512MB", "jit=off"))
                await measure(uri, arguments, server)
            await flatness(uri, arguments)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=100_000)
    parser.add_argument("--others", type=int, default=100_000, help="turns that may not be read")
    parser.add_argument("--flat", action="store_true", help="only what others' turns cost")
    parser.add_argument("--queries", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=30)
    asyncio.run(main(parser.parse_args()))
