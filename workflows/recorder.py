"""One run's facts as keyed boundary operations, in the run's order."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.tools import RunContext
from pydantic_core import to_jsonable_python
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError

from stores.operations import (
    AnnotateToolEffect,
    AppendEvent,
    FinishToolEffect,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
    key_of_effect,
)
from stores.records import (
    EffectPolicy,
    EventKind,
    RunState,
    SnapshotState,
    ToolEffectResolution,
)
from workflows.notices import Notice
from workflows.recording import RecordingState
from workflows.submission import RunOrigin
from workflows.transcript import Transcript
from workflows.writing import BoundaryWriter


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error as it is recorded; only `error_type` counts when the same step is repeated."""

    text: str
    error_type: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Representation and class name of the error; of an activity's failure, its cause's."""
        while isinstance(error, ActivityError | ChildWorkflowError) and error.cause is not None:
            error = error.cause
        if isinstance(error, ApplicationError) and error.type:
            return cls(text=f"{error.type}: {error.message}", error_type=error.type)
        return cls(text=repr(error), error_type=type(error).__name__)


CANCELLED = Failure(text="cancelled", error_type="cancelled")
"""What is recorded of a run or a call that was cancelled."""

AWAITS_APPROVAL = Failure(text="waits for approval", error_type="ApprovalRequired")
"""What an event says of a call that has not run: its run needs attention, and has not failed."""

FinishStatus = Literal["started", "completed", "failed", "unknown", "resolved"]
"""What is recorded of a call after its start; `started` where it has not ended by that."""


@dataclass(frozen=True, kw_only=True)
class ToolCallPlace:
    """Which tool call: `call_index` is its position in the model response of that step."""

    step_index: int
    call_index: int
    tool_call_id: str
    tool_name: str

    @classmethod
    def of(cls, ctx: RunContext[Any], part: ToolCallPart, *, tool_name: str) -> "ToolCallPlace":
        """Where the newest model response of the run makes the call."""
        return cls(
            step_index=ctx.run_step,
            call_index=_call_index(ctx, part),
            tool_call_id=part.tool_call_id,
            tool_name=tool_name,
        )

    @property
    def identity(self) -> tuple[int, int, str]:
        """Step, call index and call id."""
        return (self.step_index, self.call_index, self.tool_call_id)


@dataclass
class RunRecorder:
    """Counts and keys of one run; nothing here reads a clock or draws an id.

    Keys name the place (step, call index) and the n-th operation of a kind there, so that they do
    not depend on the order in which parallel calls end; sequences do, and only order.
    """

    run_id: str
    writer: BoundaryWriter
    step_index: int = 0
    """The newest step that the run has reached."""
    transcript: Transcript = field(default_factory=Transcript)
    _ordinals: Counter[tuple[int, str, int | None]] = field(
        default_factory=Counter[tuple[int, str, int | None]]
    )
    _parked: set[tuple[int, int, str]] = field(default_factory=set[tuple[int, int, str]])
    """Calls that wait for somebody's decision."""
    _saves: int = 0
    _open_calls: set[tuple[int, int, str]] = field(default_factory=set[tuple[int, int, str]])
    _annotations: dict[str, AnnotateToolEffect] = field(
        default_factory=dict[str, AnnotateToolEffect]
    )
    """What was said of the effects of calls in flight, by their keys."""
    _end: tuple[Failure, dict[str, Any]] | None = None
    _newest: SaveSnapshot | None = None
    """The newest snapshot, without the messages that it brought."""

    @property
    def is_at_rest(self) -> bool:
        """Whether a history is saved, and nothing is open that another record would close."""
        is_open = self._open_calls or self._annotations or self._parked or self._end
        return self._newest is not None and not is_open

    def state(self) -> RecordingState:
        """What a recorder needs to go on where this one is. It has to be at rest.

        Raises:
            RuntimeError: no history was saved.
        """
        newest = self._newest
        if newest is None or newest.sequence is None or newest.key is None:
            message = f"run {self.run_id!r} cannot be gone on with: it has saved no history"
            raise RuntimeError(message)
        return RecordingState(
            step_index=self.step_index,
            next_sequence=self.writer.next_sequence(self.run_id),
            saves=self._saves,
            next_position=self.transcript.next_position,
            snapshot_sequence=newest.sequence,
            snapshot_key=newest.key,
            ranges=newest.ranges,
            ordinals=tuple(
                (*place, count)
                for place, count in self._ordinals.items()
                if place[0] >= self.step_index
            ),
        )

    def go_on(self, state: RecordingState, messages: Sequence[ModelMessage]) -> None:
        """Go on where another recorder of the run was; `messages` are those of its snapshot."""
        self.step_index = state.step_index
        self.transcript = Transcript.of(messages, state.ranges, state.next_position)
        self._saves = state.saves
        self._ordinals.update({(s, kind, call): n for s, kind, call, n in state.ordinals})
        self._newest = SaveSnapshot(
            run_id=self.run_id,
            sequence=state.snapshot_sequence,
            key=state.snapshot_key,
            step_index=state.step_index,
            state="complete",
            ranges=state.ranges,
        )

    async def register(
        self,
        *,
        conversation_id: str | None,
        parent_run_id: str | None,
        agent_name: str | None,
        metadata: dict[str, str],
        principal: str | None,
        origin: RunOrigin | None = None,
    ) -> None:
        """Claim the run id and record the start of the run."""
        identity = await self.writer.identify(self.run_id)
        origin = origin or RunOrigin()
        operation = RegisterRun(
            run_id=self.run_id,
            sequence=self.writer.next_sequence(self.run_id),
            registration_id=identity.registration_id,
            conversation_id=conversation_id,
            parent_run_id=parent_run_id,
            agent_name=agent_name,
            metadata=metadata,
            principal=principal,
            continued_from=origin.continued_from,
            forked_from=origin.forked_from,
            from_snapshot=origin.from_snapshot,
        )
        await self.writer.record(operation)
        await self.event("run_started")

    async def event(
        self,
        kind: EventKind,
        *,
        call: ToolCallPlace | None = None,
        failure: Failure | None = None,
        usage: dict[str, Any] | None = None,
        run_state: RunState | None = None,
        barrier: bool = False,
    ) -> int | None:
        """Append an event at the call's step, or at the newest one; return its sequence."""
        step_index = call.step_index if call else self.step_index
        call_index = call.call_index if call else None
        ordinal = self._ordinal(step_index, kind, call_index)
        place = "" if call_index is None else call_index
        operation = AppendEvent(
            run_id=self.run_id,
            sequence=self.writer.next_sequence(self.run_id),
            key=f"{step_index}:{kind}:{place}:{ordinal}",
            event=kind,
            step_index=step_index,
            call_index=call_index,
            tool_call_id=call.tool_call_id if call else None,
            tool_name=call.tool_name if call else None,
            error=failure.text if failure else None,
            error_type=failure.error_type if failure else None,
            usage=usage,
            run_state=run_state,
        )
        await self.writer.record(operation, barrier=barrier)
        return operation.sequence

    async def save(
        self,
        messages: Sequence[ModelMessage],
        state: SnapshotState,
        *,
        then: Notice | None = None,
    ) -> None:
        """Save a history in its state; `then` follows when it is stored."""
        ranges, entries = self.transcript.plan(messages)
        key = f"{self._saves}:{self.step_index}:{state}"
        self._saves += 1
        operation = SaveSnapshot(
            run_id=self.run_id,
            sequence=self.writer.next_sequence(self.run_id),
            key=key,
            step_index=self.step_index,
            state=state,
            ranges=ranges,
            entries=entries,
        )
        self._newest = operation.model_copy(update={"entries": ()})
        await self.writer.record(operation, then=then)

    async def tool_started(
        self, call: ToolCallPlace, *, effect: EffectPolicy | None, arguments: str
    ) -> None:
        """Barrier: returns when the start is stored, so that the tool may run."""
        await self._start(call, effect, arguments)
        await self.event("tool_call_started", call=call, barrier=True)

    async def _start(
        self, call: ToolCallPlace, effect: EffectPolicy | None, arguments: str
    ) -> None:
        self._open_calls.add(call.identity)
        operation = StartToolEffect(
            run_id=self.run_id,
            sequence=self.writer.next_sequence(self.run_id),
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            step_index=call.step_index,
            call_index=call.call_index,
            effect=effect,
            arguments=arguments,
        )
        await self.writer.record(operation)

    async def annotate(
        self, effect_key: str, *, idempotency_key: str | None, effect_summary: str | None
    ) -> None:
        """Add to the effect of a call in flight; also kept for the record of its end."""
        said = self._annotations.get(effect_key)
        annotation = AnnotateToolEffect(
            run_id=self.run_id,
            effect_key=effect_key,
            idempotency_key=_newest(idempotency_key, said.idempotency_key if said else None),
            effect_summary=_newest(effect_summary, said.effect_summary if said else None),
        )
        self._annotations[effect_key] = annotation
        await self.writer.annotate(annotation)

    async def tool_ended(
        self,
        call: ToolCallPlace,
        status: FinishStatus,
        failure: Failure | None = None,
        *,
        resolution: ToolEffectResolution | None = None,
    ) -> None:
        """Record how a call ended; waits for nothing."""
        await self._finish(call, status, failure, resolution)
        is_done = status == "completed" or (status == "resolved" and failure is None)
        kind: EventKind = "tool_call_completed" if is_done else "tool_call_failed"
        await self.event(kind, call=call, failure=failure, run_state=self._leave(call))
        self._open_calls.discard(call.identity)
        await self._record_end()

    async def tool_unknown(self, call: ToolCallPlace, failure: Failure, *, is_parked: bool) -> None:
        """Record that nobody knows what became of a call that goes on; its run waits if parked."""
        await self._finish(call, "unknown", failure, None)
        if is_parked:
            self._parked.add(call.identity)
        state: RunState | None = "needs_attention" if is_parked else None
        await self.event("tool_call_failed", call=call, failure=failure, run_state=state)

    async def tool_runs_again(self, call: ToolCallPlace, resolution: ToolEffectResolution) -> None:
        """Barrier: returns when it is stored that somebody has the call run again."""
        await self._run(call, "unknown", resolution)

    async def approval_asked(
        self, call: ToolCallPlace, *, effect: EffectPolicy | None, arguments: str
    ) -> None:
        """Barrier: returns when it is stored that a call waits to be approved, and its run with it.

        The call may have begun before, and asked for the approval itself.
        """
        if call.identity not in self._open_calls:
            await self._start(call, effect, arguments)
        await self._finish(call, "started", None, ToolEffectResolution(decision="asked"))
        self._parked.add(call.identity)
        await self.event(
            "tool_call_started",
            call=call,
            failure=AWAITS_APPROVAL,
            run_state="needs_attention",
            barrier=True,
        )

    async def tool_approved(self, call: ToolCallPlace, resolution: ToolEffectResolution) -> None:
        """Barrier: returns when it is stored who approved the call, so that it may run."""
        await self._run(call, "started", resolution)

    async def _run(
        self, call: ToolCallPlace, status: FinishStatus, resolution: ToolEffectResolution
    ) -> None:
        await self._finish(call, status, None, resolution)
        await self.event("tool_call_started", call=call, barrier=True, run_state=self._leave(call))

    def _leave(self, call: ToolCallPlace) -> RunState | None:
        """The state that a run goes back to when the last of its waiting calls is settled."""
        if call.identity not in self._parked:
            return None
        self._parked.discard(call.identity)
        return None if self._parked else "running"

    async def _finish(
        self,
        call: ToolCallPlace,
        status: FinishStatus,
        failure: Failure | None,
        resolution: ToolEffectResolution | None,
    ) -> None:
        said = self._annotations.pop(key_of_effect(*call.identity), None)
        operation = FinishToolEffect(
            run_id=self.run_id,
            sequence=self.writer.next_sequence(self.run_id),
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            step_index=call.step_index,
            call_index=call.call_index,
            status=status,
            error=failure.text if failure else None,
            error_type=failure.error_type if failure else None,
            idempotency_key=said.idempotency_key if said else None,
            effect_summary=said.effect_summary if said else None,
            resolution=resolution,
            ordinal=self._ordinal(call.step_index, "finish", call.call_index),
        )
        await self.writer.record(operation)

    async def failed(self, failure: Failure, usage: dict[str, Any]) -> None:
        """Record the run's end: its last event, even where the core tells the run before the tools.

        On cancellation calls in flight are told after the run is; the last of them records the end.
        """
        self._end = (failure, usage)
        await self._record_end()

    async def _record_end(self) -> None:
        if self._end is None or self._open_calls:
            return
        (failure, usage), self._end = self._end, None
        await self.event("run_failed", failure=failure, usage=usage)

    def _ordinal(self, step_index: int, kind: str, call_index: int | None) -> int:
        place = (step_index, kind, call_index)
        self._ordinals[place] += 1
        return self._ordinals[place] - 1


def _newest(said: str | None, before: str | None) -> str | None:
    return before if said is None else said


def _call_index(ctx: RunContext[Any], call: ToolCallPart) -> int:
    """Position of the call in the newest model response."""
    for message in reversed(ctx.messages):
        if isinstance(message, ModelResponse):
            calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
            for index, part in enumerate(calls):
                if part.tool_call_id == call.tool_call_id:
                    return index
            break
    msg = f"tool call {call.tool_call_id!r} ({call.tool_name}) is in no response of the run"
    raise RuntimeError(msg)


def usage_of(ctx: RunContext[Any]) -> dict[str, Any]:
    """What a run has used so far, as its events keep it."""
    return cast("dict[str, Any]", to_jsonable_python(ctx.usage, exclude_none=True))
