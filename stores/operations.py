"""The operations that the six boundaries ask of a store, as frozen models.

They travel in activity inputs, so their field names are part of the contract with recorded
histories: a new field has a default, and none is renamed or removed. (The sixth boundary,
`registration_identity`, writes nothing and has no operation.)
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai.messages import ModelMessage

from stores.records import (
    EffectPolicy,
    EventKind,
    RunState,
    SnapshotState,
    ToolEffectResolution,
)


class RunOperation(BaseModel):
    """What all operations share: the run, and the place in the run's order.

    `sequence` orders the rows of a run and is no identity. `None` (a caller that keeps no count)
    takes the next free one.
    """

    model_config = ConfigDict(frozen=True)

    run_id: str
    sequence: int | None = None


class RegisterRun(RunOperation):
    """Claim a run id. Key: `run_id` with `registration_id`; `None` never equals another."""

    kind: Literal["register_run"] = "register_run"
    registration_id: str | None
    conversation_id: str | None = None
    parent_run_id: str | None = None
    agent_name: str | None = None
    metadata: dict[str, str] = {}
    principal: str | None = None
    started_at: datetime | None = None
    """Only for records made elsewhere; `None` takes the commit's time."""
    continued_from: str | None = None
    """Claims that run: a second registration that continues it is refused."""
    forked_from: str | None = None
    from_snapshot: int | None = None

    @property
    def key(self) -> str:
        """The run id is the key."""
        return self.run_id

    @property
    def origins(self) -> list[str]:
        """The runs that it begins with."""
        return [each for each in (self.continued_from, self.forked_from) if each is not None]


class EventContext(BaseModel):
    """Lineage of an event when it is not simply that of its run."""

    model_config = ConfigDict(frozen=True)

    conversation_id: str | None = None
    parent_run_id: str | None = None
    agent_name: str | None = None
    metadata: dict[str, str] = {}


class AppendEvent(RunOperation):
    """Append one event. Key: step, kind, call index and ordinal; `None` always appends.

    `context=None` means the lineage of the run. Events of kind `run_*` also set the run's state:
    `usage` and `error` go to the run record with them. Another event does so when it says
    `run_state`.
    """

    kind: Literal["append_event"] = "append_event"
    key: str | None
    event: EventKind
    step_index: int
    call_index: int | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    error: str | None = None
    error_type: str | None = None
    usage: dict[str, Any] | None = None
    run_state: RunState | None = None
    context: EventContext | None = None
    at: datetime | None = None


class PositionedMessage(BaseModel):
    """A message and the position in the run's message log that it takes (or takes over)."""

    model_config = ConfigDict(frozen=True)

    position: int
    message: ModelMessage


class SaveSnapshot(RunOperation):
    """Save a history by reference.

    `ranges` lists half-open ranges of positions in the run's message log; read one after the other
    they are the history. `entries` are the messages that the log does not hold yet, or holds
    without the stamps (time, ids, instructions) that the core has set since.
    """

    kind: Literal["save_snapshot"] = "save_snapshot"
    key: str | None
    step_index: int
    state: SnapshotState
    ranges: tuple[tuple[int, int], ...]
    entries: tuple[PositionedMessage, ...] = ()
    context: EventContext | None = None
    at: datetime | None = None


def key_of_effect(step_index: int | None, call_index: int | None, tool_call_id: str) -> str:
    """An effect's identity within its run and branch: place, or call id where none is known."""
    if step_index is None or call_index is None:
        return f"call:{tool_call_id}"
    return f"{step_index}/{call_index}"


class EffectOperation(RunOperation):
    """Identity of an effect: step and call index, or the call id for a caller that has neither."""

    tool_call_id: str
    tool_name: str
    step_index: int | None = None
    call_index: int | None = None
    idempotency_key: str | None = None
    effect_summary: str | None = None

    @property
    def effect_key(self) -> str:
        """The effect's identity within its run and branch."""
        return key_of_effect(self.step_index, self.call_index, self.tool_call_id)


class StartToolEffect(EffectOperation):
    """Record that a tool call is about to run. Key: the effect's identity."""

    kind: Literal["start_tool_effect"] = "start_tool_effect"
    effect: EffectPolicy | None = None
    arguments: str | None = None
    """The call's arguments as JSON text; only their digest and a bounded summary are kept."""
    at: datetime | None = None

    @property
    def key(self) -> str:
        """The effect's identity is the key."""
        return self.effect_key


class MaskedStartToolEffect(StartToolEffect):
    """A start whose arguments a store has masked; it reaches no history.

    `given_digest` is that of the arguments that the tool gets, for which an approval is.
    """

    given_digest: str


class FinishToolEffect(EffectOperation):
    """Record how a tool call ended. Key: the effect's identity and an ordinal.

    A finish never moves an effect back: `resolved` is final, `completed` and `failed` yield only to
    it, `unknown` yields to all three. A `resolution` is recorded even where the status stays; with
    `started` it does: the call has not ended, its approval is asked for or given.
    """

    kind: Literal["finish_tool_effect"] = "finish_tool_effect"
    status: Literal["started", "completed", "failed", "unknown", "resolved"]
    error: str | None = None
    error_type: str | None = None
    resolution: ToolEffectResolution | None = None
    ordinal: int = 0
    at: datetime | None = None

    @property
    def key(self) -> str:
        """The effect's identity with the ordinal of this finish."""
        return f"{self.effect_key}#{self.ordinal}"


class AnnotateToolEffect(RunOperation):
    """Add what a tool says of its effect to the effect's row while that is unresolved.

    No boundary: nothing of it is journaled. `None` leaves what is there. It takes no place in the
    run's order. `effect_key` is an effect's identity, see `EffectOperation`.
    """

    kind: Literal["annotate_tool_effect"] = "annotate_tool_effect"
    sequence: int | None = 0
    effect_key: str
    idempotency_key: str | None = None
    effect_summary: str | None = None

    @property
    def key(self) -> str:
        """The effect's identity is the key."""
        return self.effect_key


Operation = Annotated[
    RegisterRun | AppendEvent | SaveSnapshot | StartToolEffect | FinishToolEffect,
    Field(discriminator="kind"),
]
"""Any of the five writing boundaries' operations."""

Write = Operation | AnnotateToolEffect
"""Whatever a commit may hold: operations of boundaries, and writes beside them."""
