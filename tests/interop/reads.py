"""What a store's reads give, as JSON: of the harness's stores and of ours in the same form."""

import hashlib
import json
from dataclasses import is_dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

RUN = (
    *("run_id", "conversation_id", "parent_run_id", "agent_name", "metadata"),
    *("started_at", "registration_id"),
)
EVENT = (
    *("run_id", "kind", "step_index", "timestamp", "conversation_id", "parent_run_id"),
    *("agent_name", "tool_call_id", "tool_name", "error", "metadata", "idempotency_key"),
)
SNAPSHOT = (
    *("run_id", "step_index", "messages", "conversation_id", "parent_run_id", "agent_name"),
    *("timestamp", "state", "idempotency_key"),
)
EFFECT = (
    *("tool_call_id", "tool_name", "run_id", "status", "started_at", "ended_at"),
    *("idempotency_key", "effect_summary"),
)
"""The seed's fields of each record."""


def message_digest(message: ModelMessage) -> str:
    """A short digest of the whole message: histories of a recording would be long."""
    text = json.dumps(ModelMessagesTypeAdapter.dump_python([message], mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plain(record: Any, names: tuple[str, ...]) -> dict[str, Any] | None:
    """A record's fields as JSON values, times in UTC."""
    if record is None:
        return None
    assert is_dataclass(record)
    values: dict[str, Any] = {}
    for name in names:
        value = getattr(record, name)
        if name == "messages":
            value = [message_digest(each) for each in value]
        elif isinstance(value, datetime):
            value = value.astimezone(UTC).isoformat()
        values[name] = value
    return values


async def reads_of(store: Any, run_ids: list[str] | None = None, **listing: Any) -> dict[str, Any]:
    """Every read of every run, or of those runs; `listing` goes to `list_snapshots`."""
    runs = [each for each in await store.list_runs() if run_ids is None or each.run_id in run_ids]
    return {
        "runs": [plain(each, RUN) for each in runs],
        "of_runs": {each.run_id: await _reads_of_run(store, each.run_id, listing) for each in runs},
    }


async def _reads_of_run(store: Any, run_id: str, listing: dict[str, Any]) -> dict[str, Any]:
    events = await store.list_events(run_id=run_id)
    calls = sorted({each.tool_call_id for each in events if each.tool_call_id})
    unresolved = await store.list_unresolved_tool_effects(run_id=run_id)
    effects = [await store.get_tool_effect(run_id=run_id, tool_call_id=each) for each in calls]
    return {
        "run": plain(await store.get_run(run_id=run_id), RUN),
        "events": [plain(each, EVENT) for each in events],
        "snapshots": [
            plain(each, SNAPSHOT) for each in await store.list_snapshots(run_id=run_id, **listing)
        ],
        "settled": plain(await store.latest_snapshot(run_id=run_id), SNAPSHOT),
        "newest": plain(
            await store.latest_snapshot(run_id=run_id, include_interrupted=True), SNAPSHOT
        ),
        "tool_effects": [plain(each, EFFECT) for each in effects],
        "unresolved": sorted(each.tool_call_id for each in unresolved),
    }


def inspection(found: Any) -> dict[str, Any]:
    """What `inspect_recovery` of the harness found."""
    return {
        "latest": plain(found.latest, SNAPSHOT),
        "settled": plain(found.settled, SNAPSHOT),
        "unresolved": [plain(each, EFFECT) for each in found.unresolved],
        "completed_tools": list(found.completed_tools),
        "failed_tools": list(found.failed_tools),
    }
