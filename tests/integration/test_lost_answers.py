"""A boundary has written and its answer is lost: the run goes on, and nothing is there twice."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast
from uuid import uuid4

import pytest
import temporalio.client
import temporalio.worker
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from activities.boundaries import RegistrationIdentityRequest, RegistrationIdentityResult
from stores.commits import Commit, CommitResult
from stores.faulty import Fault, FaultPlan, with_faults
from stores.operations import RegisterRun
from stores.protocols import StepStore
from tests.helpers.evidence import trail_of
from tests.helpers.script import echo_steps, make_agent
from tests.helpers.workers import count_scheduled_activities, running_worker
from tests.integration.conftest import WITHIN
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = pytest.mark.integration

IDENTITY = "registration_identity"
BOUNDARIES = (
    IDENTITY,
    "register_run",
    "append_event",
    "save_snapshot",
    "start_tool_effect",
    "finish_tool_effect",
)
HOLDS = {"append_event": "model_request_completed"}
"""Which commit: one of another kind may come first that holds such an operation."""


class Identities(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    """Loses the first answer of each run's registration identity that is to be lost."""

    def __init__(self, lost: str) -> None:
        self.lost = lost
        self.answers: list[RegistrationIdentityResult] = []

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's
        """See the SDK."""
        return _LosingInbound(next, self)


class _LosingInbound(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, identities: Identities) -> None:
        super().__init__(following)
        self._identities = identities

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's
        answer = await super().execute_activity(input)
        (request,) = input.args if len(input.args) == 1 else (None,)
        if (
            isinstance(request, RegistrationIdentityRequest)
            and request.run_id == self._identities.lost
        ):
            self._identities.answers.append(answer)
            if len(self._identities.answers) == 1:
                message = "the answer is lost"
                raise RuntimeError(message)
        return answer


@dataclass
class NotingStore:
    """A store, with what it was asked to commit and what it answered."""

    store: StepStore
    answers: list[tuple[Commit, CommitResult]] = field(
        default_factory=list[tuple[Commit, CommitResult]]
    )

    def __getattr__(self, name: str) -> Any:
        """Whatever the store has."""
        return getattr(self.store, name)

    def for_workspace(self, workspace_id: str) -> "NotingStore":
        """Notes go to the same list."""
        return NotingStore(self.store.for_workspace(workspace_id), self.answers)

    async def commit(self, commit: Commit) -> CommitResult:
        """Note it."""
        result = await self.store.commit(commit)
        self.answers.append((commit, result))
        return result

    def repeated(self, run_id: str) -> list[tuple[Commit, list[str]]]:
        """The commits of a run that came more than once: the first, and all verdicts."""
        by_number: dict[int, list[tuple[Commit, CommitResult]]] = {}
        for commit, result in self.answers:
            if commit.position and run_id in {each.run_id for each in commit.operations}:
                by_number.setdefault(commit.position.number, []).append((commit, result))
        return [
            (came[0][0], [result.verdict for _, result in came])
            for came in by_number.values()
            if len(came) > 1
        ]


@pytest.fixture(params=["memory", "mongo"])
def store(request: pytest.FixtureRequest) -> StepStore:
    """Both."""
    found: StepStore = request.getfixturevalue(request.param)
    return found


@pytest.mark.spec("SP-19", "SP-20")
@pytest.mark.parametrize("mode", ["local", "regular"])
async def test_each_boundary_whose_answer_is_lost_is_in_the_store_once(
    temporal: Client,
    store: StepStore,
    task_queue: str,
    tmp_path: Path,
    mode: Literal["local", "regular"],
) -> None:
    """A local attempt is followed by its regular fallback, a regular one by another."""
    prefix = uuid4().hex
    faults = [
        Fault(
            name=boundary,
            action="fail",
            when="after",
            run_id=f"{prefix}-{boundary}",
            holds=HOLDS.get(boundary, boundary),
        )
        for boundary in BOUNDARIES
        if boundary != IDENTITY
    ]
    plan = FaultPlan(directory=tmp_path, faults=tuple(faults))
    noting = NotingStore(store)
    identities = Identities(lost=f"{prefix}-{IDENTITY}")
    async with running_worker(
        _with_interceptor(temporal, identities),
        with_faults(cast("StepStore", noting), plan),
        [make_agent("script")],
        task_queue,
        boundary_mode=mode,
    ):
        names = ("undisturbed", *BOUNDARIES)
        handles = await asyncio.gather(
            *(run_to_its_end(temporal, task_queue, f"{prefix}-{each}") for each in names)
        )
    undisturbed, *disturbed = handles
    expected = await trail_of(store, undisturbed.id)
    for boundary, handle in zip(BOUNDARIES, disturbed, strict=True):
        assert await trail_of(store, handle.id) == expected, boundary
        if boundary == IDENTITY:
            assert len(identities.answers) == 2
            assert identities.answers[0] == identities.answers[1]
            continue
        assert plan.has_fired(boundary)
        ((first, verdicts),) = noting.repeated(handle.id)
        assert verdicts == ["apply", "suppress"], boundary
        await assert_first_times(store, handle.id, first)
        if mode == "local":
            history = await handle.fetch_history()
            assert count_scheduled_activities(history)["commit_boundaries"] == 1, boundary


def _with_interceptor(client: Client, interceptor: temporalio.client.Interceptor) -> Client:
    config = client.config()
    config["interceptors"] = [*config["interceptors"], interceptor]
    return Client(**config)


async def run_to_its_end(client: Client, task_queue: str, run_id: str) -> WorkflowHandle[Any, Any]:
    handle = await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="script", prompt=echo_steps(2, parallel=2)),
        id=run_id,
        task_queue=task_queue,
    )
    await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
    return handle


async def assert_first_times(store: StepStore, run_id: str, commit: Commit) -> None:
    """All that is there of the commit has the time of its first attempt."""
    assert commit.position is not None
    events = await store.list_events(run_id=run_id)
    snapshots = await store.list_snapshots(run_id=run_id)
    effects = await store.list_tool_effects(run_id=run_id)
    times = [
        *((each.commit_number, each.timestamp) for each in events),
        *((each.commit_number, each.timestamp) for each in snapshots),
        *((each.commit_number, each.ended_at or each.started_at) for each in effects),
    ]
    if any(isinstance(each, RegisterRun) for each in commit.operations):
        run = await store.get_run(run_id=run_id)
        assert run is not None
        times.append((commit.position.number, run.started_at))
    assert {at for number, at in times if number == commit.position.number} == {commit.now}
