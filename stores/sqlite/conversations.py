"""Saved conversations in one SQLite file, for applications without a server."""

import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from anyio import to_thread
from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from stores.errors import (
    ConversationConflict,
    ConversationNotFoundError,
    StoreConfigurationError,
)
from stores.identifiers import check_identifier
from stores.saved_conversations import (
    SCHEMA_VERSION,
    ConversationSummary,
    SavedConversation,
    spoken_text,
)
from stores.sqlite.connection import SqliteConnection
from stores.sqlite.tables import sortable

Result = TypeVar("Result")

_SUMMARY = TypeAdapter(ConversationSummary)

_TABLE = """CREATE TABLE IF NOT EXISTS saved_conversations (
    id TEXT PRIMARY KEY, updated_at TEXT NOT NULL, is_archived INTEGER NOT NULL,
    summary TEXT NOT NULL, folded TEXT NOT NULL, messages TEXT NOT NULL)"""
_OF_RUNS = (
    "events",
    "snapshots",
    "snapshot_idempotency_keys",
    "tool_effects",
    "positions",
    "runs",
)
"""Tables whose rows belong to a run, the runs last. Messages are shared and stay, as media do."""


class SqliteConversationStore:
    """Heads and messages in a file, beside the runs of `SqliteStepStore` where those use the same.

    The file is its owner's alone where the system knows owners. It is not encrypted, nothing in it
    expires, and a deletion is no secure erasure. It must not be shared between machines: that a
    conversation is in use is told by a process id.
    """

    def __init__(self, *, database: str | Path) -> None:
        """Bind the store; the file is made with its first use."""
        self._database = Path(database)
        self._connection = SqliteConnection(database=database, connection=None)

    async def save(
        self, *, summary: ConversationSummary, messages: Sequence[ModelMessage]
    ) -> ConversationSummary:
        """Save a conversation and give back its head as it is now.

        Raises:
            ConversationConflict: its revision is another one by now, it was deleted, or another
                process holds it. Not retryable.
            InvalidIdentifierError: its id is malformed.
        """
        check_identifier("conversation_id", summary.id)
        history = list(messages)
        text = ModelMessagesTypeAdapter.dump_json(history).decode()

        def work(cursor: sqlite3.Cursor) -> ConversationSummary:
            stored = _find(cursor, summary.id)
            _check_revision(summary, stored)
            head = _committed(summary, stored, message_count=len(history))
            _put(cursor, head, spoken_text(history), text)
            return head

        return await self._do("save a conversation", work)

    async def get(self, *, conversation_id: str) -> SavedConversation:
        """The conversation with its messages, media among them.

        Raises:
            ConversationNotFoundError: there is none. Not retryable.
        """

        def work(cursor: sqlite3.Cursor) -> SavedConversation:
            summary = _get(cursor, conversation_id)
            (text,) = cursor.execute(
                "SELECT messages FROM saved_conversations WHERE id = ?", (conversation_id,)
            ).fetchone()
            messages = ModelMessagesTypeAdapter.validate_json(text)
            return SavedConversation(summary=summary, messages=messages)

        return await self._do("read a conversation", work)

    async def listing(
        self, *, query: str = "", limit: int = 50, offset: int = 0, archived: bool | None = False
    ) -> list[ConversationSummary]:
        """Heads without messages, newest activity first.

        Args:
            query: case-folded text that the name, the tags, a prompt or a reply must hold.
            limit: most heads.
            offset: how many are passed over.
            archived: `None` shows both.
        """

        def work(cursor: sqlite3.Cursor) -> list[ConversationSummary]:
            found = cursor.execute(
                "SELECT summary FROM saved_conversations"
                " WHERE instr(folded, :query) > 0"
                " AND (:archived IS NULL OR is_archived = :archived)"
                " ORDER BY updated_at DESC, id DESC LIMIT :limit OFFSET :offset",
                {
                    "query": query.casefold(),
                    "archived": archived,
                    "limit": limit,
                    "offset": offset,
                },
            )
            return [_summary(row[0]) for row in found]

        return await self._do("list conversations", work)

    async def name(
        self,
        *,
        source: ConversationSummary,
        title: str,
        subtitle: str = "",
        tags: Sequence[str] = (),
        is_manual: bool = False,
        tokens: int = 0,
    ) -> ConversationSummary:
        """Name the conversation; the time of its activity stays.

        Args:
            source: the head that the name was made from.
            title: what it is called.
            subtitle: more of that.
            tags: words to find it by.
            is_manual: a person chose it: it always counts, and no generated one replaces it.
            tokens: what it cost; counted also where it is refused.

        Raises:
            ConversationConflict: content or name are newer, or a person named it. Not retryable.
            ConversationNotFoundError: there is none. Not retryable.
        """

        def work(cursor: sqlite3.Cursor) -> tuple[ConversationSummary, bool]:
            head = _get(cursor, source.id)
            head = replace(head, naming_tokens=head.naming_tokens + tokens)
            seen = (source.revision, source.naming_version)
            is_newer = (head.revision, head.naming_version) != seen or head.title_source == "user"
            if is_manual or not is_newer:
                head = replace(
                    head,
                    title=title,
                    subtitle=subtitle,
                    tags=tuple(tags),
                    title_source="user" if is_manual else "generated",
                    naming_version=head.naming_version + 1,
                    named_revision=head.revision,
                )
            _change(cursor, head)
            return head, is_newer and not is_manual

        head, is_refused = await self._do("name a conversation", work)
        if is_refused:
            problem = "it went on since the name was made, or has a newer or manual one"
            raise ConversationConflict(source.id, problem)
        return head

    async def set_archived(self, *, conversation_id: str, archived: bool) -> ConversationSummary:
        """Put the conversation away, or take it out again."""

        def work(cursor: sqlite3.Cursor) -> ConversationSummary:
            head = replace(_get(cursor, conversation_id), archived_at=_now() if archived else None)
            _change(cursor, head)
            return head

        return await self._do("archive a conversation", work)

    async def delete(self, *, source: ConversationSummary) -> None:
        """Remove the conversation and the runs of its id, in one transaction.

        Raises:
            ConversationConflict: it went on since, or another process holds it. Not retryable.
        """

        def work(cursor: sqlite3.Cursor) -> None:
            _check_revision(source, _find(cursor, source.id))
            cursor.execute("DELETE FROM saved_conversations WHERE id = ?", (source.id,))
            runs = "SELECT run_id FROM runs WHERE conversation_id = ?"
            for table in _OF_RUNS:
                cursor.execute(f"DELETE FROM {table} WHERE run_id IN ({runs})", (source.id,))  # noqa: S608 - names of ours

        await self._do("delete a conversation", work)

    async def aclose(self) -> None:
        """Close the file. Quiet a second time."""
        await to_thread.run_sync(self._connection.close)

    async def _do(self, attempt: str, work: Callable[[sqlite3.Cursor], Result]) -> Result:
        def run() -> Result:
            self._make_file()
            with self._connection.transaction(attempt, is_write=True) as cursor:
                cursor.execute(_TABLE)
                return work(cursor)

        return await to_thread.run_sync(run)

    def _make_file(self) -> None:
        """Make the file so that only its owner can read it; SQLite would ask the umask."""
        try:
            os.close(os.open(self._database, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except (FileExistsError, FileNotFoundError, PermissionError):
            return  # it is there, or SQLite says what is wrong


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - outside workflows


def _summary(text: str) -> ConversationSummary:
    version = json.loads(text).get("schema_version")
    if version != SCHEMA_VERSION:
        message = (
            f"a saved conversation has schema version {version!r}, and this version of Perdure "
            f"reads {SCHEMA_VERSION}; use the version that wrote it"
        )
        raise StoreConfigurationError(message)
    try:
        return _SUMMARY.validate_json(text)
    except ValidationError as error:
        message = f"the head of a saved conversation is damaged: {error}; restore it from a backup"
        raise StoreConfigurationError(message) from error


def _find(cursor: sqlite3.Cursor, conversation_id: str) -> ConversationSummary | None:
    found = cursor.execute(
        "SELECT summary FROM saved_conversations WHERE id = ?", (conversation_id,)
    ).fetchone()
    return None if found is None else _summary(found[0])


def _get(cursor: sqlite3.Cursor, conversation_id: str) -> ConversationSummary:
    head = _find(cursor, conversation_id)
    if head is None:
        raise ConversationNotFoundError(conversation_id, "there is no saved conversation of it")
    return head


def _check_revision(given: ConversationSummary, stored: ConversationSummary | None) -> None:
    revision = stored.revision if stored else 0
    if given.revision != revision:
        found = f"is at revision {revision}" if stored else "was deleted"
        problem = f"it {found}, and what was given is of revision {given.revision}; read it again"
        raise ConversationConflict(given.id, problem)
    if stored and stored.outcome == "running" and _is_elsewhere(stored.owner_pid):
        problem = f"process {stored.owner_pid} of this machine holds it; end that one first"
        raise ConversationConflict(given.id, problem)


def _is_elsewhere(pid: int | None) -> bool:
    """Whether another process of this id lives; one that got the id later counts, too."""
    if pid is None or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _committed(
    given: ConversationSummary, stored: ConversationSummary | None, *, message_count: int
) -> ConversationSummary:
    """The head to keep: content as given, name and archive as they are kept."""
    head = replace(
        given, revision=given.revision + 1, updated_at=_now(), message_count=message_count
    )
    if stored is None:
        return head
    return replace(
        head,
        created_at=stored.created_at,
        title=stored.title,
        subtitle=stored.subtitle,
        tags=stored.tags,
        title_source=stored.title_source,
        naming_version=stored.naming_version,
        named_revision=stored.named_revision,
        naming_tokens=stored.naming_tokens,
        archived_at=stored.archived_at,
    )


def _put(
    cursor: sqlite3.Cursor, head: ConversationSummary, said: Sequence[str], messages: str
) -> None:
    cursor.execute(
        "INSERT OR REPLACE INTO saved_conversations"
        " VALUES (:id, :updated_at, :is_archived, :summary, :folded, :messages)",
        {
            **_columns(head),
            "folded": _folded(head, said),
            "messages": messages,
        },
    )


def _change(cursor: sqlite3.Cursor, head: ConversationSummary) -> None:
    """Keep another head; the messages stay."""
    (text,) = cursor.execute(
        "SELECT messages FROM saved_conversations WHERE id = ?", (head.id,)
    ).fetchone()
    said = spoken_text(ModelMessagesTypeAdapter.validate_json(text))
    _put(cursor, head, said, text)


def _columns(head: ConversationSummary) -> dict[str, Any]:
    return {
        "id": head.id,
        "updated_at": sortable(head.updated_at),
        "is_archived": head.archived_at is not None,
        "summary": _SUMMARY.dump_json(head).decode(),
    }


def _folded(head: ConversationSummary, said: Sequence[str]) -> str:
    named = (head.title, head.subtitle, *head.tags, head.workspace, head.model or "")
    return "\n".join((*named, *said)).casefold()
