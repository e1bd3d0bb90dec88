"""The documents of pydantic-ai-harness's `MongoStepStore` (0.62 and before), read as records.

- `runs`: a run, its id as `_id`.
- `events`: an event; `seq`, counted over all runs, is its order.
- `snapshots`: a history; `seq` as above. `messages` is text: a JSON list of messages, or
  `{"message_refs": [...]}` with the `_id`s of the messages.
- `snapshot_messages`: a message's JSON text as `message`, its SHA-256 as `_id`.
- `tool_effects`: what is known of a tool call.

Times are ISO 8601 text. Large content may lie elsewhere: see `stores.mongo.harness_media`.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, ValidationError

from stores.identifiers import check_identifier
from stores.importing import DamagedDocumentError, Problem, SnapshotHead
from stores.mongo.documents import Document
from stores.records import (
    ContinuableSnapshot,
    EventKind,
    RunRecord,
    SnapshotState,
    StepEvent,
    ToolEffectRecord,
)

_RunId = Annotated[str, AfterValidator(partial(check_identifier, "run_id"))]
_ParentRunId = Annotated[str, AfterValidator(partial(check_identifier, "parent_run_id"))]
_ConversationId = Annotated[str, AfterValidator(partial(check_identifier, "conversation_id"))]


class _HarnessDocument(BaseModel):
    """Fields as the harness writes them; a field that is null is one that is missing."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    run_id: _RunId


class _WithLineage(_HarnessDocument):
    conversation_id: _ConversationId | None = None
    parent_run_id: _ParentRunId | None = None
    agent_name: str | None = None


class _RunDocument(_WithLineage):
    metadata: dict[str, str] = {}
    started_at: AwareDatetime
    registration_id: str | None = None


class _EventDocument(_WithLineage):
    kind: EventKind
    step_index: int
    timestamp: AwareDatetime
    tool_call_id: str | None = None
    tool_name: str | None = None
    error: str | None = None
    metadata: dict[str, str] = {}
    idempotency_key: str | None = None


class _SnapshotDocument(_WithLineage):
    step_index: int
    timestamp: AwareDatetime
    state: SnapshotState = "complete"
    idempotency_key: str | None = None


class _EffectDocument(_HarnessDocument):
    tool_call_id: str
    tool_name: str
    status: Literal["started", "completed", "failed"]
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    idempotency_key: str | None = None
    effect_summary: str | None = None


class _References(BaseModel):
    message_refs: list[str]


AnyDocument = TypeVar("AnyDocument", bound=_HarnessDocument)


def harness_run(document: Document) -> RunRecord | Problem:
    """The run of a document of `runs`."""
    try:
        run = _validated(_RunDocument, document)
    except DamagedDocumentError as error:
        return damaged("runs", document, error, run_id=_name(document))
    if document["_id"] != run.run_id:
        found = DamagedDocumentError(f"run_id: found {run.run_id!r} under another _id")
        return damaged("runs", document, found, run_id=_name(document))
    return RunRecord(**run.model_dump())


def harness_event(document: Document) -> StepEvent | Problem:
    """The event of a document of `events`."""
    try:
        return StepEvent(**_validated(_EventDocument, document).model_dump())
    except DamagedDocumentError as error:
        return damaged("events", document, error)


def harness_effect(document: Document) -> ToolEffectRecord | Problem:
    """The effect of a document of `tool_effects`."""
    try:
        effect = ToolEffectRecord(**_validated(_EffectDocument, document).model_dump())
    except DamagedDocumentError as error:
        return damaged("tool_effects", document, error)
    if effect.status == "started" or effect.ended_at is not None:
        return effect
    return replace(effect, ended_at=effect.started_at)  # a finish needs a time


def harness_snapshot(document: Document) -> SnapshotHead | Problem:
    """The snapshot of a document of `snapshots` that was read without its messages."""
    try:
        head = _validated(_SnapshotDocument, document)
    except DamagedDocumentError as error:
        return damaged("snapshots", document, error)
    snapshot = ContinuableSnapshot(messages=[], **head.model_dump())
    return SnapshotHead(document=document["_id"], snapshot=snapshot)


def damaged(
    collection: str, document: Document, error: DamagedDocumentError, *, run_id: str | None = None
) -> Problem:
    """What is reported of a document that makes no record."""
    named = document.get("run_id")
    return Problem(
        kind="damaged",
        collection=collection,
        document=_name(document),
        run_id=run_id or (named if isinstance(named, str) else None),
        problem=str(error),
    )


def references_of(text: str) -> list[str] | None:
    """The keys of a snapshot's messages, `None` when `text` is the messages themselves.

    Raises:
        DamagedDocumentError: the text is neither.
    """
    if not text.startswith("{"):
        return None
    try:
        return _References.model_validate_json(text).message_refs
    except ValidationError as error:
        raise DamagedDocumentError(_words(error)) from error


def _validated(kind: type[AnyDocument], document: Mapping[str, Any]) -> AnyDocument:
    known = {name: document.get(name) for name in kind.model_fields}
    fields = {name: value for name, value in known.items() if value is not None}
    try:
        # By way of JSON: strict there means text for a time, and no BSON type passes for another.
        return kind.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise DamagedDocumentError(_words(error)) from error
    except TypeError as error:
        raise DamagedDocumentError(str(error)) from error


def _words(error: ValidationError) -> str:
    """What does not fit, without the values: they may be content."""
    return "; ".join(
        f"{'.'.join(map(str, each['loc']))}: {each['msg'].removeprefix('Value error, ')}"
        for each in error.errors(include_input=False, include_url=False)[:3]
    )


def _name(document: Document) -> str:
    return str(document["_id"])
