"""The step store on MongoDB: what production runs on."""

import copy
from collections.abc import Callable
from datetime import datetime, timedelta

from stores.commits import Commit, CommitResult
from stores.identifiers import DEFAULT_WORKSPACE, check_identifier
from stores.media.messages import DEFAULT_THRESHOLD_BYTES, MediaChoice, MessageMedia
from stores.media.protocols import MediaStore
from stores.mongo.attempts import MongoAttempts
from stores.mongo.chunk_sweeping import ChunkSweep, ChunkSweeper, IsNeeded
from stores.mongo.chunks import MongoChunkStore
from stores.mongo.client import Client, MongoConnection
from stores.mongo.commit import CommitGroups, MongoCommits
from stores.mongo.conversations import MongoConversations
from stores.mongo.erasing import Eraser
from stores.mongo.existing import message_log
from stores.mongo.exporting import Exporter
from stores.mongo.failures import store_errors
from stores.mongo.fitness import initialise_database, verify_database
from stores.mongo.keyword_index import KeywordMemory, MongoKeywords
from stores.mongo.media import MongoMediaStore
from stores.mongo.reading import MongoReads
from stores.mongo.recent import RecentCommits
from stores.mongo.removing import Before
from stores.mongo.restoring import Restorer
from stores.mongo.retaining import Retainer
from stores.mongo.retaining import Tell as RetentionTell
from stores.mongo.run_rows import MongoRunRows
from stores.mongo.search_index import SearchIndex, SearchMemory
from stores.mongo.search_texts import SearchTexts
from stores.mongo.standing import Standing, read_standing
from stores.mongo.streaming import MongoStreams
from stores.mongo.sweeping import Sweep, Sweeper, Tell
from stores.mongo.transactions import Transaction
from stores.preparing import PreparedCommit, check_identifiers, prepare
from stores.records import (
    ContinuableSnapshot,
)
from stores.redaction import NO_REDACTION, Redaction
from stores.retention import check_bound
from stores.retention_policies import Retained, RetentionPolicy
from stores.search.analysis import AnalyzerName
from stores.single import prepare_history


