"""Taking over the runs of a database that something else wrote, as often as one likes.

What is there already is left alone, row by row, so an import that was interrupted goes on, and one
whose source has grown adds what is new. One run is held in memory, without its messages.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from stores.commits import Commit
from stores.errors import (
    IdempotencyConflictError,
    MessageTooLargeError,
    RunIdTakenError,
    StoreError,
)
from stores.operations import AppendEvent
from stores.protocols import StepStore
from stores.records import (
    ContinuableSnapshot,
    RunRecord,
    SnapshotSummary,
    StepEvent,
    ToolEffectRecord,
)
from stores.rows import storable, utc
from stores.single import event_operation

EVENTS_A_COMMIT = 200
"""Of small rows; a commit has five seconds."""

MAX_LISTED_PROBLEMS = 1000
"""What a person can read; the rest is counted."""

_OF_SOURCE = (
    "registration_id",
    "started_at",
    "conversation_id",
    "parent_run_id",
    "agent_name",
    "metadata",
)

ProblemKind = Literal["damaged", "conflict", "external", "taken"]
"""A document that makes no record; one that contradicts a row that is here; content that lies
outside the messages; a run id that belongs to another run here."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something of the source that was left out. `document` is its id there."""

    kind: ProblemKind
    collection: str
    document: str
    run_id: str | None
    problem: str


@dataclass(frozen=True, kw_only=True)
class SnapshotHead:
    """A snapshot of the source whose messages are still there."""

    document: object
    snapshot: ContinuableSnapshot


class DamagedDocumentError(StoreError):
    """A document of the source makes no record; the text says why."""


class RunSource(Protocol):
    """Runs to take over. Nothing is written to it; what is damaged comes as a `Problem`."""

    async def count_runs(self) -> int:
        """How many `runs` gives, damaged ones among them."""
        ...

    def runs(self) -> AsyncIterator[RunRecord | Problem]:
        """The runs, in an order that stays."""
        ...

    async def snapshot_heads(self, run_id: str) -> list[SnapshotHead | Problem]:
        """The run's snapshots in their order, without messages."""
        ...

    async def find_external(self, run_id: str) -> list[Problem]:
        """The run's snapshots whose messages have content that lies elsewhere."""
        ...

    def rows(
        self, run_id: str, heads: Sequence[SnapshotHead | Problem]
    ) -> AsyncIterator[StepEvent | SnapshotHead | ToolEffectRecord | Problem]:
        """Events, snapshots and effects by time; those of one kind in their own order."""
        ...

    async def read_snapshot(self, head: SnapshotHead) -> ContinuableSnapshot:
        """The snapshot with its messages.

        Raises:
            DamagedDocumentError: they cannot be put together.
        """
        ...

    def orphans(self) -> AsyncIterator[Problem]:
        """Rows of runs that are not there."""
        ...


@dataclass(kw_only=True)
class RowCounts:
    """Rows of one kind: written now, here before, left out."""

    imported: int = 0
    unchanged: int = 0
    left_out: int = 0


@dataclass(kw_only=True)
class ImportReport:
    """What became of a source so far. `continued` counts runs of `unchanged` that got new rows."""

    runs_found: int = 0
    runs_read: int = 0
    runs: RowCounts = field(default_factory=RowCounts)
    runs_continued: int = 0
    events: RowCounts = field(default_factory=RowCounts)
    snapshots: RowCounts = field(default_factory=RowCounts)
    tool_effects: RowCounts = field(default_factory=RowCounts)
    problem_count: int = 0
    problems: list[Problem] = field(default_factory=list[Problem])

    def note(self, problem: Problem) -> None:
        """Count a problem, and list it as long as the list is readable."""
        self.problem_count += 1
        if len(self.problems) < MAX_LISTED_PROBLEMS:
            self.problems.append(problem)

    @property
    def rows_imported(self) -> int:
        """Rows of all kinds but runs that were written."""
        return sum(each.imported for each in (self.events, self.snapshots, self.tool_effects))


