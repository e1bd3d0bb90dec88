"""`perdure verify` and `replay-check` as operators and CI run them, in their own namespace."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.duration_pb2 import Duration
from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel
from pymongo import MongoClient
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    RegisterNamespaceRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from client import connect
from settings import Settings
from stores.mongo.steps import MongoStepStore
from tests.cli.test_commands import NOWHERE, Perdure
from tests.helpers.eventually import eventually
from tests.helpers.script import echo_steps, follow, make_agent
from tests.helpers.workers import running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.durable import durable

pytestmark = pytest.mark.integration

agents = [make_agent()]
"""The code that the runs were made with: PERDURE_AGENTS names this module."""

agents_without_tools = [Agent(FunctionModel(follow), name="script", capabilities=[*durable()])]
"""The same agent after a change that its runs do not survive."""

other_agents = [make_agent("other")]

RUNS = ("trusted-1", "trusted-2", "trusted-3")


@dataclass(frozen=True)
class Stage:
    perdure: Perdure
    database: Any
    settings: Settings


@pytest.fixture(scope="module")
def stage(temporal_address: str, mongodb_uri: str) -> Iterator[Stage]:
    """Runs that have ended, without a worker."""
    settings = Settings(
        temporal_address=temporal_address,
        temporal_namespace=f"trust-{uuid4().hex}",
        mongodb_uri=mongodb_uri,
        mongodb_database=f"trust_{uuid4().hex}",
    )
    asyncio.run(prepare(settings))
    perdure = Perdure(
        {
            "temporal_address": temporal_address,
            "temporal_namespace": settings.temporal_namespace,
            "mongodb_uri": mongodb_uri,
            "mongodb_database": settings.mongodb_database,
            "agents": "tests.cli.test_trust:agents",
        }
    )
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        yield Stage(perdure, client[settings.mongodb_database], settings)
        client.drop_database(settings.mongodb_database)


async def prepare(settings: Settings) -> None:
    anywhere = await connect(Settings(temporal_address=settings.temporal_address))
    await anywhere.workflow_service.register_namespace(
        RegisterNamespaceRequest(
            namespace=settings.temporal_namespace,
            workflow_execution_retention_period=Duration(seconds=86400),
        )
    )
    client = await eventually(lambda: connected(settings), within=timedelta(seconds=30))
    assert client is not None
    store = MongoStepStore(db_url=settings.mongodb_uri, database=settings.mongodb_database)
    await store.initialise()
    async with running_worker(client, store, agents, settings.task_queue):
        for run_id in RUNS:
            handle = await client.start_workflow(
                AgentRunWorkflow.run,
                AgentRunInput(agent="script", prompt=echo_steps(2)),
                id=run_id,
                task_queue=settings.task_queue,
            )
            await handle.result()
    await store.aclose()


async def connected(settings: Settings) -> Client | None:
    """Once the server knows the new namespace everywhere."""
    client = await connect(settings)
    try:
        await client.count_workflows("WorkflowType = 'agent_run'")
    except RPCError:
        return None
    return client


def test_verify_tells_exact_gap_and_repair(stage: Stage) -> None:
    perdure, run_id = stage.perdure, RUNS[0]
    document = perdure.document("verify", run_id)
    (found,) = document["runs"]
    assert (found["verdict"], found["basis"], found["differences"]) == ("EXACT", "replay", [])

    removed = stage.database["events"].find_one_and_delete(
        {"run_id": run_id, "event": "tool_call_started"}
    )
    done = perdure("verify", run_id)
    assert done.returncode == 1
    assert done.stdout.startswith(f"GAP  run {run_id}: ")
    place = f"(sequence {removed['sequence']}, commit {removed['number']})"
    assert f"gap: append_event {removed['key']} {place} is missing" in done.stdout
    done = perdure("verify", "--since", "1h")
    assert done.returncode == 1
    assert "3 runs: 2 EXACT, 1 GAP" in done.stdout

    done = perdure("verify", run_id, "--repair")
    assert (done.returncode, done.stdout.splitlines()[0][:5]) == (0, "EXACT")
    assert "repaired: 1 rows were written" in done.stdout
    done = perdure("verify", "--since", "1h")
    assert (done.returncode, done.stdout) == (0, "3 runs: 3 EXACT\n")
    assert perdure("verify", "--open").stdout == "0 runs: none ran\n"


def test_verify_without_the_code_compares_recorded_digests_and_says_so(stage: Stage) -> None:
    changed = {"agents": "tests.cli.test_trust:agents_without_tools"}
    done = stage.perdure("verify", RUNS[1], **changed)
    assert done.returncode == 0, done.stderr
    assert "compared with the digests that the history holds alone" in done.stdout
    assert "this code does not replay the history" in done.stdout


def test_replay_check_of_the_code_that_made_the_runs_is_green(stage: Stage) -> None:
    done = stage.perdure("replay-check", "--since", "1d")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("3 go the same way\n")
    document = stage.perdure.document("replay-check", "--limit", "1")
    assert document["outcomes"] == {"same": 1}


def test_replay_check_of_changed_code_says_where_it_parts(stage: Stage) -> None:
    changed = {"agents": "tests.cli.test_trust:agents_without_tools"}
    done = stage.perdure("replay-check", "--type", "agent_run", **changed)
    assert done.returncode == 1
    assert f"diverged  {RUNS[0]}: " in done.stdout
    assert (
        f"run {RUNS[0]} at step 1, after append_event 1:model_request_started::0\n" in done.stdout
    )
    called = ": activity_task_scheduled agent__script__toolset__<agent>__call_tool\n"
    assert called in done.stdout
    assert "build id 'perdure' is this code's, and was used by other code before" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "changed", "expected"),
    [
        ((), {"agents": "tests.cli.test_trust:other_agents"}, "agent 'script' is not on this code"),
        (("--type", "nobodys"), {}, "no history was found"),
    ],
)
def test_replay_check_that_cannot_tell_is_neither_green_nor_red(
    stage: Stage, arguments: tuple[str, ...], changed: dict[str, str], expected: str
) -> None:
    done = stage.perdure("replay-check", *arguments, **changed)
    assert done.returncode == 2
    assert expected in done.stdout


def test_verify_of_a_run_whose_history_is_gone_says_what_can_be_told(stage: Stage) -> None:
    run_id = RUNS[2]
    asyncio.run(delete(stage.settings, run_id))
    done = stage.perdure("verify", run_id)
    assert done.returncode == 2
    assert done.stdout.startswith(f"UNKNOWN  run {run_id}: ")
    assert "the history is gone after its retention time" in done.stdout
    done = stage.perdure("verify", "nobodys")
    assert done.returncode == 3
    assert "cannot be verified: neither workspace 'default' of database" in done.stderr


async def delete(settings: Settings, workflow_id: str) -> None:
    client = await connect(settings)
    await client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
        )
    )

    async def is_gone() -> bool:
        try:
            await client.get_workflow_handle(workflow_id).fetch_history()
        except RPCError:
            return True
        return False

    await eventually(is_gone, within=timedelta(seconds=30))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("verify",), "say exactly one of RUN, and --open or --since"),
        (("verify", "run", "--open"), "say exactly one of RUN, and --open or --since"),
        (("verify", "--since", "lately"), "--since 'lately' is no age"),
        (("replay-check", "--since", "7 days"), "--since '7 days' is no age"),
        (("replay-check", "--since", "99999999999w"), "is no age"),
    ],
)
def test_wrong_usage_is_refused_before_a_server_is_asked(
    arguments: tuple[str, ...], expected: str
) -> None:
    perdure = Perdure({"temporal_address": NOWHERE, "mongodb_uri": f"mongodb://{NOWHERE}"})
    done = perdure(*arguments)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stdout == ""
