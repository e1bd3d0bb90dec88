"""The step store on MongoDB: what production runs on."""

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from stores.commits import Commit, CommitHead, CommitResult
from stores.effects import effect_record
from stores.errors import DamagedSnapshotError, StoreConfigurationError, StoreUnavailableError
from stores.histories import MessageLog, Range, history_of, positions_in
from stores.identifiers import DEFAULT_WORKSPACE, check_identifier
from stores.mongo.attempts import MongoAttempts
from stores.mongo.client import Client, Database, MongoConnection
from stores.mongo.commit import MongoCommits
from stores.mongo.conversations import MongoConversations
from stores.mongo.documents import (
    MAX_PLAIN_RANGES,
    Document,
    commit_head,
    effect_row,
    event_row,
    head_id,
    run_row,
    snapshot_row,
)
from stores.mongo.existing import NEWEST_FIRST, OLDEST_FIRST
from stores.mongo.failures import store_errors
from stores.mongo.indexes import check_indexes, create_indexes
from stores.mongo.recent import RecentCommits
from stores.mongo.server import check_server
from stores.mongo.sweeping import Sweep, Sweeper, Tell
from stores.mongo.transactions import Transaction
from stores.paging import (
    DEFAULT_PAGE_SIZE,
    check_page_size,
    decode_cursor,
    given,
    microseconds,
    page_of,
)
from stores.preparing import PreparedCommit, prepare
from stores.ranges import union
from stores.records import (
    ContinuableSnapshot,
    RunPage,
    RunRecord,
    RunState,
    SnapshotSummary,
    StepEvent,
    ToolEffectRecord,
)
from stores.retention import check_bound
from stores.rows import SnapshotRow, event_record, snapshot_record, snapshot_summary
from stores.single import SingleWrites, prepare_history

_LOGGER = logging.getLogger(__name__)

READ_TIMEOUT_SECONDS = 30.0
"""A server that hangs must not hold a reader for ever; the largest histories take a second."""

Sort = list[tuple[str, int]]


