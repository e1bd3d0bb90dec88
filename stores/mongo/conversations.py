"""Conversations on MongoDB: each operation is one transaction."""

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from pymongo import ReplaceOne
from pymongo.asynchronous.client_session import AsyncClientSession

from stores.conversation_records import (
    ArchivedFilter,
    ConversationRecord,
    MessageReceipt,
    RemovedConversation,
    TurnRecord,
    VariantRecord,
)
from stores.conversation_rows import ConversationRows
from stores.conversations import ConversationStore
from stores.mongo.client import Database, MongoConnection
from stores.mongo.conversation_documents import (
    conversation_document,
    conversation_key,
    receipt_document,
    receipt_key,
    record_of,
    turn_document,
    turn_key,
    variant_document,
)
from stores.mongo.documents import Document
from stores.mongo.failures import store_errors
from stores.mongo.removing import remove_conversation
from stores.mongo.transactions import run_transaction
from stores.redaction import NO_REDACTION, Redaction

Result = TypeVar("Result")


class MongoConversations(ConversationStore):
    """`ConversationStore` on MongoDB; writes wait for the majority, reads go to the primary."""

    def __init__(
        self,
        connection: MongoConnection,
        *,
        workspace_id: str,
        redaction: Redaction = NO_REDACTION,
    ) -> None:
        self._connection = connection
        self._workspace_id = workspace_id
        self._redaction = redaction

    @property
    def workspace_id(self) -> str:
        """See `ConversationStore.workspace_id`."""
        return self._workspace_id

    async def transact(
        self, attempt: str, work: Callable[[ConversationRows], Awaitable[Result]]
    ) -> Result:
        """See `TurnStore.transact`."""
        database = self._connection.database

        async def run(session: AsyncClientSession) -> Result:
            return await work(MongoConversationRows(database, session, self._workspace_id))

        with store_errors(attempt, self._connection.where):
            return await run_transaction(self._connection.client(), run)

    async def delete(self, conversation_id: str, *, now: datetime) -> RemovedConversation:
        """See `ConversationStore.delete`. First the head, then page by page what it had."""
        with store_errors(f"delete conversation {conversation_id!r}", self._connection.where):
            return await remove_conversation(
                self._connection, self._workspace_id, conversation_id, now=now
            )


