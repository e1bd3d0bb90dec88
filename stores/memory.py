"""A store in this process's memory: for tests, and for plain runs that keep nothing."""

import copy
import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

from stores.commits import (
    Commit,
    CommitHead,
    CommitPosition,
    CommitResult,
    Verdict,
    advance,
    counted_stale,
    is_left_behind,
    judge,
)
from stores.digests import message_text
from stores.effects import effect_record, marked
from stores.errors import DamagedSnapshotError
from stores.histories import (
    MessageChanges,
    MessageLog,
    StoredTexts,
    history_of,
    positions_in,
)
from stores.identifiers import DEFAULT_WORKSPACE, check_identifier
from stores.keyword.scanning import ScanningKeywords
from stores.memory_attempts import Gates, InMemoryAttempts
from stores.memory_conversations import ConversationTables, InMemoryConversations
from stores.memory_streaming import Chunks, InMemoryStreams
from stores.paging import DEFAULT_PAGE_SIZE, check_page_size, decode_cursor, given, page_of
from stores.planning import CommitPlan, CommitPlanner, Existing
from stores.preparing import PreparedCommit, prepare
from stores.records import (
    ContinuableSnapshot,
    RunPage,
    RunRecord,
    RunState,
    SnapshotSummary,
    StepEvent,
    ToolEffectRecord,
)
from stores.redaction import NO_REDACTION, Redaction
from stores.retention import check_bound, prunable
from stores.rows import (
    Mark,
    RunRow,
    SnapshotRow,
    event_record,
    holds_continuation,
    snapshot_record,
    snapshot_summary,
    split_after,
    with_state_of,
    without_state,
)
from stores.single import SingleWrites, prepare_history
from stores.tables import AnyMarkedRow, Table, Tables, is_row_reached, live

_LOGGER = logging.getLogger(__name__)


