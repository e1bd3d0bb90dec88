"""Writing plans in a transaction: one command for each collection that any of them touches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pymongo import DeleteOne, ReplaceOne, UpdateOne

from stores.effects import EffectRow
from stores.errors import StoreUnavailableError
from stores.histories import Body
from stores.media.markers import digests_in
from stores.mongo.documents import (
    SERVER_TIME,
    Document,
    effect_document,
    row_document,
    run_document,
    snapshot_document,
)
from stores.mongo.media import (
    COLLECTION,
    REFRESHED_AFTER_MICROSECONDS,
    media_id,
    touched_within,
)
from stores.mongo.transactions import Transaction
from stores.planning import CommitPlan
from stores.records import RunRecord
from stores.rows import EventRow, PositionRow, SnapshotRow

AnyRow = TypeVar("AnyRow", EventRow, SnapshotRow, EffectRow, PositionRow)
ReplacedRow = TypeVar("ReplacedRow", EffectRow, PositionRow)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What a commit writes, the runs that it is about, and whose they are."""

    plan: CommitPlan
    runs: Mapping[str, RunRecord]
    workspace_id: str


class PlanWriter:
    """Writes plans; what is replaced must be there in the revision that the plan knew."""

    def __init__(self, transaction: Transaction, *, checks_media: bool) -> None:
        """Write in that transaction; look after the media of this database if they are there."""
        self._checks_media = checks_media
        self._session = transaction.session
        self._database = transaction.database

    async def write(self, *planned: Planned) -> None:
        """Write all rows and messages; effects and positions of the plans are then as stored.

        Args:
            planned: what to write, of several commits in their order.

        Raises:
            pymongo.errors.PyMongoError: with `DUPLICATE_KEY` when a row is there already, or in
                another revision.
        """
        plans = [each.plan for each in planned]
        new_runs = [run_document(run) for plan in plans for run in plan.new_runs]
        changed_runs = [run_document(run) for plan in plans for run in plan.changed_runs]
        runs = {run_id: run for each in planned for run_id, run in each.runs.items()}
        await self._insert("runs", new_runs)
        await self._replace("runs", changed_runs)
        await self._touch([run_id for plan in plans for run_id in plan.claimed])
        await self._put("events", [row for plan in plans for row in plan.events], row_document)
        await self._put(
            "snapshots",
            [row for plan in plans for row in plan.snapshots],
            lambda row: snapshot_document(row, runs.get(row.run_id)),
        )
        effects = [row for plan in plans for row in plan.effects]
        positions = [row for plan in plans for row in plan.messages.positions]
        stored_effects = iter(await self._put("tool_effects", effects, effect_document))
        stored_positions = iter(await self._put("positions", positions, row_document))
        await self._put_messages(planned)
        for plan in plans:
            plan.effects = [_stored(row, next(stored_effects)) for row in plan.effects]
            plan.messages.positions = [
                _stored(row, next(stored_positions)) for row in plan.messages.positions
            ]

    async def _touch(self, claimed: Sequence[str]) -> None:
        """Let two that continue one run conflict, and one that begins with it with a removal."""
        for run_id in claimed:
            await self._database["runs"].update_one(
                {"_id": run_id}, {"$inc": {"claim_count": 1}}, session=self._session
            )

    async def _put(
        self, collection: str, rows: Sequence[AnyRow], to_document: Callable[[AnyRow], Document]
    ) -> list[Document]:
        documents = [to_document(each) for each in rows]
        if all(each.row_id is None for each in rows):
            await self._insert(collection, documents)
        else:
            await self._replace(collection, documents)
        return documents

    async def _insert(self, collection: str, documents: Sequence[Document]) -> None:
        if documents:
            await self._database[collection].insert_many(documents, session=self._session)

    async def _replace(self, collection: str, documents: Sequence[Document]) -> None:
        """Put documents, new ones too; a stored one in another revision breaks the `_id` index."""
        if not documents:
            return
        writes = [ReplaceOne(_expected(each), each, upsert=True) for each in documents]
        await self._database[collection].bulk_write(writes, session=self._session)

    async def _put_messages(self, planned: Sequence[Planned]) -> None:
        puts: list[UpdateOne] = []
        media: set[str] = set()
        for each in planned:
            for digest, body in each.plan.messages.bodies.items():
                own = [media_id(found, each.workspace_id) for found in digests_in(body.text)]
                puts.append(put_body(digest, body, each.workspace_id, own))
                media.update(own)
        if self._checks_media:
            await self._check_media(media)
        dropped = (pair for each in planned for pair in each.plan.messages.dropped)
        drops = [DeleteOne({"_id": digest, "owner": owner}) for digest, owner in dropped]
        if puts or drops:
            await self._database["messages"].bulk_write([*puts, *drops], session=self._session)

    async def _check_media(self, media: set[str]) -> None:
        """Return when no sweep can remove these blobs beside this transaction.

        Raises:
            StoreUnavailableError: one was put too long ago, or is gone. Another commit puts it.
        """
        if not media:
            return
        fresh = touched_within(2 * REFRESHED_AFTER_MICROSECONDS)
        found = await self._database[COLLECTION].count_documents(
            {"_id": {"$in": sorted(media)}, "$expr": fresh}, session=self._session
        )
        if found < len(media):
            msg = (
                f"{len(media) - found} of {len(media)} media that a commit names were put too long "
                "before it, or are swept; retry"
            )
            raise StoreUnavailableError(msg)


def _stored(row: ReplacedRow, document: Document) -> ReplacedRow:
    """The row as the document has it."""
    return replace(row, row_id=document["_id"], revision=document["revision"])


def _expected(document: Document) -> Document:
    """What the document that this one replaces must look like; its run finds the shard."""
    expected: Document = {name: document[name] for name in ("_id", "run_id") if name in document}
    if "revision" in document:
        expected["revision"] = document["revision"] - 1
    return expected


def put_body(digest: str, body: Body, workspace_id: str, media: list[str]) -> UpdateOne:
    """Insert a message; one that is there and was brought by another loses its owner.

    A write in any case, for the time of it: a sweep that is about to remove the message gives way.
    """
    is_new = {"$eq": [{"$type": "$text"}, "missing"]}
    is_own = {"$eq": ["$owner", {"$literal": body.owner}]}
    owner = {"$cond": [{"$or": [is_new, is_own]}, {"$literal": body.owner}, None]}
    text = {"$ifNull": ["$text", {"$literal": body.text}]}
    workspace = {"$literal": workspace_id}
    values = {"text": text, "owner": owner, "workspace_id": workspace, "touched_at": SERVER_TIME}
    if media:
        values["media"] = {"$literal": media}
    return UpdateOne({"_id": digest}, [{"$set": values}], upsert=True)
