"""Where code runs: in which run, in which of its tool calls, in which attempt of that.

What of it must reach other processes is the `Lineage`, which travels in a Temporal header
(`workflows.headers`). What else delegates and tools need here and now is the `Scope`.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.workflow import ActivityConfig

from activities.worker_store import WorkerStore
from stores.commits import Commit
from stores.errors import RunIdTakenError
from stores.identifiers import DEFAULT_WORKSPACE, check_identifier
from stores.operations import AnnotateToolEffect
from stores.reading import task_keys
from stores.records import EffectPolicy
from workflows.names import LINEAGE_HEADER
from workflows.submission import current_run_id


class Lineage(BaseModel):
    """Run, tool call and tenant of the code that schedules an activity or a child workflow.

    It is fixed when that is scheduled, so it holds no attempt; and `branch` is the execution that
    scheduled it: after a reset the server may run it for another one. No content of messages.
    """

    model_config = ConfigDict(frozen=True)

    workspace_id: str = DEFAULT_WORKSPACE
    run_id: str | None = None
    conversation_id: str | None = None
    parent_run_id: str | None = None
    branch: str | None = None
    step_index: int | None = None
    call_index: int | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None
    effect: EffectPolicy | None = None
    """What a repeat of the call would do; `None` where the workflow knows no gate."""
    round: int = 0
    """How often somebody decided to run the call again."""
    activity_index: int = 0
    """Which of the call's activities; more than one where a tool runs in the workflow."""
    request: int | None = None
    """Of a model activity whose run streams: the sequence of its `model_request_started`."""
    request_part: int = 0
    """Which of the request's activities; more than one where a model pauses its turn."""

    @field_validator("workspace_id", "run_id", "conversation_id", "parent_run_id")
    @classmethod
    def _check_ids(cls, value: str | None) -> str | None:
        return value if value is None else check_identifier("lineage", value)

    @property
    def effect_key(self) -> str | None:
        """Identity of the call's effect within its run; `None` outside a call."""
        if self.run_id is None or self.step_index is None or self.call_index is None:
            return None
        return f"{self.step_index}/{self.call_index}"

    def in_call(
        self,
        step_index: int,
        call_index: int,
        tool_call_id: str,
        *,
        tool_name: str | None = None,
        effect: EffectPolicy | None = None,
        round: int = 0,  # noqa: A002 - the field's name
    ) -> "Lineage":
        """The same within a tool call."""
        place = {
            "step_index": step_index,
            "call_index": call_index,
            "tool_call_id": tool_call_id,
            "tool_name": tool_name,
            "effect": effect,
            "round": round,
        }
        return self.model_copy(update=place)

    def outside_call(self) -> "Lineage":
        """The same without the tool call."""
        kept = {"workspace_id", "run_id", "conversation_id", "parent_run_id", "branch"}
        return Lineage(**self.model_dump(include=kept))

    def to_payload(self) -> Payload:
        """The header's value, always the same bytes."""
        data = self.model_dump_json(exclude_defaults=True).encode()
        return Payload(metadata={"encoding": b"json/plain"}, data=data)


def lineage_in(headers: Mapping[str, Payload]) -> Lineage | None:
    """The lineage that a header brought; `None` when there is none or it cannot be read."""
    payload = headers.get(LINEAGE_HEADER)
    if payload is None:
        return None
    try:
        return Lineage.model_validate_json(payload.data)
    except ValidationError:
        return None


def inherited_lineage() -> Lineage | None:
    """What the workflow that runs this code was started with; `None` outside a workflow, too."""
    if not workflow.in_workflow():
        return None
    return lineage_in(workflow.info().headers)


@dataclass(frozen=True, kw_only=True)
class ToolAttempt:
    """One attempt of a tool activity, as the server describes it.

    `branch` is the execution that it runs for. A later attempt has a later `started_at`.
    """

    branch: str
    number: int
    started_at: datetime
    _run_ids: set[str] = field(default_factory=set[str], repr=False, compare=False)

    def claim(self, run_id: str) -> None:
        """Take a run id for one run of this attempt.

        Raises:
            RunIdTakenError: another run of this attempt has it.
        """
        if run_id in self._run_ids:
            raise RunIdTakenError(run_id)
        self._run_ids.add(run_id)


class Annotator(Protocol):
    """The recorder of a run in this process."""

    async def annotate(
        self, effect_key: str, *, idempotency_key: str | None, effect_summary: str | None
    ) -> None:
        """Add to the effect of a call in flight."""
        ...


