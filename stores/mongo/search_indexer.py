"""Bringing the search log up to what is stored: after a commit, or later, by whoever comes first.

A commit writes each complete snapshot with `unindexed` set, in its transaction; what is marked as
superseded or abandoned gets it again. Whoever has brought the log up to such a snapshot takes the
field away. So nothing is forgotten, whenever a process dies, and to be late is all that can happen.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage
from pymongo.errors import PyMongoError

from stores.commits import Verdict
from stores.digests import load_message
from stores.errors import StoreError
from stores.histories import positions_in
from stores.mongo.client import Database, MongoConnection
from stores.mongo.documents import Document, snapshot_row
from stores.mongo.failures import reason_of
from stores.mongo.search_log import LOG, Append, LogEntry, LoggedRun, hash_number, of_run
from stores.mongo.search_segments import SEGMENTS, is_due, put_together
from stores.mongo.search_stored import digests_of, without
from stores.mongo.search_terms import terms_id
from stores.mongo.search_texts import SearchTexts
from stores.mongo.search_upkeep import SearchUpkeep
from stores.mongo.search_writer import (
    LoggedConversation,
    LoggedConversations,
    OutdatedError,
    RunFacts,
    SearchLogWriter,
)
from stores.planning import CommitPlan
from stores.records import RunRecord
from stores.rows import SnapshotRow
from stores.search.analysis import Analyzer
from stores.search.counting import CountedTerms
from stores.search.identity import instruction_changes, message_hash, without_summary
from stores.search.rendering import indexed_text, own_text
from stores.search.replay import places_by_hash
from stores.threads import in_thread_if

_LOGGER = logging.getLogger(__name__)

DEADLINE_SECONDS = 2.0
"""Of logging a commit, behind its back; it takes a few milliseconds."""

_LONG_TEXT = 50_000
"""Characters of a message that is read in a thread: counting them takes some 10 ms."""

_LAG = (PyMongoError, StoreError, TimeoutError, OutdatedError, ValueError, KeyError)

_TAKEN_BACK = ("superseded", "abandoned")

Lost = dict[int, Sequence[str] | None]
"""By sequence, the messages of snapshots some of which are not there; `None`: nor are positions."""


class SearchIndexer:
    """Writes the search log of one workspace."""

    def __init__(
        self,
        connection: MongoConnection,
        known: LoggedConversations,
        analyzer: Analyzer,
        texts: SearchTexts,
        upkeep: SearchUpkeep,
        *,
        workspace_id: str,
    ) -> None:
        self._connection = connection
        self._texts = texts
        self._known = known
        self._upkeep = upkeep
        self._analyzer = analyzer
        self._workspace_id = workspace_id

    @property
    def _database(self) -> Database:
        return self._connection.database

    # After a commit

    def begin_after_commit(
        self, verdict: Verdict, plan: CommitPlan, runs: Mapping[str, RunRecord]
    ) -> None:
        """Begin to log what a commit has written.

        Args:
            verdict: what became of the commit.
            plan: its rows, as they are stored.
            runs: the runs that it is about.
        """
        new = {each.record.run_id for each in plan.new_runs}
        is_plain = verdict == "apply"
        saved = (new | {each.run_id for each in plan.snapshots}) & set(runs)
        for run_id in sorted(saved if is_plain else runs):
            facts = RunFacts.of(runs[run_id])
            since = self._known.of(self._workspace_id, facts.conversation_id).catch_ups
            work = self._after_commit(facts, plan if is_plain else None, since)
            self._upkeep.begin((self._workspace_id, facts.conversation_id), work)

    async def _after_commit(self, run: RunFacts, plan: CommitPlan | None, since: int) -> None:
        """Log what a commit wrote of a run; `None`: it took something back. Raises nothing."""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                if plan is None or not await self._log_plan(run, plan, since):
                    await self.catch_up_run(run)
                await self._put_together(run)
        except _LAG as error:
            self._forget(run)
            _LOGGER.warning(
                "the search log lags behind run %s, until the next commit or search: %s",
                run.run_id,
                reason_of(error) if isinstance(error, PyMongoError) else repr(error),
            )
        except asyncio.CancelledError:
            self._forget(run)
            raise

    async def settle(self, conversation_id: str | None) -> None:
        """Wait for what this process is logging of a conversation, or of the workspace."""
        await self._upkeep.settle(self._workspace_id, conversation_id)

    def _forget(self, run: RunFacts) -> None:
        """What was cut off may have been written all the same."""
        self._known.of(self._workspace_id, run.conversation_id).forget()

    def _log_of(self, run: RunFacts) -> tuple[LoggedConversation, SearchLogWriter]:
        known = self._known.of(self._workspace_id, run.conversation_id)
        writer = SearchLogWriter(
            self._database,
            known,
            workspace_id=self._workspace_id,
            conversation_id=run.conversation_id,
            terms_id=terms_id(self._analyzer.id),
        )
        return known, writer

    async def _log_plan(self, run: RunFacts, plan: CommitPlan, since: int) -> bool:
        """Log a commit's snapshots from memory; whether all of it was at hand.

        Not when a catch-up was quicker, of those that `since` does not count: it may have logged
        that the next commit took these snapshots back.
        """
        saved = [each for each in plan.snapshots if each.run_id == run.run_id]
        if not all(each.names_positions for each in saved):
            return False
        known, log = self._log_of(run)
        if run.conversation_id:  # all without one share a log: each would wait for the one before
            log.insert = partial(self._upkeep.insert, self._database[LOG])
        async with known.lock:
            is_new = any(each.record.run_id == run.run_id for each in plan.new_runs)
            if known.catch_ups != since or (not is_new and run.run_id not in known.runs):
                return False
            logged = await log.run(run.run_id, is_new=is_new)
            placed = logged.placed_by(run.run_id, plan)
            if placed is None:
                return False
            stored = {digest: body.text for digest, body in plan.messages.bodies.items()}
            texts = await self._texts.searched(stored)
            append = await self._append_of(run, log, logged, placed, texts)
            try:
                await log.append(append, logged)
            except OutdatedError:  # a search in another process has logged it
                known.forget()
                return False
        if saved:
            logged_rows = (run.run_id, [each.sequence for each in saved])
            if not await self._upkeep.unmark(self._database["snapshots"], logged_rows):
                await self._forget_removed(run)
        return True

    async def _put_together(self, run: RunFacts) -> None:
        """Make segments of what was appended, once it is enough."""
        known = self._known.of(self._workspace_id, run.conversation_id)
        async with known.lock:
            head = known.head or 0
            if is_due(head, known.segmented):
                last = await put_together(self._connection, self._workspace_id, run.conversation_id)
                known.segmented = head if is_due(head, last) else last

    # Later

    async def begin_again(self, conversation_id: str) -> None:
        """Let a conversation's log begin anew, with nothing in it."""
        nobody = RunFacts(run_id="", conversation_id=conversation_id, started_at=0)
        known, log = self._log_of(nobody)
        async with known.lock:
            known.forget()
            await log.begin_again()
            known.forget()

    async def catch_up(self, conversation_id: str | None) -> int:
        """Log whatever is not logged yet of a conversation, or of the workspace; how many runs.

        Raises:
            pymongo.errors.PyMongoError: MongoDB failed.
        """
        query: Document = {"workspace_id": self._workspace_id, "unindexed": True}
        if conversation_id is not None:
            query["conversation_id"] = conversation_id
        run_ids = sorted(await self._database["snapshots"].distinct("run_id", query))
        for run_id in run_ids:
            found = await self._database["runs"].find_one(
                {"_id": run_id, "workspace_id": self._workspace_id},
                {"conversation_id": 1, "started_at": 1},
            )
            if found is not None:
                facts = RunFacts(
                    run_id=run_id,
                    conversation_id=found.get("conversation_id", ""),
                    started_at=found["started_at"],
                )
                await self.catch_up_run(facts)
                await self._put_together(facts)
        return len(run_ids)

    async def catch_up_run(self, run: RunFacts) -> None:
        """Log whatever is not logged yet of a run, from what is stored."""
        known, log = self._log_of(run)
        lost: Lost = {}
        async with known.lock:
            while True:  # ends: each time that it was outdated, another writer got on
                try:
                    if await self._catch_up(run, log, lost):
                        return
                    known.forget()  # with what was about to be appended
                except OutdatedError:
                    known.forget()
                except BaseException:  # what was cut off may have been written all the same
                    known.forget()
                    raise
                finally:
                    known.catch_ups += 1

    async def _catch_up(self, run: RunFacts, log: SearchLogWriter, lost: Lost) -> bool:
        """Whether it is done; otherwise `lost` has more of what could not be read, and why.

        Only what is lost for the same reason when all is read anew is lost: a commit may have put
        other messages in the place of these while they were read.
        """
        query: Document = {
            "workspace_id": self._workspace_id,
            "conversation_id": run.conversation_id,
            "run_id": run.run_id,
            "unindexed": True,
        }
        found = await self._database["snapshots"].find(query).to_list()
        rows = sorted(map(snapshot_row, found), key=lambda each: each.sequence)
        logged = await log.run(run.run_id)
        placed: dict[int, str] = {}
        unreadable: list[int] = []
        named: dict[int, Sequence[str]] = {}
        for row in filter(_is_read, rows):
            counts = row.state == "complete" and row.mark is None
            digests = await digests_of(self._database, self._workspace_id, run.run_id, row)
            if digests is not None and row.names_positions:
                found_at = dict(zip(positions_in(row.ranges), digests, strict=True))
                # An interrupted one adds nothing, but may have stamped what is there.
                held = {place: each for place, each in found_at.items() if place in logged.held}
                placed |= found_at if row.state == "complete" else held
                named |= {row.sequence: digests} if counts else {}
            elif digests is None or not await self._log_by_hash(run, log, logged, row, digests):
                if _is_news(lost, row.sequence, digests):
                    return False
                unreadable += [row.sequence] if counts else []
        append = Append(run_id=run.run_id, branch="", started_at=run.started_at)
        taken_back = [row for row in rows if row.mark in _TAKEN_BACK]
        if taken_back:
            append.dropped, live = await without(
                self._database, self._workspace_id, run.run_id, logged, taken_back
            )
            away = set(append.dropped)
            placed = live | {place: each for place, each in placed.items() if place not in away}
        if placed:
            append, gone = await self._loaded_append(run, log, logged, placed, append.dropped)
            broken = {each: digests for each, digests in named.items() if gone & {*digests}}
            if {each for each, digests in broken.items() if _is_news(lost, each, digests)}:
                return False
            unreadable += broken
        append.unreadable = [each for each in unreadable if each not in logged.unreadable]
        append.branch = rows[-1].branch if rows else ""
        await log.append(append, logged)
        for is_live in (True, False):
            ids = [each["_id"] for each in found if each["live"] is is_live]
            await self._unmark({"_id": {"$in": ids}, "run_id": run.run_id, "live": is_live})
        return True

    async def _log_by_hash(
        self,
        run: RunFacts,
        log: SearchLogWriter,
        logged: LoggedRun,
        row: SnapshotRow,
        digests: Sequence[str],
    ) -> bool:
        """Log a snapshot whose writer named no positions: what overlaps is the same.

        Returns:
            Whether all of its messages can be read; otherwise nothing of it was logged.
        """
        if logged.overlapped is not None and row.sequence <= logged.overlapped:
            return True
        hash_of = {each.digest: each.hash for each in logged.held.values()}
        unknown = [each for each in digests if each not in hash_of | dict.fromkeys(logged.empty)]
        texts = await self._texts.load(unknown)
        for digest in unknown:
            try:
                message = without_summary(load_message(texts[digest]))
            except (KeyError, ValidationError):
                return False
            if message is None:
                logged.empty.add(digest)
            else:
                hash_of[digest] = hash_number(message_hash(message))
        kept = [each for each in digests if each not in logged.empty]
        held = [str(logged.held[place].hash) for place in sorted(logged.held)]
        places = places_by_hash(held, [str(hash_of[each]) for each in kept])
        placed = dict(zip(places, kept, strict=True))
        append, _ = await self._loaded_append(run, log, logged, placed, [])
        await log.append(replace(append, overlapped=row.sequence), logged)
        return True

    async def _loaded_append(
        self,
        run: RunFacts,
        log: SearchLogWriter,
        logged: LoggedRun,
        placed: Mapping[int, str],
        dropped: list[int],
    ) -> tuple[Append, set[str]]:
        """What to append of these messages, and the digests of those that cannot be read."""
        known = {place: held.digest for place, held in logged.held.items()}
        new = [
            (place, digest)
            for place, digest in sorted(placed.items())
            if known.get(place) != digest and digest not in logged.empty
        ]
        texts = await self._texts.load([digest for _, digest in new])
        readable = [each for each in new if each[1] in texts]
        append = await self._append_of(run, log, logged, readable, texts)
        append.dropped = [*append.dropped, *dropped]
        return append, {digest for _, digest in new} - texts.keys()

    # Writing

    async def _append_of(
        self,
        run: RunFacts,
        log: SearchLogWriter,
        logged: LoggedRun,
        placed: Sequence[tuple[int, str]],
        texts: Mapping[str, str],
    ) -> Append:
        """What the log lacks of these messages, each a place and a digest."""
        append = Append(run_id=run.run_id, branch="", started_at=run.started_at)
        for place, digest in placed:
            held = logged.held.get(place)
            if (held and held.digest == digest) or digest in logged.empty:
                continue
            try:
                message = without_summary(load_message(texts[digest]))
            except ValidationError:
                continue  # a damaged body: what is logged stays
            if message is None:
                logged.empty.add(digest)
                logged.summaries.add(place)
                append.dropped += [place] if held else []
                continue
            hashed, changes = hash_number(message_hash(message)), instruction_changes(message)
            if held and (held.hash, held.changes) == (hashed, changes):
                append.renewed[place] = digest
                continue
            terms, own = await self._counted(message, len(texts[digest]))
            append.entries.append(LogEntry(place, digest, hashed, changes, terms, own))
        if not logged.held and append.entries:
            await log.inherit(append, logged)
        return append

    async def _counted(
        self, message: ModelMessage, size: int
    ) -> tuple[CountedTerms, CountedTerms | None]:
        def count() -> tuple[CountedTerms, CountedTerms | None]:
            own = own_text(message)
            return (
                CountedTerms.of(self._analyzer.terms(indexed_text(message))),
                CountedTerms.of(self._analyzer.terms(own)) if own else None,
            )

        return await in_thread_if(size > _LONG_TEXT, count)

    async def _unmark(self, query: Document) -> int:
        done = await self._database["snapshots"].update_many(
            {**query, "unindexed": True}, {"$unset": {"unindexed": ""}}
        )
        return done.matched_count

    async def _forget_removed(self, run: RunFacts) -> None:
        """Take out of the log what came there after its run was removed from the database.

        A run's snapshots go before its conversation's log does.
        """
        place: Document = {"workspace_id": self._workspace_id}
        snapshots = self._database["snapshots"]
        if await snapshots.find_one({**place, "run_id": run.run_id}, {"_id": 1}) is None:
            place["conversation_id"] = run.conversation_id
            logged = {**place, **of_run(run.run_id)}
            first = await self._database[LOG].find_one(logged, sort=[("sequence", 1)])
            if first is not None:
                covering = {**place, "last": {"$gte": first["sequence"]}}
                await self._database[SEGMENTS].delete_many(covering)
            await self._database[LOG].delete_many(logged)
            self._forget(run)


def _is_news(lost: Lost, sequence: int, digests: Sequence[str] | None) -> bool:
    """Note a snapshot that cannot be read; whether it was not known so."""
    is_known = sequence in lost and lost[sequence] == digests
    lost[sequence] = digests
    return not is_known


def _is_read(row: SnapshotRow) -> bool:
    return row.mark not in _TAKEN_BACK and (row.state == "complete" or row.names_positions)
