"""The seed's single methods, as commits of one operation without a position.

Nothing is superseded or stale there; each key decides alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime

from stores.commits import Commit, CommitResult
from stores.digests import history_digest
from stores.errors import (
    AlreadyContinuedError,
    IdempotencyConflictError,
    RunIdTakenError,
    StoreError,
)
from stores.histories import MessageLog, place
from stores.operations import (
    AnnotateToolEffect,
    AppendEvent,
    EventContext,
    FinishToolEffect,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
    Write,
    key_of_effect,
)
from stores.preparing import PreparedCommit, prepare
from stores.records import (
    ContinuableSnapshot,
    RunRecord,
    StepEvent,
    ToolEffectRecord,
    as_record,
)

_ORDINALS = {"unknown": 0, "completed": 1, "failed": 1, "resolved": 2}
"""A record names no ordinal: one place for each thing that can be said of an effect once."""


class SingleWrites(ABC):
    """The seed's single writes, and `annotate_tool_effect`, over `commit`."""

    @abstractmethod
    async def commit(self, commit: Commit) -> CommitResult:
        """Write a group of operations."""

    @abstractmethod
    async def _commit_history(self, snapshot: ContinuableSnapshot) -> CommitResult:
        """Commit `prepare_history(snapshot, ...)` with the run's log read in its transaction."""

    async def register_run(self, record: RunRecord) -> None:
        """See `StepStore.register_run`."""
        record = as_record(RunRecord, record)
        operation = RegisterRun(
            run_id=record.run_id,
            registration_id=record.registration_id,
            conversation_id=record.conversation_id,
            parent_run_id=record.parent_run_id,
            agent_name=record.agent_name,
            metadata=record.metadata,
            principal=record.principal,
            started_at=record.started_at,
            continued_from=record.continued_from,
            forked_from=record.forked_from,
            from_snapshot=record.from_snapshot,
        )
        commit = Commit(
            operations=(operation,), now=record.started_at, branch=record.registration_id or ""
        )
        conflict = IdempotencyConflictError(operation.kind, record.run_id, operation.key)
        result = await self.commit(commit)
        for refusal in result.refused():
            if refusal.continued_by is not None:
                raise AlreadyContinuedError(str(record.continued_from), refusal.continued_by)
        _raise_refusal(result, 0, conflict)

    async def append_event(self, event: StepEvent) -> None:
        """See `StepStore.append_event`."""
        event = as_record(StepEvent, event)
        operation = event_operation(event)
        commit = Commit(operations=(operation,), now=event.timestamp, branch=event.branch)
        conflict = IdempotencyConflictError(operation.kind, event.run_id, str(operation.key))
        _raise_refusal(await self.commit(commit), 0, conflict)

    async def save_snapshot(self, snapshot: ContinuableSnapshot) -> None:
        """See `StepStore.save_snapshot`."""
        snapshot = as_record(ContinuableSnapshot, snapshot)
        key = str(snapshot.idempotency_key)
        conflict = IdempotencyConflictError("save_snapshot", snapshot.run_id, key)
        _raise_refusal(await self._commit_history(snapshot), 0, conflict)

    async def record_tool_effect(self, record: ToolEffectRecord) -> None:
        """See `StepStore.record_tool_effect`. Arguments are not taken over."""
        record = as_record(ToolEffectRecord, record)
        start = StartToolEffect(
            run_id=record.run_id,
            sequence=record.sequence or None,
            tool_call_id=record.tool_call_id,
            tool_name=record.tool_name,
            step_index=record.step_index,
            call_index=record.call_index,
            idempotency_key=record.idempotency_key,
            effect_summary=record.effect_summary,
            effect=record.effect,
        )
        # Before a finish the start makes the row if there is none; beside an earlier start it says
        # nothing new, so its refusal does not matter then.
        finish = _finish_of(record)
        operations: tuple[Write, ...] = (start, *_annotation_of(record), *finish)
        commit = Commit(operations=operations, now=record.started_at, branch=record.branch)
        index = len(operations) - 1 if finish else 0
        asked = operations[index]
        conflict = IdempotencyConflictError(asked.kind, record.run_id, str(asked.key))
        _raise_refusal(await self.commit(commit), index, conflict)

    async def annotate_tool_effect(
        self,
        *,
        run_id: str,
        effect_key: str,
        idempotency_key: str | None = None,
        effect_summary: str | None = None,
    ) -> None:
        """See `StepStore.annotate_tool_effect`."""
        annotation = AnnotateToolEffect(
            run_id=run_id,
            effect_key=effect_key,
            idempotency_key=idempotency_key,
            effect_summary=effect_summary,
        )
        now = datetime.now(UTC)  # noqa: TID251 - no row takes it
        # A refusal is told to nobody: a run of another workspace looks like one that is nowhere.
        await self.commit(Commit(operations=(annotation,), now=now))