class MongoStepStore(SingleWrites):
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
    ) -> None:
        """Bind the store; nothing is connected before the first call.

        Args:
            client: a shared client, left open by `aclose`.
            db_url: a connection string; the store opens its own client and closes it in `aclose`.
            database: the database's name.
            workspace_id: the workspace that the store is bound to.
            max_snapshots_per_run: see `stores.retention`.

        Raises:
            ValueError: not exactly one of `client` and `db_url`, no `database`, or a bound below 1.
            InvalidIdentifierError: the workspace id is malformed.
        """
        self._recent = RecentCommits()
        self._bound = check_bound(max_snapshots_per_run)
        self._bind(MongoConnection(client=client, db_url=db_url, database=database), workspace_id)

    def _bind(self, connection: MongoConnection, workspace_id: str) -> None:
        self._connection = connection
        self._workspace_id = check_identifier("workspace_id", workspace_id)
        self._commits = MongoCommits(
            connection,
            self._recent,
            workspace_id=workspace_id,
            max_snapshots_per_run=self._bound,
        )

    @property
    def workspace_id(self) -> str:
        """See `StepStore.workspace_id`."""
        return self._workspace_id

    @property
    def attempts(self) -> MongoAttempts:
        """The attempts of tool calls in this workspace."""
        return MongoAttempts(self._connection, workspace_id=self._workspace_id)

    @property
    def conversations(self) -> MongoConversations:
        """See `StepStore.conversations`."""
        return MongoConversations(self._connection, workspace_id=self._workspace_id)

    def for_workspace(self, workspace_id: str) -> "MongoStepStore":
        """See `StepStore.for_workspace`."""
        store = copy.copy(self)
        store._bind(self._connection, workspace_id)  # noqa: SLF001 - of this class
        return store

    async def initialise(self) -> list[str]:
        """See `StepStore.initialise`."""
        with store_errors("prepare the database", self._connection.where):
            await self._check_server()
            return await create_indexes(self._connection.database)

    async def verify(self) -> None:
        """See `StepStore.verify`."""
        with store_errors("check the database", self._connection.where):
            await self._check_server()
            problems = await check_indexes(self._connection.database)
        self._raise_problems(problems)

    async def _check_server(self) -> None:
        database = self._connection.database
        self._raise_problems(await check_server(database.client, database.name))

    def _raise_problems(self, problems: list[str]) -> None:
        if problems:
            msg = f"MongoDB at {self._connection.where} is unfit: {'; '.join(problems)}"
            raise StoreConfigurationError(msg)

    async def aclose(self) -> None:
        """See `StepStore.aclose`. Store objects of other workspaces are closed with this one."""
        await self._connection.close()

    async def sweep(
        self,
        *,
        grace: timedelta,
        is_dry: bool = True,
        all_workspaces: bool = False,
        tell: Tell = lambda _: None,
    ) -> Sweep:
        """Remove the messages that nothing refers to; see `stores.mongo.sweeping`.

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

    # Writes

    async def commit(self, commit: Commit) -> CommitResult:
        """See `StepStore.commit`. One transaction, repeated for up to 5 s when others interfere."""
        prepared = prepare(commit)

        async def as_given(transaction: Transaction) -> PreparedCommit:  # noqa: ARG001 - nothing to read
            return prepared

        with store_errors(_words(prepared), self._connection.where):
            return await self._commits.write(as_given)

    async def _commit_history(self, snapshot: ContinuableSnapshot) -> CommitResult:
        async def placed(transaction: Transaction) -> PreparedCommit:
            log = await _message_log(transaction, snapshot.run_id)
            return prepare_history(snapshot, log, workspace_id=self._workspace_id)

        attempt = f"save a snapshot of run {snapshot.run_id!r}"
        with store_errors(attempt, self._connection.where):
            return await self._commits.write(placed)

    # Reads

    @asynccontextmanager
    async def _reading(self, what: str) -> AsyncGenerator[Database]:
        attempt, where = f"read {what}", self._connection.where
        database = self._connection.database
        try:
            # Not the driver's own timeout: with that it looks for a lost server all the time.
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                with store_errors(attempt, where):
                    yield database
        except TimeoutError as error:
            msg = f"{attempt} on {where}: no answer within {READ_TIMEOUT_SECONDS:.0f} s; retry"
            raise StoreUnavailableError(msg) from error

    async def _find(
        self, collection: str, query: Document, *, sort: Sort | None = None, limit: int = 0
    ) -> list[Document]:
        what = f"{collection} of workspace {self._workspace_id!r}"
        async with self._reading(what) as database:
            found = database[collection].find(query, sort=sort, limit=limit)
            return await found.to_list()

    def _live_of(self, run_id: str) -> Document:
        return {"workspace_id": self._workspace_id, "run_id": run_id, "live": True}

    async def find_commit_head(self, *, execution_id: str) -> CommitHead | None:
        """See `StepStore.find_commit_head`."""
        found = await self._find("commit_heads", {"_id": head_id(self._workspace_id, execution_id)})
        return commit_head(found[0]) if found else None

    def _own_record(self, documents: Iterable[Document]) -> RunRecord | None:
        """The live run of this workspace among these."""
        runs = (run_row(each) for each in documents if each["live"])
        records = (each.record for each in runs)
        return next((each for each in records if each.workspace_id == self._workspace_id), None)

    async def get_run(self, *, run_id: str) -> RunRecord | None:
        """See `StepStore.get_run`."""
        query = {"_id": run_id, "workspace_id": self._workspace_id, "live": True}
        found = await self._find("runs", query)
        return run_row(found[0]).record if found else None

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
        query = {"workspace_id": self._workspace_id, "live": True, **filters}
        found = await self._find("runs", query, sort=[("started_at", 1), ("_id", 1)])
        return [run_row(each).record for each in found]

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
        query: Document = {"workspace_id": self._workspace_id, "live": True, **filters}
        if after is not None:
            cursor = decode_cursor(after, filters)
            last = microseconds(cursor.started_at)
            query["started_at"] = {"$lte": last}
            query["$or"] = [{"started_at": {"$lt": last}}, {"_id": {"$lt": cursor.run_id}}]
        found = await self._find(
            "runs",
            query,
            sort=[("started_at", -1), ("_id", -1)],
            limit=check_page_size(limit) + 1,
        )
        return page_of([run_row(each).record for each in found], limit=limit, filters=filters)

    async def list_events(self, *, run_id: str) -> list[StepEvent]:
        """See `StepStore.list_events`."""
        run, found = await asyncio.gather(
            self.get_run(run_id=run_id),
            self._find("events", self._live_of(run_id), sort=OLDEST_FIRST),
        )
        return [event_record(event_row(each), run) for each in found]

    async def latest_snapshot(
        self, *, run_id: str, include_interrupted: bool = False
    ) -> ContinuableSnapshot | None:
        """See `StepStore.latest_snapshot`. Two queries."""
        query = self._live_of(run_id)
        if not include_interrupted:
            query["state"] = "complete"
        return await self._newest_snapshot(run_id, query)

    async def _newest_snapshot(self, run_id: str, query: Document) -> ContinuableSnapshot | None:
        try:
            return await self._read_newest_snapshot(run_id, query)
        except DamagedSnapshotError:
            # A message may have been replaced by its stamped version between the queries.
            return await self._read_newest_snapshot(run_id, query)

    async def _read_newest_snapshot(
        self, run_id: str, query: Document
    ) -> ContinuableSnapshot | None:
        run: Document = {"from": "runs", "localField": "run_id", "foreignField": "_id", "as": "run"}
        pipeline: list[dict[str, Any]] = [
            {"$match": query},
            {"$sort": dict(NEWEST_FIRST)},
            {"$limit": 1},
            {"$lookup": run},
        ]
        async with self._reading(f"a snapshot of run {run_id!r}") as database:
            found = await (await database["snapshots"].aggregate(pipeline)).to_list()
        if not found:
            return None
        row = snapshot_row(found[0])
        positions, texts = await self._read_log(run_id, row.ranges)
        record = self._own_record(found[0]["run"])
        return snapshot_record(row, record, history_of(row, positions, texts))

    async def find_snapshot(self, *, run_id: str, sequence: int) -> ContinuableSnapshot | None:
        """See `StepStore.find_snapshot`. Two queries."""
        query = {**self._live_of(run_id), "sequence": sequence}
        return await self._newest_snapshot(run_id, query)

    async def list_snapshots(self, *, run_id: str) -> list[ContinuableSnapshot]:
        """See `StepStore.list_snapshots`. Three queries; each message is read once."""
        run, rows = await asyncio.gather(self.get_run(run_id=run_id), self._snapshots(run_id))
        positions, texts = await self._read_log(run_id, {r for row in rows for r in row.ranges})
        whole: list[ContinuableSnapshot] = []
        for row in rows:
            try:
                messages = history_of(row, positions, texts)
            except DamagedSnapshotError as error:
                _LOGGER.warning("left out of list_snapshots: %s", error)
            else:
                whole.append(snapshot_record(row, run, messages))
        return whole

    async def list_snapshot_summaries(self, *, run_id: str) -> list[SnapshotSummary]:
        """See `StepStore.list_snapshot_summaries`."""
        return [snapshot_summary(each) for each in await self._snapshots(run_id)]

    async def _snapshots(self, run_id: str) -> list[SnapshotRow]:
        found = await self._find("snapshots", self._live_of(run_id), sort=OLDEST_FIRST)
        return [snapshot_row(each) for each in found]

    async def _read_log(
        self, run_id: str, ranges: Iterable[Range]
    ) -> tuple[dict[int, str], dict[str, str]]:
        """The digests at these positions, and the texts of those that are stored."""
        spans = union(ranges)
        if not spans:
            return {}, {}
        wanted: Document = {"$or": [{"position": {"$gte": a, "$lt": b}} for a, b in spans]}
        if len(spans) > MAX_PLAIN_RANGES:  # the server plans each part of an `$or` by itself
            wanted = {"position": {"$in": list(positions_in(spans))}}
        pipeline: list[dict[str, Any]] = [
            {"$match": {**self._live_of(run_id), **wanted}},
            {
                "$lookup": {
                    "from": "messages",
                    "localField": "message",
                    "foreignField": "_id",
                    "as": "found",
                }
            },
            {"$project": {"position": 1, "message": 1, "text": {"$first": "$found.text"}}},
        ]
        async with self._reading(f"messages of run {run_id!r}") as database:
            cursor = await database["positions"].aggregate(pipeline)
            found = await cursor.to_list()
        positions = {each["position"]: each["message"] for each in found}
        return positions, {each["message"]: each["text"] for each in found if "text" in each}

    async def get_tool_effect(self, *, run_id: str, tool_call_id: str) -> ToolEffectRecord | None:
        """See `StepStore.get_tool_effect`."""
        query = {**self._live_of(run_id), "tool_call_id": tool_call_id}
        found = await self._find("tool_effects", query, sort=NEWEST_FIRST, limit=1)
        return effect_record(effect_row(found[0])) if found else None

    async def list_tool_effects(self, *, run_id: str) -> list[ToolEffectRecord]:
        """See `StepStore.list_tool_effects`."""
        found = await self._find("tool_effects", self._live_of(run_id), sort=OLDEST_FIRST)
        return [effect_record(effect_row(each)) for each in found]

    async def list_unresolved_tool_effects(
        self, *, run_id: str | None = None
    ) -> list[ToolEffectRecord]:
        """See `StepStore.list_unresolved_tool_effects`."""
        query: Document = {"workspace_id": self._workspace_id, "unresolved": True}
        sort: Sort = [("started_at", 1), ("_id", 1)]
        if run_id is not None:
            query["run_id"] = run_id
            sort = OLDEST_FIRST
        found = await self._find("tool_effects", query, sort=sort)
        return [effect_record(effect_row(each)) for each in found]


def _words(prepared: PreparedCommit) -> str:
    number = "" if prepared.number is None else f" {prepared.number}"
    return f"commit{number} of {', '.join(map(repr, prepared.run_ids))}"


async def _message_log(transaction: Transaction, run_id: str) -> MessageLog:
    """The newest history of a run and the end of its log, as the transaction sees them."""
    query: Document = {"workspace_id": transaction.workspace_id, "run_id": run_id, "live": True}
    newest = await transaction.find("snapshots", query, sort=NEWEST_FIRST, limit=1)
    last = await transaction.find("positions", query, sort=[("position", -1)], limit=1)
    history = [each for row in newest for each in positions_in(snapshot_row(row).ranges)]
    rows = await transaction.find("positions", {**query, "position": {"$in": history}})
    digests = {each["position"]: each["message"] for each in rows}
    return MessageLog(
        history=tuple((each, digests[each]) for each in history if each in digests),
        next_position=last[0]["position"] + 1 if last else 0,
    )
