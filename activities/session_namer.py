"""`SessionNamer`: names saved conversations in the background, for an application's task group."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from pydantic_ai.models import Model

from activities.naming import NamingResult, generate_name, is_name_due, naming_prompt
from stores.errors import ConversationConflict
from stores.saved_conversations import ConversationSummary, SavedConversation, spoken_text

logger = logging.getLogger(__name__)

QUEUE_LENGTH = 10
"""Conversations that wait for a name; more are passed over: the next turn submits them again."""


class NamedStore(Protocol):
    """What the namer needs of a store; `SqliteConversationStore` has it."""

    async def get(self, *, conversation_id: str) -> SavedConversation:
        """The conversation with its messages."""
        ...

    async def name(
        self,
        *,
        source: ConversationSummary,
        title: str,
        subtitle: str,
        tags: list[str],
        tokens: int,
    ) -> ConversationSummary:
        """Keep a generated name, or refuse it as stale."""
        ...


class SessionNamer:
    """Names one conversation at a time; what fails is logged at debug level and changes nothing.

    Run `run` in a task, and end that task before the model's client or the store is closed.
    """

    def __init__(
        self,
        *,
        store: NamedStore,
        model: Model | str,
        generate: Callable[..., Awaitable[NamingResult]] = generate_name,
    ) -> None:
        self._store = store
        self._model = model
        self._generate = generate
        self._waiting: dict[str, None] = {}
        self._has_work = asyncio.Event()

    def submit(self, conversation_id: str) -> bool:
        """Ask for a name; whether the conversation waits for one now."""
        if conversation_id not in self._waiting and len(self._waiting) >= QUEUE_LENGTH:
            return False
        self._waiting[conversation_id] = None
        self._has_work.set()
        return True

    def backfill(self, entries: Iterable[ConversationSummary]) -> None:
        """Ask for names of the newest that need one, of ten at most."""
        newest = sorted(entries, key=lambda each: each.updated_at, reverse=True)[:QUEUE_LENGTH]
        for each in newest:
            if self.needed(each):
                self.submit(each.id)

    @staticmethod
    def needed(entry: ConversationSummary) -> bool:
        """Whether a name is due: none yet, or 16 revisions after a generated one."""
        return is_name_due(
            is_manual=entry.title_source == "user",
            naming_version=entry.naming_version,
            revision=entry.revision,
            named_revision=entry.named_revision,
        )

    async def run(self) -> None:
        """Name what was submitted, one after the other, until this is cancelled."""
        while True:
            await self._has_work.wait()
            conversation_id = next(iter(self._waiting))
            del self._waiting[conversation_id]
            if not self._waiting:
                self._has_work.clear()
            try:
                await self.name(conversation_id=conversation_id)
            except Exception:
                logger.debug("No name for conversation %r", conversation_id, exc_info=True)

    async def name(self, *, conversation_id: str) -> bool:
        """Name a conversation now; whether it has a new name.

        Raises:
            StoreError: it cannot be read. Other errors are the model's.
        """
        saved = await self._store.get(conversation_id=conversation_id)
        entry = saved.summary
        if not self.needed(entry):
            return False
        title = entry.title if entry.title_source != "fallback" else ""
        prompt = naming_prompt(title, entry.subtitle, "\n".join(spoken_text(saved.messages)))
        made = await self._generate(model=self._model, prompt=prompt)
        try:
            await self._store.name(
                source=entry,
                title=made.name.title,
                subtitle=made.name.subtitle,
                tags=made.name.tags,
                tokens=made.tokens,
            )
        except ConversationConflict:
            return False
        return True
