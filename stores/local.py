"""What the stores on one machine, file and SQLite, have in common: all but how rows are kept.

They let the capability be used in a plain `agent.run` without a server. Workers are refused them:
another worker could not see what is in them. So no workflow commits here, and a commit that would
have to take others back (a lost workflow task, a reset) is refused instead.
"""

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self, TypeVar

from anyio import to_thread

from stores.commits import Commit, CommitHead, CommitResult, Verdict, advance, counted_stale, judge
from stores.effects import effect_record
from stores.errors import DamagedSnapshotError, StoreConfigurationError
from stores.histories import MessageLog, StoredTexts, history_of, positions_in
from stores.identifiers import check_identifier
from stores.keyword.scanning import ScanningKeywords
from stores.local_rows import LocalRows
from stores.media.messages import MessageMedia
from stores.media.protocols import MediaStore
from stores.memory_attempts import Gates, InMemoryAttempts
from stores.memory_conversations import ConversationTables, InMemoryConversations
from stores.memory_streaming import InMemoryStreams
from stores.paging import (
    DEFAULT_PAGE_SIZE,
    RunCursor,
    check_page_size,
    decode_cursor,
    given,
    page_of,
)
from stores.planning import CommitPlan, CommitPlanner
from stores.preparing import PreparedCommit, check_identifiers, prepare
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
    SnapshotRow,
    event_record,
    holds_continuation,
    snapshot_record,
    snapshot_summary,
)
from stores.single import SingleWrites, prepare_history

_LOGGER = logging.getLogger(__name__)

Result = TypeVar("Result")


