"""Removing a conversation or a workspace: rows, runs, and the messages that nothing else refers to.

Runs are removed last in each batch, with those that they delegated to before them: what was removed
in part is found again. Media go when no message names them any more, those of the last hour with a
sweep (`perdure gc`): somebody may be about to name one that was put a moment ago.
"""

from asyncio import gather
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime

from pymongo.asynchronous.client_session import AsyncClientSession

from stores.conversation_records import RemovedConversation
from stores.errors import ConversationNotFoundError
from stores.mongo.access import GRANTS
from stores.mongo.burying import bury_heads
from stores.mongo.client import Database, MongoConnection
from stores.mongo.conversation_documents import conversation_key
from stores.mongo.documents import Document, head_id
from stores.mongo.keyword_rows import ROWS, of_positions
from stores.mongo.leftovers import View
from stores.mongo.media_sweeping import MediaSweeper
from stores.mongo.references import unreferred
from stores.mongo.search_log import LOG, forget_outdated, note_outdated
from stores.mongo.search_segments import SEGMENTS
from stores.mongo.streaming import STREAMS
from stores.mongo.transactions import run_transaction

_BATCH = 500

ALWAYS = 2**62
"""A cutoff that keeps nothing; the sweeper has its own bound for media that are young."""

_SHOWN = {"conversation_id": 1, "branches": 1}

OF_RUNS = ("events", "snapshots", "tool_effects", "tool_attempts", STREAMS)
"""Collections whose rows belong to one run, by `run_id` and `workspace_id`."""

MARKED = frozenset({"events", "snapshots", "tool_effects", "positions"})
"""Those whose rows may be marked instead of removed."""

OF_CONVERSATIONS: dict[str, Document] = {
    "conversation_messages": {},
    SEGMENTS: {"last": {"$gt": 0}},
    LOG: {"sequence": {"$gt": 0}},
    GRANTS: {"principal_id": {"$exists": True}},
}
"""Collections whose rows belong to one conversation, by its id and `workspace_id`, and what names
their index."""


@dataclass(frozen=True, kw_only=True)
class RunToRemove:
    """A run that is about to go, with the executions that it went through."""

    run_id: str
    conversation_id: str = ""
    branches: tuple[str, ...] = ()
    executions: tuple[str, ...] = ()


Before = Callable[[Sequence[RunToRemove]], Awaitable[int]]
"""Called with the runs of a batch before anything of them is removed; how many executions it has
deleted."""

ForgetMedia = Callable[[Sequence[str]], Awaitable[None]]
"""Called with the `_id`s of media that removed messages named, once the messages are gone."""


Told = Callable[[Counter[str]], Awaitable[None]]
"""Hears what was removed since the last time, and may clear it."""


async def told_to_nobody(_: Counter[str]) -> None:
    """The counts add up where they are."""


async def nothing_before(_: Sequence[RunToRemove]) -> int:
    """For callers whose runs are gone from Temporal, or were never there."""
    return 0


async def nothing(_: Sequence[str]) -> None:
    """For callers whose media a sweep finds."""


