"""The journal: the ordered, grouped commit of a workflow execution's boundary operations.

One journal serves all runs of an execution. Operations queue up; at most one commit is in flight,
and everything queued meanwhile goes into the next. A commit starts when the activation is otherwise
idle, so what it holds depends on durable events only and a replay groups alike.
"""

import asyncio
import contextvars
from dataclasses import dataclass, field
from typing import cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from activities.boundaries import (
    AppendEventRequest,
    BoundaryMode,
    CommitBoundariesRequest,
    CommitBoundariesResult,
    CommitHeader,
    FinishToolEffectRequest,
    RegisterRunRequest,
    RegistrationIdentityRequest,
    RegistrationIdentityResult,
    SaveSnapshotRequest,
    StartToolEffectRequest,
)
from stores.errors import RunIdTakenError
from stores.identifiers import DEFAULT_WORKSPACE
from stores.operations import (
    AnnotateToolEffect,
    AppendEvent,
    FinishToolEffect,
    Operation,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
)
from workflows import policies
from workflows.lineage import Lineage, inherited_lineage
from workflows.metering import measure_headroom
from workflows.notices import Notice, Notices
from workflows.payloads import staying

_GROUP = "commit_boundaries"


class StaleCommitError(Exception):
    """Another attempt of this workflow task has committed. Fails the task, not the run."""


@dataclass(slots=True)
class _Queued:
    operation: Operation
    done: asyncio.Future[None] | None
    then: tuple[Notice, contextvars.Context] | None = None


