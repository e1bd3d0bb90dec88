"""A run that goes on in other executions (continue-as-new) is one run, as if nothing had happened."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHandle

from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from tests.helpers.evidence import trail_of
from tests.helpers.script import echo_steps, make_agent
from tests.helpers.workers import running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = pytest.mark.integration

AGENTS = [make_agent()]
STEPS = 20


async def start(client: Client, task_queue: str, **request: Any) -> WorkflowHandle[Any, Any]:
    given = {"agent": "script", "prompt": echo_steps(STEPS), **request}
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(**given),
        id=f"hops-{uuid4().hex}",
        task_queue=task_queue,
    )


async def test_run_that_hops_every_5_steps_equals_one_that_never_does(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    plain, hopping = f"{task_queue}-plain", f"{task_queue}-hopping"
    async with (
        running_worker(temporal, mongo, AGENTS, plain),
        running_worker(temporal, mongo, AGENTS, hopping, hop_after_requests=5),
    ):
        one = await start(temporal, plain)
        other = await start(temporal, hopping)
        out = [await handle.result() for handle in (one, other)]
    assert out[0].usage == out[1].usage
    trails = [await trail_of(mongo, handle.id) for handle in (one, other)]
    assert trails[0] == trails[1]
    run = await mongo.get_run(run_id=other.id)
    print(run)
