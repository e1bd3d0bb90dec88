"""The gate in one worker: what is repeated, what is not, and who decides where nobody knows."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast
from uuid import uuid4

import pytest
import temporalio.client
import temporalio.worker
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from temporalio import activity
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput
from temporalio.workflow import ActivityConfig

from activities.reconciling import Completed, Finding, NotDone, NotKnown, UnknownCall
from stores.attempts import ToolGate
from stores.decisions import RESOLVED_BY
from stores.faulty import Fault, FaultPlan, with_faults
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from stores.protocols import StepStore
from stores.records import ToolEffectRecord
from tests.helpers.eventually import eventually
from tests.helpers.script import Call, follow, script
from tests.helpers.user_workflows import ScriptedRun, ScriptedRunsInput, ScriptedRunsWorkflow
from tests.helpers.workers import counted, metered, replay, running_worker
from tests.integration.conftest import WITHIN
from workflows import gate, names
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.durable import durable
from workflows.effects import effect
from workflows.lineage import is_tool_activity
from workflows.parking import ResolveToolEffectRequest, ResolveToolEffectResult
from workflows.persistence import StepPersistence

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

QUICK = ActivityConfig(
    heartbeat_timeout=timedelta(seconds=2),
    retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=50)),
)
HALF_A_SECOND: dict[str, Any] = {
    "temporal": ActivityConfig(
        start_to_close_timeout=timedelta(milliseconds=500),
        retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=50)),
    )
}

bodies: Counter[str] = Counter()
"""How often a body was begun, by the key in its arguments."""


async def flaky(key: str, until: int) -> str:
    """Fail in the first attempts."""
    bodies[key] += 1
    if bodies[key] <= until:
        message = f"attempt {bodies[key]}"
        raise RuntimeError(message)
    return "worked"


async def pay(key: str, go: str = "") -> str:
    """Wait for the file `go`, if one is named."""
    bodies[key] += 1
    while go and not Path(go).exists():
        await asyncio.sleep(0.02)
    return "paid"


async def hang(key: str, say: str = "") -> str:  # noqa: ARG001 - for the check
    """Hang the first time, longer than an attempt may take."""
    bodies[key] += 1
    if bodies[key] == 1:
        await asyncio.Event().wait()
    return "paid"


async def outlive(key: str, go: str) -> str:
    """The first time stay until the file `go` exists, and never mind being cancelled."""
    bodies[key] += 1
    this = bodies[key]
    while this == 1 and not Path(go).exists():
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            continue
    return f"body {this}"


async def check(call: UnknownCall) -> Finding:
    """What became of `hang`, as its arguments say."""
    match call.arguments["say"]:
        case "completed":
            return Completed(f"paid, says {call.tool_name}'s check")
        case "not done":
            return NotDone()
        case "nonsense":
            return cast("Finding", "nonsense")
        case "raise":
            message = "the bank is closed"
            raise RuntimeError(message)
        case _:
            return NotKnown()


AGENT = Agent(
    FunctionModel(follow),
    name="gated",
    tools=[
        Tool(flaky, metadata=effect("idempotent")),
        Tool(flaky, name="flaky_once"),
        Tool(flaky, name="flaky_read", metadata=effect("read")),
        Tool(pay),
        Tool(pay, name="look", metadata=effect("read")),
        Tool(hang, metadata=HALF_A_SECOND),
        Tool(hang, name="hang_checked", metadata=HALF_A_SECOND),
        Tool(
            hang, name="hang_or_fail", metadata=effect("once", on_unknown="fail", **HALF_A_SECOND)
        ),
        Tool(
            hang,
            name="hang_a_second",
            metadata=effect("once", on_unknown=timedelta(seconds=1), **HALF_A_SECOND),
        ),
        Tool(outlive, metadata=effect("idempotent", **HALF_A_SECOND)),
        Tool(outlive, name="outlive_once", metadata=HALF_A_SECOND),
    ],
    capabilities=[*durable(StepPersistence(reconcile={"hang_checked": check}), activities=QUICK)],
)
AGENTS = [AGENT]


class Reports(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    """Disturbs the first attempt of each tool activity, outside the gate.

    Args:
        fault: `lose` what it reports; `hold` it; or fail `before` the gate.
    """

    def __init__(self, fault: Literal["lose", "hold", "before"]) -> None:
        self.fault = fault
        self.struck = 0

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's
        """See the SDK."""
        return _DisturbedInbound(next, self)


class _DisturbedInbound(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, reports: Reports) -> None:
        super().__init__(following)
        self._reports = reports

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's
        info = activity.info()
        if info.attempt > 1 or not is_tool_activity(info.activity_type):
            return await super().execute_activity(input)
        message = f"fault {self._reports.fault}"
        if self._reports.fault == "before":
            self._reports.struck += 1
            raise RuntimeError(message)
        result = await super().execute_activity(input)
        self._reports.struck += 1
        if self._reports.fault == "hold":
            await asyncio.Event().wait()
        if self._reports.fault == "lose":
            raise RuntimeError(message)
        return result


def disturbed(client: Client, reports: Reports) -> Client:
    config = client.config()
    config["interceptors"] = [*config["interceptors"], reports]
    return Client(**config)


@pytest.fixture
def key() -> str:
    """Of a test's bodies."""
    return uuid4().hex


