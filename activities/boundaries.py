"""The six store boundaries as activities: names and models that recorded histories depend on.

`commit_boundaries` writes a group; each boundary's own activity is scheduled when that is all there
is to commit. All go through one function and the commit protocol of `stores.commits`.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from temporalio import activity

from activities.errors import as_application_error
from stores.commits import Commit, CommitPosition, Verdict
from stores.errors import StoreError
from stores.identifiers import DEFAULT_WORKSPACE
from stores.operations import (
    AppendEvent,
    FinishToolEffect,
    Operation,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
)
from stores.protocols import StepStore
from stores.records import EffectPolicy

BoundaryMode = Literal["local", "regular"]
"""How commits run: as local activities with a regular fallback, or as regular ones at once."""


BOUNDARIES = frozenset(
    {
        "registration_identity",
        "register_run",
        "append_event",
        "save_snapshot",
        "start_tool_effect",
        "finish_tool_effect",
        "commit_boundaries",
    }
)
"""Names of the activities below."""


class HopBounds(BaseModel):
    """When an execution of a run is left for a fresh one: as soon as one of these is reached.

    Of its history `events` (count) and `size_bytes`; `updates` that it accepted; `requests` to the
    model that it made, `None` counts none; with `newest_build` that new runs go to another build.
    """

    model_config = ConfigDict(frozen=True)

    events: int = Field(ge=1)
    size_bytes: int = Field(ge=1)
    updates: int = Field(ge=1)
    requests: int | None = Field(default=None, ge=1)
    newest_build: bool = True


class RegistrationIdentityRequest(BaseModel):
    """The identity that the workflow derived for a run, to be journaled."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    registration_id: str


class RegistrationIdentityResult(BaseModel):
    """The journaled identity, with facts about the worker that a whole execution then follows."""

    model_config = ConfigDict(frozen=True)

    registration_id: str
    boundary_mode: BoundaryMode = "local"
    search_attributes: tuple[str, ...] = ()
    tool_effects: Mapping[str, EffectPolicy] = Field(default_factory=dict)
    hop_bounds: HopBounds | None = None
    """`None` comes of a worker that knows of no hops: the execution makes none."""
    routes: Mapping[str, str] = Field(default_factory=dict)
    """Task queues of activities that run elsewhere: by `agent:NAME` or `tool:NAME`."""


class CommitHeader(BaseModel):
    """Place of a commit in its execution; see `stores.commits.CommitPosition`.

    The branch is not here: it is read from the server's description of the activity.
    """

    model_config = ConfigDict(frozen=True)

    execution_id: str
    number: int
    history_length: int
    queued_at: datetime
    workspace_id: str = DEFAULT_WORKSPACE


class CommitBoundariesRequest(CommitHeader):
    """A group of operations, in the order in which they were queued."""

    operations: tuple[Operation, ...]


class RegisterRunRequest(CommitHeader):
    """One registration."""

    operation: RegisterRun


class AppendEventRequest(CommitHeader):
    """One event."""

    operation: AppendEvent


class SaveSnapshotRequest(CommitHeader):
    """One snapshot."""

    operation: SaveSnapshot


class StartToolEffectRequest(CommitHeader):
    """One tool call that is about to run."""

    operation: StartToolEffect


class FinishToolEffectRequest(CommitHeader):
    """One tool call that ended."""

    operation: FinishToolEffect


class BoundarySpan(BaseModel):
    """First and last sequence of a run in a commit."""

    run_id: str
    first: int
    last: int


class BoundaryOutcome(BaseModel):
    """What became of an operation that was not simply applied."""

    index: int
    disposition: str
    error_type: str | None = None
    error: str | None = None


class CommitBoundariesResult(BaseModel):
    """All that a history keeps of a commit: its size does not depend on what was written."""

    verdict: Verdict
    number: int
    digest: str
    spans: tuple[BoundarySpan, ...] = ()
    outcomes: tuple[BoundaryOutcome, ...] = ()


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - activities are where the clock is read


