"""Faults strike the call that they are about, once, at the side of the write that they name."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stores.attempts import ToolAttempt, ToolCallPlace
from stores.commits import Commit, CommitPosition
from stores.errors import StoreUnavailableError
from stores.faulty import Fault, FaultPlan, with_faults
from stores.memory import InMemoryStepStore
from stores.operations import AppendEvent, RegisterRun

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def registration(run_id: str) -> Commit:
    operation = RegisterRun(run_id=run_id, sequence=0, registration_id="r")
    return Commit(operations=(operation,), now=NOW)


def started(run_id: str) -> Commit:
    event = AppendEvent(run_id=run_id, sequence=1, key="k", event="run_started", step_index=0)
    return Commit(operations=(event,), now=NOW)


@pytest.mark.parametrize(("when", "is_written"), [("before", False), ("after", True)])
async def test_failure_strikes_once_at_its_side_of_the_write(
    tmp_path: Path, *, when: str, is_written: bool
) -> None:
    memory = InMemoryStepStore()
    fault = Fault.model_validate({"name": "away", "action": "fail", "when": when})
    plan = FaultPlan(directory=tmp_path, faults=(fault,))
    store = with_faults(memory, plan)
    assert not plan.has_fired("away")
    with pytest.raises(StoreUnavailableError, match="away"):
        await store.commit(registration("a"))
    assert plan.has_fired("away")
    assert (await store.get_run(run_id="a") is not None) == is_written
    await store.commit(registration("a"))
    assert await memory.get_run(run_id="a") is not None


async def test_another_process_with_the_same_plan_is_spared(tmp_path: Path) -> None:
    plan = FaultPlan(directory=tmp_path, faults=(Fault(name="away", action="fail"),))
    with pytest.raises(StoreUnavailableError):
        await with_faults(InMemoryStepStore(), plan).commit(registration("a"))
    successor = FaultPlan.model_validate_json(plan.model_dump_json())
    await with_faults(InMemoryStepStore(), successor).commit(registration("a"))


async def test_fault_waits_for_the_run_and_boundary_that_it_is_about(tmp_path: Path) -> None:
    fault = Fault(name="away", action="fail", run_id="b", holds="run_started")
    plan = FaultPlan(directory=tmp_path, faults=(fault,))
    store = with_faults(InMemoryStepStore(), plan).for_workspace("tenant")
    assert store.workspace_id == "tenant"
    for spared in (registration("a"), started("a"), registration("b")):
        await store.commit(spared)
    with pytest.raises(StoreUnavailableError):
        await store.commit(started("b"))


async def test_reading_method_can_be_named(tmp_path: Path) -> None:
    fault = Fault(name="away", action="fail", method="get_run")
    store = with_faults(InMemoryStepStore(), FaultPlan(directory=tmp_path, faults=(fault,)))
    await store.commit(registration("a"))
    with pytest.raises(StoreUnavailableError):
        await store.get_run(run_id="a")


async def test_wait_ends_when_its_file_exists(tmp_path: Path) -> None:
    go = tmp_path / "go"
    fault = Fault(name="slow", action="wait", until=go)
    plan = FaultPlan(directory=tmp_path, faults=(fault,))
    memory = InMemoryStepStore()
    writing = asyncio.create_task(with_faults(memory, plan).commit(registration("a")))
    while not plan.has_fired("slow"):
        await asyncio.sleep(0)
    assert await memory.get_run(run_id="a") is None
    go.touch()
    await writing
    assert await memory.get_run(run_id="a") is not None


@pytest.mark.parametrize("outlives_caller", [True, False])
async def test_given_up_call_is_written_only_when_it_outlives_its_caller(
    tmp_path: Path, *, outlives_caller: bool
) -> None:
    go = tmp_path / "go"
    fault = Fault(name="slow", action="wait", until=go, outlives_caller=outlives_caller)
    memory = InMemoryStepStore()
    store = with_faults(memory, FaultPlan(directory=tmp_path, faults=(fault,)))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(store.commit(registration("a")), 0.05)
    go.touch()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others)
    assert bool(others) == outlives_caller
    assert (await memory.get_run(run_id="a") is not None) == outlives_caller


PLACE = ToolCallPlace(run_id="a", branch="b", step_index=2, call_index=0)
ATTEMPT = ToolAttempt(token="b/7/1", worker="w", started_at=NOW)  # noqa: S106 - of an attempt


async def test_fault_may_be_about_one_operation_of_another_run_than_the_spared_one(
    tmp_path: Path,
) -> None:
    fault = Fault(name="away", action="fail", holds="run_started", key="k", spares="a")
    store = with_faults(InMemoryStepStore(), FaultPlan(directory=tmp_path, faults=(fault,)))
    for spared in (registration("a"), started("a"), registration("b")):
        await store.commit(spared)
    with pytest.raises(StoreUnavailableError):
        await store.commit(started("b"))


async def test_attempt_is_struck_at_its_call_and_its_token_noted(tmp_path: Path) -> None:
    fault = Fault(name="away", action="note", method="enter", call="2/0")
    plan = FaultPlan(directory=tmp_path, faults=(fault,))
    attempts = with_faults(InMemoryStepStore(), plan).attempts
    elsewhere = replace(PLACE, step_index=3)
    await attempts.enter(elsewhere, ATTEMPT, tool_name="pay", policy="once")
    assert not plan.has_fired("away")
    await attempts.enter(PLACE, ATTEMPT, tool_name="pay", policy="once")
    assert plan.occasion("away") == {"run_id": "a", "token": "b/7/1"}


async def test_caller_may_be_told_that_the_store_is_away_after_it_has_written(
    tmp_path: Path,
) -> None:
    fault = Fault(name="away", action="note", when="after", then_fails=True)
    memory = InMemoryStepStore()
    store = with_faults(memory, FaultPlan(directory=tmp_path, faults=(fault,)))
    with pytest.raises(StoreUnavailableError):
        await store.commit(registration("a"))
    assert await memory.get_run(run_id="a") is not None


def placed(*operations: RegisterRun | AppendEvent) -> Commit:
    position = CommitPosition(
        execution_id="e", branch="b", branch_time=NOW, number=1, history_length=3, queued_at=NOW
    )
    return Commit(operations=operations, now=NOW, position=position)


@pytest.mark.parametrize(
    ("alters", "answer"), [(False, "suppress"), (True, "IdempotencyConflictError")]
)
async def test_call_comes_again_late_and_the_answer_is_noted(
    tmp_path: Path, *, alters: bool, answer: str
) -> None:
    go = tmp_path / "go"
    fault = Fault(name="again", action="repeat", when="after", until=go, alters=alters)
    plan = FaultPlan(directory=tmp_path, faults=(fault,))
    memory = InMemoryStepStore()
    commit = placed(*registration("a").operations, *started("a").operations)  # type: ignore[arg-type]
    await with_faults(memory, plan).commit(commit)
    assert len(await memory.list_events(run_id="a")) == 1
    assert plan.answer("again") is None
    go.touch()
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
    assert plan.answer("again") == answer
    assert len(await memory.list_events(run_id="a")) == 1
