"""All rows of one run in MongoDB: read for a comparison with its histories, and mended after it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from stores.digests import load_message, message_digest
from stores.errors import StoreUnavailableError
from stores.histories import Body
from stores.media.messages import MessageMedia
from stores.mongo.client import MongoConnection
from stores.mongo.documents import (
    Document,
    effect_row,
    event_row,
    head_document,
    position_row,
    run_document,
    run_row,
    snapshot_row,
)
from stores.mongo.existing import OLDEST_FIRST
from stores.mongo.failures import is_duplicate, store_errors
from stores.mongo.transactions import Transaction, run_transaction
from stores.mongo.writing import Planned, PlanWriter
from stores.planning import CommitPlan
from stores.records import RunRecord
from stores.rows import PositionRow, RunRow
from stores.run_rows import Mending, RunRows

Element = TypeVar("Element")

ROWS_AT_ONCE = 200
"""Of one transaction: far below what MongoDB takes, and done before it is in anybody's way."""

TEXTS_AT_ONCE = 1000


class MongoRunRows:
    """The rows of runs of one workspace."""

    def __init__(
        self,
        connection: MongoConnection,
        media: MessageMedia,
        *,
        workspace_id: str,
        checks_media: bool,
    ) -> None:
        self._connection = connection
        self._media = media
        self._workspace_id = workspace_id
        self._checks_media = checks_media

    async def read(self, run_id: str) -> RunRows:
        """Everything that counts of a run. Six queries; each message is read once."""
        with store_errors(f"read the rows of run {run_id!r}", self._connection.where):
            database = self._connection.database
            of_run: Document = {"workspace_id": self._workspace_id, "run_id": run_id}
            run = await database["runs"].find_one({"_id": run_id, "live": True})
            is_own = run is not None and run["workspace_id"] == self._workspace_id
            live: Document = {**of_run, "live": True}
            events = await database["events"].find(live, sort=OLDEST_FIRST).to_list()
            effects = await database["tool_effects"].find(live, sort=OLDEST_FIRST).to_list()
            kept: Document = {**of_run, "$or": [{"live": True}, {"mark": "pruned"}]}
            snapshots = await database["snapshots"].find(kept, sort=OLDEST_FIRST).to_list()
            positions = await database["positions"].find(live).to_list()
            rows = tuple(position_row(each) for each in positions)
            texts, damaged = await self._texts(rows)
        return RunRows(
            run=run_row(run) if run is not None and is_own else None,
            events=tuple(event_row(each) for each in events),
            effects=tuple(effect_row(each) for each in effects),
            snapshots=tuple(snapshot_row(each) for each in snapshots),
            positions=rows,
            texts=texts,
            damaged=damaged,
            are_details_pruned=run is not None and run.get("details_pruned_at") is not None,
        )

    async def _texts(self, rows: Sequence[PositionRow]) -> tuple[Mapping[str, str], dict[str, str]]:
        """Texts by digest, and why others are damaged."""
        stored: dict[str, str] = {}
        damaged: dict[str, str] = {}
        digests = sorted({row.message for row in rows})
        for some in _batches(digests, TEXTS_AT_ONCE):
            query: Document = {"_id": {"$in": some}}
            async for each in self._connection.database["messages"].find(query, {"text": 1}):
                if message_digest(self._workspace_id, each["text"]) == each["_id"]:
                    stored[each["_id"]] = each["text"]
                else:
                    damaged[each["_id"]] = "its text is not the one that was stored"
        restored = await self._media.restored(stored)
        damaged |= {digest: str(error) for digest, error in restored.broken.items()}
        return restored.found, damaged

    async def mend(self, run_id: str, mending: Mending) -> None:
        """Put rows that were found to be missing or different; see `stores.comparison`.

        Repeats: rows are put by their `_id`, messages by their digest.

        Raises:
            StoreUnavailableError: a row has changed since it was compared. Compare again.
        """
        attempt = f"mend run {run_id!r}"
        with store_errors(attempt, self._connection.where):
            messages = await self._messages(mending)
            for part in _parts(mending):
                await self._put(run_id, part, messages)

    async def _messages(self, mending: Mending) -> dict[int, str]:
        """The texts to store, by position; their media are put first."""
        return {
            position: await self._media.text_of(load_message(text))
            for position, text in mending.texts.items()
        }

    async def _put(self, run_id: str, part: Mending, messages: Mapping[int, str]) -> None:
        texts = {
            message_digest(self._workspace_id, messages[row.position]): messages[row.position]
            for row in part.positions
        }

        async def work(session: AsyncClientSession) -> None:
            transaction = Transaction(
                session=session,
                database=self._connection.database,
                workspace_id=self._workspace_id,
            )
            plan = CommitPlan(
                events=list(part.events),
                snapshots=list(part.snapshots),
                effects=list(part.effects),
            )
            for row in part.positions:
                digest = message_digest(self._workspace_id, messages[row.position])
                plan.messages.positions.append(replace(row, message=digest))
            plan.messages.bodies = {
                digest: Body(text=text, owner=None) for digest, text in texts.items()
            }
            if part.run is not None:
                await self._put_run(transaction, part.run)
            if part.head is not None:
                document = head_document(part.head)
                await transaction.database["commit_heads"].replace_one(
                    {"_id": document["_id"]}, document, upsert=True, session=session
                )
            await self._put_texts(transaction, texts)
            runs = await self._runs(transaction, run_id)
            writer = PlanWriter(transaction, checks_media=self._checks_media)
            await writer.write(Planned(plan=plan, runs=runs, workspace_id=self._workspace_id))

        try:
            await run_transaction(self._connection.client(), work)
        except PyMongoError as error:
            if not is_duplicate(error):
                raise
            message = f"mend run {run_id!r}: a row has changed meanwhile; verify it again"
            raise StoreUnavailableError(message) from error

    @staticmethod
    async def _put_run(transaction: Transaction, row: RunRow) -> None:
        """Set the fields of its record, and leave others be."""
        document = run_document(row)
        run_id = document.pop("_id")
        absent = {
            name: "" for name in ("error", "ended_at", "usage", "mark") if name not in document
        }
        await transaction.database["runs"].update_one(
            {"_id": run_id},
            {"$set": document, "$unset": absent},
            upsert=True,
            session=transaction.session,
        )

    @staticmethod
    async def _put_texts(transaction: Transaction, texts: Mapping[str, str]) -> None:
        """Texts of messages that are there and are not what their digests say."""
        for digest, text in texts.items():
            await transaction.database["messages"].update_one(
                {"_id": digest, "text": {"$ne": text}},
                {"$set": {"text": text}},
                session=transaction.session,
            )

    async def _runs(self, transaction: Transaction, run_id: str) -> dict[str, RunRecord]:
        query: Document = {"_id": run_id, "workspace_id": self._workspace_id, "live": True}
        found = await transaction.find("runs", query)
        return {each["_id"]: run_row(each).record for each in found}


def _parts(mending: Mending) -> Iterator[Mending]:
    """The same in parts for one transaction each: what is referred to before what refers to it."""
    if mending.run is not None or mending.head is not None:
        yield Mending(run=mending.run, head=mending.head)
    for positions in _batches(mending.positions, ROWS_AT_ONCE):
        yield Mending(positions=tuple(positions))
    for events in _batches(mending.events, ROWS_AT_ONCE):
        yield Mending(events=tuple(events))
    for effects in _batches(mending.effects, ROWS_AT_ONCE):
        yield Mending(effects=tuple(effects))
    for snapshots in _batches(mending.snapshots, ROWS_AT_ONCE):
        yield Mending(snapshots=tuple(snapshots))


def _batches(rows: Sequence[Element], size: int) -> Iterator[Sequence[Element]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
