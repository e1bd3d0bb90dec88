"""One fault point: a run, the fault, what takes over, and the look at what is left."""

import asyncio
import secrets
import shutil
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

from pydantic_ai import Agent
from temporalio.client import (
    Client,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import TerminatedError
from temporalio.service import RPCError

from cli.sweep.disturbing import Disturber
from cli.sweep.judging import Outcome, with_parked_call, without_marks
from cli.sweep.points import CHILD, ROOT, Mode, Point
from cli.sweep.script import AGENTS, STEPS, body_counts
from cli.sweep.stage import Lane, TooLateError, seen
from cli.sweep.traces import Trail, histories_of, stored_and_replayed, trail_of
from cli.sweep.verifying import unlike_history
from cli.sweep.workers import ListeningPlan, WorkerProcess
from stores.attempts import ToolGate
from stores.errors import StoreUnavailableError
from stores.faulty import FaultPlan
from stores.protocols import StepStore
from workflows import names
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput, AgentRunOutput
from workflows.parking import ResolveToolEffectRequest, ResolveToolEffectResult
from workflows.waiting import NOT_WAITING

TASK_TIMEOUT = timedelta(seconds=5)
"""After which the server gives a lost workflow task to another worker; by default ten seconds."""

STRIKES_WITHIN = timedelta(seconds=60)
ENDS_WITHIN = timedelta(seconds=150)
LATE_WITHIN = timedelta(seconds=40)
"""Each many times what it takes when nothing else runs."""

MODES: dict[Mode, dict[str, object]] = {
    "local": {},
    "regular": {"boundary_mode": "regular"},
    "hopping": {"hop_after_requests": 2},
}
"""By mode, settings of the workers."""

_STARVED = "deadlock"
"""In the words of the SDK where a replay got no processor for two seconds."""

_REPLAYING = asyncio.Lock()
"""What a replay would write is heard by a patch of the journal, so one replay at a time."""


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """What a run leaves that nothing disturbs: by agent its trail, and its output."""

    trails: dict[str, Trail]
    output: object


@dataclass(kw_only=True)
class Performance:
    """A point being performed in a lane."""

    lane: Lane
    point: Point
    planted: str | None = None
    handle: WorkflowHandle[Any, Any] = field(init=False)
    outcome: Outcome = field(init=False)

    def __post_init__(self) -> None:
        """Name the run."""
        self.run_id = f"sweep-{secrets.token_hex(8)}"
        self.directory = self.lane.directory / self.run_id
        self.handle = self.lane.client.get_workflow_handle(self.run_id)
        self.outcome = Outcome(
            point=self.point.name, group=self.point.group, disturbance=self.point.disturbance
        )

    async def perform(self, undisturbed: Undisturbed) -> Outcome:
        """Go through it, and say what is wrong."""
        began = monotonic()
        self.directory.mkdir()
        plan = FaultPlan(directory=self.directory, faults=(self._fault(),))
        settings = self.lane.settings(self.run_id, **MODES[self.point.mode])
        worker = WorkerProcess(settings=settings, plan=plan, planted=self.planted)
        disturber = Disturber(self.lane, self.point, self.handle, plan, worker)
        try:
            worker.start()
            await start_run(self.lane.client, self.run_id)
            await self._go_through(disturber, undisturbed)
        except TooLateError as error:
            self.outcome.astray.append(str(error))
        finally:
            disturber.kill()
            await self._clean()
        self.outcome.seconds = round(monotonic() - began, 1)
        return self.outcome

    def _fault(self) -> Any:  # noqa: ANN401 - a Fault
        whose = "run_id" if self.point.agent == ROOT else "spares"
        is_of_a_run = self.point.fault.method in {"commit", "enter", "leave"}
        told = {whose: self.run_id} if is_of_a_run else {}
        return self.point.fault.model_copy(update={"until": self.directory / "go", **told})

    async def _go_through(self, disturber: Disturber, undisturbed: Undisturbed) -> None:
        is_reset = self.point.disturbance == "reset"
        ending = asyncio.create_task(end_of(self.handle, is_reset=is_reset))
        try:
            await seen(
                lambda: disturber.has_struck or ending.done(),
                within=STRIKES_WITHIN,
                what="the fault did not strike",
            )
            if not disturber.has_struck:
                return
            self.outcome.fired = 1
            await disturber.disturb()
            detecting = asyncio.create_task(disturber.watch_detection())
            settling = asyncio.create_task(self._settle(ending, disturber))
            end = await _within(ending, ENDS_WITHIN, "the run did not end")
            await settling
            detecting.cancel()
            with suppress(asyncio.CancelledError):
                self.outcome.detected_s = await detecting
        finally:
            ending.cancel()
        await self._judge_end(end, undisturbed)
        await self._release(disturber)
        await self._judge(undisturbed)

    async def _settle(self, ending: "asyncio.Task[object]", disturber: Disturber) -> None:
        """Decide once on a call that waits, as its tool would have answered."""
        while not ending.done():
            call = await self._parked_call()
            if call is None:
                await asyncio.sleep(0.1)  # noqa: TID251 - nothing to wait on
                continue
            self.outcome.parked = call
            await self._judge_parked(call)
            await disturber.before_answer()
            answer = asyncio.create_task(answer_parked(self.handle, call, tool_of(call)))
            await disturber.after_answer()
            if refusal := await answer:
                self.outcome.astray.append(f"the decision on call {call} was refused: {refusal}")
            await asyncio.wait([ending], timeout=ENDS_WITHIN.total_seconds())
            return

    async def _judge_parked(self, call: str) -> None:
        """Whether the call waits rightly: its body was begun, and nobody knows how that ended."""
        gates = {gate_name(gate): gate for gate in await self._gates()}
        has_begun = call in gates and gates[call].newest.outcome == "entered"
        if call not in self.point.may_park or not has_begun:
            self.outcome.astray.append(f"call {call} waits for a decision")

    async def _parked_call(self) -> str | None:
        with suppress(StoreUnavailableError):
            run = await self.lane.store.get_run(run_id=self.run_id)
            if run is not None and run.state == "needs_attention":
                rows = await self.lane.store.list_unresolved_tool_effects(run_id=self.run_id)
                unknown = [f"{e.step_index}/{e.call_index}" for e in rows if e.status == "unknown"]
                return unknown[0] if unknown else None
        return None

    async def _judge_end(self, end: object, undisturbed: Undisturbed) -> None:
        expected = "cancelled" if self.point.disturbance == "cancel" else undisturbed.output
        if end != expected:
            self.outcome.astray.append(f"ended with {end!r}, not {expected!r}")
        if self.point.parks and self.outcome.parked != self.point.parks:
            self.outcome.astray.append(f"call {self.point.parks} did not wait for a decision")

    async def _release(self, disturber: Disturber) -> None:
        """Let what is late happen now, and see what the store says to it."""
        gates = await self._gates()
        answer = await disturber.release(LATE_WITHIN)
        if self.point.late and answer not in self.point.late:
            wanted = " or ".join(sorted(self.point.late))
            self.outcome.divergent.append(f"a late write was answered {answer}, not {wanted}")
        elif self.point.is_counted:
            await self._see_counted()
            self._judge_gates(gates, await self._gates())

    async def _see_counted(self) -> None:
        async def is_counted() -> bool:
            return any(gate.late_writes for gate in await self._gates())

        try:
            await seen(is_counted, within=LATE_WITHIN, what="")
        except TooLateError:
            self.outcome.divergent.append("the end of a stale attempt was not told from another")

    def _judge_gates(self, before: list[ToolGate], after: list[ToolGate]) -> None:
        late = {gate_name(gate): gate.attempts for gate in after if gate.late_writes}
        if any(late.get(gate_name(gate), gate.attempts) != gate.attempts for gate in before):
            self.outcome.divergent.append("a stale attempt changed the ledger")

    async def _gates(self) -> list[ToolGate]:
        run_id = (await self._run_ids()).get(self.point.agent, self.run_id)
        return await self.lane.store.attempts.list_gates(run_id=run_id)

    async def _run_ids(self) -> dict[str, str]:
        return await run_ids_of(self.lane.store, self.run_id)

    async def _judge(self, undisturbed: Undisturbed) -> None:
        """Where all is over: the rows, the history, the bodies."""
        outcome, point = self.outcome, self.point
        run_ids = await self._run_ids()
        trails = {agent: await trail_of(self.lane.store, each) for agent, each in run_ids.items()}
        if point.disturbance != "cancel":
            expected = undisturbed.trails
            if outcome.parked:
                expected = with_parked_call(expected, ROOT, outcome.parked)
                trails = {agent: without_marks(trail) for agent, trail in trails.items()}
                expected = {agent: without_marks(trail) for agent, trail in expected.items()}
            outcome.compare(trails, expected)
        bodies = body_counts(self.directory, self.run_id)
        tools = {f"call-{s}-{i}": tool for s, i, tool in calls_of(ROOT)}
        outcome.count_bodies(bodies, tools)
        await self._judge_rows()

    async def _judge_rows(self) -> None:
        """No call is left of which nothing is known, and no body outlives the run unnoticed."""
        effects = await self.lane.store.list_tool_effects(run_id=self.run_id)
        self.outcome.astray += [
            f"call {e.step_index}/{e.call_index} is still {e.status}"
            for e in effects
            if e.status == "started"
        ]
        async with _REPLAYING:
            self.outcome.divergent += await unlike_history(self.lane, await self._run_ids())

    async def _clean(self) -> None:
        if self.outcome.is_well:
            shutil.rmtree(self.directory, ignore_errors=True)
            return
        with suppress(Exception):
            await self.handle.terminate("the point is over")


async def problems_of_history(
    lane: Lane, run_id: str, *, agents: Sequence[Agent[Any, Any]] = AGENTS, tries: int = 5
) -> list[str]:
    """Whether the run's history replays, and the store holds the path that it holds."""
    histories = await histories_of(lane.client, run_id)
    try:
        async with _REPLAYING:
            stored, path = await stored_and_replayed(lane.store, histories, agents)
    except Exception as error:  # noqa: BLE001 - whatever a replay finds
        if _STARVED in str(error) and tries > 1:
            return await problems_of_history(lane, run_id, agents=agents, tries=tries - 1)
        return [f"replay of {run_id}: {type(error).__name__}: {error}"]
    return [] if stored == path else [f"the store holds another path than history {run_id}"]


def gate_name(gate: ToolGate) -> str:
    """Step and call index of the call."""
    return f"{gate.place.step_index}/{gate.place.call_index}"


async def start_run(
    client: Client, run_id: str, *, task_queue: str | None = None
) -> WorkflowHandle[Any, Any]:
    """Start a run of the script, on a task queue of its own id if none is named."""
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent=ROOT, prompt="follow the script"),
        id=run_id,
        task_queue=task_queue or run_id,
        task_timeout=TASK_TIMEOUT,
    )


