"""Writing the lines of an export into a database: all of them, or nothing that counts.

A run is written last, so that what was cut off is no run; its rows say which file they came from
and go when the import is begun again.
"""

import json
import secrets
from base64 import b64decode
from collections.abc import Iterable, Iterator
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any

from bson import ObjectId
from pydantic import TypeAdapter

from stores.conversation_records import ConversationRecord, TurnRecord, VariantRecord
from stores.digests import message_digest
from stores.errors import ExportFileError, ImportRefusedError
from stores.export_file import ExportSummary, Line, check_export, export_lines
from stores.histories import Body
from stores.identifiers import check_identifier
from stores.media.markers import digests_in
from stores.media.protocols import MediaStore
from stores.mongo.client import Database, MongoConnection
from stores.mongo.conversation_documents import (
    conversation_document,
    conversation_key,
    record_of,
    turn_document,
    variant_document,
)
from stores.mongo.documents import MAX_PLAIN_RANGES, Document
from stores.mongo.exporting import IMPORTED, ROWS
from stores.mongo.failures import store_errors
from stores.mongo.keyword_reindexing import index_conversation
from stores.mongo.media import media_id
from stores.mongo.writing import put_body
from stores.public_ids import new_public_id
from stores.ranges import packed

_PAGE = 200

_NAMES_OF_RUNS = ("run_id", "parent_run_id", "continued_from", "forked_from")


