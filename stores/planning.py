"""What a commit changes, decided on what the store holds: where operations meet rows.

A store loads an `Existing` in the transaction of the commit, lets `CommitPlanner` decide operation
by operation, and writes what the plan holds. No store decides anything by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from stores.commits import Disposition, OperationOutcome, spans_of
from stores.effects import (
    EffectRow,
    annotated,
    described,
    holds_start,
    move,
    new_effect,
    transition_of,
)
from stores.errors import (
    AlreadyContinuedError,
    IdempotencyConflictError,
    OriginRemovedError,
    RunIdTakenError,
    StoreError,
)
from stores.histories import MessageChanges, MessageWriter, check_sizes
from stores.operations import (
    AnnotateToolEffect,
    AppendEvent,
    FinishToolEffect,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
    Write,
)
from stores.preparing import PreparedCommit
from stores.public_ids import new_public_id
from stores.records import RunRecord
from stores.rows import (
    AnyKeyedRow,
    EventRow,
    PositionRow,
    RunRow,
    SnapshotRow,
    joined,
    json_copy,
    same_content,
    storable,
    utc,
    with_state_of,
)

FIRST_SEQUENCE = 1
"""The sequence of a run's first row when nobody says otherwise."""

RunKey = tuple[str, str]
"""A run id with a key in that run."""

EffectChange = StartToolEffect | FinishToolEffect


@dataclass(kw_only=True)
class Existing:
    """What a store holds of the things that a commit touches.

    `runs`: of every workspace, marked ones too. `events`, `snapshots`: live rows of the commit's
    branch. `effects`, `positions`: live rows of any branch, of an effect the newest.
    `superseded_*`: rows of the commit's branch that may be taken back, oldest first. `sequences`:
    the highest of each run that has an operation without one and any row. `continuations`: by the
    run that a registration continues, the live run of this workspace that continues it already.
    `departed`: runs that a registration begins with, and that are being removed, or are gone since
    its history was read.
    """

    runs: dict[str, RunRow] = field(default_factory=dict[str, RunRow])
    events: dict[RunKey, EventRow] = field(default_factory=dict[RunKey, EventRow])
    snapshots: dict[RunKey, SnapshotRow] = field(default_factory=dict[RunKey, SnapshotRow])
    effects: dict[RunKey, EffectRow] = field(default_factory=dict[RunKey, EffectRow])
    positions: dict[tuple[str, int], PositionRow] = field(
        default_factory=dict[tuple[str, int], PositionRow]
    )
    superseded_events: list[EventRow] = field(default_factory=list[EventRow])
    superseded_snapshots: list[SnapshotRow] = field(default_factory=list[SnapshotRow])
    superseded_effects: list[EffectRow] = field(default_factory=list[EffectRow])
    sequences: dict[str, int] = field(default_factory=dict[str, int])
    continuations: dict[str, str] = field(default_factory=dict[str, str])
    departed: set[str] = field(default_factory=set[str])


@dataclass(kw_only=True)
class CommitPlan:
    """What a store has to write: rows with a `row_id` replace the stored ones, others are new.

    `claimed`: the runs that others begin with from this commit on. A store whose transactions run
    side by side has to make two that claim one run meet, and one that claims what is removed.
    """

    outcomes: list[OperationOutcome] = field(default_factory=list[OperationOutcome])
    new_runs: list[RunRow] = field(default_factory=list[RunRow])
    changed_runs: list[RunRow] = field(default_factory=list[RunRow])
    events: list[EventRow] = field(default_factory=list[EventRow])
    snapshots: list[SnapshotRow] = field(default_factory=list[SnapshotRow])
    effects: list[EffectRow] = field(default_factory=list[EffectRow])
    messages: MessageChanges = field(default_factory=MessageChanges)
    claimed: list[str] = field(default_factory=list[str])