async def end_of(handle: WorkflowHandle[Any, Any], *, is_reset: bool = False) -> object:
    """The run's output, or how it ended instead; of a reset run, how its new branch ends."""
    while True:
        try:
            result = await handle.result()
        except WorkflowFailureError as error:
            if is_reset and isinstance(error.cause, TerminatedError):
                continue
            is_cancelled = "ancelled" in repr(error.cause)
            return "cancelled" if is_cancelled else f"failed: {error.cause!r}"
        return AgentRunOutput.model_validate(result).output


async def answer_parked(handle: WorkflowHandle[Any, Any], call: str, tool: str) -> str | None:
    """Say that a call was completed, with what its tool would have returned.

    An update that no worker has accepted yet is lost with the workflow task that brought it, and
    who sent it is told; one that comes before the run has come to the call again is refused. Then
    it is sent again.

    Returns:
        Why it was refused; `None` when it was not.
    """
    deadline = monotonic() + ENDS_WITHIN.total_seconds()
    request = ResolveToolEffectRequest(
        run_id=handle.id,
        call=call,
        decision="completed",
        result=f"{tool} call-{call.replace('/', '-')}",
        by="the sweep",
    )
    while True:
        try:
            await handle.execute_update(  # pyright: ignore[reportUnknownMemberType] - the SDK's
                names.RESOLVE_UPDATE, request, result_type=ResolveToolEffectResult
            )
        except WorkflowUpdateFailedError as error:
            refusal = str(error.cause)
            if NOT_WAITING not in refusal or monotonic() > deadline:
                return None if "decided by the sweep" in refusal else refusal
            await asyncio.sleep(0.5)  # noqa: TID251 - nothing to wait on
        except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
            await asyncio.sleep(0.5)  # noqa: TID251 - nothing to wait on
        else:
            return None


