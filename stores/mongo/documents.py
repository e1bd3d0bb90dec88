"""Rows as MongoDB documents.

A document has the row's own field names; what is `None` is left out. Times are microseconds since
1970 UTC, since BSON keeps milliseconds. Metadata, usage and context are JSON text: no user's string
becomes a field name, and no number is too long. What only queries need is added on the way in
(`live`, `status`, ...) and skipped on the way out.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, asdict, fields
from datetime import datetime
from typing import Any

from bson import Binary, ObjectId

from stores.attempts import AttemptEnd, ToolAttempt, ToolCallPlace, ToolGate
from stores.commits import CommitHead
from stores.effects import EffectRow, Transition
from stores.histories import Range
from stores.operations import EventContext
from stores.paging import microseconds, time_at
from stores.ranges import packed, unpacked
from stores.records import RunBranch, RunRecord, ToolEffectResolution
from stores.rows import EventRow, PositionRow, RunRow, SnapshotRow

Document = dict[str, Any]

SERVER_TIME: Document = {"$multiply": [{"$toLong": "$$NOW"}, 1000]}
"""The server's clock in an update's pipeline, as microseconds since 1970. What a sweep compares is
told by this one clock, whichever process writes."""

DEPARTS = "departs_at"
"""The field of a run that is about to be removed: nothing may begin with it any more."""

MAX_PLAIN_RANGES = 100
"""More than that come from a history that was rewritten in many places, and would be read by no
person; at 100,000 messages they would take 2.6 MB."""


def _encoded(value: object) -> Any:  # noqa: ANN401 - any BSON value
    match value:
        case datetime():
            return microseconds(value)
        case dict():
            return json.dumps(value)
        case ToolEffectResolution():
            return json.dumps(asdict(value))
        case EventContext():
            return json.dumps(value.model_dump(exclude_defaults=True))
        case _:
            return value


def ranges_in(value: bytes | list[list[int]]) -> tuple[Range, ...]:
    """The ranges of a stored snapshot: many are packed, a few are there for all to read.

    Raises:
        TypeError, ValueError: the value is damaged.
    """
    if isinstance(value, bytes):
        return unpacked(value)
    return tuple((start, end) for start, end in value)


def _ranges_or_none_there(value: bytes | list[list[int]]) -> tuple[Range, ...]:
    """The ranges, or one that no log holds: so the snapshot is found damaged when it is read."""
    try:
        return ranges_in(value)
    except (TypeError, ValueError):
        return ((-1, 0),)


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        ("at", "started_at", "ended_at", "branch_time", "queued_at", "details_pruned_at"), time_at
    ),
    **dict.fromkeys(("metadata", "usage"), json.loads),
    **dict.fromkeys(("former_branches", "refusals"), tuple),
    "ranges": _ranges_or_none_there,
    "context": EventContext.model_validate_json,
    "resolution": lambda text: ToolEffectResolution(**json.loads(text)),
}
"""By field name; values of other fields come back as they are."""


def _decoded(name: str, value: Any) -> Any:  # noqa: ANN401 - any BSON value
    decode = _DECODERS.get(name)
    return value if decode is None else decode(value)


def _document_of(record: Any, *, without: Collection[str] = ()) -> Document:  # noqa: ANN401 - any of ours
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    return {
        name: _encoded(value)
        for name, value in values.items()
        if value is not None and name not in without
    }


def _values_of(record_type: type[Any], document: Mapping[str, Any]) -> Document:
    """Arguments for the type's constructor; a field that is left out is `None` or has a default."""
    values: Document = {}
    for each in fields(record_type):
        if each.name in document:
            values[each.name] = _decoded(each.name, document[each.name])
        elif each.default is MISSING and each.default_factory is MISSING:
            values[each.name] = None
    return values


def row_document(row: EventRow | SnapshotRow | PositionRow) -> Document:
    """The document of a row that is marked as a whole."""
    return {**_row_document(row), "live": row.mark is None}


def snapshot_document(row: SnapshotRow, run: RunRecord | None) -> Document:
    """The document of a snapshot; one of a known run has yet to be taken into the search log."""
    document = row_document(row)
    if run is None:
        return document
    return document | {"conversation_id": run.conversation_id or "", "unindexed": True}