@dataclass
class Journal:
    """The journal of this execution.

    `workspace_id` is the tenant of all that is written; set it before the first operation.
    """

    execution_id: str
    workspace_id: str = DEFAULT_WORKSPACE
    facts: RegistrationIdentityResult | None = None
    """What the first registration identity said; followed to the end of the execution."""
    run_failure: tuple[str, BaseException] | None = None
    """The newest run of this execution that failed, with its error."""
    _number: int = 0
    _committed_at: int | None = None
    """Length of the history when the newest commit was made: it tells workflow tasks apart."""
    _queue: list[_Queued] = field(default_factory=list[_Queued])
    _is_draining: bool = False
    _notices: Notices = field(default_factory=Notices)
    _failure: ApplicationError | None = None
    _identities: dict[str, RegistrationIdentityResult] = field(
        default_factory=dict[str, RegistrationIdentityResult]
    )
    _registered: set[str] = field(default_factory=set[str])
    _must_commit: bool = False
    _sequences: dict[str, int] = field(default_factory=dict[str, int])
    _refused_runs: dict[str, ApplicationError] = field(default_factory=dict[str, ApplicationError])
    _unseen: dict[str, ApplicationError] = field(default_factory=dict[str, ApplicationError])
    _open_effects: dict[tuple[str, str], StartToolEffect] = field(
        default_factory=dict[tuple[str, str], StartToolEffect]
    )

    @property
    def mode(self) -> BoundaryMode:
        """How commits of this execution run."""
        return self.facts.boundary_mode if self.facts else "local"

    @property
    def open_effects(self) -> list[StartToolEffect]:
        """Tool calls that were started and have not ended, in the order of their starts."""
        return list(self._open_effects.values())

    async def identify(
        self, run_id: str, registration_id: str | None = None
    ) -> RegistrationIdentityResult:
        """Journal a run's registration identity; the first one also brings the worker's facts.

        It is the same on every attempt of a task and after a reset; an execution that a run goes on
        in names it.
        """
        known = self._identities.get(run_id)
        if known is not None:
            return known
        registration_id = registration_id or f"{self.execution_id}/{run_id}"
        request = RegistrationIdentityRequest(run_id=run_id, registration_id=registration_id)
        identity: RegistrationIdentityResult = await workflow.execute_local_activity(
            "registration_identity",
            request,
            result_type=RegistrationIdentityResult,
            start_to_close_timeout=policies.COMMIT_TIMEOUT,
        )
        self._identities[run_id] = identity
        self.facts = self.facts or identity
        return identity

    def go_on(self, run_id: str, next_sequence: int) -> None:
        """Take up a run of another execution, which registered it there."""
        self._registered.add(run_id)
        self._sequences[run_id] = next_sequence

    def next_sequence(self, run_id: str) -> int:
        """The next place in the run's order."""
        sequence = self._sequences.get(run_id, 0)
        self._sequences[run_id] = sequence + 1
        return sequence

    async def record(
        self, operation: Operation, *, barrier: bool = False, then: Notice | None = None
    ) -> None:
        """Queue an operation; with `barrier` wait until it is committed.

        The wait is shielded: a waiter that is cancelled changes nothing for the operation.
        """
        self._check_first_registration(operation)
        self._track(operation)
        if self._failure is not None:
            raise self._failure
        done = asyncio.get_running_loop().create_future() if barrier else None
        following = (then, contextvars.copy_context()) if then else None
        self._queue.append(_Queued(operation, done, following))
        self._start_draining()
        if done is not None:
            try:
                await asyncio.shield(done)
            except ApplicationError as error:
                raise self._unseen.pop(operation.run_id, error) from error.__cause__
            self._raise_unseen(operation.run_id)

    async def annotate(self, annotation: AnnotateToolEffect) -> None:
        """Write nothing: it is no boundary, and the finish of the call carries it."""

    async def drain(self) -> bool:
        """Commit all that is queued: the last barrier of an execution.

        Where this workflow task has committed nothing, an empty commit ends it: an earlier attempt
        of the task may have committed what the history will not hold, and the empty one supersedes
        that. A workflow that was refused before its first commit writes nothing; one that was
        cancelled before it does, for the attempt before may not have known of the cancellation.

        Returns:
            Whether the workflow was cancelled meanwhile; all was committed nevertheless.

        Raises:
            ApplicationError: an operation was refused that nobody waited for.
        """
        is_cancelled = await self._wait_until_idle()
        may_follow_another = bool(self._identities) or workflow.cancellation_reason() is not None
        if self._failure is None and may_follow_another and self._committed_at != _history_length():
            self._must_commit = True
            self._start_draining()
            is_cancelled |= await self._wait_until_idle()
        if self._failure is not None:
            raise self._failure
        for run_id in list(self._unseen):
            self._raise_unseen(run_id)
        return is_cancelled

    async def _wait_until_idle(self) -> bool:
        """Wait through a cancellation, and tell of it. Eviction gets out: the wait raises."""
        is_cancelled = False
        while self._is_draining or self._notices:
            try:
                await workflow.wait_condition(lambda: not (self._is_draining or self._notices))
            except asyncio.CancelledError:
                is_cancelled = True
                self._notices.cancel()
        return is_cancelled

    def _check_first_registration(self, operation: Operation) -> None:
        """Refuse a second run of one id: its rows would merge with those of the first."""
        if not isinstance(operation, RegisterRun):
            return
        if operation.run_id in self._registered:
            raise ApplicationError(
                str(RunIdTakenError(operation.run_id)),
                type=RunIdTakenError.__name__,
                non_retryable=True,
            )
        self._registered.add(operation.run_id)

    def _track(self, operation: Operation) -> None:
        if isinstance(operation, StartToolEffect):
            self._open_effects[operation.run_id, operation.effect_key] = operation
        elif isinstance(operation, FinishToolEffect) and operation.status != "started":
            self._open_effects.pop((operation.run_id, operation.effect_key), None)

    def _raise_unseen(self, run_id: str) -> None:
        error = self._unseen.pop(run_id, None)
        if error is not None:
            raise error

    def _start_draining(self) -> None:
        if self._is_draining:
            return
        draining = self._drain_queue()
        try:
            asyncio.create_task(draining)  # noqa: RUF006 - the workflow's loop keeps its tasks
        except BaseException:  # the workflow is being evicted: nothing more is written
            draining.close()
            raise
        self._is_draining = True

    async def _drain_queue(self) -> None:
        """Commit until nothing is queued. Only eviction cancels this task."""
        while self._queue or self._must_commit:
            # Every task of this activation that can run has run when this returns; counting
            # event-loop ticks instead would group by what libraries happen to await.
            await workflow.wait_condition(lambda: True)
            group, self._queue = self._queue, []
            try:
                await self._commit(group)
            except Exception as error:  # noqa: BLE001 - whatever it is, it fails the waiters
                self._fail(error, group)
        self._is_draining = False

    async def _commit(self, group: list[_Queued]) -> None:
        group = [queued for queued in group if not self._is_refused(queued)]
        if not group and not self._must_commit:
            return
        self._must_commit = False
        self._number += 1
        self._committed_at = _history_length()
        header = CommitHeader(
            execution_id=self.execution_id,
            number=self._number,
            history_length=self._committed_at,
            queued_at=workflow.now(),
            workspace_id=self.workspace_id,
        )
        measure_headroom()
        result = await self._write(header, tuple(queued.operation for queued in group))
        if result.verdict == "stale":
            await workflow.wait_condition(self._fail_workflow_task)
        refused = {each.index: each for each in result.outcomes if each.disposition == "refused"}
        for index, queued in enumerate(group):
            outcome = refused.get(index)
            if outcome is None:
                _resolve(queued, None)
                if queued.then is not None:
                    self._notices.give(*queued.then)
            else:
                self._refuse(queued, outcome.error_type, outcome.error)

    def _is_refused(self, queued: _Queued) -> bool:
        error = self._refused_runs.get(queued.operation.run_id)
        if error is not None:
            _resolve(queued, error)
        return error is not None

    def _refuse(self, queued: _Queued, error_type: str | None, text: str | None) -> None:
        operation = queued.operation
        error = ApplicationError(
            f"run {operation.run_id!r}: boundary {operation.kind} was refused for key "
            f"{operation.key!r}: {text}",
            type=error_type,
            non_retryable=True,
        )
        if isinstance(operation, RegisterRun):
            self._refused_runs[operation.run_id] = error
        if queued.done is None:
            self._unseen.setdefault(operation.run_id, error)
        _resolve(queued, error)

    def _fail(self, error: Exception, group: list[_Queued]) -> None:
        """A commit failed as a whole and for good: so does everything after it."""
        self._must_commit = False
        runs = ", ".join(repr(run) for run in dict.fromkeys(q.operation.run_id for q in group))
        boundaries = ", ".join(dict.fromkeys(q.operation.kind for q in group)) or "the last one"
        cause = error.cause if isinstance(error, ActivityError) and error.cause else error
        error_type = cause.type if isinstance(cause, ApplicationError) else type(cause).__name__
        self._failure = ApplicationError(
            f"run {runs or '-'}: commit {self._number} ({boundaries}) failed for good: {cause}",
            type=error_type,
            non_retryable=True,
        )
        self._failure.__cause__ = error
        for queued in (*group, *self._queue):
            _resolve(queued, self._failure)
        self._queue = []

    @staticmethod
    def _fail_workflow_task() -> bool:
        """As a wait condition: an error here fails the workflow task, and with it this attempt."""
        message = "Another attempt of this workflow task has committed; this one is abandoned"
        raise StaleCommitError(message)

    async def _write(
        self, header: CommitHeader, operations: tuple[Operation, ...]
    ) -> CommitBoundariesResult:
        """One short local attempt, then the server's retries without an open workflow task."""
        group = CommitBoundariesRequest(**dict(header), operations=operations)
        if self.mode == "local":
            result = await _local_attempt(header, operations)
            if result is not None:
                return result
        delay, repeats = policies.LOCAL_COMMIT_TIMEOUT, 1
        while _size_bytes(group) > policies.LARGEST_REGULAR_COMMIT_BYTES:
            # Too large for the server: only a local attempt can take it, so try again later.
            await workflow.sleep(delay)
            result = await _local_attempt(header, operations, repeats)
            if result is not None:
                return result
            repeats += 1
            delay = min(delay * 2, policies.LONGEST_COMMIT_PAUSE)
        with staying("inline"):  # not by way of the store that is away
            result = await workflow.execute_activity(
                *(_request(header, operations) if self.mode == "regular" else (_GROUP, group)),
                result_type=CommitBoundariesResult,
                start_to_close_timeout=policies.COMMIT_TIMEOUT,
                retry_policy=policies.COMMIT_RETRIES,
            )
        return cast("CommitBoundariesResult", result)


