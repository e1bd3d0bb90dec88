"""Conversations that a random generator plays, and a search that reads all of them."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from stores.conversation_records import (
    ConversationRecord,
    ConversationSpec,
    SubmittedMessage,
    TurnText,
)
from stores.conversations import ConversationName, ConversationStore
from stores.errors import ConversationError
from stores.keyword.queries import (
    ConversationFilter,
    KeywordMatch,
    KeywordQuery,
    KeywordReads,
)

WORDS = [
    *("run", "running", "Runs", "connection", "connected", "the", "of", "error_code", "E1234"),
    *("人工智能", "研究人工智能", "北京大学", "x_y", "5e3abc", "happy", "happiness", "naïve"),
]
QUERIES = [
    *("run", "running runs", "connect", "the of", "error code", "人工智能", "大学", "智能 run"),
    *("happiness", "abc", "5e3", "e1234 connection", "naïve", "missing", "run connection happy"),
]
OWNERS = ("alice", "bob", None)


@dataclass(kw_only=True)
class KeywordPlayer:
    """Acts on the conversations of one workspace.

    Args:
        store: of the workspace.
        dice: decides everything.
    """

    store: ConversationStore
    dice: random.Random
    ids: list[str] = field(default_factory=list[str])
    ticks: int = 0

    def now(self) -> datetime:
        self.ticks += self.dice.randint(0, 3)
        return datetime(2026, 3, 1, tzinfo=UTC) + timedelta(milliseconds=self.ticks)

    def words(self) -> str:
        return " ".join(self.dice.choices(WORDS, k=self.dice.randint(0, 4)))

    def new_id(self) -> str:
        self.ids.append(f"talk-{uuid4().hex}")
        return self.ids[-1]

    async def act(self) -> None:
        """One act; what the conversation's state forbids is as nothing."""
        if not self.ids or self.dice.random() < 0.12:
            await self.begin()
        conversation = self.dice.choice(self.ids)
        acts: list[Callable[[str], object]] = [
            *[self.say] * 6,
            *[self.choose] * 2,
            *[self.show] * 2,
            self.fork,
            self.fork,
            self.rename,
            self.archive,
        ]
        if self.dice.random() < 0.03:
            acts = [self.delete]
        try:
            await self.dice.choice(acts)(conversation)  # type: ignore[misc]
        except ConversationError:
            return

    async def begin(self) -> None:
        kinds = self.dice.choices(("main", "side", "subagent"), (6, 1, 1))
        spec = ConversationSpec(
            agent="conversation", kind=kinds[0], principal=self.dice.choice(OWNERS)
        )
        await self.store.open(self.new_id(), spec, now=self.now())

    async def say(self, conversation: str) -> None:
        """A turn that gets an answer, or is left running, failed, steered."""
        said = SubmittedMessage(message_id=uuid4().hex, text=self.words())
        admission = await self.store.admit(conversation, said, now=self.now())
        await self.answer(conversation, admission.turn.position, 1)

    async def answer(self, conversation: str, position: int, number: int) -> None:
        place = conversation, position, number
        dice = self.dice.random()
        if dice < 0.1:
            return
        await self.store.begin_variant(*place, now=self.now())
        steers: tuple[str, ...] = ()
        if self.dice.random() < 0.3:
            steer = SubmittedMessage(message_id=uuid4().hex, text=self.words())
            await self.store.add_steer(*place, steer, now=self.now())
            steers = (steer.text,)
        if dice < 0.2:
            return
        status = "failed" if dice < 0.3 else "completed"
        text = TurnText(prompt="", steers=steers, content=self.words())
        await self.store.finish_variant(*place, status=status, text=text, now=self.now())

    async def choose(self, conversation: str) -> None:
        """Another answer, which may be selected; or an older one is."""
        position, number = self.dice.randint(0, 3), self.dice.randint(1, 3)
        if self.dice.random() < 0.6:
            asked = SubmittedMessage(message_id=uuid4().hex, text="")
            admission = await self.store.regenerate(conversation, position, asked, now=self.now())
            number = admission.variant.number
            await self.answer(conversation, position, number)
        await self.store.select_variant(conversation, position, number, now=self.now())

    async def show(self, conversation: str) -> None:
        shown = self.dice.choice((True, False))
        name = self.dice.choice(("is_hidden", "is_concealed"))
        change = {name: shown}
        position = self.dice.randint(0, 4)
        await self.store.set_visibility(conversation, position, now=self.now(), **change)

    async def fork(self, conversation: str) -> None:
        at_position = self.dice.randint(0, 4)
        into = self.new_id()
        try:
            await self.store.fork(conversation, at_position=at_position, into=into, now=self.now())
        except ConversationError:
            self.ids.remove(into)
            raise

    async def rename(self, conversation: str) -> None:
        name = ConversationName(title=self.words())
        await self.store.name(conversation, name, source="manual")

    async def archive(self, conversation: str) -> None:
        await self.store.set_archived(conversation, is_archived=self.dice.random() < 0.6)

    async def delete(self, conversation: str) -> None:
        await self.store.delete(conversation, now=self.now())

    def query(self) -> KeywordQuery:
        return KeywordQuery(
            text=self.dice.choice(QUERIES),
            archived=self.dice.choice(("exclude", "include", "only")),
            include_auxiliary=self.dice.random() < 0.5,
        )

    def allowed(self) -> ConversationFilter:
        """Everything, or some conversations, or those of an owner, or both."""
        if self.dice.random() < 0.4:
            return ConversationFilter(principal="reader", everything=True)
        some = self.dice.sample(self.ids, self.dice.randint(0, len(self.ids)))
        owners = self.dice.sample(["alice", "bob"], self.dice.randint(0, 1))
        return ConversationFilter(
            principal="reader", conversation_ids=frozenset(some), owners=frozenset(owners)
        )


@dataclass(frozen=True, kw_only=True)
class Paging:
    """A walk through all pages of one search.

    Args:
        reads: what is asked.
        workspace_id: of the search.
        query: of the search.
    """

    reads: KeywordReads
    workspace_id: str
    query: KeywordQuery

    async def all(self, allowed: ConversationFilter, page_size: int) -> list[KeywordMatch]:
        """Every match, page by page."""
        found: list[KeywordMatch] = []
        after: str | None = None
        while True:
            page = await self.reads.search_history(
                self.workspace_id, self.query, allowed, page_size=page_size, after=after
            )
            assert len(page.matches) <= page_size
            found += page.matches
            after = page.next_after
            if after is None:
                return found


async def heads(store: ConversationStore) -> list[ConversationRecord]:
    return await store.listing(archived="include", limit=1000)