class InMemoryStepStore(SingleWrites):
    """`StepStore` in memory. A commit runs without a pause, so nothing comes between.

    Media stay in the messages.
    """

    def __init__(
        self,
        *,
        workspace_id: str = DEFAULT_WORKSPACE,
        max_snapshots_per_run: int | None = None,
        redaction: Redaction = NO_REDACTION,
    ) -> None:
        """Make an empty store; see `MongoStepStore` for what it takes.

        Raises:
            ValueError: the bound is below 1.
            InvalidIdentifierError: the workspace id is malformed.
        """
        self._workspace_id = check_identifier("workspace_id", workspace_id)
        self._bound = check_bound(max_snapshots_per_run)
        self.redaction = redaction
        self._tables = Tables()
        self._gates: Gates = {}
        self._chunks: Chunks = {}
        self._conversations = ConversationTables()

    @property
    def attempts(self) -> InMemoryAttempts:
        """The attempts of tool calls in this workspace."""
        return InMemoryAttempts(self._gates, workspace_id=self._workspace_id)

    @property
    def streams(self) -> InMemoryStreams:
        """The live text of this workspace's runs."""
        return InMemoryStreams(self._chunks, workspace_id=self._workspace_id)

    @property
    def conversations(self) -> InMemoryConversations:
        """See `StepStore.conversations`."""
        return InMemoryConversations(
            self._conversations, workspace_id=self._workspace_id, redaction=self.redaction
        )

    @property
    def keywords(self) -> ScanningKeywords:
        """Keyword search over the conversations of all workspaces; see `KeywordReads`."""
        return self._conversations.keywords

    @property
    def workspace_id(self) -> str:
        """See `StepStore.workspace_id`."""
        return self._workspace_id

    def for_workspace(self, workspace_id: str) -> "InMemoryStepStore":
        """See `StepStore.for_workspace`."""
        store = copy.copy(self)
        store._workspace_id = check_identifier("workspace_id", workspace_id)  # noqa: SLF001 - of this class
        return store

    async def initialise(self) -> list[str]:
        """See `StepStore.initialise`."""
        return []

    async def verify(self) -> None:
        """See `StepStore.verify`."""

    async def aclose(self) -> None:
        """See `StepStore.aclose`."""

    # Commits

    async def commit(self, commit: Commit) -> CommitResult:
        """See `StepStore.commit`."""
        return self._commit(prepare(self.redaction.commit(commit)))

    async def _commit_history(self, snapshot: ContinuableSnapshot) -> CommitResult:
        snapshot = self.redaction.snapshot(snapshot)
        log = self._message_log(snapshot.run_id)
        texts = [message_text(each) for each in snapshot.messages]
        return self._commit(prepare_history(snapshot, texts, log, workspace_id=self._workspace_id))

    async def find_commit_head(self, *, execution_id: str) -> CommitHead | None:
        """See `StepStore.find_commit_head`."""
        return self._tables.heads.get((self._workspace_id, execution_id))

    def _commit(self, prepared: PreparedCommit) -> CommitResult:
        position = prepared.commit.position
        if position is None:
            return prepared.result("apply", self._apply(prepared, None).outcomes)
        key = (self._workspace_id, position.execution_id)
        head = self._tables.heads.get(key)
        verdict = self._verdict(head, position, prepared)
        if verdict == "conflict":
            raise prepared.conflict()
        if head is not None and verdict == "suppress":
            return prepared.suppressed(head)
        if verdict == "stale":
            if head is not None:
                self._tables.heads[key] = counted_stale(head)
            return prepared.result("stale")
        if head is not None and verdict == "supersede":
            self._mark({head.branch}, position.number, "superseded")
        if head is not None and verdict == "adopt":
            self._mark({head.branch, *head.former_branches}, position.number, "abandoned")
            self._abandon_later(position.execution_id)
        plan = self._apply(prepared, head)
        self._tables.heads[key] = advance(
            head,
            position,
            prepared.digest,
            workspace_id=self._workspace_id,
            outcomes=plan.outcomes,
        )
        return prepared.result(verdict, plan.outcomes)

    def _verdict(
        self, head: CommitHead | None, position: CommitPosition, prepared: PreparedCommit
    ) -> Verdict:
        if head is not None:
            return judge(head, position, prepared.digest)
        last = {
            run.record.branches[-1].execution_id
            for run in self._runs(prepared.run_ids)
            if run.record.branches
        }
        heads = [self._tables.heads.get((self._workspace_id, each)) for each in last]
        return "stale" if is_left_behind(position, filter(None, heads)) else "apply"

    def _runs(self, run_ids: Iterable[str]) -> list[RunRow]:
        runs = [self._tables.runs.get(each) for each in run_ids]
        return [each for each in runs if each is not None]

    def _apply(self, prepared: PreparedCommit, head: CommitHead | None) -> CommitPlan:
        existing = Existing()
        self._tables.add_existing(existing, prepared, workspace_id=self._workspace_id)
        for source in prepared.continued_run_ids:
            for other in self._matching_runs({"continued_from": source}):
                if holds_continuation(other, has_snapshots=bool(self._snapshots(other.run_id))):
                    existing.continuations.setdefault(source, other.run_id)
        plan = CommitPlanner(prepared, existing, workspace_id=self._workspace_id).plan()
        for run in (*plan.new_runs, *plan.changed_runs):
            self._tables.runs[run.record.run_id] = copy.deepcopy(run)
        self._prune(plan.snapshots, prepared, head)
        self._tables.events.put(plan.events)
        self._tables.snapshots.put(plan.snapshots)
        self._tables.effects.put(plan.effects)
        self._tables.positions.put(plan.messages.positions)
        self._put_messages(plan.messages)
        return plan

    def _prune(
        self, added: list[SnapshotRow], prepared: PreparedCommit, head: CommitHead | None
    ) -> None:
        if self._bound is None:
            return
        for run_id in {row.run_id for row in added}:
            pruned = prunable(
                self._snapshots(run_id),
                [row for row in added if row.run_id == run_id],
                bound=self._bound,
                prepared=prepared,
                head=head,
            )
            self._tables.snapshots.remove(pruned)
            self._tables.pruned.put(replace(row, ranges=()) for row in pruned)

    def _put_messages(self, changes: MessageChanges) -> None:
        messages = self._tables.messages
        for digest, body in changes.bodies.items():
            stored = messages.get(digest, body)
            owner = body.owner if stored.owner == body.owner else None
            messages[digest] = replace(body, owner=owner)
        for digest, owner in changes.dropped:
            if digest in messages and messages[digest].owner == owner:
                del messages[digest]

    # Marking

    def _mark(self, branches: Collection[str], number: int, mark: Mark) -> None:
        """Take these branches' commits from `number` on out of what is read; fold runs again."""
        tables = self._tables
        self._mark_rows(tables.snapshots, branches, number, mark)
        self._mark_rows(tables.positions, branches, number, mark)
        events = self._mark_rows(tables.events, branches, number, mark)
        tables.effects.put(
            marked(row, branches=branches, number=number, mark=mark)
            for row in tables.effects.of_workspace(self._workspace_id)
        )
        for run in self._own_runs():
            if is_row_reached(run, branches, number):
                tables.runs[run.record.run_id] = replace(run, mark=mark)
        for run_id in {event.run_id for event in events}:
            self._fold_run(run_id)

    def _mark_rows(
        self, table: Table[AnyMarkedRow], branches: Collection[str], number: int, mark: Mark
    ) -> list[AnyMarkedRow]:
        rows = table.of_workspace(self._workspace_id)
        reached = [replace(row, mark=mark) for row in rows if is_row_reached(row, branches, number)]
        table.put(reached)
        return reached

    def _fold_run(self, run_id: str) -> None:
        run = self._tables.runs.get(run_id)
        if run is None:
            return
        run = without_state(run)
        for event in live(self._tables.events.of_run(self._workspace_id, run_id)):
            run = with_state_of(run, event)
        self._tables.runs[run_id] = run

    def _abandon_later(self, execution_id: str) -> None:
        """Abandon all that went on from an execution which a reset has taken back."""
        for found in self._own_runs():
            # Read again: abandoning what came after another run may have changed this one.
            run = self._tables.runs[found.record.run_id]
            if all(each.execution_id != execution_id for each in run.record.branches):
                continue
            kept, later = split_after(run.record.branches, execution_id)
            record = replace(run.record, branches=kept)
            self._tables.runs[record.run_id] = replace(run, record=record)
            for each in later:
                self._abandon(each.execution_id)

    def _abandon(self, execution_id: str) -> None:
        key = (self._workspace_id, execution_id)
        head = self._tables.heads.get(key)
        if head is None or head.is_abandoned:
            return
        self._tables.heads[key] = replace(head, is_abandoned=True)
        self._mark({head.branch, *head.former_branches}, 0, "abandoned")
        self._abandon_later(execution_id)

    # Reads

    def _own_runs(self) -> list[RunRow]:
        runs = self._tables.runs.values()
        return [run for run in runs if run.record.workspace_id == self._workspace_id]

    def _run(self, run_id: str) -> RunRecord | None:
        run = self._tables.runs.get(run_id)
        if run is None or run.mark is not None or run.record.workspace_id != self._workspace_id:
            return None
        return copy.deepcopy(run.record)

    async def get_run(self, *, run_id: str) -> RunRecord | None:
        """See `StepStore.get_run`."""
        return self._run(run_id)

    def _matching_runs(self, filters: dict[str, str]) -> list[RunRecord]:
        runs = (self._run(run.record.run_id) for run in self._own_runs())
        matching = [
            run
            for run in runs
            if run is not None and all(getattr(run, name) == filters[name] for name in filters)
        ]
        return sorted(matching, key=lambda run: (run.started_at, run.run_id))

    async def list_runs(
        self,
        *,
        parent_run_id: str | None = None,
        conversation_id: str | None = None,
        continued_from: str | None = None,
        forked_from: str | None = None,
    ) -> list[RunRecord]:
        """See `StepStore.list_runs`."""
        return self._matching_runs(
            given(
                parent_run_id=parent_run_id,
                conversation_id=conversation_id,
                continued_from=continued_from,
                forked_from=forked_from,
            )
        )

    async def page_runs(
        self,
        *,
        limit: int = DEFAULT_PAGE_SIZE,
        after: str | None = None,
        conversation_id: str | None = None,
        parent_run_id: str | None = None,
        agent_name: str | None = None,
        state: RunState | None = None,
    ) -> RunPage:
        """See `StepStore.page_runs`."""
        filters = given(
            conversation_id=conversation_id,
            parent_run_id=parent_run_id,
            agent_name=agent_name,
            state=state,
        )
        runs = self._matching_runs(filters)[::-1]
        if after is not None:
            cursor = decode_cursor(after, filters)
            last = (cursor.started_at, cursor.run_id)
            runs = [run for run in runs if (run.started_at, run.run_id) < last]
        return page_of(runs, limit=check_page_size(limit), filters=filters)

    async def list_events(self, *, run_id: str, after: int = -1) -> list[StepEvent]:
        """See `StepStore.list_events`."""
        run = self._run(run_id)
        events = live(self._tables.events.of_run(self._workspace_id, run_id))
        return [event_record(event, run) for event in events if event.sequence > after]

    def _snapshots(self, run_id: str) -> list[SnapshotRow]:
        return live(self._tables.snapshots.of_run(self._workspace_id, run_id))

    def _message_log(self, run_id: str) -> MessageLog:
        positions = self._positions(run_id)
        snapshots = self._snapshots(run_id)
        history = positions_in(snapshots[-1].ranges) if snapshots else ()
        return MessageLog(
            history=tuple((each, positions[each]) for each in history if each in positions),
            next_position=max(positions, default=-1) + 1,
        )

    def _positions(self, run_id: str) -> dict[int, str]:
        positions = self._tables.positions.of_run(self._workspace_id, run_id)
        return {each.position: each.message for each in positions if each.mark is None}

    def _with_messages(self, snapshot: SnapshotRow) -> ContinuableSnapshot:
        messages = history_of(
            snapshot,
            self._positions(snapshot.run_id),
            StoredTexts(
                found={digest: body.text for digest, body in self._tables.messages.items()}
            ),
        )
        return snapshot_record(snapshot, self._run(snapshot.run_id), messages)

    async def latest_snapshot(
        self, *, run_id: str, include_interrupted: bool = False
    ) -> ContinuableSnapshot | None:
        """See `StepStore.latest_snapshot`."""
        matching = [
            snapshot
            for snapshot in self._snapshots(run_id)
            if include_interrupted or snapshot.state == "complete"
        ]
        return self._with_messages(matching[-1]) if matching else None

    async def find_snapshot(self, *, run_id: str, sequence: int) -> ContinuableSnapshot | None:
        """See `StepStore.find_snapshot`."""
        rows = [row for row in self._snapshots(run_id) if row.sequence == sequence]
        return self._with_messages(rows[-1]) if rows else None

    async def list_snapshots(self, *, run_id: str) -> list[ContinuableSnapshot]:
        """See `StepStore.list_snapshots`."""
        whole: list[ContinuableSnapshot] = []
        for snapshot in self._snapshots(run_id):
            try:
                whole.append(self._with_messages(snapshot))
            except DamagedSnapshotError as error:
                _LOGGER.warning("left out of list_snapshots: %s", error)
        return whole

    async def list_snapshot_summaries(self, *, run_id: str) -> list[SnapshotSummary]:
        """See `StepStore.list_snapshot_summaries`."""
        return [snapshot_summary(snapshot) for snapshot in self._snapshots(run_id)]

    async def get_tool_effect(self, *, run_id: str, tool_call_id: str) -> ToolEffectRecord | None:
        """See `StepStore.get_tool_effect`."""
        effects = live(self._tables.effects.of_run(self._workspace_id, run_id))
        matching = [effect for effect in effects if effect.tool_call_id == tool_call_id]
        return effect_record(matching[-1]) if matching else None

    async def list_tool_effects(self, *, run_id: str) -> list[ToolEffectRecord]:
        """See `StepStore.list_tool_effects`."""
        effects = live(self._tables.effects.of_run(self._workspace_id, run_id))
        return [effect_record(effect) for effect in effects]

    async def list_unresolved_tool_effects(
        self, *, run_id: str | None = None
    ) -> list[ToolEffectRecord]:
        """See `StepStore.list_unresolved_tool_effects`."""
        if run_id is not None:
            effects = live(self._tables.effects.of_run(self._workspace_id, run_id))
        else:
            rows = live(self._tables.effects.of_workspace(self._workspace_id))
            effects = sorted(rows, key=lambda row: row.started_at)
        return [effect_record(effect) for effect in effects if effect.is_unresolved]