def journal_of_execution() -> Journal:
    """The journal of the workflow that runs this code; made at the first call."""
    instance = workflow.instance()
    journal = find_journal()
    if journal is None:
        info = workflow.info()
        inherited = inherited_lineage() or Lineage()
        journal = Journal(
            execution_id=info.original_execution_run_id, workspace_id=inherited.workspace_id
        )
        setattr(instance, _ATTRIBUTE, journal)
    return journal


def find_journal() -> Journal | None:
    """The journal of the workflow that runs this code, `None` when it has recorded nothing."""
    return getattr(workflow.instance(), _ATTRIBUTE, None)


_ATTRIBUTE = "__perdure_journal__"
"""On the workflow's instance: it lives as long as the execution's cache entry, and handlers reach
it, which do not share the context of the main task."""


def _resolve(queued: _Queued, error: ApplicationError | None) -> None:
    if queued.done is None or queued.done.done():
        return
    if error is None:
        queued.done.set_result(None)
    else:
        queued.done.set_exception(error)
        queued.done.exception()  # a waiter that was cancelled never fetches it


def _request(header: CommitHeader, operations: tuple[Operation, ...]) -> tuple[str, CommitHeader]:
    """Name and request: the boundary's own activity for one operation, the group's for more."""
    place = dict(header)
    if len(operations) != 1:
        return _GROUP, CommitBoundariesRequest(**place, operations=operations)
    operation: Operation = operations[0]
    match operation:
        case RegisterRun():
            return operation.kind, RegisterRunRequest(**place, operation=operation)
        case AppendEvent():
            return operation.kind, AppendEventRequest(**place, operation=operation)
        case SaveSnapshot():
            return operation.kind, SaveSnapshotRequest(**place, operation=operation)
        case StartToolEffect():
            return operation.kind, StartToolEffectRequest(**place, operation=operation)
        case FinishToolEffect():
            return operation.kind, FinishToolEffectRequest(**place, operation=operation)