class LocalStepStore(SingleWrites, ABC):
    """`StepStore` over `LocalRows`. All work is done in threads, off the event loop."""

    def __init__(
        self,
        *,
        workspace_id: str,
        max_snapshots_per_run: int | None,
        media: MessageMedia,
        redaction: Redaction = NO_REDACTION,
    ) -> None:
        self.redaction = redaction
        self._workspace_id = check_identifier("workspace_id", workspace_id)
        self._bound = check_bound(max_snapshots_per_run)
        self._media = media
        self._gates: Gates = {}
        self._conversations = ConversationTables()

    @abstractmethod
    def _session(
        self, attempt: str, *, writing: Collection[str] | None = None
    ) -> AbstractContextManager[LocalRows]:
        """The rows of this workspace, for one call.

        Args:
            attempt: what is tried, for messages.
            writing: the runs that are going to be written; `None` for a call that only reads.
        """

    async def _do(
        self,
        attempt: str,
        work: Callable[[LocalRows], Result],
        *,
        writing: Collection[str] | None = None,
    ) -> Result:
        def run() -> Result:
            with self._session(attempt, writing=writing) as rows:
                return work(rows)

        return await to_thread.run_sync(run)

    async def _read(self, run_id: str, work: Callable[[LocalRows], Result]) -> Result:
        return await self._do(f"read run {run_id!r}", work)

    @property
    def attempts(self) -> InMemoryAttempts:
        """Kept in this process: no worker writes here, so no other one makes an attempt."""
        return InMemoryAttempts(self._gates, workspace_id=self._workspace_id)

    @property
    def streams(self) -> InMemoryStreams:
        """Empty: nothing streams outside a worker."""
        return InMemoryStreams({}, workspace_id=self._workspace_id)

    @property
    def conversations(self) -> InMemoryConversations:
        """Kept in this process: no worker writes here. See `SqliteConversationStore` for a file."""
        return InMemoryConversations(self._conversations, workspace_id=self._workspace_id)

    @property
    def keywords(self) -> ScanningKeywords:
        """See `StepStore.keywords`."""
        return self._conversations.keywords

    @property
    def workspace_id(self) -> str:
        """See `StepStore.workspace_id`."""
        return self._workspace_id

    def for_workspace(self, workspace_id: str) -> Self:
        """See `StepStore.for_workspace`."""
        store = copy.copy(self)
        store._workspace_id = check_identifier("workspace_id", workspace_id)  # noqa: SLF001 - of this class
        store._media = self._media.for_workspace(workspace_id)  # noqa: SLF001
        return store

    @property
    def media_store(self) -> MediaStore | None:
        """Where large content of this workspace's messages is."""
        return self._media.media_store

    # Commits

    async def commit(self, commit: Commit) -> CommitResult:
        """See `StepStore.commit`.

        Raises:
            StoreConfigurationError: it would take other commits back, which only a workflow asks
                for.
        """
        check_identifiers(commit)
        commit = self.redaction.commit(commit)
        texts = await self._media.texts_of(commit.operations)
        prepared = prepare(commit, texts=texts)
        attempt = f"commit {', '.join(map(repr, prepared.run_ids))}"
        return await self._do(
            attempt, lambda rows: self._commit(rows, prepared), writing=prepared.run_ids
        )

    async def _commit_history(self, snapshot: ContinuableSnapshot) -> CommitResult:
        run_id = check_identifier("run_id", snapshot.run_id)
        snapshot = self.redaction.snapshot(snapshot)
        texts = [await self._media.text_of(each) for each in snapshot.messages]

        def commit(rows: LocalRows) -> CommitResult:
            log = _message_log(rows, run_id)
            prepared = prepare_history(snapshot, texts, log, workspace_id=self._workspace_id)
            return self._commit(rows, prepared)

        return await self._do(f"save a snapshot of run {run_id!r}", commit, writing=[run_id])

    def _commit(self, rows: LocalRows, prepared: PreparedCommit) -> CommitResult:
        position = prepared.commit.position
        head = rows.find_head(position.execution_id) if position else None
        verdict = _verdict(head, prepared)
        if verdict == "conflict":
            raise prepared.conflict()
        if head is not None and verdict == "suppress":
            return prepared.suppressed(head)
        if head is not None and verdict == "stale":
            rows.put_head(counted_stale(head))
            return prepared.result("stale")
        existing = rows.existing(prepared)
        existing.continuations = _continuations(rows, prepared.continued_run_ids)
        plan = CommitPlanner(prepared, existing, workspace_id=self._workspace_id).plan()
        rows.write(prepared, plan, self._prunable(rows, plan, prepared, head))
        if position is not None:
            rows.put_head(
                advance(
                    head,
                    position,
                    prepared.digest,
                    workspace_id=self._workspace_id,
                    outcomes=plan.outcomes,
                )
            )
        return prepared.result(verdict, plan.outcomes)

    def _prunable(
        self,
        rows: LocalRows,
        plan: CommitPlan,
        prepared: PreparedCommit,
        head: CommitHead | None,
    ) -> list[SnapshotRow]:
        if self._bound is None:
            return []
        return [
            row
            for run_id in sorted({row.run_id for row in plan.snapshots})
            for row in prunable(
                rows.snapshots(run_id),
                [row for row in plan.snapshots if row.run_id == run_id],
                bound=self._bound,
                prepared=prepared,
                head=head,
            )
        ]

    async def find_commit_head(self, *, execution_id: str) -> CommitHead | None:
        """See `StepStore.find_commit_head`."""
        attempt = f"read the commit head of execution {execution_id!r}"
        return await self._do(attempt, lambda rows: rows.find_head(execution_id))

    # Runs

    async def get_run(self, *, run_id: str) -> RunRecord | None:
        """See `StepStore.get_run`."""
        return await self._read(run_id, lambda rows: rows.find_run(run_id))

    async def _newest_runs(
        self, filters: dict[str, str], *, after: RunCursor | None = None, limit: int | None = None
    ) -> list[RunRecord]:
        attempt = f"list runs of workspace {self._workspace_id!r}"
        return await self._do(
            attempt, lambda rows: rows.newest_runs(filters, after=after, limit=limit)
        )

    async def list_runs(
        self,
        *,
        parent_run_id: str | None = None,
        conversation_id: str | None = None,
        continued_from: str | None = None,
        forked_from: str | None = None,
    ) -> list[RunRecord]:
        """See `StepStore.list_runs`."""
        filters = given(
            parent_run_id=parent_run_id,
            conversation_id=conversation_id,
            continued_from=continued_from,
            forked_from=forked_from,
        )
        return (await self._newest_runs(filters))[::-1]

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
        cursor = None if after is None else decode_cursor(after, filters)
        runs = await self._newest_runs(filters, after=cursor, limit=check_page_size(limit) + 1)
        return page_of(runs, limit=limit, filters=filters)

    # Events, snapshots, effects

    async def list_events(self, *, run_id: str, after: int = -1) -> list[StepEvent]:
        """See `StepStore.list_events`."""

        def read(rows: LocalRows) -> list[StepEvent]:
            run = rows.find_run(run_id)
            return [event_record(row, run) for row in rows.events(run_id) if row.sequence > after]

        return await self._read(run_id, read)

    async def latest_snapshot(
        self, *, run_id: str, include_interrupted: bool = False
    ) -> ContinuableSnapshot | None:
        """See `StepStore.latest_snapshot`."""

        def read(rows: LocalRows) -> _Stored:
            row = rows.newest_snapshot(run_id, only_complete=not include_interrupted)
            return _stored(rows, run_id, [] if row is None else [row])

        return await self._newest(await self._read(run_id, read))

    async def find_snapshot(self, *, run_id: str, sequence: int) -> ContinuableSnapshot | None:
        """See `StepStore.find_snapshot`."""

        def read(rows: LocalRows) -> _Stored:
            found = [row for row in rows.snapshots(run_id) if row.sequence == sequence]
            return _stored(rows, run_id, found[-1:])

        return await self._newest(await self._read(run_id, read))

    async def _newest(self, stored: "_Stored") -> ContinuableSnapshot | None:
        texts = await self._media.restored(stored.texts)
        return stored.record(stored.snapshots[-1], texts) if stored.snapshots else None

    async def list_snapshots(self, *, run_id: str) -> list[ContinuableSnapshot]:
        """See `StepStore.list_snapshots`."""
        stored = await self._read(
            run_id, lambda rows: _stored(rows, run_id, rows.snapshots(run_id))
        )
        texts = await self._media.restored(stored.texts)
        whole: list[ContinuableSnapshot] = []
        for row in stored.snapshots:
            try:
                whole.append(stored.record(row, texts))
            except DamagedSnapshotError as error:
                _LOGGER.warning("left out of list_snapshots: %s", error)
        return whole

    async def list_snapshot_summaries(self, *, run_id: str) -> list[SnapshotSummary]:
        """See `StepStore.list_snapshot_summaries`."""
        return await self._read(
            run_id, lambda rows: [snapshot_summary(row) for row in rows.snapshots(run_id)]
        )

    async def get_tool_effect(self, *, run_id: str, tool_call_id: str) -> ToolEffectRecord | None:
        """See `StepStore.get_tool_effect`."""
        effects = await self.list_tool_effects(run_id=run_id)
        matching = [effect for effect in effects if effect.tool_call_id == tool_call_id]
        return matching[-1] if matching else None

    async def list_tool_effects(self, *, run_id: str) -> list[ToolEffectRecord]:
        """See `StepStore.list_tool_effects`."""
        return await self._read(
            run_id, lambda rows: [effect_record(row) for row in rows.effects(run_id)]
        )

    async def list_unresolved_tool_effects(
        self, *, run_id: str | None = None
    ) -> list[ToolEffectRecord]:
        """See `StepStore.list_unresolved_tool_effects`."""

        def read(rows: LocalRows) -> list[ToolEffectRecord]:
            found = rows.unresolved_effects() if run_id is None else rows.effects(run_id)
            return [effect_record(row) for row in found if row.is_unresolved]

        return await self._do("read unresolved effects", read)


