"""Deciding on calls of unknown outcome from the command line, and looking at them before."""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHandle

from settings import Settings
from stores.protocols import StepStore
from tests.cli.test_commands import NOWHERE, Perdure
from tests.helpers.eventually import eventually
from tests.helpers.script import Call, script
from tests.helpers.subprocess_worker import WorkerProcess
from tests.helpers.user_workflows import ScriptedRun, ScriptedRunsInput, ScriptedRunsWorkflow
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

WITHIN = timedelta(seconds=60)
SAVED_MESSAGES = 3
"""After the first step: prompt, call, and what it returned."""


@pytest.fixture
def perdure(settings: Settings, tmp_path: Path) -> Perdure:
    told = settings.model_copy(update={"data_dir": tmp_path})
    values = told.model_dump(mode="json", exclude_none=True)
    return Perdure({name: str(value) for name, value in values.items()})


def paying(path: Path) -> list[list[Call]]:
    """A step that is harmless, then one that pays and takes longer than a worker lives."""
    return [[("echo", {"text": "first"})], [("pay", {"path": str(path), "delay": 90.0})]]


async def start(
    client: Client, settings: Settings, steps: Sequence[Sequence[Call]]
) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="script", prompt=script(steps)),
        id=f"resolved-{uuid4().hex}",
        task_queue=settings.task_queue,
    )


async def has_state(store: StepStore, run_id: str, state: str) -> bool:
    run = await store.get_run(run_id=run_id)
    return run is not None and run.state == state


async def test_parked_run_is_shown_and_goes_on_with_what_the_command_says(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path, perdure: Perdure
) -> None:
    path = tmp_path / "paid"
    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        handle = await start(temporal, settings, paying(path))
        run_id = handle.id
        await eventually(path.exists, within=WITHIN)

        (flying,) = perdure.document("unresolved", "--tool", "pay")["effects"]
        assert (flying["standing_kind"], flying["attempt"]) == ("in flight", 1)
        assert flying["command"] is None
        refused = perdure("resolve", run_id, "2/0", "--failed", "no")
        assert refused.returncode == 1
        assert "waits for no decision: in flight: running, attempt 1" in refused.stderr

        worker.restart()
        await eventually(lambda: has_state(store, run_id, "needs_attention"), within=WITHIN)
        check_what_is_shown(perdure, run_id)
        check_refusals(perdure, run_id)

        dry = perdure("resolve", run_id, "2/0", "--run-again", "--dry-run")
        assert dry.returncode == 0
        assert f"an update of workflow {run_id}" in dry.stdout
        assert await has_state(store, run_id, "needs_attention")

        answer = ("--completed", '"paid 5"', "--by", "ann", "--why", "the bank says so")
        done = perdure("resolve", run_id, "2/0", *answer)
        assert done.returncode == 0, done.stderr
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
        again = perdure("resolve", run_id, "2/0", *answer)

    assert again.returncode == 3
    assert "it resolved, decided by ann: completed" in again.stderr
    assert len(path.read_text().splitlines()) == 1
    check_effects(perdure, run_id)
    assert "paid 5" in perdure("messages", run_id).stdout


def check_what_is_shown(perdure: Perdure, run_id: str) -> None:
    command = f"perdure resolve {run_id} 2/0 --completed JSON | --failed TEXT | --run-again"
    (parked,) = perdure.document("unresolved")["effects"]
    assert (parked["standing_kind"], parked["command"]) == ("parked", command)
    assert parked["since"] is not None
    assert command in perdure("unresolved").stdout
    assert perdure.document("unresolved", "--tool", "echo")["effects"] == []
    shown = perdure("show", run_id).stdout
    assert shown.index(command) < shown.index("Timeline")
    (listed,) = perdure.document("runs", "--state", "needs_attention")["runs"]
    assert listed["run_id"] == run_id


def check_refusals(perdure: Perdure, run_id: str) -> None:
    wrong = {
        ("2/0", "--completed", '{"not": "text"}'): (1, "return type at $ (type)"),
        ("9/9", "--failed", "no"): (3, "open calls of that run: 2/0 (pay)"),
        ("1/0", "--failed", "no"): (3, "waits for no decision: it completed"),
        ("2/0", "--failed", "no", "--workspace", "elsewhere"): (3, "workspace 'elsewhere'"),
    }
    for arguments, (code, words) in wrong.items():
        done = perdure("resolve", run_id, *arguments)
        assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    unanswered = perdure("resolve", run_id, "2/0", "--failed", "no", temporal_address=NOWHERE)
    assert unanswered.returncode == 4


def check_effects(perdure: Perdure, run_id: str) -> None:
    _, paid = perdure.document("effects", run_id)["effects"]
    assert paid["status"] == "resolved"
    assert paid["resolution"] == {
        "decision": "completed",
        "by": "ann",
        "why": "the bank says so",
        "result": None,
    }
    (attempt,) = paid["attempts"]
    assert (attempt["round"], attempt["number"], attempt["outcome"]) == (0, 1, "entered")
    table = perdure("effects", run_id).stdout
    assert "1: entered" in table
    assert "completed by ann: the bank says so" in table
    attempts = perdure("effects", run_id, "--attempts").stdout
    assert attempt["worker"] in attempts
    assert len(attempts.splitlines()) == 2  # the head, and one: a read is not recorded


