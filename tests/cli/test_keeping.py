"""`perdure export`, `import`, `erase` and `retention` as people and schedules call them."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from client import connect
from settings import Settings
from stores.conversation_records import ConversationSpec
from stores.mongo.steps import MongoStepStore
from tests.cli.test_commands import NOWHERE, Perdure
from tests.helpers.eventually import eventually
from tests.helpers.script import make_agent, script
from tests.helpers.workers import running_worker
from tests.stores.retained import plan, write
from tests.stores.writer import at
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = pytest.mark.integration

POLICY = '{"default": {"runs_days": 30}}'


@dataclass(frozen=True)
class Stage:
    perdure: Perdure
    database: Any
    settings: Settings

    def runs(self, workspace: str) -> list[str]:
        found = self.database["runs"].find({"workspace_id": workspace}, {"_id": 1})
        return sorted(each["_id"] for each in found)


@pytest.fixture(scope="module")
def stage(temporal_address: str, mongodb_uri: str) -> Iterator[Stage]:
    settings = Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=f"keeping_{uuid4().hex}",
    )
    asyncio.run(prepare(settings))
    perdure = Perdure(
        {
            "temporal_address": temporal_address,
            "mongodb_uri": mongodb_uri,
            "mongodb_database": settings.mongodb_database,
        }
    )
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        yield Stage(perdure, client[settings.mongodb_database], settings)
        client.drop_database(settings.mongodb_database)


async def prepare(settings: Settings) -> None:
    """Runs of half a year ago: those of two conversations, and one by itself in each workspace."""
    store = MongoStepStore(db_url=settings.mongodb_uri, database=settings.mongodb_database)
    await store.initialise()
    for workspace in ("default", "tenant"):
        mine = store.for_workspace(workspace)
        for name in ("a", "b"):
            await mine.conversations.open(name, ConversationSpec(agent="x"), now=at(0))
        plans = [plan(conversation="a"), plan(conversation="b", steps=1), plan(steps=1)]
        await write(mine, plans, workspace)
    await store.aclose()


def exported(stage: Stage, name: str, to: Path, *options: str) -> Path:
    document = stage.perdure.document("export", name, "--to", str(to), *options)
    assert document["file"] == str(to)
    return to


def test_an_export_is_imported_once_and_again_as_new(stage: Stage, tmp_path: Path) -> None:
    file = exported(stage, "a", tmp_path / "a.jsonl")
    assert json.loads(file.read_text().splitlines()[0])["kind"] == "export"
    done = stage.perdure("export", "a", "--to", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert "is there already; name another file" in done.stderr
    done = stage.perdure("export", "nobodys", "--to", str(tmp_path / "none.jsonl"))
    assert done.returncode == 3
    assert "workspace 'default' has no run and no conversation 'nobodys'" in done.stderr
    assert not (tmp_path / "none.jsonl").exists()

    done = stage.perdure("import", str(file), "--workspace", "copies")
    assert done.returncode == 1
    assert "has runs of these ids, in whichever workspace: 'default-0'; --as-new" in done.stderr
    assert stage.runs("copies") == []
    document = stage.perdure.document("import", str(file), "--as-new", "--workspace", "copies")
    assert document["workspace_id"] == "copies"
    assert stage.runs("copies") == sorted(document["runs"].values())
    elsewhere = {"mongodb_database": f"{stage.settings.mongodb_database}_2"}
    assert stage.perdure("init", **elsewhere).returncode == 0
    try:
        done = stage.perdure("import", str(file), **elsewhere)
        assert (done.returncode, done.stderr) == (0, "")
        assert "imported 1 runs into workspace 'default'" in done.stdout
        again = tmp_path / "again.jsonl"
        assert stage.perdure("export", "a", "--to", str(again), **elsewhere).returncode == 0
        assert again.read_bytes() == file.read_bytes()
    finally:
        stage.database.client.drop_database(elsewhere["mongodb_database"])


def cut(lines: list[str]) -> list[str]:
    return lines[:-2]


def edited(lines: list[str]) -> list[str]:
    return [each.replace("word0", "word9") for each in lines]


def newer(lines: list[str]) -> list[str]:
    return [json.dumps(json.loads(lines[0]) | {"version": 999}), *lines[1:]]


def foreign(lines: list[str]) -> list[str]:
    return lines[1:]


def other(lines: list[str]) -> list[str]:
    return ["run,state", *lines[1:]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cut, "is cut: it ends without its last line"),
        (edited, "was changed: its digest is"),
        (newer, "has version 999, and this Perdure reads up to"),
        (foreign, "is no export of Perdure: its first line does not say so"),
        (other, "is no export of Perdure: its first line is no JSON"),
    ],
)
def test_a_file_that_is_cut_edited_newer_or_foreign_is_refused(
    stage: Stage, tmp_path: Path, change: Any, words: str
) -> None:
    file = exported(stage, "a", tmp_path / "a.jsonl")
    before = file.read_text().splitlines()
    lines = change(before)
    assert lines != before
    file.write_text("".join(f"{each}\n" for each in lines))
    done = stage.perdure("import", str(file), "--as-new", "--workspace", "refused")
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert stage.runs("refused") == []


def test_an_open_run_is_not_erased_and_nothing_of_it_is_touched(stage: Stage) -> None:
    run_id = "tenant-1"  # of conversation b; its workflow begins again below, and no worker polls
    asyncio.run(start(stage.settings, run_id))
    done = stage.perdure("erase", "b", "--workspace", "tenant", "--delete")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"still open in Temporal: '{run_id}'" in done.stderr.replace('"', "'")
    assert "or say --cancel" in done.stderr
    assert run_id in stage.runs("tenant")
    assert stage.database["events"].count_documents({"run_id": run_id})
    asyncio.run(terminate(stage.settings, run_id))


@pytest.mark.timeout(300)
async def test_an_open_run_is_cancelled_first_when_that_is_asked_for(
    stage: Stage, task_queue: str, tmp_path: Path
) -> None:
    run_id, begun = f"waits-{uuid4().hex}", tmp_path / "begun"
    waits = script([[("wait_for", {"path": str(tmp_path / "never"), "marker": str(begun)})]])
    settings = stage.settings
    client = await connect(settings)
    store = MongoStepStore(db_url=settings.mongodb_uri, database=settings.mongodb_database)
    async with running_worker(client, store, [make_agent("script")], task_queue):
        handle = await client.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent="script", prompt=waits, conversation_id="waits"),
            id=run_id,
            task_queue=task_queue,
        )
        await eventually(begun.exists)
        refused = await asyncio.to_thread(stage.perdure, "erase", "waits", "--delete")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"still open in Temporal: '{run_id}'" in refused.stderr.replace('"', "'")
        assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
        run = await store.get_run(run_id=run_id)
        assert run is not None
        assert run.state == "running"

        done = await asyncio.to_thread(stage.perdure, "erase", "waits", "--delete", "--cancel")
    assert done.returncode == 0, done.stderr
    assert "erased conversation waits" in done.stdout
    assert "  runs: 1\n" in done.stdout
    assert "  executions: 1\n" in done.stdout
    assert await store.get_run(run_id=run_id) is None
    await store.aclose()
    assert stage.database["events"].count_documents({"run_id": run_id}) == 0
    await eventually(partial(is_gone, client, run_id), within=timedelta(minutes=3))


async def is_gone(client: Client, run_id: str) -> bool:
    """Whether Temporal has deleted what it was asked to, which it does by and by."""
    try:
        described = await client.get_workflow_handle(run_id).describe()
    except RPCError as error:
        return error.status is RPCStatusCode.NOT_FOUND
    assert described.status is WorkflowExecutionStatus.CANCELED
    return False


async def start(settings: Settings, run_id: str) -> None:
    client: Client = await connect(settings)
    request = AgentRunInput(agent="nobody", prompt="wait")
    await client.start_workflow(AgentRunWorkflow.run, request, id=run_id, task_queue="nobodys")


async def terminate(settings: Settings, run_id: str) -> None:
    await (await connect(settings)).get_workflow_handle(run_id).terminate()


def test_a_conversation_and_then_a_tenant_are_erased_with_a_receipt(stage: Stage) -> None:
    perdure = stage.perdure
    tenant = ("--workspace", "tenant")
    done = perdure("erase", "a", *tenant)
    assert (done.returncode, done.stdout) == (0, "would erase conversation a\n")
    assert "with --delete erases it" in done.stderr
    assert "tenant-0" in stage.runs("tenant")

    receipt = perdure.document("erase", "a", *tenant, "--delete")
    assert (receipt["kind"], receipt["conversation_id"]) == ("conversation", "a")
    assert receipt["counts"]["runs"] == 1
    assert receipt["finished_at"] is not None
    assert "word0" not in json.dumps(receipt)
    assert "tenant-0" not in stage.runs("tenant")
    assert perdure.document("erase", "a", *tenant, "--delete")["counts"] == receipt["counts"]

    document = perdure.document("erase", "--whole-workspace", *tenant, "--delete")
    assert document["kind"] == "workspace"
    assert stage.runs("tenant") == []
    assert "default-0" in stage.runs("default")
    for name, words in (
        ("nobodys", "this workspace never had it"),
        ("default-1", "the run of this id is of conversation 'b': name that"),
        ("default-2", "the run of this id has no conversation: it goes with --whole-workspace"),
    ):
        done = perdure("erase", name, "--delete")
        assert (done.returncode, done.stdout) == (3, "")
        assert words in done.stderr


def test_retention_is_planned_applied_and_then_finds_nothing(stage: Stage) -> None:
    perdure = stage.perdure
    before = stage.runs("default")
    planned = perdure.document("retention", "plan", retention=POLICY)
    assert planned["default"]["runs"] == len(before) == 3
    assert stage.runs("default") == before

    done = perdure("retention", "apply", retention=POLICY)
    assert done.returncode == 0, done.stderr
    assert "removed 3 runs and 2 conversations" in done.stdout
    assert stage.runs("default") == []
    again = perdure.document("retention", "apply", retention=POLICY)
    assert all(each["runs"] == each["snapshots"] == 0 for each in again.values())
    kept = perdure("retention", "plan", retention='{"nobody": {"runs_days": 30}}')
    assert (kept.returncode, kept.stdout) == (0, "")
    assert "No workspace has a policy and runs." in kept.stderr


@pytest.mark.parametrize(
    ("arguments", "policy", "code", "words"),
    [
        (("retention", "plan"), "", 2, "PERDURE_RETENTION is not set"),
        (
            ("retention", "apply"),
            '{"a": {"runs_days": 3, "details_days": 7}}',
            1,
            "whole runs would be gone before their details",
        ),
        (("retention", "plan"), '{"a": {"settled": "all"}}', 1, "name those"),
        (("retention", "plan"), '{"a": {"keep": 1}}', 1, "a.keep"),
        (("retention", "plan"), "{", 1, "is no JSON"),
        (("erase",), "", 2, "name a conversation, or say --whole-workspace"),
        (("erase", "a", "--whole-workspace"), "", 2, "name a conversation, or say"),
        (("import", "no-such-file"), "", 2, "there is no file 'no-such-file'"),
        (("retention", "plan"), POLICY, 4, NOWHERE),
        (("erase", "a"), "", 4, NOWHERE),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(
    arguments: tuple[str, ...], policy: str, code: int, words: str
) -> None:
    perdure = Perdure({"temporal_address": NOWHERE, "mongodb_uri": f"mongodb://{NOWHERE}"})
    done = perdure(*arguments, **({"retention": policy} if policy else {}))
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