class MongoConversationRows:
    """`ConversationRows` in an open transaction."""

    def __init__(self, database: Database, session: AsyncClientSession, workspace_id: str) -> None:
        self._database = database
        self._session = session
        self._workspace_id = workspace_id

    @property
    def workspace_id(self) -> str:
        """See `ConversationRows.workspace_id`."""
        return self._workspace_id

    async def find_workspace_id(self) -> str | None:
        """See `ConversationRows`."""
        found = await self._one("workspaces", self._workspace_id)
        return None if found is None else found["public_id"]

    async def put_workspace_id(self, public_id: str) -> None:
        """See `ConversationRows`."""
        await self._put("workspaces", [{"_id": self._workspace_id, "public_id": public_id}])

    async def find_conversation(self, conversation_id: str) -> ConversationRecord | None:
        """See `ConversationRows`."""
        key = conversation_key(self._workspace_id, conversation_id)
        found = await self._one("conversations", key)
        return None if found is None else record_of(ConversationRecord, found)

    async def put_conversation(self, record: ConversationRecord) -> None:
        """See `ConversationRows`."""
        await self._put("conversations", [conversation_document(record)])

    async def find_turn(self, conversation_id: str, position: int) -> TurnRecord | None:
        """See `ConversationRows`."""
        found = await self._one("turns", turn_key(self._workspace_id, conversation_id, position))
        return None if found is None else record_of(TurnRecord, found)

    async def put_turns(self, turns: Sequence[TurnRecord]) -> None:
        """See `ConversationRows`."""
        await self._put("turns", [turn_document(each) for each in turns])

    async def list_turns(
        self,
        conversation_id: str,
        *,
        after: int | None,
        before: int | None,
        limit: int,
        newest_first: bool,
    ) -> list[TurnRecord]:
        """See `ConversationRows`."""
        query = self._of(conversation_id)
        bounds = {"$gt": after, "$lt": before}
        if given := {name: value for name, value in bounds.items() if value is not None}:
            query["position"] = given
        order = [("position", -1 if newest_first else 1)]
        found = self._database["turns"].find(query, session=self._session, sort=order, limit=limit)
        return [record_of(TurnRecord, each) for each in await found.to_list()]

    async def list_variants(
        self, conversation_id: str, positions: Sequence[int]
    ) -> list[VariantRecord]:
        """See `ConversationRows`."""
        query = self._of(conversation_id) | {"position": {"$in": list(positions)}}
        return await self._variants(query, ["position", "number"])

    async def put_variants(self, variants: Sequence[VariantRecord]) -> None:
        """See `ConversationRows`."""
        await self._put("variants", [variant_document(each) for each in variants])

    async def list_unfinished(self, conversation_id: str) -> list[VariantRecord]:
        """See `ConversationRows`."""
        query = self._of(conversation_id)
        del query["live"]
        return await self._variants(query | {"is_unfinished": True}, ["order"])

    async def find_receipt(self, conversation_id: str, message_id: str) -> MessageReceipt | None:
        """See `ConversationRows`."""
        key = receipt_key(self._workspace_id, conversation_id, message_id)
        found = await self._one("conversation_messages", key)
        return None if found is None else record_of(MessageReceipt, found)

    async def put_receipt(self, receipt: MessageReceipt) -> None:
        """See `ConversationRows`."""
        await self._put("conversation_messages", [receipt_document(receipt)])

    async def list_conversations(
        self, query: str, *, archived: ArchivedFilter, limit: int, offset: int
    ) -> list[ConversationRecord]:
        """See `ConversationRows`. With a query it looks through the text of the workspace."""
        wanted: Document = {"workspace_id": self._workspace_id, "live": True}
        if archived != "include":
            wanted["is_archived"] = archived == "only"
        if query:
            holds = {"$regex": re.escape(query)}
            ids = await self._conversations_with(holds)
            wanted["$or"] = [{"folded": holds}, {"conversation_id": {"$in": sorted(ids)}}]
        found = self._database["conversations"].find(
            wanted,
            session=self._session,
            sort=[("updated_at", -1), ("public_id", -1)],
            skip=offset,
            limit=limit,
        )
        return [record_of(ConversationRecord, each) for each in await found.to_list()]

    async def _conversations_with(self, holds: Document) -> set[str]:
        """Conversations with visible turns or selected answers that hold the text."""
        wanted: Document = {"workspace_id": self._workspace_id, "live": True, "folded": holds}
        turns = self._database["turns"]
        said = turns.find(
            {**wanted, "is_visible": True}, {"conversation_id": 1}, session=self._session
        )
        ids = {each["conversation_id"] for each in await said.to_list()}
        answers = self._database["variants"].find(wanted, {"folded": 0}, session=self._session)
        async for each in answers:
            if each["conversation_id"] not in ids:
                key = {name: value for name, value in each["_id"].items() if name != "number"}
                is_read: Document = {
                    "_id": key,
                    "is_visible": True,
                    "active_variant": each["number"],
                }
                if await turns.find_one(is_read, {"_id": 1}, session=self._session):
                    ids.add(each["conversation_id"])
        return ids

    def _of(self, conversation_id: str) -> Document:
        key = conversation_key(self._workspace_id, conversation_id)
        return {**key, "live": True}

    async def _variants(self, query: Document, order: Sequence[str]) -> list[VariantRecord]:
        sort = [(each, 1) for each in order]
        found = self._database["variants"].find(query, session=self._session, sort=sort)
        return [record_of(VariantRecord, each) for each in await found.to_list()]

    async def _one(self, collection: str, key: Any) -> Document | None:  # noqa: ANN401 - an `_id`
        return await self._database[collection].find_one({"_id": key}, session=self._session)

    async def _put(self, collection: str, documents: Sequence[Document]) -> None:
        writes = [ReplaceOne({"_id": each["_id"]}, each, upsert=True) for each in documents]
        if writes:
            await self._database[collection].bulk_write(writes, session=self._session)
