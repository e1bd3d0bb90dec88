"""What makes two saved messages the same one, and which messages are nobody's words.

A message is saved many times, and the core stamps it in between; a durable run reads it back as
another object each time. So histories are compared by what a message says. The form of the hash is
frozen (a test compares literal values): the search log keeps it for years.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import (
    CompactionPart,
    InstructionDeltaPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    SystemPromptPart,
)

from stores.digests import message_text

SUMMARY_MARKS = (
    "pydantic-ai-harness.compaction.summary.v1",
    "perdure.compaction.summary.v1",
)
"""Keys in a `CompactionPart`'s metadata that say: a compaction wrote this, in place of messages."""

LEGACY_SUMMARY_PREFIX = "Summary of previous conversation:\n\n"
"""How a summary began when it was still a system prompt, blank line included: a prompt that merely
opens with the same words is its author's."""

_STAMPS = ("timestamp", "run_id", "conversation_id", "instructions")
"""What the core sets on a message after it was first saved."""

_INSTRUCTION_KINDS = frozenset({"instruction-delta", "instruction-baseline"})
"""Parts that the core adds to a request after it was first saved."""


def message_hash(message: ModelMessage) -> str:
    """SHA-256 (hex) over what a message says, whatever the core has added since it was saved.

    Left out are its stamps and its instruction parts, and fields that say nothing, so that a field
    that a newer core adds does not make every message another one.
    """
    stated: dict[str, Any] = json.loads(message_text(message))
    parts = [each for each in stated.pop("parts") if each["part_kind"] not in _INSTRUCTION_KINDS]
    for stamp in _STAMPS:
        stated.pop(stamp, None)
    canonical = json.dumps(
        [_said(stated), [_said(each) for each in parts]], sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(canonical.encode()).hexdigest()


def _said(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def instruction_changes(message: ModelMessage) -> frozenset[str]:
    """The changes of instructions that a message carries, each as a short digest; mostly none."""
    if not isinstance(message, ModelRequest):
        return frozenset()
    changes = [each for each in message.parts if isinstance(each, InstructionDeltaPart)]
    texts = (ModelMessagesTypeAdapter.dump_json([ModelRequest(parts=[each])]) for each in changes)
    return frozenset(hashlib.sha256(each).hexdigest()[:16] for each in texts)


def without_summary(message: ModelMessage) -> ModelMessage | None:
    """The message without what a compaction wrote; `None` when nothing else is in it.

    A summary stands for messages that are searched themselves. One that an application wrote is
    content and stays.
    """
    if not isinstance(message, ModelRequest) or not any(map(_is_summary, message.parts)):
        return message
    kept: Sequence[ModelRequestPart] = [each for each in message.parts if not _is_summary(each)]
    return replace(message, parts=list(kept)) if kept else None


def _is_summary(part: ModelRequestPart) -> bool:
    if isinstance(part, SystemPromptPart):
        return part.content.startswith(LEGACY_SUMMARY_PREFIX)
    if not isinstance(part, CompactionPart):
        return False
    # A provider's own compaction, or a marked part without text, is not one that a summary made.
    is_ours = (part.id, part.provider_name, part.provider_details) == (None, None, None)
    marks = part.metadata or {}
    return is_ours and bool(part.content) and any(marks.get(each) is True for each in SUMMARY_MARKS)
