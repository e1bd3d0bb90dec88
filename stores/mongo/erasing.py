"""Erasing a conversation or a workspace with all that was kept of it, and writing a receipt.

May be stopped anywhere and begun again: runs go last, and of what they named outside MongoDB the
receipt knows until it is gone.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime, timedelta

from bson import MaxKey, MinKey

from stores.erasing import Erasure, Receipt
from stores.errors import ConversationConflict, ConversationNotFoundError
from stores.media.addresses import uri_of_digest
from stores.media.protocols import ForgettingMediaStore, MediaStore
from stores.mongo.access import GRANTS
from stores.mongo.chunk_sweeping import ChunkSweeper
from stores.mongo.chunks import MANIFESTS
from stores.mongo.claiming import mark, release
from stores.mongo.client import Database, MongoConnection
from stores.mongo.conversation_documents import conversation_key
from stores.mongo.departing import ORIGINS, portions
from stores.mongo.documents import Document
from stores.mongo.failures import store_errors
from stores.mongo.keyword_rows import ROWS
from stores.mongo.leftovers import View
from stores.mongo.media_sweeping import MediaSweeper
from stores.mongo.references import MEDIA_SOURCES, unreferred
from stores.mongo.removing import ALWAYS, OF_RUNS, Before, Remover, RunToRemove
from stores.mongo.search_log import LOG
from stores.mongo.search_segments import SEGMENTS
from stores.paging import microseconds, time_at

ERASURES = "erasures"

SHORTEST_GRACE = timedelta(hours=1)
"""Beside running workers: longer than any of them believes that something is stored."""

_AT_ONCE = 500
"""Runs that are asked about together."""

_OF_WORKSPACES = (
    *OF_RUNS,
    *("positions", "messages", SEGMENTS, LOG, "conversation_messages", "turns"),
    *("variants", ROWS, GRANTS, "conversations", "runs"),
)
"""Collections whose rows name their workspace. Heads of commits are closed, and stay; so do the
numbers of keyword lanes, which whoever has read a lane goes on from."""


class Eraser:
    """Erases from one workspace.

    Args:
        connection: the store's.
        workspace_id: of what is erased.
        media_store: where large content is.
        namespace: of Temporal.
        before: ends and deletes what Temporal has of the runs that it is given.
        workflow_of: the workflow id of a conversation, by workspace and id.
        grace: what was written within this time stays for another attempt: media and payloads.
    """

    def __init__(
        self,
        connection: MongoConnection,
        *,
        workspace_id: str,
        media_store: MediaStore | None,
        namespace: str,
        before: Before,
        workflow_of: Callable[[str, str], str],
        grace: timedelta = SHORTEST_GRACE,
    ) -> None:
        self._connection = connection
        self._workspace_id = workspace_id
        self._media_store = media_store
        self._namespace = namespace
        self._before = before
        self._workflow_of = workflow_of
        self._grace = grace
        self._key: Document = {}
        self._claimed: list[str] = []

    @property
    def _database(self) -> Database:
        return self._connection.database

    async def check(self, erasure: Erasure) -> None:
        """Return when it may be erased. Changes nothing.

        Raises:
            ConversationNotFoundError: there is none, and never was.
            ConversationConflict: forks, or runs of other conversations, hold what it said.
        """
        conversation_id = erasure.conversation_id
        if conversation_id is None:
            return
        mine = conversation_key(self._workspace_id, conversation_id)
        is_known = (
            await self._database["conversations"].find_one({"_id": mine}, {"_id": 1})
            or await self._database["runs"].find_one({**mine, "live": True}, {"_id": 1})
            or await self._database[ERASURES].find_one({"_id": self._key_of(erasure)}, {"_id": 1})
        )
        if not is_known:
            problem = await self._why_not(conversation_id)
            raise ConversationNotFoundError(conversation_id, problem)
        heirs = [] if erasure.keeps_inherited else await self._heirs(conversation_id)
        if heirs:
            named = ", ".join(map(repr, heirs[:5])) + (" and others" if heirs[5:] else "")
            problem = (
                f"what it said is also in {named}, which began with it; erase those first, or "
                "say --keep-inherited: then what they inherited stays"
            )
            raise ConversationConflict(conversation_id, problem)

    async def erase(self, erasure: Erasure, *, now: datetime) -> Receipt:
        """Erase, and write the receipt.

        Raises:
            StoreError: as `check`, or MongoDB failed; begin again.
            Exception: of `before`; the runs that it was given are as they were.
        """
        what = f"erase {erasure.kind} {erasure.conversation_id or self._workspace_id!r}"
        with store_errors(what, self._connection.where):
            await self._claim(erasure)
            self._key = self._key_of(erasure)
            await self._note({"$setOnInsert": {"begun_at": microseconds(now)}})
            await self._forget_noted_media()
            if erasure.conversation_id is None:
                await self._workspace()
            else:
                await self._conversation(erasure.conversation_id, erasure, now)
            pending = await self._sweep()
            await self._note({"$set": {"finished_at": microseconds(now), "pending": pending}})
            return await self.receipt(erasure)

    async def _why_not(self, conversation_id: str) -> str:
        query = {"_id": conversation_id, "workspace_id": self._workspace_id, "live": True}
        run = await self._database["runs"].find_one(query, {"conversation_id": 1})
        if run is None:
            return "this workspace never had it"
        if "conversation_id" in run:
            return f"the run of this id is of conversation {run['conversation_id']!r}: name that"
        return "the run of this id has no conversation: it goes with --whole-workspace"

    async def _claim(self, erasure: Erasure) -> None:
        """Let nothing begin with its runs any more, and look whether something has."""
        conversation_id = erasure.conversation_id
        if conversation_id is not None and not erasure.keeps_inherited:
            self._claimed = await self._runs_of(conversation_id)
        await mark(self._database, self._workspace_id, self._claimed)
        try:
            await self.check(erasure)
        except ConversationConflict:
            await self._release()
            raise

    async def _release(self) -> None:
        await release(self._database, self._workspace_id, self._claimed)

    async def _runs_of(self, conversation_id: str) -> list[str]:
        query = {"workspace_id": self._workspace_id, "conversation_id": conversation_id}
        found = self._database["runs"].find({**query, "live": True}, {"_id": 1})
        return [each["_id"] async for each in found]

    async def open_runs(self, erasure: Erasure) -> list[str]:
        """The runs of it that have not ended, as the store knows."""
        query: Document = {"workspace_id": self._workspace_id, "live": True}
        if erasure.conversation_id is not None:
            query["conversation_id"] = erasure.conversation_id
        query["state"] = {"$in": ["running", "needs_attention"]}
        return [each["_id"] async for each in self._database["runs"].find(query, {"_id": 1})]

    async def receipt(self, erasure: Erasure) -> Receipt:
        """The receipt as it is; one of an erasure that nobody has asked for says so by its times.

        Raises:
            ConversationNotFoundError: there is none.
        """
        found = await self._database[ERASURES].find_one({"_id": self._key_of(erasure)})
        if found is None:
            raise ConversationNotFoundError(str(erasure.conversation_id), "it was never erased")
        finished = found.get("finished_at")
        return Receipt(
            workspace_id=self._workspace_id,
            kind=erasure.kind,
            conversation_id=erasure.conversation_id,
            begun_at=time_at(found["begun_at"]),
            finished_at=None if finished is None else time_at(finished),
            counts=found.get("counts", {}),
            pending=found.get("pending", {}),
        )

    def _key_of(self, erasure: Erasure) -> Document:
        return {
            "workspace_id": self._workspace_id,
            "kind": erasure.kind,
            "conversation_id": erasure.conversation_id,
        }

    async def _note(self, change: Document) -> None:
        await self._database[ERASURES].update_one({"_id": self._key}, change, upsert=True)

    async def _count(self, counts: Counter[str]) -> None:
        added = {f"counts.{name}": count for name, count in counts.items() if count}
        if added:
            await self._note({"$inc": added})
        counts.clear()

    async def _heirs(self, conversation_id: str) -> list[str]:
        """Other conversations and runs that began with something of this one."""
        of = {"workspace_id": self._workspace_id}
        source = {**of, "source_conversation_id": conversation_id}
        heirs = set(await self._database["turns"].distinct("conversation_id", source))
        runs = self._database["runs"]
        own = await self._runs_of(conversation_id)
        for some in portions(own, _AT_ONCE):
            for origin in ORIGINS:
                query: Document = {**of, origin: {"$in": some}, "live": True}
                query["conversation_id"] = {"$ne": conversation_id}
                heirs |= {each["_id"] async for each in runs.find(query, {"_id": 1})}
        return sorted(heirs)

    # Rows

    async def _before_runs(self, runs: Sequence[RunToRemove]) -> int:
        try:
            count = await self._before(runs)
        except BaseException:  # Ctrl-C, too, while it waits for runs to end
            await self._release()  # what is left is whole
            raise
        removed = [await self._remove_manifests(each.run_id) for each in runs]
        await self._count(Counter({MANIFESTS: sum(removed)}))
        return count

    async def _end_conversations(self, conversation_ids: Sequence[str]) -> None:
        """Their own workflows, which are no runs."""
        workflows = [
            RunToRemove(run_id=self._workflow_of(self._workspace_id, each))
            for each in conversation_ids
        ]
        await self._count(Counter({"executions": await self._before_runs(workflows)}))

    def _remover(self) -> Remover:
        return Remover(
            self._connection,
            self._workspace_id,
            before=self._before_runs,
            note_media=self._note_media,
            forget_media=self._forget_media,
            told=self._count,
        )

    async def _conversation(self, conversation_id: str, erasure: Erasure, now: datetime) -> None:
        await self._end_conversations([conversation_id])
        remover = self._remover()
        await remover.conversation(
            conversation_id, now=now, keeps_inherited=erasure.keeps_inherited
        )
        await self._count(remover.counts)

    async def _workspace(self) -> None:
        heads = self._database["conversations"].find(
            {"workspace_id": self._workspace_id}, {"conversation_id": 1}
        )
        async for each in heads:
            await self._end_conversations([each["conversation_id"]])
        gone = {"workspace_id": self._workspace_id}
        for name in (SEGMENTS, LOG):  # which keeps the messages that it names
            done = await self._database[name].delete_many(gone)
            await self._count(Counter({name: done.deleted_count}))
        remover = self._remover()
        await remover.runs({"workspace_id": self._workspace_id})
        await self._count(remover.counts)
        counts: Counter[str] = Counter()
        for name in _OF_WORKSPACES:  # rows of runs that were never registered, and the rest
            query = {"workspace_id": self._workspace_id}
            counts[name] += (await self._database[name].delete_many(query)).deleted_count
        named = await self._database["workspaces"].delete_many({"_id": self._workspace_id})
        counts["workspaces"] += named.deleted_count
        await self._count(counts)

    async def _remove_manifests(self, workflow_id: str) -> int:
        place = {"namespace": self._namespace, "workflow_id": workflow_id}
        between = {"$gte": {**place, "root": MinKey()}, "$lte": {**place, "root": MaxKey()}}
        done = await self._database[MANIFESTS].delete_many({"_id": between})
        return done.deleted_count

    # Media

    async def _note_media(self, media: Sequence[str]) -> None:
        """Before the messages go: an attempt that is cut off has to know what they named."""
        if media and isinstance(self._media_store, ForgettingMediaStore):
            await self._note({"$addToSet": {"media": {"$each": list(media)}}})

    async def _forget_media(self, media: Sequence[str]) -> None:
        """Remove blobs from a media store that no sweep looks at."""
        store = self._media_store
        if not media or not isinstance(store, ForgettingMediaStore):
            return
        view = View(database=self._database, cutoff=ALWAYS, is_dry=False)
        free = await unreferred(view, media, MEDIA_SOURCES)
        for each in free:
            await store.delete(uri_of_digest(each.partition(".")[0]))
        await self._note({"$pull": {"media": {"$in": list(media)}}})
        await self._count(Counter({"media_files": len(free)}))

    async def _forget_noted_media(self) -> None:
        found = await self._database[ERASURES].find_one({"_id": self._key}, {"media": 1})
        await self._forget_media(found.get("media", []) if found else [])

    # What is shared

    async def _sweep(self) -> dict[str, int]:
        """Remove media and payloads that nothing names any more; what is too young to go."""
        sweeper = MediaSweeper(
            self._connection,
            workspace_id=self._workspace_id,
            step=nullcontext,
            youngest=self._grace,
        )
        view = View(database=self._database, cutoff=ALWAYS, is_dry=False)
        media = [count async for count, _ in sweeper.run(view)]
        chunks = await ChunkSweeper(
            self._connection,
            namespace=self._namespace,
            is_needed=_is_needed,
            is_dry=False,
        ).run(grace=self._grace)
        await self._count(Counter({"media": sum(media), "payload_chunks": chunks.chunks}))
        young = MediaSweeper(
            self._connection,
            workspace_id=self._workspace_id,
            step=nullcontext,
            youngest=timedelta(),
        )
        waiting = [count async for count, _ in young.run(replace(view, is_dry=True))]
        pending = {"media": sum(waiting), "payload_chunks": await self._young_chunks()}
        return {name: count for name, count in pending.items() if count}

    async def _young_chunks(self) -> int:
        """Chunks that no manifest needs and that the grace period has kept."""
        if not self._grace:
            return 0
        looked = ChunkSweeper(
            self._connection, namespace=self._namespace, is_needed=_is_needed, is_dry=True
        )
        return (await looked.run(grace=timedelta())).chunks


async def _is_needed(_: str) -> bool:
    """Manifests were removed by name: those that are left are needed."""
    return True
