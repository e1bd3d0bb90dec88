"""Writing a commit's plan in its transaction: one command for each collection that it touches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pymongo import DeleteOne, ReplaceOne, UpdateOne

from stores.effects import EffectRow
from stores.errors import StoreUnavailableError
from stores.histories import Body, MessageChanges
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


class PlanWriter:
    """Writes plans; what is replaced must be there in the revision that the plan knew."""

    def __init__(self, transaction: Transaction, *, checks_media: bool) -> None:
        """Write in that transaction; look after the media of this database if they are there."""
        self._checks_media = checks_media
        self._session = transaction.session
        self._database = transaction.database
        self._workspace_id = transaction.workspace_id

    async def write(self, plan: CommitPlan, runs: Mapping[str, RunRecord]) -> None:
        """Write all rows and messages; the plan's effects and positions are then as stored.

        Args:
            plan: what to write.
            runs: the runs that it is about.

        Raises:
            pymongo.errors.PyMongoError: with `DUPLICATE_KEY` when a row is there already, or in
                another revision.
        """
        await self._insert("runs", [run_document(each) for each in plan.new_runs])
        await self._replace("runs", [run_document(each) for each in plan.changed_runs])
        await self._touch(plan.claimed)
        await self._put("events", plan.events, row_document)
        await self._put(
            "snapshots",
            plan.snapshots,
            lambda row: snapshot_document(row, runs.get(row.run_id)),
        )
        effects = await self._put("tool_effects", plan.effects, effect_document)
        positions = await self._put("positions", plan.messages.positions, row_document)
        await self._put_messages(plan.messages)
        plan.effects = [
            replace(row, row_id=document["_id"], revision=document["revision"])
            for row, document in zip(plan.effects, effects, strict=True)
        ]
        plan.messages.positions = [
            replace(row, row_id=document["_id"], revision=document["revision"])
            for row, document in zip(plan.messages.positions, positions, strict=True)
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

    async def _put_messages(self, changes: MessageChanges) -> None:
        media = {
            digest: [media_id(each, self._workspace_id) for each in digests_in(body.text)]
            for digest, body in changes.bodies.items()
        }
        if self._checks_media:
            await self._check_media({each for of_message in media.values() for each in of_message})
        writes: list[UpdateOne | DeleteOne] = [
            put_body(digest, body, self._workspace_id, media[digest])
            for digest, body in changes.bodies.items()
        ]
        writes += [DeleteOne({"_id": digest, "owner": owner}) for digest, owner in changes.dropped]
        if writes:
            await self._database["messages"].bulk_write(writes, session=self._session)

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
