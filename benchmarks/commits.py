"""How long the store takes for a commit, next to a round trip to the server."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter
from uuid import uuid4

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from activities.boundaries import RegistrationIdentityResult
from benchmarks.bench import Bench
from benchmarks.figures import Figure, median, percentile
from stores.commits import Commit, CommitPosition
from stores.opening import open_step_store
from stores.operations import AnnotateToolEffect, Operation
from stores.protocols import StepStore
from workflows.notices import Notice
from workflows.recorder import RunRecorder, ToolCallPlace

BUDGET = 1.2
"""The 800th save is as fast as the 8th."""

MEASURED = 50
BUDGET_IN_ITSELF = 1.5
"""The same within one run, whose saves are minutes apart: noise of the machine is in it."""

EARLY, LATE, QUICK_LATE = 8, 800, 200
"""Each stands for the saves around it, as many as there are before the early one."""


@dataclass
class CommitBuilder:
    """Makes the commits that a workflow makes, as a journal in front of no workflow.

    The recorder is the one that agents use, so what it records is what production records.
    """

    run_id: str
    execution_id: str = field(default_factory=lambda: uuid4().hex)
    _number: int = 0
    _sequence: int = 0
    _operations: list[Operation] = field(default_factory=list[Operation])

    async def identify(self, run_id: str) -> RegistrationIdentityResult:
        """See `BoundaryWriter`."""
        return RegistrationIdentityResult(registration_id=run_id)

    def next_sequence(self, run_id: str) -> int:  # noqa: ARG002 - one run
        """See `BoundaryWriter`."""
        self._sequence += 1
        return self._sequence - 1

    async def annotate(self, annotation: AnnotateToolEffect) -> None:
        """Nothing annotates here."""

    async def record(
        self,
        operation: Operation,
        *,
        barrier: bool = False,  # noqa: ARG002
        then: Notice | None = None,  # noqa: ARG002
    ) -> None:
        """See `BoundaryWriter`."""
        self._operations.append(operation)

    def commit(self) -> Commit:
        """All that was recorded since the last one."""
        operations, self._operations = tuple(self._operations), []
        self._number += 1
        now = datetime.now(UTC)
        position = CommitPosition(
            execution_id=self.execution_id,
            branch=self.execution_id,
            branch_time=now,
            number=self._number,
            history_length=10 * self._number,
            queued_at=now,
        )
        return Commit(operations=operations, now=now, position=position)


class SteppedRun:
    """A run of tool calls, recorded as the agent's hooks record it and committed to a store."""

    def __init__(self, store: StepStore) -> None:
        self._store = store
        self._builder = CommitBuilder(run_id=uuid4().hex)
        self._recorder = RunRecorder(self._builder.run_id, self._builder)
        self._messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("begin")])]

    async def register(self) -> None:
        """The first commit of a run."""
        await self._recorder.register(
            conversation_id=self._builder.run_id,
            parent_run_id=None,
            agent_name="persisted",
            metadata={},
            principal=None,
        )
        await self._recorder.event("model_request_started")
        await self._commit()

    async def step(self) -> tuple[float, float]:
        """One tool call; milliseconds of the commit before it and of the one after it."""
        self._recorder.step_index += 1
        step = self._recorder.step_index
        call = ToolCallPlace(
            step_index=step, call_index=0, tool_call_id=f"call-{step}", tool_name="look_up"
        )
        part = ToolCallPart(call.tool_name, {"step": step}, tool_call_id=call.tool_call_id)
        self._messages.append(ModelResponse(parts=[part]))
        await self._recorder.event("model_request_completed")
        await self._recorder.tool_started(call, effect="read", arguments=part.args_as_json_str())
        before = await self._commit()
        result = ToolReturnPart(call.tool_name, f"{step} ".ljust(1000, "x"), call.tool_call_id)
        request = ModelRequest(parts=[result])
        self._messages.append(request)
        await self._recorder.tool_ended(call, "completed")
        await self._recorder.save(self._messages, "complete")
        await self._recorder.event("model_request_started")
        after = await self._commit()
        # As the core does when it sends the request; so the next save sends it again, with stamps.
        request.run_id, request.timestamp = self._builder.run_id, datetime.now(UTC)
        return before, after

    @property
    def run_id(self) -> str:
        """Its id, which is its conversation's, too."""
        return self._builder.run_id

    async def begin_call(self) -> None:
        """One tool call of which nobody hears again."""
        step = self._recorder.step_index + 1
        call = ToolCallPlace(
            step_index=step, call_index=0, tool_call_id=f"call-{step}", tool_name="look_up"
        )
        await self._recorder.tool_started(call, effect="once", arguments="{}")
        await self._commit()

    async def end(self) -> None:
        """The last commit of a run that has done what it was asked."""
        await self._recorder.event("run_completed")
        await self._commit()

    async def _commit(self) -> float:
        commit = self._builder.commit()
        start = perf_counter()
        await self._store.commit(commit)
        return 1000 * (perf_counter() - start)


async def measure_commits(bench: Bench) -> list[Figure]:
    """The commits before and after a tool call, and whether late ones cost what early ones do."""
    late = QUICK_LATE if bench.is_quick else LATE
    store = open_step_store("mongodb", db_url=bench.mongodb_uri, database=f"commits_{uuid4().hex}")
    try:
        await store.initialise()
        typical = await _run(store, MEASURED)
        ratios, in_itself = await _late_over_early(store, late)
    finally:
        await store.aclose()
    before, after = zip(*typical, strict=True)
    return [
        _latency("commit before a tool call", before),
        _latency("commit after a tool call, with its snapshot", after),
        Figure(
            name=f"commit of snapshot {late} / snapshot {EARLY}",
            unit="x",
            measured=median(ratios),
            budget=BUDGET,
            judged=percentile(ratios, 0.1),
            detail=f"10th {percentile(ratios, 0.1):.2f}, 90th {percentile(ratios, 0.9):.2f}",
        ),
        Figure(
            name=f"commit of snapshot {late} / snapshot {EARLY} of the same run, medians",
            unit="x",
            measured=in_itself,
            budget=BUDGET_IN_ITSELF,
        ),
    ]


def _latency(name: str, times: Sequence[float]) -> Figure:
    detail = f"p95 {percentile(times, 0.95):.1f} ms of {len(times)}"
    return Figure(name=name, unit="ms", measured=median(times), detail=detail)


async def _run(store: StepStore, steps: int) -> list[tuple[float, float]]:
    run = SteppedRun(store)
    await run.register()
    return [await run.step() for _ in range(steps)]


async def _late_over_early(store: StepStore, late: int) -> tuple[list[float], float]:
    """A run that has come far next to one that begins, save for save, in the same second.

    And next to its own beginning, median over median.
    """
    old, new = SteppedRun(store), SteppedRun(store)
    around = 2 * EARLY - 1
    await old.register()
    earlier = [await old.step() for _ in range(late - EARLY)]
    await new.register()
    pairs = [(await old.step(), await new.step()) for _ in range(around)]
    own_late = median([after for (_, after), _ in pairs])
    own_early = median([after for _, after in earlier[:around]])
    ratios = [old_after / new_after for (_, old_after), (_, new_after) in pairs]
    return ratios, own_late / own_early
