"""Conversations: heads, and with `TurnStore` everything that is kept of them."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from datetime import datetime

from stores.access import AccessStore
from stores.conversation_records import (
    ArchivedFilter,
    ConversationRecord,
    ConversationSpec,
    RemovedConversation,
    TitleSource,
    TurnRecord,
)
from stores.conversation_rows import ConversationRows, get_head, open_head, with_variants
from stores.errors import (
    ConversationClosedError,
    ConversationConflict,
    ConversationNotFoundError,
    TurnNotFoundError,
    TurnStateError,
)
from stores.identifiers import check_identifier
from stores.public_ids import new_public_id
from stores.turns import TurnStore

FORK_BATCH = 200
"""Turns that are inherited in one transaction; the head comes with the last of them."""


@dataclass(frozen=True, kw_only=True)
class ConversationName:
    """What a conversation is called."""

    title: str
    subtitle: str = ""
    tags: tuple[str, ...] = ()


class ConversationStore(TurnStore):
    """Conversations of one workspace; an object sees no other workspace.

    Every operation is one transaction and may be repeated. What it refuses it refuses by a
    `ConversationError`, never retryable; `StoreUnavailableError` (retryable) is an outage.
    """

    @property
    @abstractmethod
    def workspace_id(self) -> str:
        """The workspace that this object is bound to."""

    @property
    @abstractmethod
    def access(self) -> AccessStore:
        """Who may read conversations, of all workspaces."""

    @abstractmethod
    async def delete(self, conversation_id: str, *, now: datetime) -> RemovedConversation:
        """Remove a conversation, its runs and what else nothing refers to; its id stays taken.

        Turns that forks have inherited stay for them. Repeats: quiet, and removes what is left.

        Raises:
            ConversationNotFoundError: this workspace never had it. Not retryable.
        """

    @abstractmethod
    async def delete_turn(
        self, conversation_id: str, position: int, *, now: datetime
    ) -> RemovedConversation:
        """Remove what was said at a position; a tombstone stays there. Forks lose it, too.

        Repeats: quiet, and removes what is left. See `bury_turn` for what it refuses.
        """

    async def open(
        self, conversation_id: str, spec: ConversationSpec | None, *, now: datetime
    ) -> ConversationRecord:
        """The conversation; one that does not exist is begun where there is a `spec`.

        Raises:
            InvalidIdentifierError: the id is malformed.
            ConversationNotFoundError: there is none and no spec.
            ConversationClosedError: it was closed or deleted.
            ConversationConflict: it is held with another agent.
        """
        check_identifier("conversation_id", conversation_id)

        async def work(rows: ConversationRows) -> ConversationRecord:
            found = await rows.find_conversation(conversation_id)
            if found is None and spec is not None:
                return await begin_conversation(rows, conversation_id, spec, now)
            head = await open_head(rows, conversation_id)
            if spec is not None and spec.agent != head.agent:
                problem = (
                    f"it is held with agent {head.agent!r}, not {spec.agent!r}; name that one, or "
                    "begin another conversation"
                )
                raise ConversationConflict(conversation_id, problem)
            return head

        return await self.transact(f"open conversation {conversation_id!r}", work)

    async def find(self, conversation_id: str) -> ConversationRecord | None:
        """The head; `None` when this workspace has none, or it was deleted."""

        async def work(rows: ConversationRows) -> ConversationRecord | None:
            head = await rows.find_conversation(conversation_id)
            return None if head is None or head.state == "deleted" else head

        return await self.read(f"read conversation {conversation_id!r}", work)

    async def workspace_public_id(self, *, now: datetime) -> str:
        """The workspace's public id, made now if it has none."""

        async def work(rows: ConversationRows) -> str:
            return await _workspace_public_id(rows, now)

        return await self.transact("name the workspace", work)

    async def listing(
        self,
        query: str = "",
        *,
        archived: ArchivedFilter = "exclude",
        limit: int = 50,
        offset: int = 0,
    ) -> list[ConversationRecord]:
        """Heads without turns, newest activity first; deleted ones are left out.

        Args:
            query: case-folded text that name, tags, a prompt, a steer or a reply must hold. It is
                looked for in one conversation after the other, newest first, until the page is
                full: so a rare text costs what the workspace has.
            archived: whether archived ones are shown.
            limit: 1 to 1000.
            offset: how many are passed over.

        Raises:
            ValueError: limit or offset is out of bounds.
        """
        if not 1 <= limit <= 1000 or offset < 0:  # noqa: PLR2004 - as in the docstring
            message = f"limit {limit} is not between 1 and 1000, or offset {offset} is below 0"
            raise ValueError(message)

        async def work(rows: ConversationRows) -> list[ConversationRecord]:
            return await rows.list_conversations(
                query.casefold(), archived=archived, limit=limit, offset=offset
            )

        return await self.read("list conversations", work)

    async def name(
        self,
        conversation_id: str,
        name: ConversationName,
        *,
        source: TitleSource,
        seen: ConversationRecord | None = None,
        tokens: int = 0,
    ) -> ConversationRecord:
        """Name the conversation; the time of its last activity stays.

        Args:
            conversation_id: of this workspace.
            name: what it is to be called.
            source: `manual` names always count, `generated` ones only where nothing newer is there.
            seen: the head that a generated name was made from.
            tokens: what the name cost; counted also where it is refused.

        Raises:
            ConversationNotFoundError: there is none.
            ConversationConflict: the name is manual or newer, or the content changed since.
        """
        mask = self._redaction.text
        name = ConversationName(
            title=mask(name.title), subtitle=mask(name.subtitle), tags=tuple(map(mask, name.tags))
        )

        async def work(rows: ConversationRows) -> tuple[ConversationRecord, bool]:
            head = await get_head(rows, conversation_id)
            head = replace(head, naming_tokens=head.naming_tokens + tokens)
            is_stale = source == "generated" and _is_newer(head, seen)
            if not is_stale:
                head = replace(
                    head,
                    title=name.title,
                    subtitle=name.subtitle,
                    tags=name.tags,
                    title_source=source,
                    naming_version=head.naming_version + 1,
                    named_revision=head.revision,
                )
            await rows.put_conversation(head)
            return head, is_stale

        head, is_stale = await self.transact(f"name conversation {conversation_id!r}", work)
        if is_stale:
            problem = "it has a manual or newer name, or went on since the name was made"
            raise ConversationConflict(conversation_id, problem)
        return head

    async def set_archived(self, conversation_id: str, *, is_archived: bool) -> ConversationRecord:
        """Put the conversation away, or take it out again. May be repeated."""

        async def work(rows: ConversationRows) -> ConversationRecord:
            head = await get_head(rows, conversation_id)
            changed = replace(head, is_archived=is_archived)
            await rows.put_conversation(changed)
            return changed

        return await self.transact(f"archive conversation {conversation_id!r}", work)

    async def close(self, conversation_id: str, *, now: datetime) -> ConversationRecord:
        """End the conversation: it is read and forked, and takes nothing more. May be repeated."""

        async def work(rows: ConversationRows) -> ConversationRecord:
            head = await get_head(rows, conversation_id)
            changed = replace(head, state="closed", updated_at=max(now, head.updated_at))
            await rows.put_conversation(changed)
            return changed

        return await self.transact(f"close conversation {conversation_id!r}", work)

    async def fork(
        self, conversation_id: str, *, at_position: int, into: str, now: datetime
    ) -> ConversationRecord:
        """A new conversation that inherits the turns up to a position by reference.

        Repeats: the same fork again gives the conversation that it made.

        Raises:
            TurnNotFoundError: no such turn. TurnStateError: that turn, or one before, is running.
            ConversationConflict: `into` is another conversation. InvalidIdentifierError.
        """
        check_identifier("conversation_id", into)
        begin = 0
        while True:  # ends: with the batch that holds the last turn
            end = min(begin + FORK_BATCH, at_position + 1)

            async def work(
                rows: ConversationRows, begin: int = begin, end: int = end
            ) -> ConversationRecord | None:
                batch = _Batch(conversation_id, into, at_position, range(begin, end))
                return await _inherit(rows, batch, now)

            forked = await self.transact(f"fork conversation {conversation_id!r}", work)
            if forked is not None:
                return forked
            begin = end


