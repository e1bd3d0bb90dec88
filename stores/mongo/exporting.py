"""Runs and conversations as lines of an export, read page by page."""

import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from stores.conversation_records import Turn
from stores.errors import MediaNotFoundError, RunNotFoundError
from stores.export_file import Line
from stores.media.addresses import uri_of_digest
from stores.media.protocols import MediaStore
from stores.mongo.client import Database, MongoConnection
from stores.mongo.conversations import MongoConversations
from stores.mongo.documents import DEPARTS, Document, ranges_in
from stores.redaction import Redaction

ROWS = ("events", "snapshots", "tool_effects")
"""Collections whose live rows are lines of a kind of the same name."""

_PAGE = 200

IMPORTED = "import_id"
"""Field of rows that came from a file: its digest."""

_OWN = frozenset(
    {"_id", "workspace_id", "live", "unindexed", "claim_count", DEPARTS, "sweeps", IMPORTED}
)
"""Fields that belong to the database and not to the run."""


class Exporter:
    """Reads one workspace.

    Args:
        connection: the store's.
        workspace_id: of what is exported.
        media_store: for large content; `None` leaves that out.
        redaction: known secrets of rows that were stored before it was on do not leave either.
        tells_people: keep principals, and who decided something.
    """

    def __init__(
        self,
        connection: MongoConnection,
        *,
        workspace_id: str,
        media_store: MediaStore | None,
        redaction: Redaction,
        tells_people: bool,
    ) -> None:
        self._connection = connection
        self._workspace_id = workspace_id
        self._media_store = media_store
        self._redactor = redaction.redactor
        self._tells_people = tells_people
        self._told_media: set[str] = set()

    @property
    def _database(self) -> Database:
        return self._connection.database

    async def lines(self, name: str) -> AsyncGenerator[Line]:
        """All lines of a run with its delegates, or of a conversation with all of its runs.

        Raises:
            RunNotFoundError: the workspace has neither.
            MediaNotFoundError: large content is missing; leave media out.
        """
        run_ids = await self._runs_of_run(name)
        if not run_ids:
            run_ids = await self._runs_of_conversation(name)
            found = [line async for line in self._conversation(name, run_ids)]
            if not found and not run_ids:
                raise RunNotFoundError(name, self._workspace_id)
            for line in found:
                yield self._masked(line)
        for run_id in dict.fromkeys(run_ids):
            async for line in self._run(run_id):
                yield self._masked(line)

    def _masked(self, line: Line) -> Line:
        if self._redactor is None:
            return line
        masked: Line = json.loads(self._redactor.known(json.dumps(line)))
        return masked

    # Which runs

    async def _runs_of_run(self, run_id: str) -> list[str]:
        mine: Document = {"workspace_id": self._workspace_id, "live": True}
        runs = self._database["runs"]
        if await runs.find_one({**mine, "_id": run_id}, {"_id": 1}) is None:
            return []
        return await self._with_delegates([run_id])

    async def _with_delegates(self, run_ids: Sequence[str]) -> list[str]:
        known, newest = list(run_ids), list(run_ids)
        while newest:  # ends: a run is begun by an earlier one
            query = {
                "workspace_id": self._workspace_id,
                "live": True,
                "parent_run_id": {"$in": newest},
            }
            found = await self._database["runs"].distinct("_id", query)
            newest = [str(each) for each in found if each not in set(known)]
            known += newest
        return known

    async def _runs_of_conversation(self, conversation_id: str) -> list[str]:
        query = {
            "workspace_id": self._workspace_id,
            "conversation_id": conversation_id,
            "live": True,
        }
        found = self._database["runs"].find(query, {"_id": 1})
        ids = [each["_id"] async for each in found.sort([("started_at", 1), ("_id", 1)])]
        return await self._with_delegates(ids)

    # Lines

    async def _conversation(self, conversation_id: str, run_ids: list[str]) -> AsyncGenerator[Line]:
        """Its head, and its turns with what they inherit; runs of those are added to `run_ids`."""
        conversations = MongoConversations(self._connection, workspace_id=self._workspace_id)
        head = await conversations.find(conversation_id)
        if head is None:
            return
        head = replace(head, forked_from=None, forked_at=None)
        yield {"kind": "conversation", **self._record(head)}
        after: int | None = None
        while turns := await conversations.list_turns(conversation_id, after=after, limit=_PAGE):
            for turn in turns:
                for line in self._turn(conversation_id, turn):
                    yield line
                run_ids += [each.run_id for each in turn.variants]
            after = turns[-1].record.position

    def _turn(self, conversation_id: str, turn: Turn) -> list[Line]:
        own = replace(
            turn.record,
            conversation_id=conversation_id,
            source_conversation_id=None,
            source_variant_count=0,
            sealed_prompt=None,
        )
        variants = (replace(each, conversation_id=conversation_id) for each in turn.variants)
        return [
            {"kind": "turn", **self._record(own)},
            *({"kind": "variant", **self._record(each)} for each in variants),
        ]

    def _record(self, record: Any) -> Line:  # noqa: ANN401 - a record of ours
        line = {name: _plain(value) for name, value in asdict(record).items()}
        if not self._tells_people and "principal" in line:
            line["principal"] = None
        if "kind" in line:  # a line has another one
            line["of_kind"] = line.pop("kind")
        return {name: value for name, value in line.items() if name != "workspace_id"}

    async def _run(self, run_id: str) -> AsyncGenerator[Line]:
        mine: Document = {"workspace_id": self._workspace_id, "live": True}
        run = await self._database["runs"].find_one({**mine, "_id": run_id})
        if run is None:  # an answer that has yet to begin
            return
        yield {"kind": "run", **self._row(run), "run_id": run_id}
        if self._media_store is not None:
            async for line in self._media(self._media_store, run_id):
                yield line
        async for rows, texts in self._positions(run_id, "text"):
            for row in rows:
                text = texts[row.pop("message")]
                yield {"kind": "message", **self._row(row), "text": text}
        for name in ROWS:
            order = [("sequence", 1), ("_id", 1)]
            found = self._database[name].find({**mine, "run_id": run_id}, batch_size=_PAGE)
            async for row in found.sort(order):
                yield {"kind": name, **self._row(row)}

    async def _positions(
        self, run_id: str, field: str
    ) -> AsyncGenerator[tuple[list[Document], dict[str, Any]]]:
        """Pages of the run's log, with one field of the messages by digest."""
        after = -1
        while True:  # ends: with the log
            query = {
                "run_id": run_id,
                "workspace_id": self._workspace_id,
                "live": True,
                "position": {"$gt": after},
            }
            found = self._database["positions"].find(query).sort("position", 1).limit(_PAGE)
            rows = await found.to_list()
            if not rows:
                return
            digests = [each["message"] for each in rows]
            messages = self._database["messages"].find({"_id": {"$in": digests}}, {field: 1})
            yield rows, {each["_id"]: each.get(field) async for each in messages}
            after = rows[-1]["position"]

    async def _media(self, store: MediaStore, run_id: str) -> AsyncGenerator[Line]:
        """Each blob once in a file, before the messages that name it."""
        async for _, named in self._positions(run_id, "media"):
            digests = [each.partition(".")[0] for media in named.values() for each in media or ()]
            for digest in dict.fromkeys(digests):
                if digest in self._told_media:
                    continue
                self._told_media.add(digest)
                uri = uri_of_digest(digest)
                try:
                    data = await store.get(uri)
                except MediaNotFoundError as error:
                    problem = f"{error}. Export with --no-media: the messages then lack it"
                    raise MediaNotFoundError(uri, problem) from error
                yield {"kind": "media", "uri": uri, "data": b64encode(data).decode()}

    def _row(self, row: Document) -> Line:
        line = {name: value for name, value in row.items() if name not in _OWN}
        if "ranges" in line:
            line["ranges"] = [list(each) for each in ranges_in(line["ranges"])]
        if not self._tells_people:
            line.pop("principal", None)
            for transition in line.get("transitions", ()):
                if "resolution" in transition:
                    said = json.loads(transition["resolution"])
                    if said["by"] != "reconcile":
                        said["by"] = None
                    transition["resolution"] = json.dumps(said)
        return line


def _plain(value: Any) -> Any:  # noqa: ANN401 - any of a record's
    return value.isoformat() if isinstance(value, datetime) else value
