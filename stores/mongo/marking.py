"""Rows that no longer count: of a lost workflow task, or behind a reset."""

from collections.abc import Collection
from dataclasses import replace

from stores.commits import CommitHead
from stores.effects import marked
from stores.mongo.documents import (
    Document,
    commit_head,
    effect_document,
    effect_row,
    event_row,
    head_document,
    head_id,
    run_document,
    run_row,
)
from stores.mongo.existing import NEWEST_FIRST
from stores.mongo.transactions import Transaction
from stores.rows import RUN_STATES, Mark, split_after, with_state_of, without_state

_SETS_STATE: Document = {
    "$or": [{"event": {"$in": sorted(RUN_STATES)}}, {"run_state": {"$exists": True}}]
}
"""Events that a run's state is folded from."""


class Marker:
    """Marks rows in a transaction and folds again what followed from them."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._session = transaction.session
        self._database = transaction.database
        self._workspace_id = transaction.workspace_id

    async def supersede(self, head: CommitHead, number: int) -> None:
        """Mark what a lost task wrote from `number` on."""
        await self._mark({head.branch}, number, "superseded")

    async def abandon(self, head: CommitHead, number: int) -> None:
        """Mark what a reset has taken back: from `number` on, and all that went on from there."""
        await self._mark({head.branch, *head.former_branches}, number, "abandoned")
        await self._abandon_later(head.execution_id)

    async def _mark(self, branches: Collection[str], number: int, mark: Mark) -> None:
        reached: Document = {
            "workspace_id": self._workspace_id,
            "branch": {"$in": sorted(branches)},
            "number": {"$gte": number},
            "live": True,
        }
        folded = await self._transaction.find("events", {**reached, **_SETS_STATE})
        change: Document = {"live": False, "mark": mark}
        for collection in ("events", "positions", "runs"):
            await self._database[collection].update_many(
                await self._by_run(collection, reached), {"$set": change}, session=self._session
            )
        # The search log has to hear of it; snapshots from before there was one name none.
        is_searched = {"$eq": [{"$type": "$conversation_id"}, "string"]}
        change["unindexed"] = {"$cond": [is_searched, True, "$$REMOVE"]}
        await self._database["snapshots"].update_many(
            await self._by_run("snapshots", reached), [{"$set": change}], session=self._session
        )
        await self._mark_effects(branches, number, mark)
        for run_id in sorted({each["run_id"] for each in folded}):
            await self._fold_run(run_id)

    async def _by_run(self, collection: str, reached: Document) -> Document:
        """The query with the runs whose rows it finds, so that a cluster marks them where they are.

        Only the search for them is every shard's.
        """
        key = "_id" if collection == "runs" else "run_id"
        group: list[Document] = [{"$match": reached}, {"$group": {"_id": f"${key}"}}]
        cursor = await self._database[collection].aggregate(group, session=self._session)
        return {**reached, key: {"$in": [each["_id"] for each in await cursor.to_list()]}}

    async def _mark_effects(self, branches: Collection[str], number: int, mark: Mark) -> None:
        written: Document = {"branch": {"$in": sorted(branches)}, "number": {"$gte": number}}
        query: Document = {
            "workspace_id": self._workspace_id,
            "transitions": {"$elemMatch": written},
            "live": True,
        }
        for document in await self._transaction.find("tool_effects", query):
            row = marked(effect_row(document), branches=branches, number=number, mark=mark)
            await self._replace("tool_effects", effect_document(row))

    async def _replace(self, collection: str, document: Document) -> None:
        query: Document = {name: document[name] for name in ("_id", "run_id") if name in document}
        await self._database[collection].replace_one(query, document, session=self._session)

    async def _fold_run(self, run_id: str) -> None:
        for document in await self._transaction.find("runs", {"_id": run_id}):
            query: Document = {
                "workspace_id": self._workspace_id,
                "run_id": run_id,
                "live": True,
                **_SETS_STATE,
            }
            newest = await self._transaction.find("events", query, sort=NEWEST_FIRST, limit=1)
            run = without_state(run_row(document))
            for event in newest:
                run = with_state_of(run, event_row(event))
            await self._replace("runs", run_document(run))

    async def _abandon_later(self, execution_id: str) -> None:
        query: Document = {
            "workspace_id": self._workspace_id,
            "branches.execution_id": execution_id,
        }
        for found in await self._transaction.find("runs", query):
            # Read again: abandoning what came after another run may have marked this one.
            (document,) = await self._transaction.find("runs", {"_id": found["_id"]})
            run = run_row(document)
            kept, later = split_after(run.record.branches, execution_id)
            record = replace(run.record, branches=kept)
            await self._replace("runs", run_document(replace(run, record=record)))
            for each in later:
                await self._abandon_execution(each.execution_id)

    async def _abandon_execution(self, execution_id: str) -> None:
        query: Document = {"_id": head_id(self._workspace_id, execution_id)}
        for document in await self._transaction.find("commit_heads", query):
            head = commit_head(document)
            if head.is_abandoned:
                continue
            await self._replace("commit_heads", head_document(replace(head, is_abandoned=True)))
            await self._mark({head.branch, *head.former_branches}, 0, "abandoned")
            await self._abandon_later(execution_id)
