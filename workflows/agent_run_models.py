"""Input, result and answers of `agent_run`: frozen models that the sandbox passes through.

Defined in the workflow's own file they would be built again for every run.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator
from pydantic_ai.messages import UserContent
from pydantic_ai.usage import RunUsage, UsageLimits

from stores.identifiers import DEFAULT_WORKSPACE, check_identifier
from stores.records import RunState
from workflows.hops import HopState
from workflows.payloads import SubmittedInput
from workflows.turn_input import TurnPlace


class AgentRunInput(SubmittedInput):
    """What to run. Only `agent` is always required; ids follow `stores.identifiers`.

    `prompt` may be absent exactly when `continue_from` or `fork_from` names a run, whose pending
    calls are then executed. `deps` is JSON that the agent's `deps_type` accepts. `usage_limits`
    absent means none. `workspace_id` and `principal` are set by the trusted submitter,
    `delegation_depth` by a run that delegates.

    A fork begins at the newest snapshot, or at the one of sequence `at_snapshot`, or at the newest
    of step `at_step`. Tool effects whose outcome nobody knows are crossed only with
    `accept_unresolved`.

    `hop` is what the run hands on to itself when it continues as new; the prompt is then in its
    history. A workflow that nothing continues is refused one.
    With `stream` the model's text can be followed while it comes (`stores.following`).
    With `turn` the run answers a turn of `conversation_id`, whose prompt and history are loaded.
    """

    agent: str
    prompt: str | Sequence[UserContent] | None = None
    conversation_id: str | None = None
    parent_run_id: str | None = None
    workspace_id: str = DEFAULT_WORKSPACE
    principal: str | None = None
    deps: Any = None
    metadata: dict[str, str] = Field(default_factory=dict)
    model: str | None = None
    model_settings: dict[str, Any] | None = None
    usage_limits: UsageLimits | None = None
    continue_from: str | None = None
    fork_from: str | None = None
    include_interrupted: bool = False
    delegation_depth: int = Field(default=0, ge=0)
    at_snapshot: int | None = None
    at_step: int | None = None
    accept_unresolved: bool = False
    hop: HopState | None = None
    stream: bool = False
    turn: TurnPlace | None = None

    @field_validator(
        "conversation_id", "parent_run_id", "workspace_id", "continue_from", "fork_from"
    )
    @classmethod
    def _check_ids(cls, value: str | None, info: ValidationInfo) -> str | None:
        return value if value is None else check_identifier(str(info.field_name), value)

    @model_validator(mode="after")
    def _check_start(self) -> "AgentRunInput":
        if self.continue_from and self.fork_from:
            message = "continue_from and fork_from exclude each other; name one run"
            raise ValueError(message)
        if not self.fork_from and not (self.at_snapshot is None and self.at_step is None):
            message = "at_snapshot and at_step need fork_from; what is continued goes on at its end"
            raise ValueError(message)
        if self.at_snapshot is not None and self.at_step is not None:
            message = "at_snapshot and at_step exclude each other; name one place"
            raise ValueError(message)
        if self.turn is not None:
            if self.conversation_id is None or self.continue_from or self.fork_from or self.prompt:
                message = "turn needs conversation_id, and brings prompt and history by itself"
                raise ValueError(message)
            return self
        if self.prompt is None and not (self.continue_from or self.fork_from or self.hop):
            message = "prompt is missing; only a run with continue_from or fork_from may go without"
            raise ValueError(message)
        return self


class AgentRunOutput(BaseModel):
    """How a run ended: the agent's output as JSON, and the length of its history."""

    run_id: str
    conversation_id: str
    output: Any
    usage: RunUsage
    message_count: int
    undelivered_steers: tuple[str, ...] = ()
    """Ids of messages that came when the run had said its last word."""


class AgentRunStatus(BaseModel):
    """Answer of the query `status`."""

    run_id: str
    agent: str
    state: RunState


class UnresolvedToolEffect(BaseModel):
    """A tool call that was started and has not ended."""

    tool_call_id: str
    tool_name: str
    step_index: int | None
    call_index: int | None