async def test_run_inside_a_workflow_of_another_id_is_resolved_there(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path, perdure: Perdure
) -> None:
    path = tmp_path / "paid"
    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        handle = await temporal.start_workflow(
            ScriptedRunsWorkflow.run,
            ScriptedRunsInput(runs=[ScriptedRun(prompt=script(paying(path)))], names_runs=False),
            id=f"hosting-{uuid4().hex}",
            task_queue=settings.task_queue,
        )
        await eventually(path.exists, within=WITHIN)
        worker.restart()
        (run,) = await store.list_runs()
        await eventually(lambda: has_state(store, run.run_id, "needs_attention"), within=WITHIN)

        (parked,) = perdure.document("unresolved")["effects"]
        assert parked["standing_kind"] == "parked"
        answer = perdure.document("resolve", run.run_id, "2/0", "--failed", "no funds")
        assert answer["workflow_id"] == handle.id
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())

    (_, paid) = await store.list_tool_effects(run_id=run.run_id)
    assert (paid.status, paid.error) == ("resolved", "no funds")


async def test_call_of_a_terminated_run_is_settled_in_the_ledger_and_the_run_continued(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path, perdure: Perdure
) -> None:
    path = tmp_path / "paid"
    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        handle = await start(temporal, settings, paying(path))
        await eventually(path.exists, within=WITHIN)
        worker.kill()
    await handle.terminate("gives up")
    continuing = ("continue", handle.id, "{}", "--dry-run")

    (unknown,) = perdure.document("unresolved")["effects"]
    assert unknown["standing_kind"] == "unknown"
    assert unknown["standing"] == "unknown: the run ended TERMINATED before the call did"
    assert "--run-again" not in unknown["command"]
    assert "would cross 1 unresolved tool effects" in perdure.document(*continuing)["refusal"]
    again = perdure("resolve", handle.id, "2/0", "--run-again")
    assert again.returncode == 1
    assert "its run is over" in again.stderr
    dry = perdure("resolve", handle.id, "2/0", "--completed", '"paid"', "--dry-run")
    assert "the ledger alone" in dry.stdout
    assert len(await store.list_unresolved_tool_effects()) == 1

    decided = perdure("resolve", handle.id, "2/0", "--completed", '"paid"', "--by", "ann")
    assert decided.returncode == 0, decided.stderr
    assert perdure.document("unresolved")["effects"] == []
    continued = perdure.document(*continuing)
    assert continued["refusal"] is None
    assert continued["snapshot"]["message_count"] == SAVED_MESSAGES + 2  # the call and its answer
    (_, paid) = perdure.document("effects", handle.id)["effects"]
    assert (paid["status"], paid["effect_summary"]) == ("resolved", json.dumps("paid"))
    said = {"decision": "completed", "by": "ann", "why": None, "result": json.dumps("paid")}
    assert paid["resolution"] == said


async def test_calls_that_wait_for_approval_are_approved_and_denied_after_a_kill(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path, perdure: Perdure
) -> None:
    cheap, dear = tmp_path / "cheap", tmp_path / "dear"
    calls: list[Call] = [("order", {"path": str(path)}) for path in (cheap, dear)]
    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        handle = await start(temporal, settings, [calls])
        run_id = handle.id
        await eventually(lambda: has_state(store, run_id, "needs_attention"), within=WITHIN)
        worker.restart()
        waiting = perdure.document("unresolved")["effects"]
        assert [each["standing_kind"] for each in waiting] == ["approval", "approval"]
        assert all(each["since"] and str(tmp_path) in each["arguments_summary"] for each in waiting)
        wrong = perdure("approve", run_id, "1/0", "--digest", "abc", "--dry-run")
        assert (wrong.returncode, waiting[0]["arguments_digest"] in wrong.stderr) == (2, True)
        unfit = perdure("resolve", run_id, "1/0", "--run-again")
        assert (unfit.returncode, "waits for `perdure approve`" in unfit.stderr) == (3, True)

        approved = perdure("approve", run_id, "1/0", "--by", "ann", "--why", "cheap")
        assert approved.returncode == 0, approved.stderr
        denied = perdure.document("deny", run_id, "1/1", "--by", "ann", "--message", "too dear")
        assert (denied["decision"], denied["workflow_id"]) == ("denied", run_id)
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())

        given_up = await start(temporal, settings, [calls[:1]])
        await eventually(lambda: has_state(store, given_up.id, "needs_attention"), within=WITHIN)
        await given_up.terminate("gives up")

    assert len(cheap.read_text().splitlines()) == 1
    assert not dear.exists()
    late = perdure("deny", run_id, "1/0")
    assert late.returncode == 3
    assert "waits for no approval: it completed, approved by ann" in late.stderr
    late = perdure("approve", given_up.id, "1/0")
    assert (late.returncode, "its run is over" in late.stderr) == (1, True)
    assert perdure("deny", given_up.id, "1/0").returncode == 0
    assert await store.list_unresolved_tool_effects() == []
