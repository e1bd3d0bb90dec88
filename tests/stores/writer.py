"""A stand-in for the journal of one workflow execution: numbers commits and lays out messages."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from stores.commits import Commit, CommitPosition
from stores.operations import (
    AppendEvent,
    FinishToolEffect,
    Operation,
    PositionedMessage,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
    Write,
)

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """So many seconds after the start of all tests' time."""
    return START + timedelta(seconds=seconds)


def request(text: str, *, seconds: float = 0, run_id: str | None = None) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text, timestamp=at(seconds))], run_id=run_id)


def text_of(message: ModelMessage) -> str:
    """The text of a message that `request` made."""
    (part,) = message.parts
    assert isinstance(part, UserPromptPart)
    return str(part.content)


def response(text: str, *, seconds: float = 0) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)], timestamp=at(seconds), model_name="scripted")


@dataclass(kw_only=True)
class Execution:
    """One workflow execution. `history_length` moves with each workflow task."""

    execution_id: str = "execution-1"
    branch: str = "branch-1"
    branch_time: datetime = START
    number: int = 0
    history_length: int = 3
    queued_seconds: float = 0

    def position(self, number: int | None = None) -> CommitPosition:
        return CommitPosition(
            execution_id=self.execution_id,
            branch=self.branch,
            branch_time=self.branch_time,
            number=self.number if number is None else number,
            history_length=self.history_length,
            queued_at=at(self.queued_seconds),
        )

    def commit(self, *operations: Write, number: int | None = None, now: float = 0) -> Commit:
        """The next commit, or one with a number of its own."""
        if number is None:
            self.number += 1
        else:
            self.number = number
        return Commit(operations=operations, now=at(now), position=self.position())

    def next_task(self, *, number: int | None = None) -> None:
        """Another workflow task; with `number` it begins again behind that commit."""
        self.history_length += 5
        self.queued_seconds += 1
        if number is not None:
            self.number = number


@dataclass(kw_only=True)
class RunScript:
    """What a run of a one-tool agent asks of its store, step by step."""

    run_id: str = "run-1"
    result_size: int = 5000
    sequence: int = 0
    saves: int = 0
    messages: list[ModelMessage] = field(default_factory=list[ModelMessage])

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    def register(self, **values: object) -> RegisterRun:
        return RegisterRun.model_validate(
            {
                "run_id": self.run_id,
                "sequence": self.next_sequence(),
                "registration_id": f"registration-of-{self.run_id}",
                **values,
            }
        )

    def event(self, kind: str, step: int, call: int | None = None, **values: object) -> AppendEvent:
        return AppendEvent.model_validate(
            {
                "run_id": self.run_id,
                "sequence": self.next_sequence(),
                "key": f"{step}/{kind}" + ("" if call is None else f"/{call}"),
                "event": kind,
                "step_index": step,
                "call_index": call,
                **values,
            }
        )

    def started(self, step: int, call: int = 0, **values: object) -> StartToolEffect:
        return StartToolEffect.model_validate(
            {
                "run_id": self.run_id,
                "sequence": self.next_sequence(),
                "tool_call_id": f"call-{step}-{call}",
                "tool_name": "look_up",
                "step_index": step,
                "call_index": call,
                "effect": "idempotent",
                "arguments": f'{{"item": {step}}}',
                **values,
            }
        )

    def finished(self, step: int, call: int = 0, **values: object) -> FinishToolEffect:
        return FinishToolEffect.model_validate(
            {
                "run_id": self.run_id,
                "sequence": self.next_sequence(),
                "tool_call_id": f"call-{step}-{call}",
                "tool_name": "look_up",
                "step_index": step,
                "call_index": call,
                "status": "completed",
                **values,
            }
        )

    def snapshot(self, step: int, changed_from: int, **values: object) -> SaveSnapshot:
        """Save the history; messages from position `changed_from` on are new or newly stamped."""
        self.saves += 1
        entries = tuple(
            PositionedMessage(position=position, message=self.messages[position])
            for position in range(changed_from, len(self.messages))
        )
        return SaveSnapshot.model_validate(
            {
                "run_id": self.run_id,
                "sequence": self.next_sequence(),
                "key": f"{self.saves}/{step}",
                "step_index": step,
                "state": "complete",
                "ranges": ((0, len(self.messages)),),
                "entries": entries,
                **values,
            }
        )

    def before_tool(self, step: int) -> tuple[Operation, ...]:
        """What the commit before the step's tool call holds."""
        return (
            self.event("model_request_completed", step),
            self.event("tool_call_started", step, 0, **_call(step)),
            self.started(step),
        )

    def after_tool(self, step: int) -> tuple[Operation, ...]:
        """What the commit before the next model request holds: two new messages and one restamp."""
        if self.messages:
            last = self.messages[-1]
            assert isinstance(last, ModelRequest)
            last.run_id, last.timestamp = self.run_id, at(step)
        changed_from = max(len(self.messages) - 1, 0)
        call = ToolCallPart("look_up", {"item": step}, tool_call_id=f"call-{step}-0")
        result = ToolReturnPart(
            "look_up", "x" * self.result_size, tool_call_id=call.tool_call_id, timestamp=at(step)
        )
        self.messages += [
            ModelResponse(parts=[call], timestamp=at(step), model_name="scripted"),
            ModelRequest(parts=[result]),
        ]
        return (
            self.event("tool_call_completed", step, 0, **_call(step)),
            self.finished(step),
            self.snapshot(step, changed_from),
            self.event("model_request_started", step + 1),
        )


def _call(step: int) -> dict[str, object]:
    return {"tool_call_id": f"call-{step}-0", "tool_name": "look_up"}


def new_run(name: str) -> tuple[Execution, RunScript]:
    """A run that no other test has."""
    execution = Execution(execution_id=f"execution-{name}", branch=f"branch-{name}")
    return execution, RunScript(run_id=f"run-{name}", result_size=10)