class Remover:
    """Removes from one workspace.

    Args:
        connection: the store's.
        workspace_id: of what is removed.
        before: see `Before`.
        note_media: called with them before the messages go.
        forget_media: see `ForgetMedia`.
        told: hears of the counts since the last time, after each batch.
        only: of the live runs that are named, those that match.
    """

    def __init__(
        self,
        connection: MongoConnection,
        workspace_id: str,
        *,
        before: Before = nothing_before,
        note_media: ForgetMedia = nothing,
        forget_media: ForgetMedia = nothing,
        told: Told = told_to_nobody,
        only: Document | None = None,
    ) -> None:
        self._connection = connection
        self._workspace_id = workspace_id
        self._before = before
        self._note_media = note_media
        self._forget_media = forget_media
        self._told = told
        self._only = only or {}
        self.counts: Counter[str] = Counter()

    @property
    def _database(self) -> Database:
        return self._connection.database

    async def conversation(
        self, conversation_id: str, *, now: datetime, keeps_inherited: bool
    ) -> None:
        """Bury the head in one transaction, then remove what is left; may be begun again.

        Args:
            conversation_id: one without a head is removed as well, if it has runs.
            now: of the removal.
            keeps_inherited: keep for forks what they inherited: turns, variants, runs and messages.
                Searches find them by way of what a fork says from then on.

        Raises:
            ConversationNotFoundError: the workspace never had the conversation.
        """
        mine: Document = conversation_key(self._workspace_id, conversation_id)
        if not await bury_heads(self._connection, self._workspace_id, [conversation_id], now=now):
            runs = self._database["runs"]
            if await runs.find_one({**mine, "live": True}, {"_id": 1}) is None:
                raise ConversationNotFoundError(conversation_id, "this workspace never had it")
        if keeps_inherited:
            await self._remove_but_inherited(conversation_id)
        else:
            await self._remove_conversations([conversation_id])

    async def buried_conversations(self, conversation_ids: Sequence[str]) -> None:
        """Remove many whose heads are buried, in as many steps; what forks inherited stays."""
        source = {"$in": list(conversation_ids)}
        query: Document = {"workspace_id": self._workspace_id, "source_conversation_id": source}
        named = set(await self._database["turns"].distinct("source_conversation_id", query))
        for each in sorted(named):
            await self._remove_but_inherited(each)
        await self._remove_conversations([each for each in conversation_ids if each not in named])

    async def _remove_but_inherited(self, conversation_id: str) -> None:
        mine: Document = conversation_key(self._workspace_id, conversation_id)
        kept = await self._inherited_positions(conversation_id)
        await self._remove_conversations([conversation_id], kept, await self._runs_at(mine, kept))

    async def _remove_conversations(
        self,
        conversation_ids: Sequence[str],
        kept: Sequence[int] = (),
        kept_runs: Sequence[str] = (),
    ) -> None:
        """But for these positions, and these runs."""
        if not conversation_ids:
            return
        mine: Document = {
            "workspace_id": self._workspace_id,
            "conversation_id": {"$in": list(conversation_ids)},
        }
        for name, also in OF_CONVERSATIONS.items():  # first: the log keeps what it names
            await self._delete(name, {**mine, **also})
        keywords = [of_positions(self._workspace_id, each) for each in conversation_ids]
        await self._delete(ROWS, {"workspace_id": self._workspace_id, "$or": keywords})
        going = set[str]() if kept_runs else set(conversation_ids)
        await self.runs({**mine, "_id": {"$not": {"$in": list(kept_runs)}}}, going=going)
        gone = {**mine, "live": True, "position": {"$not": {"$in": list(kept)}}}
        for name in ("variants", "turns"):
            await self._delete(name, gone)

    async def runs(self, query: Document, *, going: AbstractSet[str] = frozenset()) -> None:
        """Remove the runs that match, with those that they delegated to.

        Each run with all that it has; beside the ones of a batch nothing is held in memory.

        Args:
            query: of runs.
            going: conversations of which no run stays.
        """
        self.counts.update(dict.fromkeys(("runs", *OF_RUNS, "positions", "messages", "media"), 0))
        for is_live in (True, False):  # an index serves either, none both
            if query.get("live", is_live) != is_live:
                continue
            batch: list[RunToRemove] = []
            matching = {**query, **(self._only if is_live else {}), "live": is_live}
            async for document in self._database["runs"].find(matching, _SHOWN):
                batch.append(_run(document))
                if len(batch) == _BATCH:
                    await self._remove_family(batch, going)
                    batch = []
            await self._remove_family(batch, going)

    async def these_runs(self, run_ids: Sequence[str]) -> None:
        """Remove these, and what is left of any; not what they delegated, and no search log."""
        mine: Document = {"_id": {"$in": list(run_ids)}, "workspace_id": self._workspace_id}
        known = {each: RunToRemove(run_id=each) for each in run_ids}
        async for document in self._database["runs"].find(mine, _SHOWN):
            known[document["_id"]] = _run(document)
        runs = list(known.values())
        for start in range(0, len(runs), _BATCH):
            await self._remove_rows(runs[start : start + _BATCH])

    async def messages(self, digests: Sequence[str]) -> None:
        """Remove those that nothing refers to, with the media that no message names then."""
        for start in range(0, len(digests), _BATCH):
            await self._remove_messages(digests[start : start + _BATCH])

    async def _remove_family(self, batch: Sequence[RunToRemove], going: AbstractSet[str]) -> None:
        if not batch:
            return
        generations = [list(batch)]
        known = {each.run_id for each in batch}
        while generations[-1]:  # ends: a run is begun by an earlier one
            parents = [each.run_id for each in generations[-1]]
            children = [each async for each in self._delegates(parents) if each.run_id not in known]
            known |= {each.run_id for each in children}
            generations.append(children)
        for generation in reversed(generations):
            for start in range(0, len(generation), _BATCH):
                some = generation[start : start + _BATCH]
                await self._remove_rows(some, going)

    async def _delegates(self, parents: Sequence[str]) -> AsyncGenerator[RunToRemove]:
        query = {"workspace_id": self._workspace_id, "parent_run_id": {"$in": list(parents)}}
        found = self._database["runs"].find({**query, "live": True}, _SHOWN)
        async for document in found:
            yield _run(document)

    async def _remove_rows(
        self, runs: Sequence[RunToRemove], going: AbstractSet[str] | None = None
    ) -> None:
        """Rows of the runs first, the runs last.

        Args:
            runs: at most `_BATCH`.
            going: conversations of which no run stays; `None`: leave search logs alone.
        """
        self.counts["executions"] += await self._before(runs)
        ids = [each.run_id for each in runs]
        digests = await self._messages_of(ids)
        names = (*OF_RUNS, "positions")
        found = await gather(
            *(delete_of_runs(self._database, each, self._workspace_id, ids) for each in names)
        )
        self.counts.update(dict(zip(names, found, strict=True)))
        if going is not None:
            conversations = {each.conversation_id for each in runs}
            await self._forget_searched(conversations & going)
            await self._forget_search(conversations - going, ids)
        await self.messages(digests)
        await self._close_heads(runs)
        await self._delete("runs", {"_id": {"$in": ids}, "workspace_id": self._workspace_id})
        await self._told(self.counts)

    async def _forget_searched(self, conversations: AbstractSet[str]) -> None:
        """While there were snapshots, a search may have brought the logs up to them once more."""
        mine: Document = {"workspace_id": self._workspace_id}
        mine["conversation_id"] = {"$in": sorted(conversations)}
        await self._delete_logs(mine)

    async def _delete_logs(self, conversations: Document) -> None:
        for each in (SEGMENTS, LOG):
            await self._delete(each, {**conversations, **OF_CONVERSATIONS[each]})

    async def _forget_search(self, conversations: AbstractSet[str], removed: Sequence[str]) -> None:
        """Remove the logs of conversations that have no other runs; the rest are to be rebuilt."""
        for each in sorted(conversations):
            mine: Document = {"workspace_id": self._workspace_id, "conversation_id": each}
            left = {**mine, "live": True, "_id": {"$not": {"$in": list(removed)}}}
            if not each:
                left["conversation_id"] = {"$exists": False}
            if await self._database["runs"].find_one(left, {"_id": 1}) is None:
                await self._delete_logs(mine)
                await forget_outdated(self._database, self._workspace_id, each)
            else:
                await note_outdated(self._database, self._workspace_id, each)

    async def _messages_of(self, run_ids: Sequence[str]) -> list[str]:
        """What their logs name, marked positions included."""
        digests: set[str] = set()
        for is_live in (True, False):
            match: Document = {
                "run_id": {"$in": list(run_ids)},
                "workspace_id": self._workspace_id,
                "live": is_live,
                "message": {"$exists": True},
            }
            pipeline: list[Document] = [{"$match": match}, {"$group": {"_id": "$message"}}]
            found = await self._database["positions"].aggregate(pipeline)
            digests |= {each["_id"] async for each in found}
        return sorted(digests)

    async def _remove_messages(self, digests: Sequence[str]) -> None:
        media = await self._media_of(digests)
        await self._note_media(media)
        self.counts["messages"] += await remove_messages(self._connection, digests)
        await self._forget_media(media)
        self.counts["media"] += await self._remove_media(media)

    async def _close_heads(self, runs: Sequence[RunToRemove]) -> None:
        """Let executions that served these runs alone take no more commits: one may come late."""
        executions = {each for run in runs for each in run.executions}
        serving: Document = {
            "workspace_id": self._workspace_id,
            "branches.execution_id": {"$in": sorted(executions)},
            "_id": {"$not": {"$in": [each.run_id for each in runs]}},
        }
        async for other in self._database["runs"].find(serving, {"branches.execution_id": 1}):
            executions -= {each["execution_id"] for each in other["branches"]}
        heads = [head_id(self._workspace_id, each) for each in sorted(executions)]
        change: Document = {"$set": {"is_abandoned": True, "refusals": []}}
        done = await self._database["commit_heads"].update_many({"_id": {"$in": heads}}, change)
        self.counts["commit_heads"] += done.modified_count

    async def _inherited_positions(self, conversation_id: str) -> list[int]:
        query = {"workspace_id": self._workspace_id, "source_conversation_id": conversation_id}
        return sorted(await self._database["turns"].distinct("position", query))

    async def _runs_at(self, mine: Document, positions: Sequence[int]) -> list[str]:
        query = {**mine, "live": True, "position": {"$in": list(positions)}}
        return list(await self._database["variants"].distinct("run_id", query))

    async def _delete(self, collection: str, query: Document) -> None:
        done = await self._database[collection].delete_many(query)
        self.counts[collection] += done.deleted_count

    async def _media_of(self, digests: Sequence[str]) -> list[str]:
        found = await self._database["messages"].distinct("media", {"_id": {"$in": list(digests)}})
        return sorted(str(each) for each in found if each)

    async def _remove_media(self, media: Sequence[str]) -> int:
        """Those that no message names any more, and that nobody has put for an hour."""
        sweeper = MediaSweeper(self._connection, workspace_id=self._workspace_id, step=nullcontext)
        view = View(database=self._database, cutoff=ALWAYS, is_dry=False)
        count = 0
        for start in range(0, len(media), _BATCH):
            count += (await sweeper.sweep(view, media[start : start + _BATCH]))[0]
        return count


