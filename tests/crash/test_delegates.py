"""Workers that die in a tool which delegates, and workers that know nothing of the workflow."""

import asyncio
import json
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHandle

from settings import Settings
from stores.protocols import StepStore
from tests.helpers.delegating_agents import TOOLS_QUEUE
from tests.helpers.eventually import eventually
from tests.helpers.script import Call, echo_steps, script
from tests.helpers.subprocess_worker import WorkerProcess
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.lineage import Lineage, delegate_run_id

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

WITHIN = timedelta(seconds=60)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"agents": "tests.helpers.delegating_agents:AGENTS"})


async def start(
    client: Client, settings: Settings, agent: str, steps: list[list[Call]]
) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent=agent, prompt=script(steps)),
        id=f"delegates-{uuid4().hex}",
        task_queue=settings.task_queue,
        task_timeout=timedelta(seconds=3),
    )


async def result_of(handle: WorkflowHandle[Any, Any]) -> None:
    await asyncio.wait_for(handle.result(), WITHIN.total_seconds())


def child_id(run_id: str) -> str:
    return delegate_run_id(Lineage(run_id=run_id).in_call(1, 0, "any"), order=0)


async def has_died(worker: WorkerProcess) -> None:
    await eventually(lambda: worker.exit_code == -signal.SIGKILL, within=WITHIN)


@pytest.mark.spec("SP-36", "SP-37")
async def test_a_tool_whose_worker_dies_twice_has_one_delegate_of_three_branches(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path
) -> None:
    steps: list[list[Call]] = [[("delegate", {"prompts": [echo_steps(1)], "kill_until": 2})]]
    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        handle = await start(temporal, settings, "parent", steps)
        for _ in range(2):
            await has_died(worker)
            worker.restart()
        await result_of(handle)
    (child,) = await store.list_runs(parent_run_id=handle.id)
    assert (child.run_id, child.state) == (child_id(handle.id), "completed")
    head = await store.find_commit_head(execution_id=child.branches[-1].execution_id)
    assert head is not None
    assert len({*head.former_branches, head.branch}) == 3
    events = await store.list_events(run_id=child.run_id)
    assert {event.branch for event in events} == {head.branch}
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-1], len(kinds)) == ("run_started", "run_completed", 8)
    assert await store.list_unresolved_tool_effects() == []


@pytest.mark.spec("SP-39", "SP-40", "SP-42")
async def test_an_annotation_is_in_the_ledger_when_the_worker_dies_right_behind_it(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path
) -> None:
    steps: list[list[Call]] = [[("set_label", {"label": "a", "kill": 1})]]
    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        handle = await start(temporal, settings, "parent", steps)
        await has_died(worker)
        (effect,) = await store.list_unresolved_tool_effects(run_id=handle.id)
        assert (effect.status, effect.tool_name) == ("started", "set_label")
        assert (effect.idempotency_key, effect.effect_summary) == ("label::a", "set a")
        worker.restart()
        await result_of(handle)
    (effect,) = await store.list_tool_effects(run_id=handle.id)
    assert (effect.status, effect.idempotency_key) == ("completed", "label::a")
    assert effect.effect_summary == "set a"


@pytest.mark.spec("SP-36", "SP-40")
async def test_a_tool_on_another_worker_knows_its_run(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path
) -> None:
    steps: list[list[Call]] = [
        [("delegate", {"prompts": [echo_steps(1)]}), ("set_label", {"label": "a"})]
    ]
    of_tools = settings.model_copy(update={"task_queue": TOOLS_QUEUE})
    with (
        WorkerProcess(settings, log_path=tmp_path / "workflows.log"),
        WorkerProcess(of_tools, log_path=tmp_path / "tools.log") as tools,
    ):
        handle = await start(temporal, settings, "split", steps)
        await result_of(handle)
        tools_pid = tools.pid
    (child,) = await store.list_runs(parent_run_id=handle.id)
    assert (child.run_id, child.state) == (child_id(handle.id), "completed")
    _, effect = await store.list_tool_effects(run_id=handle.id)
    assert effect.idempotency_key == "label::a"
    snapshot = await store.latest_snapshot(run_id=handle.id)
    assert snapshot is not None
    assert f"{tools_pid}: {child.run_id}" in json.dumps(
        [getattr(part, "content", "") for each in snapshot.messages for part in each.parts]
    )
