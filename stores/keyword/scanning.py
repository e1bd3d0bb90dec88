"""Keyword search without an index: every text that may be read is read for each page.

It is the specification that implementations with an index are compared with.
"""

import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from stores.conversation_records import ConversationRecord, Turn
from stores.conversations import ConversationStore
from stores.keyword.cursors import CursorSealer, Place
from stores.keyword.excerpts import excerpt
from stores.keyword.fields import FieldText, fields_of, is_searched
from stores.keyword.lexer import lexemes
from stores.keyword.queries import (
    DEFAULT_MATCHES,
    ConversationFilter,
    KeywordMatch,
    KeywordPage,
    KeywordQuery,
    check_page_size,
)

_HEADS_AT_ONCE = 1000
_TURNS_AT_ONCE = 1_000


@dataclass(frozen=True, kw_only=True)
class ScanningKeywords:
    """`KeywordReads` over conversations that are read whole. See the module.

    Args:
        conversations_of: the conversations of a workspace.
        key: secret of the cursors.
    """

    conversations_of: Callable[[str], ConversationStore]
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    async def search_history(
        self,
        workspace_id: str,
        query: KeywordQuery,
        allowed: ConversationFilter,
        *,
        page_size: int = DEFAULT_MATCHES,
        after: str | None = None,
    ) -> KeywordPage:
        """See `KeywordReads.search_history`."""
        check_page_size(page_size)
        sealer = CursorSealer(key=self.key, workspace_id=workspace_id, query=query, allowed=allowed)
        behind = None if after is None else sealer.open(after)
        found: list[tuple[Place, KeywordMatch]] = []
        if query.lexemes:
            store = self.conversations_of(workspace_id)
            async for place, match in _matches(store, query, allowed):
                if behind is None or place < behind:
                    found.append((place, match))
        found.sort(key=lambda each: each[0], reverse=True)
        shown = found[:page_size]
        has_more = len(found) > page_size
        return KeywordPage(
            matches=tuple(match for _, match in shown),
            next_after=sealer.seal(shown[-1][0]) if has_more else None,
        )


async def _matches(
    store: ConversationStore, query: KeywordQuery, allowed: ConversationFilter
) -> AsyncIterator[tuple[Place, KeywordMatch]]:
    wanted = set(query.lexemes)
    async for head in _heads(store):
        if not is_searched(head, query, allowed):
            continue
        if wanted <= lexemes(head.title):
            place = Place(head.public_id, head.public_id, "title")
            yield place, match_of(head, None, FieldText("title", head.title), query)
        async for turn in _turns(store, head):
            for each in fields_of(turn):
                if wanted <= lexemes(each.text):
                    place = Place(turn.record.public_id, head.public_id, each.field)
                    yield place, match_of(head, turn, each, query)


async def _heads(store: ConversationStore) -> AsyncIterator[ConversationRecord]:
    offset = 0
    while heads := await store.listing(archived="include", limit=_HEADS_AT_ONCE, offset=offset):
        offset += len(heads)
        for each in heads:
            yield each


async def _turns(store: ConversationStore, head: ConversationRecord) -> AsyncIterator[Turn]:
    after = -1
    while turns := await store.list_turns(head.conversation_id, after=after, limit=_TURNS_AT_ONCE):
        after = turns[-1].record.position
        for each in turns:
            yield each


def match_of(
    head: ConversationRecord, turn: Turn | None, text: FieldText, query: KeywordQuery
) -> KeywordMatch:
    """The match of a field; without a turn it is the title."""
    shown, truncated = excerpt(text.text, query.lexemes)
    active = turn.active if turn else None
    return KeywordMatch(
        conversation_id=head.conversation_id,
        conversation_public_id=head.public_id,
        title=head.title,
        turn_public_id=turn.record.public_id if turn else None,
        variant_public_id=active.public_id if active else None,
        position=turn.record.position if turn else None,
        field=text.field,
        inherited=turn.record.is_inherited if turn else False,
        excerpt=shown,
        truncated=truncated,
    )