async def _local_attempt(
    header: CommitHeader, operations: tuple[Operation, ...], repeats: int = 0
) -> CommitBoundariesResult | None:
    """The commit as a local activity; `None` when it may succeed later."""
    name, request = _request(header, operations)
    try:
        with staying("local"):
            result: CommitBoundariesResult = await workflow.execute_local_activity(
                name,
                request,
                result_type=CommitBoundariesResult,
                start_to_close_timeout=policies.local_commit_timeout(repeats),
                retry_policy=policies.LOCAL_COMMIT_RETRIES,
            )
            return result
    except FailureError as error:
        # A replay raises the failure itself, without the ActivityError around it: that is how the
        # SDK writes it into the history (temporalio/sdk-rust issue 436).
        cause = error.cause if isinstance(error, ActivityError) else error
        if isinstance(cause, ApplicationError) and cause.non_retryable:
            raise
        if not isinstance(cause, FailureError):
            raise
        return None


def _history_length() -> int:
    """Events of the history up to this workflow task; the same when it is replayed."""
    return workflow.info().get_current_history_length()


def _size_bytes(request: CommitBoundariesRequest) -> int:
    """Encoded size of a request. Only asked for when the local attempt has failed."""
    with staying("local"):
        return len(workflow.payload_converter().to_payload(request).data)
