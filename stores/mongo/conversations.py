"""Conversations on MongoDB: each operation is one transaction."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TypeVar

from pymongo import ReplaceOne
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.cursor import AsyncCursor

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
from stores.mongo.access import MongoAccess
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
from stores.mongo.keyword_settling import settle_soon
from stores.mongo.keyword_upkeep import KeywordUpkeep
from stores.mongo.redacting import TurnEraser
from stores.mongo.removing import remove_conversation
from stores.mongo.transactions import run_transaction
from stores.redaction import NO_REDACTION, Redaction

Result = TypeVar("Result")

_UNREAD: Document = {"folded": 0}
"""What only queries need; it is as long as the text."""

_PAGE = 100
"""Conversations whose text is looked through together."""


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

    @property
    def access(self) -> MongoAccess:
        """See `ConversationStore.access`."""
        return MongoAccess(self._connection)

    async def transact(
        self, attempt: str, work: Callable[[ConversationRows], Awaitable[Result]]
    ) -> Result:
        """See `TurnStore.transact`."""
        database = self._connection.database
        has_pending = False

        async def run(session: AsyncClientSession) -> Result:
            nonlocal has_pending
            rows = MongoConversationRows(database, session, self._workspace_id)
            result = await work(rows)
            await rows.keywords.flush(rows)
            has_pending = rows.keywords.has_pending
            return result

        with store_errors(attempt, self._connection.where):
            result = await run_transaction(self._connection.client(), run)
        if has_pending:
            await settle_soon(self._connection, self._workspace_id)
        return result

    async def read(
        self, attempt: str, work: Callable[[ConversationRows], Awaitable[Result]]
    ) -> Result:
        """See `TurnStore.read`. A snapshot: a transaction would wait for its commit, of nothing."""
        connection = self._connection
        with store_errors(attempt, connection.where):
            async with connection.client().start_session(snapshot=True) as session:
                rows = MongoConversationRows(connection.database, session, self._workspace_id)
                return await work(rows)

    async def delete(self, conversation_id: str, *, now: datetime) -> RemovedConversation:
        """See `ConversationStore.delete`. First the head, then page by page what it had."""
        with store_errors(f"delete conversation {conversation_id!r}", self._connection.where):
            return await remove_conversation(
                self._connection, self._workspace_id, conversation_id, now=now
            )

    async def delete_turn(
        self, conversation_id: str, position: int, *, now: datetime
    ) -> RemovedConversation:
        """See `ConversationStore.delete_turn`. First its rows, then what its runs hold."""
        buried = await self.bury_turn(conversation_id, position, now=now)
        with store_errors(f"delete turn {position} of {conversation_id!r}", self._connection.where):
            eraser = TurnEraser(
                self._connection, workspace_id=self._workspace_id, conversation_id=conversation_id
            )
            return await eraser.erase([each.run_id for each in buried])


class MongoConversationRows:
    """`ConversationRows` in an open transaction, or in a snapshot that is only read."""

    def __init__(self, database: Database, session: AsyncClientSession, workspace_id: str) -> None:
        self._database = database
        self._session = session
        self._workspace_id = workspace_id
        self.keywords = KeywordUpkeep(database=database, session=session, workspace_id=workspace_id)

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
        head = None if found is None else record_of(ConversationRecord, found)
        self.keywords.found_head(conversation_id, head)
        return head

    async def find_public_conversation(self, public_id: str) -> ConversationRecord | None:
        """See `ConversationRows`."""
        query = {"workspace_id": self._workspace_id, "public_id": public_id, "live": True}
        found = await self._first("conversations", query)
        return None if found is None else record_of(ConversationRecord, found)

    async def put_conversation(self, record: ConversationRecord) -> None:
        """See `ConversationRows`."""
        self.keywords.put_head(record)
        await self._put("conversations", [conversation_document(record)])

    async def find_turn(self, conversation_id: str, position: int) -> TurnRecord | None:
        """See `ConversationRows`."""
        found = await self._one("turns", turn_key(self._workspace_id, conversation_id, position))
        if found is None:
            return None
        turn = record_of(TurnRecord, found)
        self.keywords.found_turn(turn)
        return turn

    async def find_public_turn(self, conversation_id: str, public_id: str) -> TurnRecord | None:
        """See `ConversationRows`."""
        found = await self._first("turns", self._of(conversation_id) | {"public_id": public_id})
        return None if found is None else record_of(TurnRecord, found)

    async def put_turns(self, turns: Sequence[TurnRecord]) -> None:
        """See `ConversationRows`."""
        for each in turns:
            self.keywords.put_turn(each)
        await self._put("turns", [turn_document(each) for each in turns])

    async def list_turns(
        self,
        conversation_id: str,
        *,
        after: int | None,
        before: int | None,
        limit: int,
        newest_first: bool,
        only_visible: bool = False,
    ) -> list[TurnRecord]:
        """See `ConversationRows`."""
        query = self._of(conversation_id)
        if only_visible:
            query["is_visible"] = True
        bounds = {"$gt": after, "$lt": before}
        if given := {name: value for name, value in bounds.items() if value is not None}:
            query["position"] = given
        order = [("position", -1 if newest_first else 1)]
        turns = self._database["turns"]
        found = turns.find(query, _UNREAD, session=self._session, sort=order, limit=limit)
        return [record_of(TurnRecord, each) for each in await found.to_list()]

    async def list_variants(
        self, conversation_id: str, positions: Sequence[int]
    ) -> list[VariantRecord]:
        """See `ConversationRows`."""
        query = self._of(conversation_id) | {"position": {"$in": list(positions)}}
        found = await self._variants(query, ["position", "number"])
        for each in found:
            self.keywords.found_variant(each)
        return found

    async def put_variants(self, variants: Sequence[VariantRecord]) -> None:
        """See `ConversationRows`."""
        for each in variants:
            self.keywords.put_variant(each)
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
        """See `ConversationRows`. With a query it reads page by page, and of a page all text."""
        wanted: Document = {"workspace_id": self._workspace_id, "live": True}
        if archived != "include":
            wanted["is_archived"] = archived == "only"
        heads = self._database["conversations"].find(
            wanted,
            session=self._session,
            sort=[("updated_at", -1), ("public_id", -1)],
            skip=0 if query else offset,
            limit=0 if query else limit,
            batch_size=_PAGE,
        )
        if not query:
            return [record_of(ConversationRecord, each) for each in await heads.to_list()]
        found: list[ConversationRecord] = []
        async with aclosing(self._holding(heads, query)) as holding:
            async for each in holding:
                found.append(each)
                if len(found) == offset + limit:
                    break
        return found[offset:]

    async def _holding(
        self, heads: AsyncCursor[Document], query: str
    ) -> AsyncGenerator[ConversationRecord]:
        """Those of the heads whose names, or whose conversations, hold the text."""
        async with heads:
            while page := await heads.to_list(_PAGE):
                unnamed = [each["conversation_id"] for each in page if query not in each["folded"]]
                said = await self._conversations_with(query, unnamed)
                for each in page:
                    if query in each["folded"] or each["conversation_id"] in said:
                        yield record_of(ConversationRecord, each)

    async def _conversations_with(self, query: str, conversation_ids: Sequence[str]) -> set[str]:
        """Of these conversations those with visible turns or selected answers that hold it."""
        wanted: Document = {
            "workspace_id": self._workspace_id,
            "conversation_id": {"$in": list(conversation_ids)},
            "live": True,
            "folded": {"$regex": re.escape(query)},
        }
        turns = self._database["turns"]
        visible = {**wanted, "is_visible": True}
        said = turns.find(visible, {"conversation_id": 1}, session=self._session)
        ids = {each["conversation_id"] for each in await said.to_list()}
        answers = self._database["variants"].find(
            wanted, {"conversation_id": 1, "number": 1}, session=self._session
        )
        async for each in answers:
            if each["conversation_id"] not in ids:
                key = {name: value for name, value in each["_id"].items() if name != "number"}
                is_read = _at(key) | {"is_visible": True, "active_variant": each["number"]}
                if await turns.find_one(is_read, {"_id": 1}, session=self._session):
                    ids.add(each["conversation_id"])
        return ids

    def _of(self, conversation_id: str) -> Document:
        key = conversation_key(self._workspace_id, conversation_id)
        return {**key, "live": True}

    async def _variants(self, query: Document, order: Sequence[str]) -> list[VariantRecord]:
        sort = [(each, 1) for each in order]
        found = self._database["variants"].find(query, _UNREAD, session=self._session, sort=sort)
        return [record_of(VariantRecord, each) for each in await found.to_list()]

    async def _one(self, collection: str, key: Document | str) -> Document | None:
        return await self._first(collection, _at(key))

    async def _first(self, collection: str, query: Document) -> Document | None:
        return await self._database[collection].find_one(query, _UNREAD, session=self._session)

    async def _put(self, collection: str, documents: Sequence[Document]) -> None:
        writes = [ReplaceOne(_at(each["_id"]), each, upsert=True) for each in documents]
        if writes:
            await self._database[collection].bulk_write(writes, session=self._session)


def _at(key: Document | str) -> Document:
    """The query for an `_id`: those that name a conversation name it twice, to find the shard."""
    if isinstance(key, str):
        return {"_id": key}
    return {"_id": key, **{name: key[name] for name in ("workspace_id", "conversation_id")}}