def buried(head: ConversationRecord, now: datetime) -> ConversationRecord:
    """What stays of a deleted conversation: its ids, and no word of it."""
    return replace(
        head,
        state="deleted",
        title="",
        subtitle="",
        tags=(),
        principal=None,
        settings="{}",
        revision=head.revision + 1,
        updated_at=max(now, head.updated_at),
    )


def _is_newer(head: ConversationRecord, seen: ConversationRecord | None) -> bool:
    return head.title_source == "manual" or (
        seen is None or (head.revision, head.naming_version) != (seen.revision, seen.naming_version)
    )


async def begin_conversation(
    rows: ConversationRows, conversation_id: str, spec: ConversationSpec, now: datetime
) -> ConversationRecord:
    """A conversation without turns, and the workspace where it is the first one."""
    await _workspace_public_id(rows, now)
    head = ConversationRecord(
        conversation_id=conversation_id,
        workspace_id=rows.workspace_id,
        public_id=new_public_id(now),
        agent=spec.agent,
        kind=spec.kind,
        max_turns=spec.max_turns,
        max_tokens=spec.max_tokens,
        principal=spec.principal,
        settings=spec.settings,
        created_at=now,
        updated_at=now,
    )
    await rows.put_conversation(head)
    return head


async def _workspace_public_id(rows: ConversationRows, now: datetime) -> str:
    public_id = await rows.find_workspace_id()
    if public_id is None:
        public_id = new_public_id(now)
        await rows.put_workspace_id(public_id)
    return public_id