class MongoStepStore(MongoReads):
    """`StepStore` on MongoDB 6.0 or later, a replica set or a sharded cluster.

    Writes wait for the majority and its journal, reads go to the primary. Index names and what each
    read uses are in `stores.mongo.indexes`; `initialise` makes them, `verify` checks them.
    """

    def __init__(
        self,
        *,
        client: Client | None = None,
        db_url: str | None = None,
        database: str | None = None,
        workspace_id: str = DEFAULT_WORKSPACE,
        max_snapshots_per_run: int | None = None,
        media_store: MediaChoice = "auto",
        media_threshold_bytes: int = DEFAULT_THRESHOLD_BYTES,
        search_analyzer: AnalyzerName = "standard",
        redaction: Redaction = NO_REDACTION,
        keyword_memory: KeywordMemory | None = None,
    ) -> None:
        """Bind the store; nothing is connected before the first call.

        Args:
            client: a shared client, left open by `aclose`.
            db_url: a connection string; the store opens its own client and closes it in `aclose`.
            database: the database's name.
            workspace_id: the workspace that the store is bound to.
            max_snapshots_per_run: see `stores.retention`.
            media_store: for large content; by default a `MongoMediaStore` in this database.
            media_threshold_bytes: content of this size and above goes there.
            search_analyzer: of the index; another one than it was made with needs `reindex`.
            redaction: what is masked in all that is written.
            keyword_memory: what keyword search may keep in memory; 256 MiB by default.

        Raises:
            ValueError: not exactly one of `client` and `db_url`, no `database`, or a bound or a
                threshold below 1.
            InvalidIdentifierError: the workspace id is malformed.
        """
        self._redaction = redaction
        self._recent = RecentCommits()
        self._groups = CommitGroups()
        self._search = SearchMemory(search_analyzer)
        self._keywords = keyword_memory or KeywordMemory()
        self._bound = check_bound(max_snapshots_per_run)
        connection = MongoConnection(client=client, db_url=db_url, database=database)
        self._media = MessageMedia(
            MongoMediaStore(connection=connection) if media_store == "auto" else media_store,
            workspace_id=workspace_id,
            threshold_bytes=media_threshold_bytes,
        )
        self._bind(connection, workspace_id)

    def _bind(self, connection: MongoConnection, workspace_id: str) -> None:
        self._connection = connection
        self._workspace_id = check_identifier("workspace_id", workspace_id)
        self._media = self._media.for_workspace(workspace_id)
        media_store = self._media.media_store
        self._checks_media = isinstance(media_store, MongoMediaStore) and media_store.is_in(
            connection
        )
        texts = SearchTexts(connection, self._media)
        self._index = self._search.index(connection, texts, workspace_id)
        self._commits = MongoCommits(
            connection,
            self._recent,
            self._groups,
            workspace_id=workspace_id,
            max_snapshots_per_run=self._bound,
            checks_media=self._checks_media,
            indexer=self._index.indexer,
        )

    @property
    def workspace_id(self) -> str:
        """See `StepStore.workspace_id`."""
        return self._workspace_id

    @property
    def redaction(self) -> Redaction:
        """See `StepStore.redaction`."""
        return self._redaction

    @property
    def media_store(self) -> MediaStore | None:
        """Where large content of this workspace's messages is."""
        return self._media.media_store

    @property
    def attempts(self) -> MongoAttempts:
        """The attempts of tool calls in this workspace."""
        return MongoAttempts(
            self._connection, workspace_id=self._workspace_id, redaction=self._redaction
        )

    @property
    def streams(self) -> MongoStreams:
        """The live text of this workspace's runs."""
        return MongoStreams(self._connection, workspace_id=self._workspace_id)

    @property
    def chunks(self) -> MongoChunkStore:
        """Chunks of payloads in the same database, over the same connection."""
        return MongoChunkStore(self._connection)

    @property
    def conversations(self) -> MongoConversations:
        """See `StepStore.conversations`."""
        return MongoConversations(
            self._connection, workspace_id=self._workspace_id, redaction=self._redaction
        )

    @property
    def keywords(self) -> MongoKeywords:
        """See `StepStore.keywords`."""
        return MongoKeywords(self._connection, self._keywords)

    @property
    def rows(self) -> MongoRunRows:
        """The rows of this workspace's runs, to be compared with their histories and mended."""
        return MongoRunRows(
            self._connection,
            self._media,
            workspace_id=self._workspace_id,
            checks_media=self._checks_media,
        )

    def for_workspace(self, workspace_id: str) -> "MongoStepStore":
        """See `StepStore.for_workspace`."""
        store = copy.copy(self)
        store._bind(self._connection, workspace_id)  # noqa: SLF001 - of this class
        return store

    async def initialise(self) -> list[str]:
        """See `StepStore.initialise`."""
        return await initialise_database(self._connection)

    async def verify(self) -> None:
        """See `StepStore.verify`."""
        await verify_database(self._connection)

    async def read_standing(self) -> Standing:
        """What an operator of the whole database has to look after, over all workspaces."""
        return await read_standing(self._connection)

    async def aclose(self) -> None:
        """See `StepStore.aclose`. Store objects of other workspaces are closed with this one."""
        await self._search.aclose()
        await self._media.aclose()
        await self._connection.close()

    async def prune_details(
        self, *, age: timedelta, now: datetime, is_dry: bool = True, all_workspaces: bool = False
    ) -> Retained:
        """Remove events and effects of runs that ended so long ago, as a policy would that says so.

        Args:
            age: more than Temporal keeps workflows, which may be reset until then.
            now: what the age is counted from; is kept with each run.
            is_dry: only count the runs.
            all_workspaces: not this store's alone.
        """
        policy = RetentionPolicy(details_days=age / timedelta(days=1))
        done = Retained(is_dry=is_dry)
        ids = await self.workspace_ids() if all_workspaces else [self._workspace_id]
        for each in ids:
            store = self.for_workspace(each)
            found = await store.retain(policy, temporal_keeps=timedelta(), now=now, is_dry=is_dry)
            done = done.plus(
                looked_at=found.looked_at,
                detailed=found.detailed,
                rows=found.rows,
                unresolved=found.unresolved,
            )
        return done

    async def sweep_payloads(
        self, *, grace: timedelta, namespace: str, is_needed: IsNeeded, is_dry: bool
    ) -> ChunkSweep:
        """Remove payloads of workflows that `is_needed` denies; see `ChunkSweeper`."""
        sweeper = ChunkSweeper(
            self._connection, namespace=namespace, is_needed=is_needed, is_dry=is_dry
        )
        return await sweeper.run(grace=grace)

    def eraser(
        self,
        *,
        namespace: str,
        before: Before,
        workflow_of: Callable[[str, str], str],
        grace: timedelta,
    ) -> Eraser:
        """What erases from this workspace; see `Eraser`."""
        return Eraser(
            self._connection,
            workspace_id=self._workspace_id,
            media_store=self._media.media_store,
            namespace=namespace,
            before=before,
            workflow_of=workflow_of,
            grace=grace,
        )

    def exporter(self, *, with_media: bool, tells_people: bool) -> Exporter:
        """What reads runs and conversations of this workspace as lines; see `Exporter`."""
        return Exporter(
            self._connection,
            workspace_id=self._workspace_id,
            media_store=self._media.media_store if with_media else None,
            redaction=self._redaction,
            tells_people=tells_people,
        )

    def restorer(self, *, as_new: bool) -> Restorer:
        """What writes such lines into this workspace; see `Restorer`."""
        return Restorer(
            self._connection,
            workspace_id=self._workspace_id,
            media_store=self._media.media_store,
            as_new=as_new,
        )

    async def retain(
        self,
        policy: RetentionPolicy,
        *,
        temporal_keeps: timedelta,
        now: datetime,
        is_dry: bool = True,
        tell: RetentionTell = lambda _: None,
    ) -> Retained:
        """Take out of this workspace what the policy does not keep; see `Retainer`."""
        retainer = Retainer(
            self._connection,
            self._index.indexer,
            workspace_id=self._workspace_id,
            policy=policy,
            temporal_keeps=temporal_keeps,
            is_dry=is_dry,
            tell=tell,
        )
        return await retainer.run(now=now)

    async def workspace_ids(self) -> list[str]:
        """The workspaces that have runs."""
        with store_errors("list the workspaces", self._connection.where):
            return sorted(await self._connection.database["runs"].distinct("workspace_id"))

    async def sweep(
        self,
        *,
        grace: timedelta,
        is_dry: bool = True,
        all_workspaces: bool = False,
        tell: Tell = lambda _: None,
    ) -> Sweep:
        """Remove the messages and media that nothing refers to; see `stores.mongo.sweeping`.

        Args:
            grace: what was written, pruned or ended within this time stays. It has to be longer
                than Temporal keeps workflows that have ended: until then they may be reset.
            is_dry: only say what would go.
            all_workspaces: not this store's alone.
            tell: hears of progress.

        Raises:
            ValueError: the grace period is negative.
        """
        workspace_id = None if all_workspaces else self._workspace_id
        sweeper = Sweeper(self._connection, workspace_id=workspace_id, is_dry=is_dry)
        return await sweeper.run(grace=grace, tell=tell)

    @property
    def history_index(self) -> SearchIndex:
        """The index of the workspace's messages; see `stores.search.query.IndexedStore`."""
        return self._index

    # Writes

    async def commit(self, commit: Commit) -> CommitResult:
        """See `StepStore.commit`. One transaction, repeated for up to 5 s when others interfere.

        What a workflow commits is given up at once without a primary: the workflow repeats it.
        """
        check_identifiers(commit)
        commit = self._redaction.commit(commit)
        with store_errors(_words(commit), self._connection.where):
            if commit.position is None:
                return await self._write(commit)
            async with self._connection.while_primary_is_known():
                return await self._write(commit)

    async def _write(self, commit: Commit) -> CommitResult:
        texts = await self._media.texts_of(commit.operations)
        return await self._commits.write(prepare(commit, texts=texts))

    async def _commit_history(self, snapshot: ContinuableSnapshot) -> CommitResult:
        check_identifier("run_id", snapshot.run_id)
        snapshot = self._redaction.snapshot(snapshot)
        texts = [await self._media.text_of(each) for each in snapshot.messages]

        async def placed(transaction: Transaction) -> PreparedCommit:
            log = await message_log(transaction, snapshot.run_id)
            return prepare_history(snapshot, texts, log, workspace_id=self._workspace_id)

        attempt = f"save a snapshot of run {snapshot.run_id!r}"
        with store_errors(attempt, self._connection.where):
            return await self._commits.write_when_read(placed)


def _words(commit: Commit) -> str:
    number = "" if commit.position is None else f" {commit.position.number}"
    run_ids = dict.fromkeys(each.run_id for each in commit.operations)
    return f"commit{number} of {', '.join(map(repr, run_ids))}"