class Importer:
    """Brings the runs of a source into a store, under the ids, keys, times and order they have.

    A run is refused whole when its id belongs to another run here, or when content of its messages
    lies elsewhere. Everything else that cannot be taken over is left out by itself.

    Args:
        dry_run: read and check everything, write nothing.
        watch: told of the report after every row.
    """

    def __init__(
        self,
        source: RunSource,
        store: StepStore,
        *,
        dry_run: bool = False,
        watch: Callable[[ImportReport], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._store = store
        self._dry_run = dry_run
        self._watch = watch
        self._report = ImportReport()

    async def run(self) -> ImportReport:
        """Import all runs."""
        report = self._report
        report.runs_found = await self._source.count_runs()
        async for run in self._source.runs():
            if isinstance(run, Problem):
                self._leave_out(run)
            else:
                await self._import(run)
            report.runs_read += 1
            self._watch(report)
        async for problem in self._source.orphans():
            report.note(problem)
        return report

    async def _import(self, run: RunRecord) -> None:
        existing = await self._store.get_run(run_id=run.run_id)
        if existing is not None and not _is_same(existing, run):
            self._leave_out(_taken(run))
            return
        held = await _HeldRows.of(self._store, run.run_id) if existing else _HeldRows()
        heads = await self._source.snapshot_heads(run.run_id)
        if any(isinstance(each, SnapshotHead) and not held.has(each) for each in heads):
            external = await self._source.find_external(run.run_id)
            if external:
                self._leave_out(*external)
                return
        if existing is None and not await self._register(run):
            return
        before = self._report.rows_imported
        await _RunImport(
            self._source, self._store, held, self._report, dry_run=self._dry_run, watch=self._watch
        ).run(run.run_id, heads)
        if existing is None:
            self._report.runs.imported += 1
        else:
            self._report.runs.unchanged += 1
            self._report.runs_continued += self._report.rows_imported > before

    async def _register(self, run: RunRecord) -> bool:
        if self._dry_run:
            return True
        try:
            await self._store.register_run(run)
        except RunIdTakenError:  # in a workspace that this one does not see
            self._leave_out(_taken(run))
            return False
        return True

    def _leave_out(self, *problems: Problem) -> None:
        """Leave a run out, for one reason or several."""
        self._report.runs.left_out += 1
        for problem in problems:
            self._report.note(problem)


class _RunImport:
    """The rows of one run. A row's place in the run's order is its place in the source's."""

    def __init__(
        self,
        source: RunSource,
        store: StepStore,
        held: "_HeldRows",
        report: ImportReport,
        *,
        dry_run: bool,
        watch: Callable[[ImportReport], None],
    ) -> None:
        self._source = source
        self._store = store
        self._held = held
        self._report = report
        self._dry_run = dry_run
        self._watch = watch
        self._events: list[StepEvent] = []
        self._counts: dict[str, RowCounts] = {
            "events": report.events,
            "snapshots": report.snapshots,
            "tool_effects": report.tool_effects,
        }

    async def run(self, run_id: str, heads: Sequence[SnapshotHead | Problem]) -> None:
        sequence = 0
        async for row in self._source.rows(run_id, heads):
            sequence += 1
            match row:
                case Problem():
                    self._leave_out(row)
                case StepEvent():
                    await self._take_event(replace(row, sequence=sequence))
                case ToolEffectRecord():
                    await self._take_effect(replace(row, sequence=sequence))
                case SnapshotHead():
                    await self._take_snapshot(row, sequence)
            self._watch(self._report)
        await self._flush()

    def _leave_out(self, problem: Problem) -> None:
        self._counts[problem.collection].left_out += 1
        self._report.note(problem)

    # Events

    async def _take_event(self, event: StepEvent) -> None:
        if self._held.take_event(event):
            self._report.events.unchanged += 1
            return
        self._events.append(event)
        if len(self._events) >= EVENTS_A_COMMIT:
            await self._flush()

    async def _flush(self) -> None:
        events, self._events = self._events, []
        if not events:
            return
        refused: set[int] = set() if self._dry_run else await self._append(events)
        for index, event in enumerate(events):
            if index in refused:
                where = event.idempotency_key or str(event.sequence)
                self._leave_out(_conflict("events", where, event.run_id))
            else:
                self._report.events.imported += 1

    async def _append(self, events: Sequence[StepEvent]) -> set[int]:
        """Append events; the indexes of those that contradict what is here."""
        operations: tuple[AppendEvent, ...] = tuple(event_operation(each) for each in events)
        commit = Commit(operations=operations, now=events[0].timestamp)
        return {each.index for each in (await self._store.commit(commit)).refused()}

    # Effects

    async def _take_effect(self, effect: ToolEffectRecord) -> None:
        if self._held.has(effect):
            self._report.tool_effects.unchanged += 1
            return
        if not self._dry_run:
            try:
                await self._store.record_tool_effect(effect)
            except IdempotencyConflictError:
                self._leave_out(_conflict("tool_effects", effect.tool_call_id, effect.run_id))
                return
        self._report.tool_effects.imported += 1

    # Snapshots

    async def _take_snapshot(self, head: SnapshotHead, sequence: int) -> None:
        if self._held.has(head):
            self._report.snapshots.unchanged += 1
            return
        document, run_id = str(head.document), head.snapshot.run_id
        try:
            snapshot = await self._source.read_snapshot(head)
            if not self._dry_run:
                await self._store.save_snapshot(replace(snapshot, sequence=sequence))
        except IdempotencyConflictError:
            self._leave_out(_conflict("snapshots", document, run_id))
        except (DamagedDocumentError, MessageTooLargeError) as error:
            self._leave_out(
                Problem(
                    kind="damaged",
                    collection="snapshots",
                    document=document,
                    run_id=run_id,
                    problem=str(error),
                )
            )
        else:
            self._report.snapshots.imported += 1


class _HeldRows:
    """The rows of a run that are here already; without a key, a row is known by what it says."""

    def __init__(
        self,
        events: Sequence[StepEvent] = (),
        snapshots: Sequence[SnapshotSummary] = (),
        effects: Sequence[ToolEffectRecord] = (),
    ) -> None:
        self._events = Counter(map(_event_identity, events))
        self._snapshots = set(map(_snapshot_identity, snapshots))
        self._effects = set(map(_effect_identity, effects))

    @classmethod
    async def of(cls, store: StepStore, run_id: str) -> "_HeldRows":
        return cls(
            await store.list_events(run_id=run_id),
            await store.list_snapshot_summaries(run_id=run_id),
            await store.list_tool_effects(run_id=run_id),
        )

    def take_event(self, event: StepEvent) -> bool:
        """Whether the event is here; each one that is here answers once."""
        identity = _event_identity(event)
        found = self._events[identity] > 0
        self._events[identity] -= found
        return found

    def has(self, row: SnapshotHead | ToolEffectRecord) -> bool:
        if isinstance(row, ToolEffectRecord):
            return _effect_identity(row) in self._effects
        return _snapshot_identity(row.snapshot) in self._snapshots


def _event_identity(event: StepEvent) -> tuple[object, ...]:
    at, call = utc(event.timestamp), storable(event.tool_call_id)
    return (event.idempotency_key, event.kind, event.step_index, at, call)


def _snapshot_identity(snapshot: ContinuableSnapshot | SnapshotSummary) -> tuple[object, ...]:
    at = utc(snapshot.timestamp)
    return (snapshot.idempotency_key, snapshot.step_index, snapshot.state, at)


def _effect_identity(effect: ToolEffectRecord) -> tuple[object, ...]:
    told = (storable(effect.idempotency_key), storable(effect.effect_summary))
    return (effect.tool_call_id, effect.status, utc(effect.started_at), *told)


def _is_same(existing: RunRecord, run: RunRecord) -> bool:
    """Whether the run that is here is the source's, told by all that the source says of it."""
    return all(getattr(existing, each) == getattr(run, each) for each in _OF_SOURCE)


def _taken(run: RunRecord) -> Problem:
    return Problem(
        kind="taken",
        collection="runs",
        document=run.run_id,
        run_id=run.run_id,
        problem="another run has this id here; import into another Perdure database",
    )


def _conflict(collection: str, document: str, run_id: str) -> Problem:
    problem = "its key is here with other content, which was kept"
    return Problem(
        kind="conflict", collection=collection, document=document, run_id=run_id, problem=problem
    )
