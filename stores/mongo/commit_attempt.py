"""One commit in an open transaction: decided by its head, planned, written with others or alone.

Normally nothing of a commit is there yet and this process wrote the commit before it, so its rows
are written without looking for their keys, on what is remembered. When an index or a revision says
otherwise, the transaction starts again and looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pymongo import InsertOne, ReplaceOne

from stores.commits import (
    CommitHead,
    CommitPosition,
    CommitResult,
    Verdict,
    advance,
    counted_stale,
    is_left_behind,
    judge,
)
from stores.mongo.documents import Document, commit_head, head_document, head_id, run_row
from stores.mongo.existing import ExistingReader
from stores.mongo.marking import Marker
from stores.mongo.pruning import Pruner
from stores.mongo.recent import OutdatedError, RecentCommits, RecentExecution, after_commit
from stores.mongo.transactions import Transaction
from stores.mongo.writing import Planned, PlanWriter
from stores.planning import CommitPlan, CommitPlanner, Existing
from stores.preparing import PreparedCommit
from stores.records import RunRecord


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a commit, and what was written for it; no plan: nothing was."""

    result: CommitResult
    recent: RecentExecution | None = None
    plan: CommitPlan | None = None
    runs: dict[str, RunRecord] = field(default_factory=dict[str, RunRecord])


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A commit that is decided and planned, and what it leaves as the head of its execution."""

    prepared: PreparedCommit
    workspace_id: str
    verdict: Verdict
    existing: Existing
    plan: CommitPlan
    runs: dict[str, RunRecord]
    head: CommitHead | None = None
    moved: CommitHead | None = None
    log_ends: dict[str, int] = field(default_factory=dict[str, int])

    def outcome(self) -> Outcome:
        """After it was written."""
        recent = None
        if self.moved is not None:
            recent = after_commit(self.moved, self.existing, self.plan, self.log_ends)
        return Outcome(
            result=self.prepared.result(self.verdict, self.plan.outcomes),
            recent=recent,
            plan=self.plan,
            runs=self.runs,
        )


async def write_drafts(
    transaction: Transaction, drafts: Sequence[Draft], *, checks_media: bool
) -> list[Outcome]:
    """Write what is planned for commits of different runs and executions, and move their heads.

    Raises:
        OutdatedError: a head is not what it was; write none of them.
        pymongo.errors.PyMongoError: as `PlanWriter.write`.
    """
    writer = PlanWriter(transaction, checks_media=checks_media)
    await writer.write(
        *(
            Planned(plan=each.plan, runs=each.runs, workspace_id=each.workspace_id)
            for each in drafts
        )
    )
    await replace_heads(transaction, [(each.head, each.moved) for each in drafts])
    return [each.outcome() for each in drafts]


async def replace_heads(
    transaction: Transaction, heads: Sequence[tuple[CommitHead | None, CommitHead | None]]
) -> None:
    """Put each new head in the place of the one that was there.

    Raises:
        OutdatedError: one is not there any more.
    """
    writes: list[InsertOne[Document] | ReplaceOne[Document]] = []
    for before, after in heads:
        if after is not None and before is None:
            writes.append(InsertOne(head_document(after)))
        elif after is not None and before is not None:
            writes.append(ReplaceOne(head_document(before), head_document(after)))
    if not writes:
        return
    done = await transaction.database["commit_heads"].bulk_write(
        writes, session=transaction.session
    )
    if done.inserted_count + done.matched_count < len(writes):
        raise OutdatedError


class CommitAttempt:
    """One commit in one open transaction."""

    def __init__(
        self,
        transaction: Transaction,
        prepared: PreparedCommit,
        recent: RecentCommits,
        *,
        bound: int | None,
    ) -> None:
        self._transaction = transaction
        self._prepared = prepared
        self._recent = recent
        self._bound = bound
        self._reader = ExistingReader(transaction, prepared, is_pruned=bound is not None)

    async def draft(self, *, is_careful: bool) -> Draft | Outcome:
        """Decide by the commit head, then plan; the outcome of one that has nothing to write.

        Raises:
            OutdatedError: what is remembered does not do; look instead.
        """
        position = self._prepared.commit.position
        if position is None:
            return await self._planned("apply", await self._existing(None, is_careful=is_careful))
        recent = None if is_careful else self._find_recent(position)
        head = recent.head if recent else await self._find_head(position.execution_id)
        verdict = await self._verdict(head, position)
        is_plain = verdict == "apply" and not (head and head.has_superseded)
        if recent and not is_plain:
            raise OutdatedError
        if verdict in {"conflict", "suppress", "stale"}:
            return await self._decline(verdict, head)
        await self._mark(verdict, head, position)
        existing = await self._existing(recent, is_careful=is_careful or not is_plain)
        return await self._planned(verdict, existing, head, recent)

    # The commit head

    def _find_recent(self, position: CommitPosition) -> RecentExecution | None:
        return self._recent.find(self._transaction.workspace_id, position.execution_id)

    async def _find_head(self, execution_id: str) -> CommitHead | None:
        query = {"_id": head_id(self._transaction.workspace_id, execution_id)}
        for document in await self._transaction.find("commit_heads", query):
            return commit_head(document)
        return None

    async def _verdict(self, head: CommitHead | None, position: CommitPosition) -> Verdict:
        if head is not None:
            return judge(head, position, self._prepared.digest)
        query = {"_id": {"$in": self._prepared.run_ids}}
        chains = [
            run_row(each).record.branches for each in await self._transaction.find("runs", query)
        ]
        predecessors = {chain[-1].execution_id for chain in chains if chain}
        heads = [await self._find_head(each) for each in sorted(predecessors)]
        return "stale" if is_left_behind(position, filter(None, heads)) else "apply"

    async def _decline(self, verdict: Verdict, head: CommitHead | None) -> Outcome:
        if verdict == "conflict":
            raise self._prepared.conflict()
        if head is not None and verdict == "suppress":
            return Outcome(result=self._prepared.suppressed(head))
        if head is not None:
            await replace_heads(self._transaction, [(head, counted_stale(head))])
        return Outcome(result=self._prepared.result("stale"))

    # The rows

    async def _mark(
        self, verdict: Verdict, head: CommitHead | None, position: CommitPosition
    ) -> None:
        if head is not None and verdict == "supersede":
            await Marker(self._transaction).supersede(head, position.number)
        if head is not None and verdict == "adopt":
            await Marker(self._transaction).abandon(head, position.number)

    async def _existing(self, recent: RecentExecution | None, *, is_careful: bool) -> Existing:
        return await (self._reader.everything() if is_careful else self._reader.expected(recent))

    async def _planned(
        self,
        verdict: Verdict,
        existing: Existing,
        head: CommitHead | None = None,
        recent: RecentExecution | None = None,
    ) -> Draft:
        workspace_id = self._transaction.workspace_id
        plan = CommitPlanner(self._prepared, existing, workspace_id=workspace_id).plan()
        if self._bound is not None:
            pruner = Pruner(self._transaction, bound=self._bound)
            await pruner.prune(plan.snapshots, self._prepared, head)
        position = self._prepared.commit.position
        moved = None
        if position is not None:
            moved = advance(
                head,
                position,
                self._prepared.digest,
                workspace_id=workspace_id,
                outcomes=plan.outcomes,
            )
        return Draft(
            prepared=self._prepared,
            workspace_id=workspace_id,
            verdict=verdict,
            existing=existing,
            plan=plan,
            runs=self._runs_of(existing, plan),
            head=head,
            moved=moved,
            log_ends=recent.log_ends if recent else {},
        )

    def _runs_of(self, existing: Existing, plan: CommitPlan) -> dict[str, RunRecord]:
        """The live runs of this workspace that the commit is about."""
        rows = [*existing.runs.values(), *plan.new_runs]
        own = (each.record for each in rows if each.mark is None)
        workspace_id = self._transaction.workspace_id
        return {each.run_id: each for each in own if each.workspace_id == workspace_id}