class CommitPlanner:
    """Decides each operation of a commit in order; later ones see what earlier ones change.

    `existing` is consumed.
    """

    def __init__(self, prepared: PreparedCommit, existing: Existing, *, workspace_id: str) -> None:
        self._prepared = prepared
        self._existing = existing
        self._workspace_id = workspace_id
        self._plan = CommitPlan()
        self._stored_runs = dict(existing.runs)
        self._changed_effects: dict[tuple[str, str, str], EffectRow] = {}
        self._messages = MessageWriter(
            existing.positions,
            workspace_id=workspace_id,
            branch=prepared.branch,
            number=prepared.number,
        )
        self._refused_runs: dict[str, StoreError] = {
            run_id: RunIdTakenError(run_id)
            for run_id, run in existing.runs.items()
            if run.record.workspace_id != workspace_id
        }

    def plan(self) -> CommitPlan:
        """Decide all operations: registrations first, since one that is refused refuses its run."""
        operations = self._prepared.commit.operations
        registered: dict[int, Disposition] = {
            index: self._register(operation)
            for index, operation in enumerate(operations)
            if isinstance(operation, RegisterRun)
        }
        for index, operation in enumerate(operations):
            try:
                self._check_refusal(operation.run_id)
                digest = self._prepared.digests[index]
                disposition = registered.get(index) or self._decide(operation, index, digest)
            except StoreError as error:
                self._note(index, "refused", error)
            else:
                self._note(index, disposition)
        self._join_branches()
        return self._finished()

    def _check_refusal(self, run_id: str) -> None:
        if run_id in self._refused_runs:
            raise self._refused_runs[run_id]

    def _note(self, index: int, disposition: Disposition, error: StoreError | None = None) -> None:
        if disposition == "applied":
            return
        outcome = OperationOutcome(
            index=index,
            disposition=disposition,
            error_type=type(error).__name__ if error else None,
            error=str(error) if error else None,
            continued_by=error.continued_by if isinstance(error, AlreadyContinuedError) else None,
        )
        self._plan.outcomes.append(outcome)

    def _finished(self) -> CommitPlan:
        plan, existing = self._plan, self._existing
        for run_id, run in existing.runs.items():
            if run_id not in self._stored_runs:
                plan.new_runs.append(run)
            elif run != self._stored_runs[run_id]:
                plan.changed_runs.append(run)
        plan.effects = list(self._changed_effects.values())
        plan.messages = self._messages.changes()
        return plan

    # Runs

    def _register(self, operation: RegisterRun) -> Disposition:
        run = self._existing.runs.get(operation.run_id)
        if run is not None and (
            operation.registration_id is None
            or operation.registration_id != run.record.registration_id
        ):
            self._refused_runs.setdefault(operation.run_id, RunIdTakenError(operation.run_id))
            return "refused"
        if run is not None and run.mark is None:
            return "suppressed"
        if not self._claim(operation):
            return "refused"
        if run is None:
            self._existing.runs[operation.run_id] = self._new_run(operation)
            return "applied"
        # What the lost task registered may have been another agent's run under this id.
        record = replace(
            self._new_run(operation).record,
            started_at=run.record.started_at,
            public_id=run.record.public_id,
            branches=run.record.branches,
        )
        self._existing.runs[operation.run_id] = replace(
            run,
            record=record,
            mark=None,
            branch=self._prepared.branch,
            number=self._prepared.number,
        )
        return "superseding"

    def _claim(self, operation: RegisterRun) -> bool:
        """Take the runs that this one begins with; one that it continues unless another one has."""
        error: StoreError | None = None
        origins = operation.origins
        for origin in origins:
            if origin in self._existing.departed:
                error = OriginRemovedError(origin)
        source = operation.continued_from
        if source is not None and error is None:
            winner = self._existing.continuations.setdefault(source, operation.run_id)
            if winner != operation.run_id:
                error = AlreadyContinuedError(source, winner)
        if error is not None:
            self._refused_runs.setdefault(operation.run_id, error)
            return False
        self._plan.claimed += origins
        return True

    def _new_run(self, operation: RegisterRun) -> RunRow:
        record = RunRecord(
            run_id=operation.run_id,
            conversation_id=operation.conversation_id,
            parent_run_id=operation.parent_run_id,
            agent_name=operation.agent_name,
            metadata=dict(operation.metadata),
            started_at=utc(operation.started_at or self._prepared.commit.now),
            registration_id=operation.registration_id,
            workspace_id=self._workspace_id,
            principal=operation.principal,
            continued_from=operation.continued_from,
            forked_from=operation.forked_from,
            from_snapshot=operation.from_snapshot,
            public_id=new_public_id(self._prepared.commit.now),
        )
        return RunRow(record=record, branch=self._prepared.branch, number=self._prepared.number)

    def _join_branches(self) -> None:
        """Let each run of the commit know the execution that writes it."""
        position = self._prepared.commit.position
        if position is None:
            return
        for span in spans_of(self._prepared.commit.operations):
            run = self._existing.runs.get(span.run_id)
            if run is None or run.mark is not None or span.run_id in self._refused_runs:
                continue
            chain = joined(
                run.record.branches,
                execution_id=position.execution_id,
                branch=position.branch,
                first_sequence=span.first,
            )
            record = replace(run.record, branches=chain)
            self._existing.runs[span.run_id] = replace(run, record=record)

    # Events and snapshots

    def _decide(self, operation: Write, index: int, digest: str) -> Disposition:
        match operation:
            case AppendEvent():
                return self._append_event(operation, digest)
            case SaveSnapshot():
                return self._save_snapshot(operation, digest, self._prepared.texts[index])
            case StartToolEffect():
                return self._start_effect(operation, digest)
            case FinishToolEffect():
                return self._finish_effect(operation, digest)
            case AnnotateToolEffect():
                return self._annotate_effect(operation)
            case RegisterRun():  # pragma: no cover - decided before the others
                raise AssertionError(operation)
            case _:  # pragma: no cover - the type checker proves it
                assert_never(operation)

    def _append_event(self, operation: AppendEvent, digest: str) -> Disposition:
        row = EventRow(
            workspace_id=self._workspace_id,
            run_id=operation.run_id,
            branch=self._prepared.branch,
            number=self._prepared.number,
            sequence=self._sequence_of(operation),
            key=operation.key,
            digest=digest,
            at=utc(operation.at or self._prepared.commit.now),
            context=operation.context,
            event=operation.event,
            step_index=operation.step_index,
            call_index=operation.call_index,
            tool_call_id=storable(operation.tool_call_id),
            tool_name=storable(operation.tool_name),
            error=storable(operation.error),
            error_type=operation.error_type,
            usage=json_copy(operation.usage),
            run_state=operation.run_state,
        )
        existing = self._existing
        row, disposition = self._keyed(operation, row, existing.events, existing.superseded_events)
        if disposition != "suppressed":
            self._plan.events.append(row)
            if row.run_id in existing.runs:
                existing.runs[row.run_id] = with_state_of(existing.runs[row.run_id], row)
        return disposition

    def _save_snapshot(
        self, operation: SaveSnapshot, digest: str, texts: Mapping[int, str]
    ) -> Disposition:
        row = SnapshotRow(
            workspace_id=self._workspace_id,
            run_id=operation.run_id,
            branch=self._prepared.branch,
            number=self._prepared.number,
            sequence=self._sequence_of(operation),
            key=operation.key,
            digest=digest,
            at=utc(operation.at or self._prepared.commit.now),
            context=operation.context,
            step_index=operation.step_index,
            state=operation.state,
            ranges=operation.ranges,
        )
        check_sizes(operation.run_id, texts)
        existing = self._existing
        row, disposition = self._keyed(
            operation, row, existing.snapshots, existing.superseded_snapshots
        )
        if disposition != "suppressed":
            self._plan.snapshots.append(row)
            for position, text in texts.items():
                self._messages.put(operation.run_id, position, text)
        return disposition

    def _keyed(
        self,
        operation: Write,
        row: AnyKeyedRow,
        live: dict[RunKey, AnyKeyedRow],
        superseded: list[AnyKeyedRow],
    ) -> tuple[AnyKeyedRow, Disposition]:
        """The row to write for an operation with a key: itself, or a superseded one taken back."""
        key = (row.run_id, row.key) if row.key is not None else None
        first = live.get(key) if key else None
        if key and first:
            if same_content(first.digest, first.scheme, row.digest):
                return row, "suppressed"
            raise IdempotencyConflictError(operation.kind, *key)
        former = [each for each in superseded if key and (each.run_id, each.key) == key]
        equal = (each for each in former if same_content(each.digest, each.scheme, row.digest))
        back = next(equal, None)
        if back is not None:
            row = replace(back, mark=None, number=row.number, sequence=row.sequence)
        if key:
            live[key] = row
        self._took(row.run_id, row.sequence)
        return row, "superseding" if former else "applied"

    def _sequence_of(self, operation: Write) -> int:
        if operation.sequence is not None:
            return operation.sequence
        return self._existing.sequences.get(operation.run_id, FIRST_SEQUENCE - 1) + 1

    def _took(self, run_id: str, sequence: int) -> None:
        highest = self._existing.sequences.get(run_id, sequence)
        self._existing.sequences[run_id] = max(sequence, highest)

    # Effects

    def _start_effect(self, operation: StartToolEffect, digest: str) -> Disposition:
        key = (operation.run_id, operation.effect_key)
        row = self._existing.effects.get(key)
        if row is not None and row.branch == self._prepared.branch:
            return self._move_effect(operation, row, digest)
        superseded = self._existing.superseded_effects
        former = [each for each in superseded if (each.run_id, each.effect_key) == key]
        back = next((each for each in former if holds_start(each, digest)), None)
        if back is None:
            self._put_new_effect(operation, digest)
            return "superseding" if former else "applied"
        back = replace(back, number=self._prepared.number, sequence=self._sequence_of(operation))
        return self._move_effect(operation, back, digest)

    def _finish_effect(self, operation: FinishToolEffect, digest: str) -> Disposition:
        row = self._existing.effects.get((operation.run_id, operation.effect_key))
        if row is not None:
            return self._move_effect(operation, row, digest)
        self._put_new_effect(operation, digest)
        return "applied"

    def _annotate_effect(self, operation: AnnotateToolEffect) -> Disposition:
        row = self._existing.effects.get((operation.run_id, operation.effect_key))
        changed = row and annotated(row, operation)
        if changed is None or changed == row:
            return "suppressed"
        self._put_effect(changed)
        return "applied"

    def _move_effect(self, operation: EffectChange, row: EffectRow, digest: str) -> Disposition:
        transition = transition_of(operation, digest=digest, prepared=self._prepared)
        row, disposition = move(row, transition)
        if disposition == "refused":
            raise IdempotencyConflictError(operation.kind, operation.run_id, operation.key)
        if disposition != "suppressed":
            self._put_effect(described(row, operation))
        return disposition

    def _put_new_effect(self, operation: EffectChange, digest: str) -> None:
        transition = transition_of(operation, digest=digest, prepared=self._prepared)
        row = new_effect(
            operation,
            transition,
            workspace_id=self._workspace_id,
            sequence=self._sequence_of(operation),
        )
        self._put_effect(row)

    def _put_effect(self, row: EffectRow) -> None:
        self._existing.effects[row.run_id, row.effect_key] = row
        self._changed_effects[row.run_id, row.effect_key, row.branch] = row
        self._took(row.run_id, row.sequence)