async def remove_conversation(
    connection: MongoConnection, workspace_id: str, conversation_id: str, *, now: datetime
) -> RemovedConversation:
    """Remove a conversation but for what forks have inherited of it.

    Raises:
        ConversationNotFoundError: the workspace never had the conversation.
    """
    remover = Remover(connection, workspace_id)
    await remover.conversation(conversation_id, now=now, keeps_inherited=True)
    return RemovedConversation(conversation_id=conversation_id, counts=dict(remover.counts))


async def delete_of_runs(
    database: Database,
    collection: str,
    workspace_id: str,
    run_ids: Sequence[str],
    *,
    session: AsyncClientSession | None = None,
) -> int:
    """Delete all rows of these runs; live and marked ones are found by different indexes."""
    mine: Document = {"run_id": {"$in": list(run_ids)}, "workspace_id": workspace_id}
    queries = [mine]
    if collection in MARKED:
        queries = [{**mine, "live": True}, {**mine, "live": False}]
    counts = [
        (await database[collection].delete_many(each, session=session)).deleted_count
        for each in queries
    ]
    return sum(counts)


async def remove_messages(connection: MongoConnection, digests: Sequence[str]) -> int:
    """Those that nothing refers to, looked at again in the transaction that removes them."""
    database = connection.database

    async def remove(session: AsyncClientSession) -> int:
        view = View(database=database, cutoff=0, is_dry=False, session=session)
        free = await unreferred(view, digests)
        query: Document = {"_id": {"$in": free}}
        return (await database["messages"].delete_many(query, session=session)).deleted_count

    return await run_transaction(connection.client(), remove)


def _run(document: Document) -> RunToRemove:
    branches = document.get("branches", [])
    return RunToRemove(
        run_id=document["_id"],
        conversation_id=document.get("conversation_id", ""),
        branches=tuple(each["branch"] for each in branches),
        executions=tuple(each["execution_id"] for each in branches),
    )