def calls_of(agent: str) -> list[tuple[int, int, str]]:
    """Step, index and tool of each call of the script."""
    return [
        (step, index, tool)
        for step, calls in enumerate(STEPS[agent], start=1)
        for index, (tool, _) in enumerate(calls)
    ]


def tool_of(call: str) -> str:
    """The tool of the call at that step and index of the script."""
    return {f"{step}/{index}": tool for step, index, tool in calls_of(ROOT)}[call]


async def run_ids_of(store: StepStore, run_id: str) -> dict[str, str]:
    """By agent, the run and its delegates; a second one of an agent has its id in the name."""
    found = {ROOT: run_id}
    for child in await store.list_runs(parent_run_id=run_id):
        name = CHILD if CHILD not in found else f"{CHILD} {child.run_id}"
        found[name] = child.run_id
    return found


async def perform_undisturbed(lane: Lane, mode: Mode = "local") -> tuple[Undisturbed, Path]:
    """A run that nothing disturbs, and the directory where all is noted of it."""
    run_id = f"undisturbed-{secrets.token_hex(8)}"
    directory = lane.directory / run_id
    directory.mkdir()
    plan = ListeningPlan(directory=directory)
    worker = WorkerProcess(settings=lane.settings(run_id, **MODES[mode]), plan=plan)
    worker.start()
    try:
        handle = await start_run(lane.client, run_id)
        output = await _within(end_of(handle), ENDS_WITHIN, "the undisturbed run did not end")
    finally:
        worker.kill()
    ids = await run_ids_of(lane.store, run_id)
    trails = {agent: await trail_of(lane.store, each) for agent, each in ids.items()}
    return Undisturbed(trails=trails, output=output), directory


async def _within(awaited: Awaitable[object], within: timedelta, what: str) -> object:
    try:
        return await asyncio.wait_for(awaited, within.total_seconds())
    except TimeoutError as error:
        message = f"{what} within {within.total_seconds():.0f} s"
        raise TooLateError(message) from error
