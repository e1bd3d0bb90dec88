"""Retention as a workflow does it, and as its commands are refused."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client, ScheduleActionExecutionStartWorkflow

from cli.failures import WrongUsageError
from cli.retention import SCHEDULE, apply_command, plan_command
from retaining import temporal_keeps
from stores.mongo.steps import MongoStepStore
from tests.helpers.eventually import eventually
from tests.helpers.script import make_agent
from tests.helpers.workers import running_worker
from tests.stores.records import event, run_record
from workflows.retention import RetentionInput, RetentionWorkflow

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

OLD = datetime.now(UTC) - timedelta(days=400)


@pytest.fixture(autouse=True)
def _one_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command has a process of its own, and sets up the SDK's core in it."""
    monkeypatch.setattr("cli.connections.silence_core", lambda: None)


async def test_a_worker_applies_the_policies_of_its_settings(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    for workspace in ("kept", "short"):
        store = mongo.for_workspace(workspace)
        run_id = f"{workspace}-{uuid4().hex}"
        await store.register_run(run_record(run_id, started_at=OLD, registration_id=run_id))
        done = event(run_id=run_id, kind="run_completed", timestamp=OLD)
        await store.append_event(done)
    policies = '{"short": {"runs_days": 30}}'
    async with running_worker(temporal, mongo, [make_agent()], task_queue, retention=policies):
        output = await temporal.execute_workflow(
            RetentionWorkflow.run, RetentionInput(), id=f"r-{task_queue}", task_queue=task_queue
        )

    assert output.counts["short"]["runs"] == 1
    assert list(output.counts) == ["short"]
    assert await mongo.for_workspace("short").list_runs() == []
    assert len(await mongo.for_workspace("kept").list_runs()) == 1
    assert await temporal_keeps(temporal) >= timedelta(hours=1)


async def test_a_schedule_has_a_worker_apply_them(
    temporal: Client,
    temporal_address: str,
    mongo: MongoStepStore,
    task_queue: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PERDURE_TEMPORAL_ADDRESS", temporal_address)
    monkeypatch.setenv("PERDURE_TASK_QUEUE", task_queue)
    monkeypatch.setenv("PERDURE_DATA_DIR", str(tmp_path))
    run_id = f"old-{uuid4().hex}"
    await mongo.register_run(run_record(run_id, started_at=OLD, registration_id=run_id))
    await mongo.append_event(event(run_id=run_id, kind="run_completed", timestamp=OLD))
    await asyncio.to_thread(apply_command, schedule="1h")
    try:
        policies = '{"*": {"runs_days": 30}}'
        async with running_worker(temporal, mongo, [make_agent()], task_queue, retention=policies):
            await temporal.get_schedule_handle(SCHEDULE).trigger()

            async def is_gone() -> bool:
                return await mongo.get_run(run_id=run_id) is None

            await eventually(is_gone, within=timedelta(seconds=60))
            described = await temporal.get_schedule_handle(SCHEDULE).describe()
            (started,) = described.info.recent_actions
            assert isinstance(started.action, ScheduleActionExecutionStartWorkflow)
            ended = temporal.get_workflow_handle(started.action.workflow_id)
            assert (await ended.result())["counts"]["default"]["runs"] == 1
    finally:
        await asyncio.to_thread(apply_command, schedule="off")


def test_a_schedule_is_made_changed_and_taken_away(
    temporal_address: str,
    mongodb_uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PERDURE_TEMPORAL_ADDRESS", temporal_address)
    monkeypatch.setenv("PERDURE_MONGODB_URI", mongodb_uri)
    monkeypatch.setenv("PERDURE_DATA_DIR", str(tmp_path))
    for every in ("24h", "7d", "off", "off"):
        apply_command(schedule=every)
    told = capsys.readouterr().out
    assert f"schedule {SCHEDULE!r}: every 7d" in told
    assert f"schedule {SCHEDULE!r} is taken away\nthere was no schedule {SCHEDULE!r}\n" in told
    with pytest.raises(WrongUsageError, match="24h or 7d"):
        apply_command(schedule="daily")
    with pytest.raises(WrongUsageError, match="PERDURE_RETENTION is not set"):
        plan_command()
