"""Which fields the records have: a caller's code names them."""

from dataclasses import MISSING, fields
from typing import Any, get_args

import pytest

from stores.records import (
    ContinuableSnapshot,
    EventKind,
    RunRecord,
    StepEvent,
    ToolEffectRecord,
)

LINEAGE = {"run_id", "conversation_id", "parent_run_id", "agent_name"}
OF_THE_SEED: list[tuple[type[Any], set[str], set[str]]] = [
    (RunRecord, {"run_id"}, LINEAGE | {"metadata", "started_at", "registration_id"}),
    (
        StepEvent,
        {"run_id", "kind", "step_index"},
        LINEAGE
        | {"kind", "step_index", "timestamp", "tool_call_id", "tool_name", "error"}
        | {"metadata", "idempotency_key"},
    ),
    (
        ContinuableSnapshot,
        {"run_id", "step_index", "messages"},
        LINEAGE | {"step_index", "messages", "timestamp", "state", "idempotency_key"},
    ),
    (
        ToolEffectRecord,
        {"tool_call_id", "tool_name", "run_id", "status"},
        {"tool_call_id", "tool_name", "run_id", "status", "started_at", "ended_at"}
        | {"idempotency_key", "effect_summary"},
    ),
]
"""Each record with the fields it cannot be made without, and all that it is known for."""


@pytest.mark.spec("SP-132")
@pytest.mark.parametrize(("record", "required", "known"), OF_THE_SEED)
def test_a_record_is_made_from_what_the_seed_requires(
    record: type[Any], required: set[str], known: set[str]
) -> None:
    found = {each.name: each for each in fields(record)}
    assert known <= set(found)
    without_default = {
        name
        for name, each in found.items()
        if each.default is MISSING and each.default_factory is MISSING
    }
    assert without_default == required


@pytest.mark.spec("SP-8")
def test_a_snapshot_holds_messages_and_what_they_belong_to() -> None:
    names = {each.name for each in fields(ContinuableSnapshot)}
    assert names - OF_THE_SEED[2][2] == {"sequence", "branch", "commit_number", "ranges"}


@pytest.mark.spec("SP-128")
def test_there_are_nine_kinds_of_events() -> None:
    subjects, moments = ("run", "model_request", "tool_call"), ("started", "completed", "failed")
    assert list(get_args(EventKind)) == [f"{each}_{when}" for each in subjects for when in moments]
