"""Conversations in this process's memory: the verified fake."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from stores.conversation_records import (
    UNFINISHED,
    ArchivedFilter,
    ConversationRecord,
    MessageReceipt,
    RemovedConversation,
    TurnRecord,
    VariantRecord,
)
from stores.conversation_rows import ConversationRows
from stores.conversations import ConversationStore, buried
from stores.errors import ConversationNotFoundError
from stores.keyword.scanning import ScanningKeywords
from stores.memory_access import AccessTables, InMemoryAccess
from stores.redaction import NO_REDACTION, Redaction

Result = TypeVar("Result")


@dataclass
class ConversationTables:
    """The rows of all workspaces, by workspace and key; shared by their objects."""

    workspaces: dict[str, str] = field(default_factory=dict[str, str])
    conversations: dict[tuple[str, str], ConversationRecord] = field(
        default_factory=dict[tuple[str, str], ConversationRecord]
    )
    turns: dict[tuple[str, str, int], TurnRecord] = field(
        default_factory=dict[tuple[str, str, int], TurnRecord]
    )
    variants: dict[tuple[str, str, int, int], VariantRecord] = field(
        default_factory=dict[tuple[str, str, int, int], VariantRecord]
    )
    receipts: dict[tuple[str, str, str], MessageReceipt] = field(
        default_factory=dict[tuple[str, str, str], MessageReceipt]
    )
    access: AccessTables = field(default_factory=AccessTables)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    keywords: ScanningKeywords = field(init=False)

    def __post_init__(self) -> None:
        """Let keyword search read these rows."""
        self.keywords = ScanningKeywords(
            conversations_of=lambda each: InMemoryConversations(self, workspace_id=each)
        )

    def copied(self) -> "ConversationTables":
        """The same rows, for a transaction to change."""
        tables = copy(self)
        for name in ("workspaces", "conversations", "turns", "variants", "receipts"):
            setattr(tables, name, dict(getattr(self, name)))
        return tables

    def take(self, changed: "ConversationTables") -> None:
        """Take what a transaction has changed."""
        for name in ("workspaces", "conversations", "turns", "variants", "receipts"):
            setattr(self, name, getattr(changed, name))


class InMemoryConversations(ConversationStore):
    """`ConversationStore` in memory; one transaction at a time."""

    def __init__(
        self,
        tables: ConversationTables,
        *,
        workspace_id: str,
        redaction: Redaction = NO_REDACTION,
    ) -> None:
        self._tables = tables
        self._workspace_id = workspace_id
        self._redaction = redaction

    @property
    def workspace_id(self) -> str:
        """See `ConversationStore.workspace_id`."""
        return self._workspace_id

    @property
    def access(self) -> InMemoryAccess:
        """See `ConversationStore.access`."""
        return InMemoryAccess(self._tables.access, lambda: self._tables.workspaces)

    async def transact(
        self,
        attempt: str,  # noqa: ARG002 - nothing fails here
        work: Callable[[ConversationRows], Awaitable[Result]],
    ) -> Result:
        """See `TurnStore.transact`."""
        async with self._tables.lock:
            changed = self._tables.copied()
            result = await work(_Rows(changed, self._workspace_id))
            self._tables.take(changed)
            return result

    async def delete(self, conversation_id: str, *, now: datetime) -> RemovedConversation:
        """See `ConversationStore.delete`; runs are not kept here and stay where they are."""
        tables = self._tables
        key = (self._workspace_id, conversation_id)
        head = tables.conversations.get(key)
        if head is None:
            raise ConversationNotFoundError(conversation_id, "this workspace never had it")
        inherited = {
            each.position
            for each in tables.turns.values()
            if (each.workspace_id, each.source_conversation_id) == key
        }
        counts: dict[str, int] = {}
        for name, rows in (("turns", tables.turns), ("variants", tables.variants)):
            gone = [each for each in rows if each[:2] == key and each[2] not in inherited]
            for each in gone:
                del rows[each]  # type: ignore[arg-type]
            counts[name] = len(gone)
        said = [each for each in tables.receipts if each[:2] == key]
        for receipt in said:
            del tables.receipts[receipt]
        counts["conversation_messages"] = len(said)
        tables.conversations[key] = buried(head, now)
        return RemovedConversation(conversation_id=conversation_id, counts=counts)

    async def delete_turn(
        self, conversation_id: str, position: int, *, now: datetime
    ) -> RemovedConversation:
        """See `ConversationStore.delete_turn`; runs are not kept here and stay where they are."""
        await self.bury_turn(conversation_id, position, now=now)
        return RemovedConversation(conversation_id=conversation_id, counts={})


class _Rows:
    """`ConversationRows` over a copy of the tables."""

    def __init__(self, tables: ConversationTables, workspace_id: str) -> None:
        self._tables = tables
        self._workspace_id = workspace_id

    @property
    def workspace_id(self) -> str:
        return self._workspace_id

    async def find_workspace_id(self) -> str | None:
        return self._tables.workspaces.get(self._workspace_id)

    async def put_workspace_id(self, public_id: str) -> None:
        self._tables.workspaces[self._workspace_id] = public_id

    async def find_conversation(self, conversation_id: str) -> ConversationRecord | None:
        return self._tables.conversations.get((self._workspace_id, conversation_id))

    async def find_public_conversation(self, public_id: str) -> ConversationRecord | None:
        mine = (e for e in self._tables.conversations.values() if e.public_id == public_id)
        return next((e for e in mine if e.workspace_id == self._workspace_id), None)

    async def put_conversation(self, record: ConversationRecord) -> None:
        self._tables.conversations[self._workspace_id, record.conversation_id] = record

    async def find_turn(self, conversation_id: str, position: int) -> TurnRecord | None:
        return self._tables.turns.get((self._workspace_id, conversation_id, position))

    async def find_public_turn(self, conversation_id: str, public_id: str) -> TurnRecord | None:
        mine = (self._workspace_id, conversation_id)
        turns = (each for key, each in self._tables.turns.items() if key[:2] == mine)
        return next((each for each in turns if each.public_id == public_id), None)

    async def put_turns(self, turns: Sequence[TurnRecord]) -> None:
        for each in turns:
            self._tables.turns[self._workspace_id, each.conversation_id, each.position] = each

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
        found = [
            each
            for each in self._tables.turns.values()
            if (each.workspace_id, each.conversation_id) == (self._workspace_id, conversation_id)
            and (after is None or each.position > after)
            and (before is None or each.position < before)
            and (each.is_visible or not only_visible)
        ]
        return sorted(found, key=lambda each: each.position, reverse=newest_first)[:limit]

    async def list_variants(
        self, conversation_id: str, positions: Sequence[int]
    ) -> list[VariantRecord]:
        wanted = set(positions)
        found = [each for each in self._variants_of(conversation_id) if each.position in wanted]
        return sorted(found, key=lambda each: (each.position, each.number))

    async def put_variants(self, variants: Sequence[VariantRecord]) -> None:
        for each in variants:
            place = (each.conversation_id, each.position, each.number)
            self._tables.variants[self._workspace_id, *place] = each

    async def list_unfinished(self, conversation_id: str) -> list[VariantRecord]:
        found = [each for each in self._variants_of(conversation_id) if each.status in UNFINISHED]
        return sorted(found, key=lambda each: each.order)

    def _variants_of(self, conversation_id: str) -> list[VariantRecord]:
        mine = (self._workspace_id, conversation_id)
        return [
            each
            for each in self._tables.variants.values()
            if (each.workspace_id, each.conversation_id) == mine
        ]

    async def find_receipt(self, conversation_id: str, message_id: str) -> MessageReceipt | None:
        return self._tables.receipts.get((self._workspace_id, conversation_id, message_id))

    async def put_receipt(self, receipt: MessageReceipt) -> None:
        place = (receipt.conversation_id, receipt.message_id)
        self._tables.receipts[self._workspace_id, *place] = receipt

    async def list_conversations(
        self, query: str, *, archived: ArchivedFilter, limit: int, offset: int
    ) -> list[ConversationRecord]:
        found = [
            each
            for each in self._tables.conversations.values()
            if each.workspace_id == self._workspace_id
            and each.state != "deleted"
            and (archived == "include" or each.is_archived == (archived == "only"))
            and query in self._folded(each)
        ]
        newest = sorted(found, key=lambda each: (each.updated_at, each.public_id), reverse=True)
        return newest[offset : offset + limit]

    def _folded(self, head: ConversationRecord) -> str:
        texts = [head.title, head.subtitle, *head.tags]
        for turn in self._tables.turns.values():
            if turn.conversation_id == head.conversation_id and turn.is_visible:
                texts += [turn.prompt, *turn.steers]
        for variant in self._variants_of(head.conversation_id):
            place = (self._workspace_id, head.conversation_id, variant.position)
            of = self._tables.turns.get(place)
            if of is not None and of.is_visible and of.active_variant == variant.number:
                texts.append(variant.content or "")
        return "\n".join(texts).casefold()
