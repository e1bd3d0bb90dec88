"""Builds, roles and queues: which worker does what, and how a run moves to another build."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from settings import Settings
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from tests.helpers.building import ONE, TWO, agent_of
from tests.helpers.eventually import eventually
from tests.helpers.production_worker import ROOT, ProductionWorker, variables_of
from tests.helpers.script import script
from tests.helpers.workers import replay, running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.durable_conversation import DurableConversation

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

WITHIN = timedelta(seconds=30)


class Builds:
    """Workers of a deployment, each a process with an agent of its own."""

    def __init__(self, client: Client, store: MongoStepStore, settings: Settings) -> None:
        self.client = client
        self.settings = settings
        self.deployment = f"deployment-{uuid4().hex}"
        self._store = store

    @asynccontextmanager
    async def running(self, build: str, **variables: str) -> AsyncGenerator[None]:
        environment = {
            **variables_of(self.settings),
            "PERDURE_AGENTS": f"tests.helpers.building:{build.upper()}",
            "PERDURE_DEPLOYMENT": self.deployment,
            "PERDURE_BUILD_ID": build,
            **variables,
        }
        with ProductionWorker(environment) as worker:
            await self._make_current(build)
            yield
            assert await worker.stop() == 0

    async def _make_current(self, build: str) -> None:
        request = SetWorkerDeploymentCurrentVersionRequest(
            namespace=self.client.namespace, deployment_name=self.deployment, build_id=build
        )

        async def is_set() -> bool:
            try:  # refused until the server has heard of the build's workers
                await self.client.workflow_service.set_worker_deployment_current_version(request)
            except RPCError:
                return False
            return True

        await eventually(is_set, within=WITHIN)

    async def start(
        self, steps: Sequence[Sequence[tuple[str, dict[str, Any]]]], **options: Any
    ) -> WorkflowHandle[AgentRunWorkflow, Any]:
        return await self.client.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent="script", prompt=script(steps)),
            id=f"run-{uuid4().hex}",
            task_queue=self.settings.task_queue,
            **options,
        )

    async def said(self, run_id: str) -> list[str]:
        """What each call of `where` returned."""
        snapshot = await self._store.latest_snapshot(run_id=run_id)
        assert snapshot is not None
        return [
            str(part.content)
            for message in snapshot.messages
            for part in message.parts
            if part.part_kind == "tool-return" and part.tool_name in {"where", "new"}
        ]


@pytest.fixture
def builds(
    temporal: Client,
    mongo: MongoStepStore,
    temporal_address: str,
    mongodb_uri: str,
    mongodb_database: str,
    task_queue: str,
) -> Builds:
    settings = Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=mongodb_database,
        task_queue=task_queue,
    )
    return Builds(temporal, mongo, settings)


async def test_an_old_run_moves_at_a_settled_point_and_a_parked_one_stays_until_it_is_decided(
    builds: Builds, task_queue: str, tmp_path: Path
) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"
    wait = ("wait_for", {"path": str(go), "marker": str(begun)})
    async with AsyncExitStack() as workers:
        await workers.enter_async_context(builds.running("one"))
        old = await builds.start([[("where", {})], [("where", {}), wait], [("where", {})]])
        asking = await builds.start([[("order", {"path": str(tmp_path / "x")})]])
        await eventually(begun.exists, within=WITHIN)
        await workers.enter_async_context(builds.running("two"))
        new = await builds.start([[("new", {})]])
        await asyncio.wait_for(new.result(), WITHIN.total_seconds())
        assert await builds.said(new.id) == [f"two on {task_queue}"]

        async def holders() -> list[dict[str, Any]]:
            found = (await drain(builds))["holders"]
            return found if [each["is_parked"] for each in found] == [True, False] else []

        listed = await eventually(holders, within=WITHIN)
        assert [each["workflow_id"] for each in listed] == [asking.id, old.id]
        assert [each["build_id"] for each in listed] == ["one", "one"]
        assert listed[0]["needs"] == f"a decision: perdure show {asking.id}"
        go.touch()
        await asyncio.wait_for(old.result(), WITHIN.total_seconds())
        # Its tools ran where it was pinned, and after the next settled point on the new build.
        said = await builds.said(old.id)
        assert said == [f"one on {task_queue}"] * 2 + [f"two on {task_queue}"]
        hop = builds.client.get_workflow_handle(old.id, run_id=old.first_execution_run_id)
        await replay(hop, [ONE])
        await replay(builds.client.get_workflow_handle(old.id), [TWO])
        await asking.terminate()

        async def released() -> bool:
            return bool((await drain(builds))["builds"][0]["holders"] == 0)

        await eventually(released, within=WITHIN)


async def drain(builds: Builds) -> dict[str, Any]:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "cli.main", "drain", "--deployment", builds.deployment, "--json"],
        cwd=ROOT,
        env=variables_of(builds.settings),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def test_an_old_run_finishes_on_its_build_where_runs_are_not_to_move(
    builds: Builds, task_queue: str, tmp_path: Path
) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"
    wait = ("wait_for", {"path": str(go), "marker": str(begun)})
    async with AsyncExitStack() as workers:
        await workers.enter_async_context(
            builds.running("one", PERDURE_HOP_TO_NEWEST_BUILD="false")
        )
        old = await builds.start([[("where", {})], [wait], [("where", {})]])
        await eventually(begun.exists, within=WITHIN)
        await workers.enter_async_context(builds.running("two"))
        go.touch()
        new = await builds.start([[("new", {})]])
        for run in (old, new):
            await asyncio.wait_for(run.result(), WITHIN.total_seconds())
        assert await builds.said(old.id) == [f"one on {task_queue}"] * 2
        assert await builds.said(new.id) == [f"two on {task_queue}"]


async def test_a_conversation_moves_between_turns(builds: Builds, task_queue: str) -> None:
    async with AsyncExitStack() as workers:
        await workers.enter_async_context(builds.running("one"))
        conversation = DurableConversation.connect(
            builds.client, agent="script", conversation_id=task_queue, task_queue=task_queue
        )
        first = await conversation.say(script([[("where", {})]]))
        assert first.output == "done"
        await workers.enter_async_context(builds.running("two"))
        for _ in range(2):
            await conversation.say(script([[("where", {})]]))
        last = await conversation.submit(script([[("new", {})]]))
        await conversation.output(script([[("new", {})]]), last)
        said = await builds.said(last.answer.run_id)  # of all its turns
        # Its next workflow task tells it of the newest build; where that is the one that brings a
        # message, this turn is on the old build still, and it moves behind it.
        one, two = f"one on {task_queue}", f"two on {task_queue}"
        assert said in ([one, two, two, two], [one, one, two, two])
        described = await builds.client.get_workflow_handle(conversation.workflow_id).describe()
        version = described.raw_description.workflow_execution_info.versioning_info
        assert version.deployment_version.build_id == "two"
        await conversation.close()


async def test_tools_and_agents_run_on_the_queues_that_are_named_for_them(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    routes = {"tool:other": f"{task_queue}-tool", "agent:script": f"{task_queue}-agent"}
    agent = agent_of("one", "other")
    async with AsyncExitStack() as workers:
        for queue, role in (
            (task_queue, "workflows"),
            (f"{task_queue}-tool", "activities"),
            (f"{task_queue}-agent", "activities"),
        ):
            options: dict[str, Any] = {"role": role, "routes": routes}
            await workers.enter_async_context(
                running_worker(temporal, memory, [agent], queue, **options)
            )
        run = await temporal.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent="script", prompt=script([[("where", {})], [("other", {})]])),
            id=f"run-{uuid4().hex}",
            task_queue=task_queue,
        )
        await asyncio.wait_for(run.result(), WITHIN.total_seconds())
        snapshot = await memory.latest_snapshot(run_id=run.id)
        assert snapshot is not None
        said = [
            part.content
            for message in snapshot.messages
            for part in message.parts
            if part.part_kind == "tool-return"
        ]
        assert said == [f"one on {task_queue}-agent", f"one on {task_queue}-tool"]
        await replay(run, [agent])


async def test_a_submitted_run_has_its_workspaces_share(builds: Builds, temporal: Client) -> None:
    run_id = f"run-{uuid4().hex}"
    done = await asyncio.to_thread(
        subprocess.run,
        [
            *(sys.executable, "-m", "cli.main", "run", "script", script([]), "--no-wait"),
            *("--run-id", run_id, "--workspace", "acme", "--priority", "2"),
        ],
        cwd=ROOT,
        env={**variables_of(builds.settings), "PERDURE_FAIRNESS_WEIGHTS": '{"acme": 3}'},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    described = await temporal.get_workflow_handle(run_id).describe()
    priority = described.raw_description.workflow_execution_info.priority
    assert (priority.priority_key, priority.fairness_key) == (2, "acme")
    assert priority.fairness_weight == 3
