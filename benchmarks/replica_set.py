"""A MongoDB replica set of three members on this machine, whose primary can be killed."""

import asyncio
from pathlib import Path
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from cli.binaries import find_mongod
from cli.processes import LocalServerError, pause
from cli.servers import HOST, MongoServer, free_port
from stores.mongo.replica_set import REPLICA_SET_NAME

MEMBERS = 3

ELECTED_WITHIN_SECONDS = 60.0
"""An election begins ten seconds after the primary was heard last, the server's default."""


class _Member(MongoServer):
    """One of several: which of them becomes the primary is theirs to say."""

    CACHE_GB = 0.25  # three of them share the machine

    async def _become_ready(self) -> None:
        """Nothing to wait for: the set is made when all members listen."""


class ReplicaSet:
    """Three members with their data in one directory, at the server's defaults for elections.

    Args:
        home: made if missing.
    """

    def __init__(self, home: Path) -> None:
        mongod = find_mongod(copy_dir=home / "bin")
        self.members = [
            _Member(mongod, home / f"member-{number}", port=free_port())
            for number in range(MEMBERS)
        ]

    @property
    def uri(self) -> str:
        """Connection string that names all members."""
        hosts = ",".join(map(_host, self.members))
        return f"mongodb://{hosts}/?replicaSet={REPLICA_SET_NAME}"

    async def start(self) -> None:
        """Start all members, make a set of them and return once one is its primary."""
        for member in self.members:
            await member.start()
        config = {
            "_id": REPLICA_SET_NAME,
            "members": [
                {"_id": number, "host": _host(member)} for number, member in enumerate(self.members)
            ],
        }
        async with _asking(self.members[0]) as client:
            await client.admin.command("replSetInitiate", config)
        await self.primary()

    async def primary(self) -> MongoServer:
        """The member that is the primary; waits for an election.

        Raises:
            LocalServerError: none was elected within `ELECTED_WITHIN_SECONDS`.
        """
        try:
            async with asyncio.timeout(ELECTED_WITHIN_SECONDS):
                while True:
                    for member in self.members:
                        if member.is_running and await _is_primary(member):
                            return member
                    await pause()
        except TimeoutError:
            message = f"No member of {self.uri} was elected within {ELECTED_WITHIN_SECONDS:.0f} s."
            raise LocalServerError(message) from None

    async def kill(self) -> None:
        """Kill all members."""
        for member in self.members:
            await member.kill()


async def _is_primary(member: MongoServer) -> bool:
    async with _asking(member) as client:
        try:
            hello = await client.admin.command("hello")
        except PyMongoError:
            return False
        return bool(hello["isWritablePrimary"])


def _asking(member: MongoServer) -> AsyncMongoClient[dict[str, Any]]:
    return AsyncMongoClient[dict[str, Any]](
        _host(member), directConnection=True, serverSelectionTimeoutMS=1000
    )


def _host(member: MongoServer) -> str:
    return f"{HOST}:{member.port}"