async def start(
    client: Client, task_queue: str, *calls: Call, **request: Any
) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="gated", prompt=script([list(calls)]), **request),
        id=f"gated-{uuid4().hex}",
        task_queue=task_queue,
    )


async def ended(handle: WorkflowHandle[Any, Any]) -> None:
    await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
    await replay(handle, AGENTS)


@asynccontextmanager
async def run(
    client: Client, store: StepStore, task_queue: str, *calls: Call, **options: Any
) -> AsyncGenerator[WorkflowHandle[Any, Any]]:
    """A run of these calls in one step, with a worker; nobody waits for its end."""
    async with running_worker(client, store, AGENTS, task_queue, **options):
        yield await start(client, task_queue, *calls)


async def state(store: StepStore, run_id: str) -> str | None:
    found = await store.get_run(run_id=run_id)
    return found.state if found else None


def is_parked(store: StepStore, run_id: str) -> Callable[[], Awaitable[bool]]:
    async def needs_attention() -> bool:
        return await state(store, run_id) == "needs_attention"

    return needs_attention


async def outcomes(store: StepStore, run_id: str) -> list[list[str]]:
    gates = await store.attempts.list_gates(run_id=run_id)
    return [[attempt.outcome for attempt in each.attempts] for each in gates]


async def only_gate(store: StepStore, run_id: str) -> ToolGate:
    (found,) = await store.attempts.list_gates(run_id=run_id)
    return found


async def only_effect(store: StepStore, run_id: str) -> ToolEffectRecord:
    (found,) = await store.list_tool_effects(run_id=run_id)
    return found