class BoundaryActivities:
    """The boundaries over a store.

    Args:
        store: the worker's store; each request is written in its own workspace.
        boundary_mode: told to each execution with its first registration identity.
        search_attributes: names that exist on the server, told likewise.
        tool_effects: policies by tool, told likewise; they win over what tools declare.
        hop_bounds: when a run goes on in another execution, told likewise.
        routes: which activities run on which other task queue, told likewise.
        now: the clock for persisted times, aware.
    """

    def __init__(
        self,
        store: StepStore,
        *,
        boundary_mode: BoundaryMode = "local",
        search_attributes: tuple[str, ...] = (),
        tool_effects: Mapping[str, EffectPolicy] | None = None,
        hop_bounds: HopBounds | None = None,
        routes: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = _now,
    ) -> None:
        self._store = store
        self._boundary_mode: BoundaryMode = boundary_mode
        self._search_attributes = search_attributes
        self._tool_effects: Mapping[str, EffectPolicy] = tool_effects or {}
        self._hop_bounds = hop_bounds
        self._routes: Mapping[str, str] = routes or {}
        self._now = now

    @property
    def activities(self) -> list[Callable[..., object]]:
        """All of them, to be registered with a worker."""
        return [
            self.registration_identity,
            self.register_run,
            self.append_event,
            self.save_snapshot,
            self.start_tool_effect,
            self.finish_tool_effect,
            self.commit_boundaries,
        ]

    @activity.defn(name="registration_identity")
    async def registration_identity(
        self, request: RegistrationIdentityRequest
    ) -> RegistrationIdentityResult:
        """Return the identity, so that the history holds it. Writes nothing."""
        return RegistrationIdentityResult(
            registration_id=request.registration_id,
            boundary_mode=self._boundary_mode,
            search_attributes=self._search_attributes,
            tool_effects=self._tool_effects,
            hop_bounds=self._hop_bounds,
            routes=self._routes,
        )

    @activity.defn(name="register_run")
    async def register_run(self, request: RegisterRunRequest) -> CommitBoundariesResult:
        """Claim a run id."""
        return await self._commit(request, (request.operation,))

    @activity.defn(name="append_event")
    async def append_event(self, request: AppendEventRequest) -> CommitBoundariesResult:
        """Append an event."""
        return await self._commit(request, (request.operation,))

    @activity.defn(name="save_snapshot")
    async def save_snapshot(self, request: SaveSnapshotRequest) -> CommitBoundariesResult:
        """Save a snapshot."""
        return await self._commit(request, (request.operation,))

    @activity.defn(name="start_tool_effect")
    async def start_tool_effect(self, request: StartToolEffectRequest) -> CommitBoundariesResult:
        """Record a tool call that is about to run."""
        return await self._commit(request, (request.operation,))

    @activity.defn(name="finish_tool_effect")
    async def finish_tool_effect(self, request: FinishToolEffectRequest) -> CommitBoundariesResult:
        """Record a tool call that ended."""
        return await self._commit(request, (request.operation,))

    @activity.defn(name="commit_boundaries")
    async def commit_boundaries(self, request: CommitBoundariesRequest) -> CommitBoundariesResult:
        """Write a group of operations in one transaction.

        Written first: message bodies, which are addressed by content, so a crash before the
        transaction leaves nothing that anything refers to. Repeats are told apart by the head.
        """
        return await self._commit(request, request.operations)

    async def _commit(
        self, header: CommitHeader, operations: tuple[Operation, ...]
    ) -> CommitBoundariesResult:
        commit = Commit(operations=operations, now=self._now(), position=_position(header))
        try:
            result = await self._store.for_workspace(header.workspace_id).commit(commit)
        except StoreError as error:
            raise as_application_error(error) from error
        return CommitBoundariesResult(
            verdict=result.verdict,
            number=header.number,
            digest=result.digest,
            spans=tuple(BoundarySpan(**asdict(span)) for span in result.spans),
            outcomes=tuple(BoundaryOutcome(**asdict(each)) for each in result.outcomes),
        )


def _position(header: CommitHeader) -> CommitPosition:
    info = activity.info()
    branch = info.workflow_run_id
    if branch is None:
        message = "A boundary was called outside a workflow; call the store itself there"
        raise RuntimeError(message)
    return CommitPosition(
        execution_id=header.execution_id,
        branch=branch,
        branch_time=header.queued_at if info.is_local else info.started_time,
        number=header.number,
        history_length=header.history_length,
        queued_at=header.queued_at,
    )