def _row_document(row: EventRow | SnapshotRow | PositionRow | EffectRow) -> Document:
    """All fields of a row; one that replaces a stored row is its next revision."""
    document = _document_of(row, without={"row_id", "transitions"})
    if isinstance(row, SnapshotRow) and len(row.ranges) > MAX_PLAIN_RANGES:
        document["ranges"] = packed(row.ranges)
    if row.row_id is not None and "revision" in document:
        document["revision"] += 1
    return {"_id": row.row_id or ObjectId(), **document}


def _row_values(record_type: type[Any], document: Mapping[str, Any]) -> Document:
    return _values_of(record_type, {**document, "row_id": document["_id"]})


def event_row(document: Mapping[str, Any]) -> EventRow:
    """The event of a document."""
    return EventRow(**_row_values(EventRow, document))


def snapshot_row(document: Mapping[str, Any]) -> SnapshotRow:
    """The snapshot of a document."""
    return SnapshotRow(**_row_values(SnapshotRow, document))


def position_row(document: Mapping[str, Any]) -> PositionRow:
    """The position of a document."""
    return PositionRow(**_row_values(PositionRow, document))


def effect_document(row: EffectRow) -> Document:
    """The document of an effect, with what its transitions come to."""
    document = {**_row_document(row), "live": bool(row.live)}
    document["transitions"] = [_document_of(each) for each in row.transitions]
    if row.live:
        document |= {"status": row.current.status, "started_at": microseconds(row.started_at)}
    else:
        document["mark"] = row.mark
    if row.is_unresolved:
        document["unresolved"] = True
    return document


def effect_row(document: Mapping[str, Any]) -> EffectRow:
    """The effect of a document."""
    values = _row_values(EffectRow, document)
    transitions = (Transition(**_values_of(Transition, each)) for each in values["transitions"])
    values["transitions"] = tuple(transitions)
    return EffectRow(**values)


def run_document(row: RunRow) -> Document:
    """The document of a run: its record, and the commit that registered it."""
    record = _document_of(row.record, without={"run_id", "branches"})
    record["branches"] = [_document_of(each) for each in row.record.branches]
    written = _document_of(row, without={"record"})
    return {"_id": row.record.run_id, "live": row.mark is None, **record, **written}


def run_row(document: Mapping[str, Any]) -> RunRow:
    """The run of a document."""
    values = _values_of(RunRecord, {**document, "run_id": document["_id"]})
    branches = (RunBranch(**_values_of(RunBranch, each)) for each in document["branches"])
    values["branches"] = tuple(branches)
    written = _values_of(RunRow, document)
    written["record"] = RunRecord(**values)
    return RunRow(**written)


def head_id(workspace_id: str, execution_id: str) -> Document:
    """The `_id` of an execution's commit head."""
    return {"workspace_id": workspace_id, "execution_id": execution_id}


def head_document(head: CommitHead) -> Document:
    """The document of a commit head."""
    return {"_id": head_id(head.workspace_id, head.execution_id), **_document_of(head)}


def commit_head(document: Mapping[str, Any]) -> CommitHead:
    """The commit head of a document."""
    return CommitHead(**_values_of(CommitHead, document))


def gate_id(workspace_id: str, place: ToolCallPlace) -> Document:
    """The `_id` of a call's gate."""
    return {"workspace_id": workspace_id, **asdict(place)}


def gate_document(gate: ToolGate) -> Document:
    """The document of a call's gate."""
    document = _document_of(gate, without={"place", "attempts", "result"})
    document |= {
        "_id": gate_id(gate.workspace_id, gate.place),
        "run_id": gate.place.run_id,
        "newest": gate.newest.token,
        "attempts": [_document_of(each) for each in gate.attempts],
    }
    if gate.result is not None:
        document["result"] = Binary(gate.result)
    return document


def ended_update(end: AttemptEnd) -> Document:
    """The update of a gate's document, whose query matched the attempt, when that has ended."""
    values = _document_of(end, without={"result"})
    changed: Document = {f"attempts.$.{name}": value for name, value in values.items()}
    if end.result is not None:
        changed["result"] = Binary(end.result)
    return {"$set": changed, "$inc": {"revision": 1}}


def tool_gate(document: Mapping[str, Any]) -> ToolGate:
    """The gate of a document."""
    place = {name: value for name, value in document["_id"].items() if name != "workspace_id"}
    values = _values_of(ToolGate, {**document, "place": ToolCallPlace(**place)})
    values["attempts"] = tuple(
        ToolAttempt(**_values_of(ToolAttempt, each)) for each in document["attempts"]
    )
    return ToolGate(**values)