@dataclass(kw_only=True)
class Scope:
    """What delegates and tools that start here are told.

    Args:
        lineage: the run and the call whose code this is.
        store: the worker's, in an activity.
        attempt: of the tool activity that this code runs in; `None` where it runs in none, or where
            nothing tells a repeat from another call.
        recorder: of the call's run, when that run is in this process.
        options: of the activity that makes the call, where its effect policy says something.
        request: sequence of the newest `model_request_started` of a run that streams.
    """

    lineage: Lineage
    store: WorkerStore | None = None
    attempt: ToolAttempt | None = None
    recorder: Annotator | None = None
    options: ActivityConfig = field(default_factory=ActivityConfig)
    request: int | None = None
    _request_parts: int = 0
    _delegate_count: int = 0
    _activity_count: int = 0

    def next_delegate_id(self) -> str | None:
        """The run id of the next delegate: the same on every attempt. `None`: it may have any."""
        if self.attempt is None or self.lineage.run_id is None:
            return None
        self._delegate_count += 1
        return delegate_run_id(self.lineage, order=self._delegate_count - 1)

    def for_next_activity(self) -> Lineage:
        """What the next activity is told; one of several in a call knows which it is."""
        if self.lineage.effect_key is None:
            return self.lineage
        self._activity_count += 1
        return self.lineage.model_copy(update={"activity_index": self._activity_count - 1})

    def begin_request(self, sequence: int) -> None:
        """Have the model activities that follow stream, as parts of this request."""
        self.request, self._request_parts = sequence, 0

    def for_next_request(self) -> Lineage:
        """What the next model activity is told."""
        if self.request is None:
            return self.lineage
        self._request_parts += 1
        place = {"request": self.request, "request_part": self._request_parts - 1}
        return self.lineage.model_copy(update=place)

    async def annotate(self, *, idempotency_key: str | None, effect_summary: str | None) -> None:
        """Add to the effect of the call that this code runs in."""
        run_id, effect_key = self.lineage.run_id, self.lineage.effect_key
        if run_id is None or effect_key is None:
            return
        if self.recorder is not None:
            await self.recorder.annotate(
                effect_key, idempotency_key=idempotency_key, effect_summary=effect_summary
            )
        elif self.store is not None:
            annotation = AnnotateToolEffect(
                run_id=run_id,
                effect_key=effect_key,
                idempotency_key=idempotency_key,
                effect_summary=effect_summary,
            )
            now = datetime.now(UTC)  # noqa: TID251 - a workflow's scope has no store
            await self.store.commit(Commit(operations=(annotation,), now=now))


def delegate_run_id(lineage: Lineage, *, order: int) -> str:
    """SHA-256 (hex) over parent run, effect and the place of the delegate in the tool."""
    return task_keys.delegate_run_id(
        lineage.run_id, lineage.effect_key, activity_index=lineage.activity_index, order=order
    )


current_scope: ContextVar[Scope | None] = ContextVar("perdure_current_scope", default=None)
"""Set around an activity's body, a run, and the body of each tool call."""


def scope_of(
    lineage: Lineage,
    recorder: Annotator | None = None,
    *,
    options: ActivityConfig | None = None,
) -> Scope:
    """The scope of a run's code, or of a call's; it is in the activity of the code around it."""
    outer = current_scope.get() or Scope(lineage=lineage)
    return Scope(
        lineage=lineage,
        store=outer.store,
        attempt=outer.attempt,
        recorder=recorder,
        options=options or ActivityConfig(),
    )


def is_tool_activity(activity_type: str) -> bool:
    """Whether this is an activity in which pydantic-ai calls a tool's function."""
    return activity_type.endswith("__call_tool")


def is_model_activity(activity_type: str) -> bool:
    """Whether this is an activity in which pydantic-ai asks a model."""
    return activity_type.endswith("__model_request")


def agent_of_activity(activity_type: str) -> str | None:
    """The agent whose activity this is, by the names that pydantic-ai gives; else `None`."""
    if not activity_type.startswith(_OF_AGENTS):
        return None
    return activity_type.removeprefix(_OF_AGENTS).partition("__")[0]


_OF_AGENTS = "agent__"


@contextmanager
def entered(scope: Scope) -> Generator[None]:
    """Make it the scope of the code inside."""
    scope_token = current_scope.set(scope)
    run_token = current_run_id.set(scope.lineage.run_id)
    try:
        yield
    finally:
        current_run_id.reset(run_token)
        current_scope.reset(scope_token)
