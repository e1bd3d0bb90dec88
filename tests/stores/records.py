"""Records with the fields that a test does not care about filled in."""

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage

from stores.records import ContinuableSnapshot, RunRecord, StepEvent, ToolEffectRecord
from tests.stores.writer import at

ODD_KEYS = {"a.b": "1", "$x": "2", "": "3", "nul\x00": "4", "ключ": "5"}
"""Metadata whose keys a database might trip over."""


def run_record(run_id: str = "run-1", **changed: Any) -> RunRecord:
    values: dict[str, Any] = {
        "run_id": run_id,
        "registration_id": "mine",
        "started_at": at(0),
        **changed,
    }
    return RunRecord(**values)


def event(step: int = 1, key: str | None = None, **changed: Any) -> StepEvent:
    values: dict[str, Any] = {
        "run_id": "run-1",
        "kind": "model_request_started",
        "timestamp": at(step),
        **changed,
    }
    return StepEvent(step_index=step, idempotency_key=key, **values)


def snapshot(
    messages: Sequence[ModelMessage], key: str | None = None, **changed: Any
) -> ContinuableSnapshot:
    values: dict[str, Any] = {"run_id": "run-1", "step_index": 1, "timestamp": at(1), **changed}
    return ContinuableSnapshot(messages=list(messages), idempotency_key=key, **values)


def effect(status: str = "started", **changed: Any) -> ToolEffectRecord:
    values: dict[str, Any] = {
        "run_id": "run-1",
        "tool_call_id": "call-1",
        "tool_name": "look_up",
        "status": status,
        "started_at": at(1),
        **changed,
    }
    return ToolEffectRecord(**values)