def _annotation_of(record: ToolEffectRecord) -> tuple[AnnotateToolEffect, ...]:
    """What a record of a call in flight adds to the one before: that is how a tool annotates it."""
    told = (record.idempotency_key, record.effect_summary)
    if record.status != "started" or told == (None, None):
        return ()
    annotation = AnnotateToolEffect(
        run_id=record.run_id,
        effect_key=key_of_effect(record.step_index, record.call_index, record.tool_call_id),
        idempotency_key=record.idempotency_key,
        effect_summary=record.effect_summary,
    )
    return (annotation,)


def event_operation(event: StepEvent) -> AppendEvent:
    """The operation that appends an event as it is, with its lineage and its time."""
    return AppendEvent(
        run_id=event.run_id,
        sequence=event.sequence or None,
        key=event.idempotency_key,
        event=event.kind,
        step_index=event.step_index,
        call_index=event.call_index,
        tool_call_id=event.tool_call_id,
        tool_name=event.tool_name,
        error=event.error,
        context=EventContext(
            conversation_id=event.conversation_id,
            parent_run_id=event.parent_run_id,
            agent_name=event.agent_name,
            metadata=event.metadata,
        ),
        at=event.timestamp,
    )


def _finish_of(record: ToolEffectRecord) -> tuple[FinishToolEffect, ...]:
    if record.status == "started":
        return ()
    finish = FinishToolEffect(
        run_id=record.run_id,
        tool_call_id=record.tool_call_id,
        tool_name=record.tool_name,
        step_index=record.step_index,
        call_index=record.call_index,
        idempotency_key=record.idempotency_key,
        effect_summary=record.effect_summary,
        status=record.status,
        error=record.error,
        ordinal=_ORDINALS[record.status],
        at=record.ended_at or datetime.now(UTC),  # noqa: TID251 - only when the caller names no time
    )
    return (finish,)


def prepare_history(
    snapshot: ContinuableSnapshot, texts: Sequence[str], log: MessageLog, *, workspace_id: str
) -> PreparedCommit:
    """The commit of a snapshot that names no positions.

    Its digest says what the history means, not where its messages happen to lie.

    Args:
        snapshot: the history.
        texts: its messages as they are to be stored.
        log: what the run's log holds.
        workspace_id: whose run it is.
    """
    ranges, added, entries = place(snapshot.messages, texts, log, workspace_id=workspace_id)
    operation = SaveSnapshot(
        run_id=snapshot.run_id,
        sequence=snapshot.sequence or None,
        key=snapshot.idempotency_key,
        step_index=snapshot.step_index,
        state=snapshot.state,
        ranges=ranges,
        entries=entries,
        context=EventContext(
            conversation_id=snapshot.conversation_id,
            parent_run_id=snapshot.parent_run_id,
            agent_name=snapshot.agent_name,
        ),
    )
    commit = Commit(operations=(operation,), now=snapshot.timestamp, branch=snapshot.branch)
    digest = history_digest(snapshot.step_index, snapshot.state, snapshot.messages)
    return prepare(commit, (digest,), (added,))


def _raise_refusal(result: CommitResult, index: int, conflict: IdempotencyConflictError) -> None:
    """Raise what the operation at `index` was refused for, if it was."""
    for refusal in result.refused():
        if refusal.index == index:
            if refusal.error_type == RunIdTakenError.__name__:
                raise RunIdTakenError(conflict.run_id)
            if refusal.error_type == IdempotencyConflictError.__name__:
                raise conflict
            raise StoreError(refusal.error)
