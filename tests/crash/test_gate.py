"""The gate in front of tools: a body that may have run does not run again unasked."""

import asyncio
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError

from settings import Settings
from stores.faulty import Fault, FaultPlan
from stores.protocols import StepStore
from tests.helpers.eventually import eventually
from tests.helpers.evidence import stored_and_replayed
from tests.helpers.script import Call, script
from tests.helpers.subprocess_worker import WorkerProcess
from tests.helpers.user_agents import AGENTS
from workflows import names
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput, AgentRunOutput
from workflows.parking import ResolveToolEffectRequest, ResolveToolEffectResult

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

WITHIN = timedelta(seconds=60)
DETECTION = timedelta(seconds=10)
"""The heartbeat timeout of five seconds and five more."""


async def start(
    client: Client, task_queue: str, calls: list[Call], **request: Any
) -> WorkflowHandle[Any, AgentRunOutput]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="script", prompt=script([calls]), **request),
        id=f"gated-{uuid4().hex}",
        task_queue=task_queue,
    )


async def state(store: StepStore, run_id: str) -> str | None:
    run = await store.get_run(run_id=run_id)
    return run.state if run else None


async def needs_attention(store: StepStore, run_id: str) -> bool:
    return await state(store, run_id) == "needs_attention"


async def resolve(
    handle: WorkflowHandle[Any, Any], decision: str, call: str = "1/0", **values: Any
) -> ResolveToolEffectResult:
    answer: ResolveToolEffectResult = await handle.execute_update(  # pyright: ignore[reportUnknownMemberType] - the SDK's
        names.RESOLVE_UPDATE,
        ResolveToolEffectRequest.model_validate(
            {"run_id": handle.id, "call": call, "decision": decision, **values}
        ),
        result_type=ResolveToolEffectResult,
    )
    return answer


def bodies(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


async def killed_in_the_body(
    client: Client, settings: Settings, worker: WorkerProcess, calls: list[Call], path: Path
) -> WorkflowHandle[Any, AgentRunOutput]:
    """A run whose worker died while the body of its call ran, and another worker took over."""
    handle = await start(client, settings.task_queue, calls)
    await eventually(lambda: bodies(path) == 1, within=WITHIN)
    worker.restart()
    assert worker.exit_code is None or worker.exit_code == -signal.SIGKILL
    return handle


@pytest.mark.parametrize("decision", ["completed", "failed", "run_again"])
async def test_once_tool_whose_worker_dies_waits_for_a_decision(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path, decision: str
) -> None:
    path = tmp_path / "paid"
    calls: list[Call] = [("pay", {"path": str(path), "delay": 4.0}), ("echo", {"text": "beside"})]
    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        handle = await killed_in_the_body(temporal, settings, worker, calls, path)
        died = asyncio.get_running_loop().time()
        await eventually(lambda: needs_attention(store, handle.id), within=WITHIN)
        assert asyncio.get_running_loop().time() - died < WITHIN.total_seconds()
        assert bodies(path) == 1
        (effect,) = await store.list_unresolved_tool_effects(run_id=handle.id)
        assert (effect.tool_name, effect.status, effect.effect) == ("pay", "unknown", "once")

        wrongs: list[dict[str, Any]] = [
            {"call": "9/9"},
            {"workspace_id": "another"},
            {"decision": "failed"},
            {"decision": "completed", "result": {"not": "text"}},
        ]
        for wrong in wrongs:
            with pytest.raises(WorkflowUpdateFailedError):
                await resolve(handle, **{"decision": "run_again", **wrong})
        values = {"completed": {"result": "paid 5"}, "failed": {"error": "no funds"}}
        answer = await resolve(handle, decision, by="ann", why="asked", **values.get(decision, {}))
        assert (answer.tool_name, answer.decision) == ("pay", decision)
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())

    assert bodies(path) == (2 if decision == "run_again" else 1)
    effects = await store.list_tool_effects(run_id=handle.id)
    assert [each.status for each in effects] == [
        "completed" if decision == "run_again" else "resolved",
        "completed",
    ]
    resolution = effects[0].resolution
    assert resolution is not None
    assert (resolution.decision, resolution.by, resolution.why) == (decision, "ann", "asked")
    assert await state(store, handle.id) == "completed"
    stored, path_of_history = await stored_and_replayed(store, await handle.fetch_history(), AGENTS)
    assert stored == path_of_history


async def test_tool_that_may_be_repeated_is_and_nobody_is_asked(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path
) -> None:
    path = tmp_path / "marks"
    calls: list[Call] = [("mark", {"path": str(path), "text": "x", "delay": 3.0})]
    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        handle = await killed_in_the_body(temporal, settings, worker, calls, path)
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
    assert bodies(path) == 2
    (gate,) = await store.attempts.list_gates(run_id=handle.id)
    assert [each.outcome for each in gate.attempts] == ["entered", "completed"]
    assert len({each.worker for each in gate.attempts}) == 2


@pytest.mark.parametrize(("method", "when"), [("enter", "before"), ("leave", "after")])
async def test_worker_that_dies_beside_the_body_has_it_run_once_and_nobody_is_asked(
    temporal: Client,
    store: StepStore,
    settings: Settings,
    tmp_path: Path,
    method: str,
    when: Literal["before", "after"],
) -> None:
    path = tmp_path / "paid"
    fault = Fault(name="died", action="kill", method=method, when=when)
    plan = FaultPlan(directory=tmp_path, faults=(fault,))
    with WorkerProcess(settings, log_path=tmp_path / "worker.log", plan=plan) as worker:
        handle = await start(temporal, settings.task_queue, [("pay", {"path": str(path)})])
        await eventually(lambda: worker.exit_code == -signal.SIGKILL, within=WITHIN)
        assert plan.has_fired("died")
        assert bodies(path) == (0 if method == "enter" else 1)
        worker.start()
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
    assert bodies(path) == 1
    (gate,) = await store.attempts.list_gates(run_id=handle.id)
    assert [each.outcome for each in gate.attempts] == ["completed"]
    kinds = {each.kind for each in await store.list_events(run_id=handle.id)}
    assert "tool_call_failed" not in kinds


async def test_worker_that_dies_between_entry_and_body_has_the_run_wait(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path
) -> None:
    path = tmp_path / "paid"
    fault = Fault(name="died", action="kill", method="enter", when="after")
    plan = FaultPlan(directory=tmp_path, faults=(fault,))
    with WorkerProcess(settings, log_path=tmp_path / "worker.log", plan=plan) as worker:
        handle = await start(temporal, settings.task_queue, [("pay", {"path": str(path)})])
        await eventually(lambda: worker.exit_code == -signal.SIGKILL, within=WITHIN)
        worker.start()
        await eventually(lambda: needs_attention(store, handle.id), within=WITHIN)
        await resolve(handle, "run_again")
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
    assert bodies(path) == 1