@dataclass(frozen=True)
class _Batch:
    source_id: str
    into: str
    at_position: int
    positions: range


async def _inherit(
    rows: ConversationRows, batch: _Batch, now: datetime
) -> ConversationRecord | None:
    """Inherit one batch; the head of the fork with the last one, `None` before."""
    source_id, into, at_position = batch.source_id, batch.into, batch.at_position
    positions = batch.positions
    source = await rows.find_conversation(source_id)
    if source is None or source.state == "deleted":
        problem = "this workspace has no such conversation"
        raise ConversationNotFoundError(source_id, problem)
    existing = await rows.find_conversation(into)
    if existing is not None:
        if (existing.forked_from, existing.forked_at) != (source_id, at_position):
            problem = f"a fork cannot have the id {into!r}: it is another conversation's"
            raise ConversationConflict(source_id, problem)
        if existing.state == "deleted":
            raise ConversationClosedError(into, "it was deleted; fork under another id")
        return existing
    if not 0 <= at_position < source.turn_count:
        problem = f"there is no turn {at_position} to fork at; it has {source.turn_count}"
        raise TurnNotFoundError(source_id, problem)
    await _refuse_running(rows, source_id, at_position)
    turns = await rows.list_turns(
        source_id,
        after=positions.start - 1,
        before=positions.stop,
        limit=len(positions),
        newest_first=False,
    )
    inherited = [
        _reference(turn.record, into) for turn in await with_variants(rows, source_id, turns)
    ]
    await rows.put_turns(inherited)
    if positions.stop <= at_position:
        return None
    head = replace(
        source,
        conversation_id=into,
        public_id=new_public_id(now),
        created_at=now,
        updated_at=now,
        state="open",
        is_archived=False,
        revision=0,
        naming_version=0,
        named_revision=0,
        naming_tokens=0,
        path_revision=source.path_revision + 1,
        turn_count=at_position + 1,
        order_count=0,
        last_turn_public_id=inherited[-1].public_id,
        forked_from=source_id,
        forked_at=at_position,
    )
    await rows.put_conversation(head)
    return head


async def _refuse_running(rows: ConversationRows, source_id: str, at_position: int) -> None:
    for each in await rows.list_unfinished(source_id):
        if each.position <= at_position:
            problem = f"turn {each.position} is running; fork at an earlier one, or wait for it"
            raise TurnStateError(source_id, problem)


def _reference(turn: TurnRecord, into: str) -> TurnRecord:
    return replace(
        turn,
        conversation_id=into,
        prompt="",
        steers=(),
        source_conversation_id=turn.conversation_id,
        source_variant_count=turn.variant_count,
    )
