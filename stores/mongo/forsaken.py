"""Transactions whose writer is gone: killed, or cut off from the server in their middle.

The server keeps such a transaction open for a minute, and whoever wants to write the same rows
meets a conflict until then. A writer that meets one for long ends it.
"""

import asyncio

from pymongo.errors import PyMongoError

from stores.mongo.client import Client
from stores.mongo.documents import Document

FORSAKEN_AFTER_MICROSECONDS = 1_000_000
"""A live writer sends its next command within milliseconds. Ending the transaction of one that is
only slow does no harm: it begins again."""

TIMEOUT_SECONDS = 1.0
"""For this help in need, which must not take the time of what it helps."""


async def end_forsaken_transactions(client: Client) -> int:
    """End open transactions that nobody has used for a second; their number.

    Sees and ends only what the same database user began under the client's application name;
    without a name, none. Where even that is not allowed, the server ends them after its
    `transactionLifetimeLimitSeconds`.
    """
    name = client.options.pool_options.appname
    if name is None:
        return 0
    pipeline: list[Document] = [
        {"$currentOp": {"idleSessions": True}},
        {
            "$match": {
                "type": "idleSession",
                "appName": name,
                "transaction.timeInactiveMicros": {"$gte": FORSAKEN_AFTER_MICROSECONDS},
            }
        },
    ]
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            idle = await (await client.admin.aggregate(pipeline)).to_list()
            if idle:
                sessions = [{"id": each["lsid"]["id"]} for each in idle]
                await client.admin.command("killSessions", sessions)
    except (PyMongoError, TimeoutError):
        return 0
    return len(idle)
