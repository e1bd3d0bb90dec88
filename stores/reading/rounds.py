"""What a run did, round by round: a model request, and the calls that its response made.

Put together from the run's events, its effects and its newest snapshot. It is what was stored: no
provider request, no whole tool output, no token that is not there yet.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import cast

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolReturnPart,
)

from stores.reading.pages import CallStatus, RoundStatus
from stores.reading.task_keys import Branch, call_key
from stores.records import RunRecord, StepEvent, ToolEffectRecord

MOST_CALLS = 24
"""Of one round that are shown; all are counted."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call, its texts whole."""

    key: str
    tool_call_id: str
    tool_name: str
    status: CallStatus
    started_at: datetime
    ended_at: datetime | None
    error: str = ""
    output: str = ""


@dataclass(kw_only=True)
class Round:
    """A round, its texts whole; `calls` are those that are shown."""

    step_index: int
    started_at: datetime
    status: RoundStatus = "running"
    ended_at: datetime | None = None
    has_response: bool = False
    error: str = ""
    text: str = ""
    calls: list[Call] = field(default_factory=list[Call])
    call_count: int = 0
    branches: list[str] = field(default_factory=list[str])


def rounds_of(
    run: RunRecord,
    events: Iterable[StepEvent],
    effects: Sequence[ToolEffectRecord],
    messages: Sequence[ModelMessage],
    branches: Iterable[Branch],
) -> list[Round]:
    """The rounds of a run, oldest first.

    Args:
        run: whose rounds they are.
        events: of the run, in its order.
        effects: of the run, in its order.
        messages: of its newest snapshot, its own alone; older ones may have been taken out.
        branches: its delegated runs.
    """
    rounds = _rounds_in(events)
    for effect in sorted(effects, key=lambda each: each.call_index or 0):
        if effect.step_index in rounds and effect.call_index is not None:
            _add_call(rounds[effect.step_index], effect)
    for each in branches:
        step = int(each.call.partition("/")[0])
        if step in rounds and any(call.key == each.call for call in rounds[step].calls):
            rounds[step].branches.append(each.key)
    found = [rounds[step] for step in sorted(rounds)]
    for each in found:
        _settle(each, run)
    _add_texts([each for each in found if each.has_response], messages)
    return found


def _rounds_in(events: Iterable[StepEvent]) -> dict[int, Round]:
    """Rounds by step, as their model requests say; of several at one step the last counts."""
    rounds: dict[int, Round] = {}
    for event in events:
        if event.kind == "model_request_started":
            rounds[event.step_index] = Round(
                step_index=event.step_index, started_at=event.timestamp
            )
        found = rounds.get(event.step_index)
        if found is not None and event.kind == "model_request_completed":
            found.status, found.ended_at, found.has_response = "completed", event.timestamp, True
        elif found is not None and event.kind == "model_request_failed":
            found.status, found.ended_at = "failed", event.timestamp
            found.error = event.error or ""
    return rounds


def _add_call(found: Round, effect: ToolEffectRecord) -> None:
    found.call_count += 1
    if len(found.calls) < MOST_CALLS:
        call = Call(
            key=call_key(effect),
            tool_call_id=effect.tool_call_id,
            tool_name=effect.tool_name,
            status="awaiting_approval" if effect.awaits_approval else effect.status,
            started_at=effect.started_at,
            ended_at=effect.ended_at,
            error=effect.error or "",
        )
        found.calls.append(call)
    is_open = effect.status in {"started", "unknown"}
    if is_open and found.status == "completed":
        found.status, found.ended_at = "running", None
    elif found.status == "completed" and effect.ended_at and found.ended_at:
        found.ended_at = max(found.ended_at, effect.ended_at)


def _settle(found: Round, run: RunRecord) -> None:
    """A round that is open when its run is over ended as the run did."""
    match run.state:
        case "completed" | "failed" | "cancelled" if found.status == "running":
            found.status, found.ended_at = run.state, run.ended_at
        case _:
            pass


def _add_texts(rounds: Sequence[Round], messages: Sequence[ModelMessage]) -> None:
    """Give each round the text of its response, and its calls their outputs.

    From the newest one on: a compaction takes older messages out of a history, never the last.
    """
    responses = [(at, each) for at, each in enumerate(messages) if isinstance(each, ModelResponse)]
    end = len(messages)
    for found in reversed(rounds):
        ids = {call.tool_call_id for call in found.calls}
        while responses and not ids <= {each.tool_call_id for each in responses[-1][1].tool_calls}:
            end, _ = responses.pop()
        if not responses:
            return
        at, response = responses.pop()
        outputs = _outputs_in(messages[at + 1 : end])
        found.text = "".join(e.content for e in response.parts if isinstance(e, TextPart))
        found.calls = [_with_output(each, outputs) for each in found.calls]
        end = at


def _with_output(call: Call, outputs: dict[str, str]) -> Call:
    """The call with what the model read of it, where it has ended and that is no error."""
    if call.error or call.status not in {"completed", "resolved"}:
        return call
    return replace(call, output=outputs.get(call.tool_call_id, ""))


def _outputs_in(messages: Iterable[ModelMessage]) -> dict[str, str]:
    """What tools answered, by call id."""
    return {
        part.tool_call_id: output_text(part)
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    }


def output_text(part: ToolReturnPart) -> str:
    """What the model read of an output. Bytes are none of it, nor is metadata for displays."""
    content: object = part.content
    pieces = cast("list[object]", content) if isinstance(content, list) else [content]
    if any(isinstance(each, BinaryContent) for each in pieces):
        return "\n".join(each for each in pieces if isinstance(each, str))
    return part.model_response_str()
