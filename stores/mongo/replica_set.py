"""A replica set of one member, for a development server: without a set, no transactions."""

from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

REPLICA_SET_NAME = "rs0"

NOT_YET_INITIALIZED = 94
"""The server's answer to `replSetGetConfig` before the first `replSetInitiate`."""

LONGEST_HELLO_MS = 1000
"""How long the server may hold an answer back that would tell nothing new."""


async def ensure_single_member_primary(host: str) -> None:
    """Return once the server at `host` is the primary of a replica set of its own.

    Repeats: initiates a new server only. A server whose kept configuration names another host (it
    was started on another port) gets this one by a forced reconfiguration, so never call it for a
    member of a real set. Waits without a bound; put a timeout around it.

    Args:
        host: `address:port`, started with `--replSet rs0`.

    Raises:
        pymongo.errors.OperationFailure: the server refuses, for example without `--replSet`.
    """
    async with AsyncMongoClient[dict[str, Any]](host, directConnection=True) as client:
        hello = await client.admin.command("hello")
        if "setName" not in hello:
            await _configure(client, host)
        while not hello["isWritablePrimary"]:  # the server answers as soon as its state changes
            hello = await client.admin.command(
                "hello", topologyVersion=hello["topologyVersion"], maxAwaitTimeMS=LONGEST_HELLO_MS
            )


async def _configure(client: AsyncMongoClient[dict[str, Any]], host: str) -> None:
    try:
        kept = (await client.admin.command("replSetGetConfig"))["config"]
    except OperationFailure as error:
        if error.code != NOT_YET_INITIALIZED:
            raise
        config = {"_id": REPLICA_SET_NAME, "members": [{"_id": 0, "host": host}]}
        await client.admin.command("replSetInitiate", config)
        return
    (member,) = kept["members"]
    member["host"] = host
    kept["version"] += 1
    await client.admin.command("replSetReconfig", kept, force=True)