async def returned(store: StepStore, run_id: str) -> list[ToolReturnPart]:
    """What the model was told that its tools returned."""
    snapshot = await store.latest_snapshot(run_id=run_id)
    assert snapshot is not None
    return [
        part
        for message in snapshot.messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


async def resolve(
    handle: WorkflowHandle[Any, Any], decision: str, *, run_id: str | None = None, **values: Any
) -> ResolveToolEffectResult:
    fields = {"run_id": run_id or handle.id, "call": "1/0", "decision": decision, **values}
    answer: ResolveToolEffectResult = await handle.execute_update(  # pyright: ignore[reportUnknownMemberType] - the SDK's
        names.RESOLVE_UPDATE,
        ResolveToolEffectRequest.model_validate(fields),
        result_type=ResolveToolEffectResult,
    )
    return answer


# --- Attempts ---


@pytest.mark.parametrize("tool", ["flaky", "flaky_read"])
async def test_tool_that_fails_twice_and_then_works_shows_three_attempts(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str, tool: str
) -> None:
    async with run(temporal, memory, task_queue, (tool, {"key": key, "until": 2})) as handle:
        await ended(handle)
    made = await only_gate(memory, handle.id)
    assert [each.outcome for each in made.attempts] == ["failed", "failed", "completed"]
    assert [each.number for each in made.attempts] == [1, 2, 3]
    assert [each.error for each in made.attempts] == ["attempt 1", "attempt 2", None]
    assert all(each.ended_at and each.ended_at >= each.started_at for each in made.attempts)
    assert (await only_effect(memory, handle.id)).status == "completed"


async def test_read_that_succeeds_at_once_costs_no_write(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str
) -> None:
    async with run(temporal, memory, task_queue, ("look", {"key": key})) as handle:
        await ended(handle)
    assert bodies[key] == 1
    assert await memory.attempts.list_gates(run_id=handle.id) == []
    assert (await only_effect(memory, handle.id)).status == "completed"


async def test_once_tool_that_raises_is_not_attempted_again(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str
) -> None:
    calls: Call = ("flaky_once", {"key": key, "until": 1})
    async with run(temporal, memory, task_queue, calls) as handle:
        with pytest.raises(WorkflowFailureError) as caught:
            await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
    assert isinstance(caught.value.cause, ActivityError)
    assert "RuntimeError: attempt 1" in str(caught.value.cause.cause)
    assert bodies[key] == 1
    assert await outcomes(memory, handle.id) == [["failed"]]
    found = await only_effect(memory, handle.id)
    assert (found.status, found.error) == ("failed", "RuntimeError: attempt 1")
    assert await state(memory, handle.id) == "failed"


async def test_worker_may_be_told_what_a_tool_does_that_declares_nothing(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str
) -> None:
    told = {"hang": "idempotent"}
    async with run(temporal, memory, task_queue, ("hang", {"key": key}), tool_effects=told) as it:
        await ended(it)
    assert bodies[key] == 2
    assert (await only_effect(memory, it.id)).effect == "idempotent"


# --- Faults around the body ---


async def test_recorded_result_is_returned_when_the_report_is_lost(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str
) -> None:
    reports = Reports("lose")
    client = disturbed(temporal, reports)
    async with run(client, memory, task_queue, ("pay", {"key": key})) as handle:
        await ended(handle)
    assert (bodies[key], reports.struck) == (1, 1)
    assert [part.content for part in await returned(memory, handle.id)] == ["paid"]
    assert await outcomes(memory, handle.id) == [["completed"]]


async def test_recorded_error_is_raised_when_the_report_is_lost(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str, tmp_path: Path
) -> None:
    # The end is written, and the worker never hears so: it stops all the same.
    fault = Fault(name="stuck", action="wait", when="after", method="leave")
    plan = FaultPlan(directory=tmp_path, faults=(fault,))
    store = with_faults(memory, plan)
    options = ("flaky_once", {"key": key, "until": 1})
    async with running_worker(temporal, store, AGENTS, task_queue, graceful_shutdown_seconds=0):
        handle = await start(temporal, task_queue, options)
        await eventually(lambda: plan.has_fired("stuck"))
    async with running_worker(temporal, memory, AGENTS, task_queue):
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
    assert bodies[key] == 1
    assert (await only_effect(memory, handle.id)).error == "RuntimeError: attempt 1"


async def test_worker_that_stops_without_grace_after_the_body_parks_nothing(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str
) -> None:
    reports = Reports("hold")
    client = disturbed(temporal, reports)
    async with running_worker(client, memory, AGENTS, task_queue, graceful_shutdown_seconds=0):
        handle = await start(temporal, task_queue, ("pay", {"key": key}))
        await eventually(lambda: reports.struck)
    async with running_worker(temporal, memory, AGENTS, task_queue):
        await ended(handle)
    assert bodies[key] == 1
    assert (await only_effect(memory, handle.id)).status == "completed"
    kinds = [(each.kind, each.error) for each in await memory.list_events(run_id=handle.id)]
    assert "tool_call_failed" not in dict(kinds)


async def test_result_that_is_too_large_to_keep_counts_unless_its_report_is_lost(
    temporal: Client,
    memory: InMemoryStepStore,
    task_queue: str,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "LARGEST_RESULT_BYTES", 20)
    async with run(temporal, memory, task_queue, ("pay", {"key": f"{key}-0"})) as handle:
        await ended(handle)
    client = disturbed(temporal, Reports("lose"))
    async with run(client, memory, task_queue, ("pay", {"key": f"{key}-1"})) as handle:
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
    assert (bodies[f"{key}-0"], bodies[f"{key}-1"]) == (1, 1)
    found = await only_effect(memory, handle.id)
    assert found.status == "failed"
    assert "ResultTooLargeError: the tool returned" in str(found.error)


async def test_attempt_that_never_reached_the_gate_is_no_attempt(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str
) -> None:
    reports = Reports("before")
    client = disturbed(temporal, reports)
    async with run(client, memory, task_queue, ("pay", {"key": key})) as handle:
        await ended(handle)
    assert (bodies[key], reports.struck) == (1, 1)
    assert await outcomes(memory, handle.id) == [["completed"]]


@pytest.mark.parametrize("method", ["enter", "leave"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_body_runs_once_while_the_store_is_away(
    temporal: Client,
    memory: InMemoryStepStore,
    task_queue: str,
    key: str,
    tmp_path: Path,
    method: str,
    when: Literal["before", "after"],
) -> None:
    faults = [Fault(name=f"away-{n}", action="fail", when=when, method=method) for n in range(3)]
    back = tmp_path / "back"
    held = Fault(name="held", action="wait", when=when, method=method, until=back)
    plan = FaultPlan(directory=tmp_path, faults=(*faults, held))
    store = with_faults(memory, plan)
    async with run(temporal, store, task_queue, ("pay", {"key": key})) as handle:
        await eventually(lambda: plan.has_fired("held"))
        assert bodies[key] == (0 if method == "enter" else 1)
        assert (await only_effect(memory, handle.id)).status == "started"
        back.touch()
        await ended(handle)
    assert all(plan.has_fired(each.name) for each in plan.faults)
    assert bodies[key] == 1
    assert await outcomes(memory, handle.id) == [["completed"]]


async def test_late_end_of_a_stale_attempt_changes_no_row_and_is_counted(
    temporal: Client, mongo: MongoStepStore, task_queue: str, key: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    calls: Call = ("outlive", {"key": key, "go": str(go)})
    async with run(temporal, mongo, task_queue, calls) as handle:
        await ended(handle)
        before = await only_gate(mongo, handle.id)
        rows = await mongo.list_tool_effects(run_id=handle.id)
        events = await mongo.list_events(run_id=handle.id)
        assert [each.outcome for each in before.attempts] == ["entered", "completed"]
        go.touch()

        async def is_counted() -> bool:
            return (await only_gate(mongo, handle.id)).late_writes == 1

        await eventually(is_counted)
    assert (await only_gate(mongo, handle.id)).attempts == before.attempts
    assert await mongo.list_tool_effects(run_id=handle.id) == rows
    assert await mongo.list_events(run_id=handle.id) == events
    assert [part.content for part in await returned(mongo, handle.id)] == ["body 2"]


async def test_once_tool_that_outlives_its_attempt_does_not_undo_a_decision(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    calls: Call = ("outlive_once", {"key": key, "go": str(go)})
    async with run(temporal, memory, task_queue, calls) as handle:
        await eventually(is_parked(memory, handle.id))
        await resolve(handle, "completed", result="so we think")
        await ended(handle)
        row = await only_effect(memory, handle.id)
        go.touch()

        async def has_left() -> bool:
            return await outcomes(memory, handle.id) == [["completed"]]

        await eventually(has_left)
    assert bodies[key] == 1
    assert await only_effect(memory, handle.id) == row
    assert row.status == "resolved"
    assert [part.content for part in await returned(memory, handle.id)] == ["so we think"]


# --- Unknown outcomes ---


async def test_worker_that_stops_without_grace_in_the_body_parks_the_run(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str, tmp_path: Path
) -> None:
    calls: Call = ("pay", {"key": key, "go": str(tmp_path / "never")})
    async with running_worker(temporal, memory, AGENTS, task_queue, graceful_shutdown_seconds=0):
        handle = await start(temporal, task_queue, calls)
        await eventually(lambda: bodies[key])
    async with running_worker(temporal, memory, AGENTS, task_queue):
        await eventually(is_parked(memory, handle.id))
        assert (await handle.query(AgentRunWorkflow.status)).state == "needs_attention"
        assert bodies[key] == 1
        await resolve(handle, "completed", result="paid", by="ann", why="saw it")
        await ended(handle)
    (part,) = await returned(memory, handle.id)
    assert part.content == "paid"
    assert part.metadata == {RESOLVED_BY: {"by": "ann", "why": "saw it"}}
    assert await state(memory, handle.id) == "completed"


@pytest.mark.parametrize(
    ("say", "content", "count", "status"),
    [
        ("completed", "paid, says hang_checked's check", 1, "resolved"),
        ("not done", "paid", 2, "completed"),
    ],
)
async def test_check_that_knows_decides_and_nobody_is_asked(
    temporal: Client,
    memory: InMemoryStepStore,
    task_queue: str,
    key: str,
    say: str,
    content: str,
    count: int,
    status: str,
) -> None:
    calls: Call = ("hang_checked", {"key": key, "say": say})
    async with run(temporal, memory, task_queue, calls) as handle:
        await ended(handle)
    assert bodies[key] == count
    assert [part.content for part in await returned(memory, handle.id)] == [content]
    row = await only_effect(memory, handle.id)
    assert row.status == status
    assert row.resolution is not None
    assert row.resolution.by == "reconcile"


@pytest.mark.parametrize(
    ("say", "problem"),
    [
        ("not known", "the tool may have done its work"),
        ("raise", "its reconcile failed: RuntimeError: the bank is closed"),
        ("nonsense", "its reconcile failed: InvalidFindingError: reconcile of tool 'hang_checked'"),
    ],
)
async def test_check_that_knows_nothing_parks_the_run_with_its_error(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str, say: str, problem: str
) -> None:
    calls: Call = ("hang_checked", {"key": key, "say": say})
    async with run(temporal, memory, task_queue, calls) as handle:
        await eventually(is_parked(memory, handle.id))
        row = await only_effect(memory, handle.id)
        assert row.status == "unknown"
        assert problem in str(row.error)
        await resolve(handle, "run_again")
        await ended(handle)
    assert bodies[key] == 2


@pytest.mark.parametrize("tool", ["hang_or_fail", "hang_a_second"])
async def test_tool_may_have_its_run_fail_instead_of_waiting(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str, tool: str
) -> None:
    async with run(temporal, memory, task_queue, (tool, {"key": key})) as handle:
        if tool == "hang_a_second":
            await eventually(is_parked(memory, handle.id))
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
        await replay(handle, AGENTS)
    assert await state(memory, handle.id) == "failed"
    row = await only_effect(memory, handle.id)
    assert row.status == "unknown"
    assert str(row.error).startswith("EffectOutcomeUnknownError: call 1/0 of run")
    assert bodies[key] == 1


async def test_run_that_is_cancelled_while_parked_leaves_the_call_unknown(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str
) -> None:
    client, buffer = await metered(temporal)
    attributes = {names.STATE_ATTRIBUTE.name}
    calls: Call = ("hang", {"key": key})
    async with run(client, memory, task_queue, calls, search_attributes=attributes) as handle:
        await eventually(is_parked(memory, handle.id))

        async def is_found_so() -> bool:
            found = (await handle.describe()).typed_search_attributes
            return found.get(names.STATE_ATTRIBUTE) == "needs_attention"

        await eventually(is_found_so)
        assert counted(buffer, "perdure_tool_effects_parked") == 1
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
        await replay(handle, AGENTS)
    assert await state(memory, handle.id) == "cancelled"
    row = await only_effect(memory, handle.id)
    assert row.status == "unknown"
    unresolved = await memory.list_unresolved_tool_effects(run_id=handle.id)
    assert [each.tool_name for each in unresolved] == ["hang"]


async def test_run_that_is_cancelled_with_tools_in_flight_says_of_each_what_happened(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    calls: list[Call] = [
        ("pay", {"key": f"{key}-0", "go": str(tmp_path / "never")}),
        ("pay", {"key": f"{key}-1"}),
        ("look", {"key": f"{key}-2", "go": str(tmp_path / "never")}),
    ]
    async with run(temporal, memory, task_queue, *calls) as handle:
        await eventually(lambda: all(bodies[f"{key}-{index}"] for index in range(3)))

        async def has_one_ended() -> bool:
            rows = await memory.list_tool_effects(run_id=handle.id)
            return [each.status for each in rows] == ["started", "completed", "started"]

        await eventually(has_one_ended)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
        # The run has waited for the body that is not only a read.
        gates = await memory.attempts.list_gates(run_id=handle.id)
        assert [each.newest.outcome for each in gates][:2] == ["cancelled", "completed"]
        go.touch()
    rows = await memory.list_tool_effects(run_id=handle.id)
    assert [each.status for each in rows] == ["unknown", "completed", "unknown"]
    assert await state(memory, handle.id) == "cancelled"


# --- Deciding ---


async def test_of_two_answers_one_wins_and_the_other_is_told_which(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    calls: list[Call] = [
        ("hang", {"key": key}),
        ("pay", {"key": f"{key}-1", "go": str(go)}),
    ]
    async with run(temporal, memory, task_queue, *calls) as handle:
        await eventually(is_parked(memory, handle.id))
        answers = await asyncio.gather(
            *(resolve(handle, "completed", result=by, by=by) for by in ("ann", "bob")),
            return_exceptions=True,
        )
        won = [each for each in answers if isinstance(each, ResolveToolEffectResult)]
        lost = [each for each in answers if isinstance(each, WorkflowUpdateFailedError)]
        assert (len(won), len(lost)) == (1, 1)
        winner = ("ann", "bob")[answers.index(won[0])]
        refusals = [lost[0].cause]

        async def has_gone_on() -> bool:
            return await state(memory, handle.id) == "running"

        await eventually(has_gone_on)
        with pytest.raises(WorkflowUpdateFailedError) as late:
            await resolve(handle, "failed", error="too late")
        refusals.append(late.value.cause)
        for refusal in refusals:
            assert isinstance(refusal, ApplicationError)
            assert refusal.type == "ResolutionRefusedError"
            assert f"was decided by {winner} already: completed" in str(refusal)
        go.touch()
        await ended(handle)
    assert [part.content for part in await returned(memory, handle.id)] == [winner, "paid"]
    rows = await memory.list_tool_effects(run_id=handle.id)
    assert [each.status for each in rows] == ["resolved", "completed"]
    gates = await memory.attempts.list_gates(run_id=handle.id)
    assert [each.newest.number for each in gates] == [1, 1]


async def test_parked_call_in_a_users_own_workflow_is_decided_likewise(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, key: str
) -> None:
    own = [ScriptedRunsWorkflow]
    prompt = script([[("hang", {"key": key})]])
    async with running_worker(temporal, memory, AGENTS, task_queue, workflows=own):
        handle = await temporal.start_workflow(
            ScriptedRunsWorkflow.run,
            ScriptedRunsInput(runs=[ScriptedRun(prompt=prompt, agent="gated")]),
            id=f"own-{uuid4().hex}",
            task_queue=task_queue,
        )
        run_id = f"{handle.id}-0-return"
        await eventually(is_parked(memory, run_id))
        await resolve(handle, "completed", run_id=run_id, result="paid")
        assert await asyncio.wait_for(handle.result(), WITHIN.total_seconds()) == ["done"]
    assert await state(memory, run_id) == "completed"
    assert (await only_effect(memory, run_id)).status == "resolved"
