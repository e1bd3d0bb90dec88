"""Digests: what makes two operations, or two messages, the same.

The forms are frozen (a test compares literal values): rows keep them for years.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from stores.operations import (
    AnnotateToolEffect,
    AppendEvent,
    FinishToolEffect,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
    Write,
)

DIGEST_SCHEME = 1
"""Number of the form below. Rows of another scheme are compared by key only."""

ARGUMENTS_SUMMARY_LENGTH = 200
"""Characters of a call's arguments that the ledger shows: enough to recognise a call, too little
to become a second copy of the conversation."""

_STAMPS = ("timestamp", "run_id", "conversation_id", "instructions")
"""Fields that the core sets on a message; they differ when a step is executed again."""


def message_text(message: ModelMessage) -> str:
    """The message as exact JSON text: what is stored, and what is loaded again.

    Raises:
        PydanticSerializationError: a part holds a value that JSON cannot hold.
    """
    return ModelMessagesTypeAdapter.dump_json([message])[1:-1].decode()


def load_message(text: str) -> ModelMessage:
    """The message that `message_text` wrote."""
    return ModelMessagesTypeAdapter.validate_json(f"[{text}]")[0]


def load_messages(texts: Iterable[str]) -> list[ModelMessage]:
    """The messages that `message_text` wrote; one parse for all is much faster than one each."""
    return ModelMessagesTypeAdapter.validate_json(f"[{','.join(texts)}]")


def message_digest(workspace_id: str, text: str) -> str:
    """Address of a stored message: SHA-256 (hex) over its workspace and its exact JSON text."""
    return hashlib.sha256(f"{workspace_id}\x00{text}".encode()).hexdigest()


def arguments_digest(arguments: str) -> str:
    """SHA-256 (hex) over a call's arguments, with object keys in order where they are JSON."""
    try:
        canonical = _canonical(json.loads(arguments))
    except ValueError:
        canonical = arguments
    return hashlib.sha256(canonical.encode(errors="surrogatepass")).hexdigest()


def operation_digest(operation: Write) -> str:
    """SHA-256 (hex) over what an operation means.

    Left out is all that differs when the same step is executed again: times, the run's and the
    conversation's id, the sequence, stamps of the core on messages, generated ids of parts that
    answer no call, and the words of an error beyond its type.
    """
    return hashlib.sha256(_canonical(_meaning(operation)).encode()).hexdigest()


def history_digest(step_index: int, state: str, messages: Sequence[ModelMessage]) -> str:
    """SHA-256 (hex) over what a whole history means: for a snapshot that names no positions."""
    meanings = [message_meaning(message) for message in messages]
    meaning = _canonical(["save_history", step_index, state, meanings])
    return hashlib.sha256(meaning.encode()).hexdigest()


def commit_digest(operations: tuple[Write, ...], digests: tuple[str, ...]) -> str:
    """SHA-256 (hex) over a whole commit: kind, run, key and digest of each operation in order."""
    lines = [
        (operation.kind, operation.run_id, operation.key, digest)
        for operation, digest in zip(operations, digests, strict=True)
    ]
    return lines_digest(lines)


def lines_digest(lines: Sequence[tuple[str, str, str | None, str]]) -> str:
    """`commit_digest` of operations that are known by kind, run, key and digest."""
    return hashlib.sha256(_canonical(lines).encode()).hexdigest()


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _meaning(operation: Write) -> list[Any]:
    match operation:
        case RegisterRun():
            return ["register_run", operation.registration_id]
        case AppendEvent():
            return [
                "append_event",
                operation.event,
                operation.step_index,
                operation.call_index,
                operation.tool_call_id,
                operation.tool_name,
                operation.error_type or bool(operation.error),
            ]
        case SaveSnapshot():
            entries = [
                [entry.position, message_meaning(entry.message)] for entry in operation.entries
            ]
            ranges = [list(each) for each in operation.ranges]
            return ["save_snapshot", operation.step_index, operation.state, ranges, entries]
        case StartToolEffect():
            arguments = arguments_digest(operation.arguments) if operation.arguments else None
            return _start(operation.tool_call_id, operation.tool_name, operation.effect, arguments)
        case FinishToolEffect():
            error = operation.error_type or bool(operation.error)
            resolution = operation.resolution
            decided = [resolution.decision] if resolution else []
            return ["finish", operation.tool_call_id, operation.status, error, *decided]
        case AnnotateToolEffect():
            return ["annotate", operation.idempotency_key, operation.effect_summary]


def start_digest(
    tool_call_id: str, tool_name: str, effect: str | None, arguments: str | None
) -> str:
    """`operation_digest` of a start whose arguments are known by their digest alone."""
    meaning = _start(tool_call_id, tool_name, effect, arguments)
    return hashlib.sha256(_canonical(meaning).encode()).hexdigest()


def _start(
    tool_call_id: str, tool_name: str, effect: str | None, arguments: str | None
) -> list[Any]:
    return ["start", tool_call_id, tool_name, effect, arguments]


def message_meaning(message: ModelMessage) -> dict[str, Any]:
    """The message without what differs when the same step is executed again."""
    meaning = _stated(json.loads(message_text(message)))
    for stamp in _STAMPS:
        meaning.pop(stamp, None)
    parts = [_stated(part) for part in meaning["parts"]]
    for part in parts:
        part.pop("timestamp", None)
        if part["part_kind"] == "retry-prompt" and "tool_name" not in part:
            part.pop("tool_call_id", None)
    return {**meaning, "parts": parts}


def _stated(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that say something: a field that a newer core adds says nothing in older runs."""
    return {name: value for name, value in fields.items() if value is not None}
