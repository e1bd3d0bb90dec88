"""The one write path: commits in transactions, alone or several that are ready at the same time.

Read `MongoCommits.write`, then `CommitAttempt.draft`. Commits of different runs share a transaction
when a worker has many of them: seven commands for all of them instead of seven for each. What goes
wrong with them together, each does again alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import PyMongoError

from stores.commits import CommitResult, judge
from stores.mongo.client import MongoConnection
from stores.mongo.commit_attempt import CommitAttempt, Draft, Outcome, write_drafts
from stores.mongo.failures import is_duplicate
from stores.mongo.gathering import Gathering, NotGatheredError
from stores.mongo.recent import OutdatedError, RecentCommits
from stores.mongo.search_indexer import SearchIndexer
from stores.mongo.transactions import Transaction, run_transaction, try_transaction
from stores.preparing import PreparedCommit

Preparation = Callable[[Transaction], Awaitable[PreparedCommit]]
"""Makes the commit ready inside its transaction: for one that depends on what is stored."""

MOST_TOGETHER = 16
"""Commits in one transaction: what fails of one is done again by all of them."""

MOST_CHARACTERS = 100_000
"""Of the messages of a commit that may be written with others, which wait for it."""

LONGEST_PAUSE_SECONDS = 0.1
"""How long a commit waits for others. A few in this time are half of what a process can do, and in
one that is as busy a step takes far longer."""


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """A commit that nothing has to be read for, and whose it is."""

    prepared: PreparedCommit
    workspace_id: str


class CommitGroups:
    """The commits of one process that are ready to be written together, whatever their workspaces.

    One that comes while others are being written waits until those are, too.
    """

    def __init__(self) -> None:
        self.ready = Gathering[_Ready, Outcome](
            self._wait, most=MOST_TOGETHER, longest=LONGEST_PAUSE_SECONDS
        )
        self._ongoing: asyncio.Event | None = None

    async def _wait(self, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)  # noqa: TID251 - no workflow here
        if self._ongoing is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ongoing.wait(), LONGEST_PAUSE_SECONDS)

    async def while_others_wait(self, writing: Awaitable[Sequence[Outcome]]) -> Sequence[Outcome]:
        """What is written; commits that come meanwhile gather."""
        ongoing = self._ongoing = asyncio.Event()
        try:
            return await writing
        finally:
            ongoing.set()
            if self._ongoing is ongoing:
                self._ongoing = None


class MongoCommits:
    """Writes the commits of one workspace."""

    def __init__(
        self,
        connection: MongoConnection,
        recent: RecentCommits,
        groups: CommitGroups,
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
        self._groups = groups
        self._workspace_id = workspace_id
        self._bound = max_snapshots_per_run

    async def write(self, prepared: PreparedCommit) -> CommitResult:
        """Write a commit, or say why not.

        Raises:
            IdempotencyConflictError: the head's number and fence came with another content.
            pymongo.errors.PyMongoError: MongoDB failed.
        """
        if self._may_be_joined(prepared):
            runs = frozenset((*prepared.run_ids, *prepared.continued_run_ids))
            ready = _Ready(prepared=prepared, workspace_id=self._workspace_id)
            with suppress(NotGatheredError):
                outcome = await self._groups.ready.call(ready, self._write_ready, keys=runs)
                return self._noted(outcome)
        return self._noted(await self._write_alone(_as_given(prepared)))

    async def write_when_read(self, prepare: Preparation) -> CommitResult:
        """Write a commit that depends on what is stored, as `write` does."""
        return self._noted(await self._write_alone(prepare))

    def _noted(self, outcome: Outcome) -> CommitResult:
        if outcome.recent is not None:
            self._recent.keep(outcome.recent)
        if self._indexer is not None and outcome.plan is not None:
            self._indexer.begin_after_commit(outcome.result.verdict, outcome.plan, outcome.runs)
        return outcome.result

    # Together

    def _may_be_joined(self, prepared: PreparedCommit) -> bool:
        """Whether it is small, and the next one of an execution that is remembered."""
        position = prepared.commit.position
        if position is None:
            return False
        recent = self._recent.find(self._workspace_id, position.execution_id)
        size = sum(len(text) for texts in prepared.texts for text in texts.values())
        return (
            recent is not None
            and judge(recent.head, position, prepared.digest) == "apply"
            and size <= MOST_CHARACTERS
        )

    async def _write_ready(self, ready: Sequence[_Ready]) -> Sequence[Outcome]:
        return await self._groups.while_others_wait(self._write_all(ready))

    async def _write_all(self, ready: Sequence[_Ready]) -> Sequence[Outcome]:
        if len(ready) == 1:
            return [await self._write_alone(_as_given(ready[0].prepared))]

        async def work(session: AsyncClientSession) -> Sequence[Outcome]:
            drafts: list[Draft] = []
            for each in ready:
                attempt = self._attempt(session, each.prepared, each.workspace_id)
                drafted = await attempt.draft(is_careful=False)
                if isinstance(drafted, Outcome):  # it was the next one when it joined
                    raise OutdatedError
                drafts.append(drafted)
            return await self._write(session, drafts)

        return await try_transaction(self._connection.client(), work)

    # Alone

    async def _write_alone(self, prepare: Preparation) -> Outcome:
        is_careful = False
        while True:  # ends: each time that a careful attempt is refused, another writer got through
            try:
                return await self._try_alone(prepare, is_careful=is_careful)
            except OutdatedError:
                is_careful = True
            except PyMongoError as error:
                if not is_duplicate(error):
                    raise
                is_careful = True

    async def _try_alone(self, prepare: Preparation, *, is_careful: bool) -> Outcome:
        async def work(session: AsyncClientSession) -> Outcome:
            prepared = await prepare(self._transaction(session, self._workspace_id))
            attempt = self._attempt(session, prepared, self._workspace_id)
            drafted = await attempt.draft(is_careful=is_careful)
            if isinstance(drafted, Outcome):
                return drafted
            (outcome,) = await self._write(session, [drafted])
            return outcome

        return await run_transaction(self._connection.client(), work)

    # Either way

    def _transaction(self, session: AsyncClientSession, workspace_id: str) -> Transaction:
        return Transaction(
            session=session, database=self._connection.database, workspace_id=workspace_id
        )

    def _attempt(
        self, session: AsyncClientSession, prepared: PreparedCommit, workspace_id: str
    ) -> CommitAttempt:
        transaction = self._transaction(session, workspace_id)
        return CommitAttempt(transaction, prepared, self._recent, bound=self._bound)

    async def _write(self, session: AsyncClientSession, drafts: Sequence[Draft]) -> list[Outcome]:
        transaction = self._transaction(session, self._workspace_id)
        return await write_drafts(transaction, drafts, checks_media=self._checks_media)


def _as_given(prepared: PreparedCommit) -> Preparation:
    async def prepare(transaction: Transaction) -> PreparedCommit:  # noqa: ARG001 - nothing to read
        return prepared

    return prepare