def _verdict(head: CommitHead | None, prepared: PreparedCommit) -> Verdict:
    position = prepared.commit.position
    if position is None:
        return "apply"
    verdict = judge(head, position, prepared.digest)
    if verdict in {"supersede", "adopt"}:
        msg = (
            f"commit {position.number} of execution {position.execution_id!r} would {verdict} "
            "commits of a workflow, which a store on one machine cannot do; workflows need MongoDB"
        )
        raise StoreConfigurationError(msg)
    return verdict


def _continuations(rows: LocalRows, sources: Collection[str]) -> dict[str, str]:
    """See `Existing.continuations`."""
    return {
        source: run.run_id
        for source in sources
        # The newest first, so that the oldest one counts.
        for run in rows.newest_runs({"continued_from": source}, after=None, limit=None)
        if holds_continuation(run, has_snapshots=bool(rows.snapshots(run.run_id)))
    }


def _message_log(rows: LocalRows, run_id: str) -> MessageLog:
    """The newest history of a run, as far as it can be read, and the end of its log."""
    try:
        newest = rows.newest_snapshot(run_id, only_complete=False)
    except DamagedSnapshotError as error:
        _LOGGER.warning("its messages are stored once more: %s", error)
        newest = None
    ranges = newest.ranges if newest else ()
    log = rows.log(run_id, ranges)
    return MessageLog(
        history=tuple((each, log[each]) for each in positions_in(ranges) if each in log),
        next_position=rows.log_end(run_id),
    )


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """Snapshots of a run as they are stored, with what their messages are made of."""

    run: RunRecord | None
    snapshots: list[SnapshotRow]
    log: dict[int, str]
    texts: dict[str, str]

    def record(self, snapshot: SnapshotRow, texts: StoredTexts) -> ContinuableSnapshot:
        """The snapshot with its messages, of these texts.

        Raises:
            DamagedSnapshotError: one of them is missing or cannot be read.
        """
        return snapshot_record(snapshot, self.run, history_of(snapshot, self.log, texts))


def _stored(rows: LocalRows, run_id: str, snapshots: list[SnapshotRow]) -> _Stored:
    log = rows.log(run_id, {each for row in snapshots for each in row.ranges})
    return _Stored(
        run=rows.find_run(run_id), snapshots=snapshots, log=log, texts=rows.texts(run_id, log)
    )