class Restorer:
    """Writes into one workspace.

    Args:
        connection: the store's.
        workspace_id: where the runs go, whatever workspace they come from.
        media_store: for large content of the file.
        as_new: give runs and the conversation new ids, derived from the old ones.
    """

    def __init__(
        self,
        connection: MongoConnection,
        *,
        workspace_id: str,
        media_store: MediaStore | None,
        as_new: bool,
    ) -> None:
        self._connection = connection
        self._workspace_id = workspace_id
        self._media_store = media_store
        self._suffix = f"-{secrets.token_hex(4)}" if as_new else ""
        self._runs: dict[str, str] = {}
        self._conversations: dict[str, str] = {}
        self._import_id = ""

    @property
    def _database(self) -> Database:
        return self._connection.database

    async def run(self, path: Path, *, now: datetime) -> dict[str, str]:
        """Import a file; the new ids of its runs, by the ones in the file.

        Raises:
            ExportFileError: it is none of ours, of a newer version, cut, or was changed.
            ImportRefusedError: runs or the conversation of it are here, or it has media and this
                store keeps none. Nothing was written.
        """
        with store_errors(f"import {str(path)!r}", self._connection.where):
            summary = check_export(path)
            self._import_id = f"{summary.digest}{self._suffix}"
            self._name_anew(summary)
            await self._refuse(summary)
            await self._remove_leftovers()
            await self._write(path, now)
            return dict(self._runs)

    def _name_anew(self, summary: ExportSummary) -> None:
        for run_id in summary.run_ids:
            new = check_identifier("run_id", f"{run_id}{self._suffix}")
            self._runs[run_id] = new
        if summary.conversation_id is not None:
            self._rename_conversation(summary.conversation_id)

    def _rename_conversation(self, conversation_id: str) -> str:
        new = f"{conversation_id}{self._suffix}"
        if conversation_id not in self._conversations:
            self._conversations[conversation_id] = check_identifier("conversation_id", new)
        return new

    async def _refuse(self, summary: ExportSummary) -> None:
        runs = self._database["runs"]
        taken = await runs.distinct("_id", {"_id": {"$in": list(self._runs.values())}})
        if taken:
            named = ", ".join(repr(each) for each in sorted(map(str, taken))[:5])
            problem = (
                f"this database has runs of these ids, in whichever workspace: {named}; --as-new "
                "gives them others"
            )
            raise ImportRefusedError(problem)
        if summary.conversation_id is not None:
            new = self._conversations[summary.conversation_id]
            key = conversation_key(self._workspace_id, new)
            if await self._database["conversations"].find_one({"_id": key}, {"_id": 1}):
                problem = (
                    f"conversation {new!r} is here, or was deleted here; --as-new gives it "
                    "another id"
                )
                raise ImportRefusedError(problem)
        if summary.counts.get("media") and self._media_store is None:
            problem = "the file has large content, and PERDURE_MEDIA=none keeps none; set it"
            raise ImportRefusedError(problem)

    async def _remove_leftovers(self) -> None:
        """Of an import of this file that was cut off before its runs were written."""
        for run_id in self._runs.values():
            mine = {"run_id": run_id, "workspace_id": self._workspace_id}
            for name in (*ROWS, "positions"):
                await self._database[name].delete_many({**mine, IMPORTED: self._import_id})
        for conversation_id in self._conversations.values():
            key = conversation_key(self._workspace_id, conversation_id)
            for name in ("turns", "variants"):
                await self._database[name].delete_many({**key, IMPORTED: self._import_id})

    # Writing

    async def _write(self, path: Path, now: datetime) -> None:
        """Rows as they come; runs and the head of the conversation last."""
        last: dict[str, list[Document]] = {"runs": [], "conversations": []}
        for kind, lines in _pages(export_lines(path)):
            match kind:
                case "run":
                    last["runs"] += [self._run_document(each, now) for each in lines]
                case "conversation":
                    last["conversations"] += [self._head_document(each, now) for each in lines]
                case "media":
                    await self._put_media(path, lines)
                case "message":
                    await self._put_messages(lines)
                case "turn" | "variant":
                    documents = [self._part_document(kind, each) for each in lines]
                    await self._database[f"{kind}s"].insert_many(documents)
                case _:
                    await self._put_rows(path, kind, lines, last["runs"][-1])
        for name, documents in (*last.items(),):
            for start in range(0, len(documents), _PAGE):
                await self._database[name].insert_many(documents[start : start + _PAGE])
        for each in last["conversations"]:
            await index_conversation(self._connection, record_of(ConversationRecord, each))

    async def _put_rows(self, path: Path, kind: str, lines: list[Line], run: Document) -> None:
        if kind not in ROWS:
            raise ExportFileError(path, f"has a line of unknown kind {kind!r}")
        rows = [self._row_document(each) for each in lines]
        if kind == "snapshots":  # the search log takes them in from there
            conversation = {"conversation_id": run.get("conversation_id", "")}
            rows = [{**each, **conversation, "unindexed": True} for each in rows]
        await self._database[kind].insert_many(rows)

    def _run_document(self, line: Line, now: datetime) -> Document:
        document = self._here(self._renamed(line))
        if self._suffix:
            document["public_id"] = new_public_id(now)
        return {"_id": document.pop("run_id"), "live": True, **document}

    def _renamed(self, line: Line) -> Document:
        """The fields of a row, under the ids that they have here."""
        document = {name: value for name, value in line.items() if name != "kind"}
        for name in _NAMES_OF_RUNS:
            if document.get(name) in self._runs:
                document[name] = self._runs[document[name]]
        if document.get("conversation_id"):
            document["conversation_id"] = self._rename_conversation(document["conversation_id"])
        if "of_kind" in document:
            document["kind"] = document.pop("of_kind")
        if "context" in document:
            document["context"] = json.dumps(self._renamed(json.loads(document["context"])))
        return document

    def _here(self, document: Document) -> Document:
        return document | {"workspace_id": self._workspace_id, IMPORTED: self._import_id}

    def _row_document(self, line: Line) -> Document:
        document = self._here(self._renamed(line))
        ranges = document.get("ranges", ())
        if len(ranges) > MAX_PLAIN_RANGES:
            document["ranges"] = packed([(start, end) for start, end in ranges])
        return {"_id": ObjectId(), **document, "live": True}

    async def _put_messages(self, lines: list[Line]) -> None:
        bodies: dict[str, str] = {}
        rows: list[Document] = []
        for line in lines:
            digest = message_digest(self._workspace_id, line["text"])
            bodies[digest] = line["text"]
            row = {name: value for name, value in line.items() if name != "text"}
            rows.append(self._row_document({**row, "message": digest}))
        writes = [
            put_body(
                digest,
                Body(text=text, owner=None),
                self._workspace_id,
                [media_id(each, self._workspace_id) for each in digests_in(text)],
            )
            for digest, text in bodies.items()
        ]
        await self._database["messages"].bulk_write(writes)
        await self._database["positions"].insert_many(rows)

    async def _put_media(self, path: Path, lines: list[Line]) -> None:
        for line in lines:
            uri = self._media_store and await self._media_store.put(b64decode(line["data"]))
            if uri != line["uri"]:
                raise ExportFileError(path, f"holds other bytes than {line['uri']} names")

    def _head_document(self, line: Line, now: datetime) -> Document:
        given = self._here(self._renamed(line))
        if self._suffix:
            given["public_id"] = new_public_id(now)
        return conversation_document(_record(ConversationRecord, given))

    def _part_document(self, kind: str, line: Line) -> Document:
        given = self._here(self._renamed(line))
        mark = {IMPORTED: self._import_id}
        if kind == "turn":
            return turn_document(_record(TurnRecord, given)) | mark
        return variant_document(_record(VariantRecord, given)) | mark


def _record(kind: type[Any], given: Document) -> Any:  # noqa: ANN401 - of that kind
    known = {each.name: given[each.name] for each in fields(kind) if each.name in given}
    return TypeAdapter(kind).validate_python(known)


def _pages(lines: Iterable[Line]) -> Iterator[tuple[str, list[Line]]]:
    """Neighbours of one kind together, up to a page; media one by one."""
    page: list[Line] = []
    for line in lines:
        is_full = len(page) >= (1 if line["kind"] == "media" else _PAGE)
        if page and (page[0]["kind"] != line["kind"] or is_full):
            yield page[0]["kind"], page
            page = []
        page.append(line)
    if page:
        yield page[0]["kind"], page
