"""Looking for a text in everything that is kept."""

import zlib
from collections.abc import Iterator
from typing import Any

import bson
from pymongo import MongoClient
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from stores.payload_compression import decompressed

_COMPRESSED = {"payload_chunks": ("data",), "search_log": ("terms", "own_terms")}
"""The fields of each collection that hold compressed bytes."""


def database_bytes(uri: str, database: str) -> Iterator[tuple[str, bytes]]:
    """Each document of each collection, with its name; what was compressed as it was before."""
    with MongoClient[dict[str, Any]](uri) as client:
        for name in client[database].list_collection_names():
            for document in client[database][name].find():
                packed = _COMPRESSED.get(name, ())
                bodies = [bytes(document[each]) for each in packed if document.get(each)]
                yield name, b"".join([bson.encode(document), *map(_inflated, bodies)])


def _inflated(data: bytes) -> bytes:
    try:
        return decompressed(data)
    except zlib.error:  # a node: ids; or encrypted
        return data


def places_with(uri: str, database: str, *texts: str) -> list[str]:
    """The collections that hold one of these texts."""
    found = {
        name
        for name, data in database_bytes(uri, database)
        if any(each.encode() in data for each in texts)
    }
    return sorted(found)


async def histories_with(client: Client, *texts: str) -> list[str]:
    """The workflows, of all that Temporal knows, whose list entry or history holds one of these."""
    found: list[str] = []
    async for each in client.list_workflows():
        raw = each.raw_info.SerializeToString()
        handle = client.get_workflow_handle(each.id, run_id=each.run_id)
        try:
            async for event in handle.fetch_history_events():
                raw += event.SerializeToString()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # deleted, and listed a while longer
                raise
        if any(text.encode() in raw for text in texts):
            found.append(each.id)
    return found
