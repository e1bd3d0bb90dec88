"""The one write path: a commit in one transaction.

Read `_CommitAttempt.run` first. Normally nothing of a commit is there yet and this process wrote
the commit before it, so its rows are written without looking for their keys, on what is remembered.
When an index or a revision says otherwise, the transaction starts again and looks.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

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
from stores.mongo.client import MongoConnection
from stores.mongo.documents import commit_head, head_document, head_id, run_row
from stores.mongo.existing import ExistingReader
from stores.mongo.failures import is_duplicate
from stores.mongo.marking import Marker
from stores.mongo.pruning import Pruner
from stores.mongo.recent import OutdatedError, RecentCommits, RecentExecution, after_commit
from stores.mongo.search_indexer import SearchIndexer
from stores.mongo.transactions import Transaction, run_transaction
from stores.mongo.writing import PlanWriter
from stores.planning import CommitPlan, CommitPlanner, Existing
from stores.preparing import PreparedCommit
from stores.records import RunRecord

Preparation = Callable[[Transaction], Awaitable[PreparedCommit]]
"""Makes the commit ready inside its transaction: for one that depends on what is stored."""


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    result: CommitResult
    recent: RecentExecution | None = None
    plan: CommitPlan | None = None
    runs: dict[str, RunRecord] = field(default_factory=dict[str, RunRecord])


class MongoCommits:
    """Writes the commits of one workspace."""

    def __init__(
        self,
        connection: MongoConnection,
        recent: RecentCommits,
        *,
        workspace_id: str,
        max_snapshots_per_run: int | None = None,
        checks_media: bool = True,
        indexer: SearchIndexer | None = None,
    ) -> None:
        self._checks_media = checks_media
        self._indexer = indexer
        self._connection = connection
        self._recent = recent
        self._workspace_id = workspace_id
        self._bound = max_snapshots_per_run

    async def write(self, prepare: Preparation) -> CommitResult:
        """Write a commit, or say why not.

        Raises:
            IdempotencyConflictError: the head's number and fence came with another content.
            pymongo.errors.PyMongoError: MongoDB failed.
        """
        is_careful = False
        while True:  # ends: each time that a careful attempt is refused, another writer got through
            try:
                outcome = await self._run(prepare, is_careful=is_careful)
            except OutdatedError:
                is_careful = True
            except PyMongoError as error:
                if not is_duplicate(error):
                    raise
                is_careful = True
            else:
                if outcome.recent is not None:
                    self._recent.keep(outcome.recent)
                if self._indexer is not None and outcome.plan is not None:
                    self._indexer.begin_after_commit(
                        outcome.result.verdict, outcome.plan, outcome.runs
                    )
                return outcome.result

    async def _run(self, prepare: Preparation, *, is_careful: bool) -> _Outcome:
        async def work(session: AsyncClientSession) -> _Outcome:
            transaction = Transaction(
                session=session,
                database=self._connection.database,
                workspace_id=self._workspace_id,
            )
            attempt = _CommitAttempt(
                transaction,
                await prepare(transaction),
                self._recent,
                bound=self._bound,
                checks_media=self._checks_media,
            )
            return await attempt.run(is_careful=is_careful)

        return await run_transaction(self._connection.client(), work)


class _CommitAttempt:
    """One commit in one open transaction."""

    def __init__(
        self,
        transaction: Transaction,
        prepared: PreparedCommit,
        recent: RecentCommits,
        *,
        bound: int | None,
        checks_media: bool,
    ) -> None:
        self._checks_media = checks_media
        self._transaction = transaction
        self._prepared = prepared
        self._recent = recent
        self._bound = bound
        self._reader = ExistingReader(transaction, prepared, is_pruned=bound is not None)
        self._heads = transaction.database["commit_heads"]

    async def run(self, *, is_careful: bool) -> _Outcome:
        """Decide by the commit head, then write.

        Raises:
            OutdatedError: what is remembered does not do; look instead.
        """
        position = self._prepared.commit.position
        if position is None:
            existing = await self._existing(None, is_careful=is_careful)
            plan = await self._write(existing, None)
            return _Outcome(
                result=self._prepared.result("apply", plan.outcomes),
                plan=plan,
                runs=self._runs_of(existing, plan),
            )
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
        plan = await self._write(existing, head)
        moved = advance(
            head,
            position,
            self._prepared.digest,
            workspace_id=self._transaction.workspace_id,
            outcomes=plan.outcomes,
        )
        await self._replace_head(head, moved)
        return _Outcome(
            result=self._prepared.result(verdict, plan.outcomes),
            recent=after_commit(moved, existing, plan, recent.log_ends if recent else {}),
            plan=plan,
            runs=self._runs_of(existing, plan),
        )

    # The commit head

    def _find_recent(self, position: CommitPosition) -> RecentExecution | None:
        return self._recent.find(self._transaction.workspace_id, position.execution_id)

    async def _find_head(self, execution_id: str) -> CommitHead | None:
        query = {"_id": head_id(self._transaction.workspace_id, execution_id)}
        for document in await self._transaction.find("commit_heads", query):
            return commit_head(document)
        return None

    async def _replace_head(self, head: CommitHead | None, moved: CommitHead) -> None:
        session = self._transaction.session
        if head is None:
            await self._heads.insert_one(head_document(moved), session=session)
            return
        replaced = await self._heads.replace_one(
            head_document(head), head_document(moved), session=session
        )
        if not replaced.matched_count:
            raise OutdatedError

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

    async def _decline(self, verdict: Verdict, head: CommitHead | None) -> _Outcome:
        if verdict == "conflict":
            raise self._prepared.conflict()
        if head is not None and verdict == "suppress":
            return _Outcome(result=self._prepared.suppressed(head))
        if head is not None:
            await self._replace_head(head, counted_stale(head))
        return _Outcome(result=self._prepared.result("stale"))

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

    async def _write(self, existing: Existing, head: CommitHead | None) -> CommitPlan:
        workspace_id = self._transaction.workspace_id
        plan = CommitPlanner(self._prepared, existing, workspace_id=workspace_id).plan()
        if self._bound is not None:
            pruner = Pruner(self._transaction, bound=self._bound)
            await pruner.prune(plan.snapshots, self._prepared, head)
        writer = PlanWriter(self._transaction, checks_media=self._checks_media)
        await writer.write(plan, self._runs_of(existing, plan))
        return plan

    def _runs_of(self, existing: Existing, plan: CommitPlan) -> dict[str, RunRecord]:
        """The live runs of this workspace that the commit is about."""
        rows = [*existing.runs.values(), *plan.new_runs]
        own = (each.record for each in rows if each.mark is None)
        workspace_id = self._transaction.workspace_id
        return {each.run_id: each for each in own if each.workspace_id == workspace_id}
