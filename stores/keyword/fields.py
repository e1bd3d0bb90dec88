"""Which texts of a conversation are searched, and under which field names."""

from dataclasses import dataclass

from stores.conversation_records import (
    ArchivedFilter,
    ConversationRecord,
    Turn,
)
from stores.keyword.queries import ConversationFilter, KeywordField, KeywordQuery

TITLE_POSITION = -1
"""Where the title stands among the positions of turns."""


@dataclass(frozen=True, slots=True)
class FieldText:
    """A searchable field with its whole text, which is not empty."""

    field: KeywordField
    text: str


def fields_of(turn: Turn) -> list[FieldText]:
    """What a turn shows: the words of its selected answer; nothing where it is not shown at all."""
    record, active = turn.record, turn.active
    if not record.is_visible or record.kind != "message":
        return []
    content = active.content if active else None
    found = (
        FieldText("prompt", record.prompt),
        FieldText("steers", "\n".join(record.steers)),
        FieldText("content", content or ""),
    )
    return [each for each in found if each.text]


def is_searched(head: ConversationRecord, query: KeywordQuery, allowed: ConversationFilter) -> bool:
    """Whether a search looks into a conversation at all."""
    return (
        head.state != "deleted"
        and is_archive_wanted(query.archived, is_archived=head.is_archived)
        and (query.include_auxiliary or head.kind == "main")
        and allowed.allows(head.conversation_id, head.principal)
    )


def is_archive_wanted(wanted: ArchivedFilter, *, is_archived: bool) -> bool:
    """Whether a conversation is among those that are asked for."""
    return wanted == "include" or is_archived == (wanted == "only")
