"""Removing one turn of a conversation: its run, and its words wherever later runs remembered them.

A run holds the history that it began with, so what a turn said is at positions of all runs after
it. There a message without its words takes its place: those histories stay whole, and say nothing
of it.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)
from pymongo import UpdateMany, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession

from stores.conversation_records import RemovedConversation
from stores.digests import load_message, message_digest, message_text
from stores.mongo.client import MongoConnection
from stores.mongo.conversation_documents import conversation_key
from stores.mongo.documents import SERVER_TIME, Document
from stores.mongo.reindexing import send_again
from stores.mongo.removing import Remover
from stores.mongo.search_log import LOG, of_conversation
from stores.mongo.search_writer import LoggedConversation, SearchLogWriter
from stores.mongo.transactions import run_transaction
from stores.turn_histories import own_messages

DELETED = "(deleted)"
"""What stands where a deleted turn's words were, in the histories of later runs."""


class TurnEraser:
    """Erases what the runs of one turn said.

    Args:
        connection: to the database.
        workspace_id: of the conversation.
        conversation_id: whose turn was buried in its rows before.
    """

    def __init__(
        self, connection: MongoConnection, *, workspace_id: str, conversation_id: str
    ) -> None:
        self._connection = connection
        self._database = connection.database
        self._workspace_id = workspace_id
        self._conversation_id = conversation_id

    async def erase(self, run_ids: Sequence[str]) -> RemovedConversation:
        """Redact the histories of other runs, have the search forget, and remove the runs, last.

        Repeats: what was erased in part is found again by what is left of its run.
        """
        family = await self._with_delegates(run_ids)
        said = await self._said_by(family)
        redacted = await self._redact(said, except_runs=family)
        if family:
            await self._forget_searched(said, family)
        remover = Remover(self._connection, self._workspace_id)
        await remover.these_runs(family)
        await remover.messages(sorted(said))
        counts = {**remover.counts, "redacted positions": redacted}
        return RemovedConversation(conversation_id=self._conversation_id, counts=counts)

    async def _with_delegates(self, run_ids: Sequence[str]) -> list[str]:
        """The runs, and what they delegated within the conversation."""
        found = list(run_ids)
        asked = list(run_ids)
        while asked:  # ends: a run has one parent
            query: Document = {
                **conversation_key(self._workspace_id, self._conversation_id),
                "parent_run_id": {"$in": asked},
                "live": True,
            }
            children = self._database["runs"].find(query, {"_id": 1})
            asked = [each["_id"] async for each in children if each["_id"] not in found]
            found += asked
        return found

    async def _said_by(self, run_ids: Sequence[str]) -> dict[str, ModelMessage]:
        """By digest, the messages that these runs added to their histories."""
        said: dict[str, ModelMessage] = {}
        for run_id in run_ids:
            of_run: Document = {"run_id": run_id, "workspace_id": self._workspace_id}
            rows = await self._positions(of_run)
            rows.sort(key=lambda each: each["position"])
            digests = [each["message"] for each in rows]
            bodies = self._database["messages"].find({"_id": {"$in": digests}}, {"text": 1})
            texts = {each["_id"]: load_message(each["text"]) async for each in bodies}
            known = [each for each in digests if each in texts]
            own = {id(each) for each in own_messages([texts[each] for each in known], run_id)}
            said |= {each: texts[each] for each in known if id(texts[each]) in own}
        return said

    async def _positions(self, of_run: Document) -> list[Document]:
        """Position and message of all positions of a run, marked ones, too."""
        return [
            each
            for is_live in (True, False)
            async for each in self._database["positions"].find(
                {**of_run, "live": is_live}, {"position": 1, "message": 1}
            )
            if "message" in each
        ]

    async def _redact(self, said: Mapping[str, ModelMessage], *, except_runs: Sequence[str]) -> int:
        """Let positions of other runs hold messages without words; how many did not before."""
        if not said:
            return 0
        stubs: list[UpdateOne] = []
        moves: list[UpdateMany] = []
        for digest, message in said.items():
            text = message_text(without_words(message))
            stub = message_digest(self._workspace_id, text)
            values: Document = {
                "text": {"$literal": text},
                "workspace_id": {"$literal": self._workspace_id},
                "owner": None,
                "touched_at": SERVER_TIME,
            }
            stubs.append(UpdateOne({"_id": stub}, [{"$set": values}], upsert=True))
            held: Document = {
                "message": digest,
                "workspace_id": self._workspace_id,
                "run_id": {"$not": {"$in": list(except_runs)}},
            }
            change = {"$set": {"message": stub}, "$inc": {"revision": 1}}
            moves.append(UpdateMany(held, change))

        async def redact(session: AsyncClientSession) -> int:
            await self._database["messages"].bulk_write(stubs, session=session)
            moved = await self._database["positions"].bulk_write(moves, session=session)
            return moved.modified_count

        return await run_transaction(self._connection.client(), redact)

    async def _forget_searched(self, said: Collection[str], gone: Sequence[str]) -> None:
        """Begin the search log of each conversation anew that may have logged the turn's words.

        The snapshots of the runs that stay are logged again by the next search, as they are now.
        """
        query: Document = {"messages": {"$in": list(said)}, "workspace_id": self._workspace_id}
        holding = await self._database[LOG].distinct("conversation_id", query)
        for conversation_id in {self._conversation_id, *map(str, holding)}:
            place = conversation_key(self._workspace_id, conversation_id)
            logged = of_conversation(self._workspace_id, conversation_id)
            newest = await self._database[LOG].find_one(logged, sort=[("sequence", -1)])
            if newest is None:
                continue
            log = SearchLogWriter(
                self._database,
                LoggedConversation(),
                workspace_id=self._workspace_id,
                conversation_id=conversation_id,
                terms_id=newest["analyzer"],
            )
            await log.begin_again()
            runs = self._database["runs"].find({**place, "live": True}, {"_id": 1})
            left = [each["_id"] async for each in runs if each["_id"] not in gone]
            await send_again(self._database, self._workspace_id, conversation_id, left)


def without_words(message: ModelMessage) -> ModelMessage:
    """A message in place of this one that says that it was deleted; ids and times are the same."""
    same: dict[str, Any] = {
        "run_id": message.run_id,
        "conversation_id": message.conversation_id,
        "timestamp": message.timestamp,
    }
    if isinstance(message, ModelResponse):
        told = [TextPart(DELETED)]
        return ModelResponse(told, usage=message.usage, model_name=message.model_name, **same)
    at = message.timestamp or _LONG_AGO
    return ModelRequest([UserPromptPart(DELETED, timestamp=at)], **same)


_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""Of a request that tells no time: the same message has to be made each time."""
