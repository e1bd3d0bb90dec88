"""The connection: one client for a process, made inside the loop that uses it."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from pymongo import AsyncMongoClient, ReadPreference, WriteConcern
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import PyMongoError, ServerSelectionTimeoutError
from pymongo.read_concern import ReadConcern

from stores.errors import StoreConfigurationError
from stores.mongo.documents import Document
from stores.mongo.tracing import command_listeners

Client = AsyncMongoClient[Document]
Database = AsyncDatabase[Document]

APPLICATION_NAME = "perdure"
"""How the server's logs and lists of operations name this application."""

SERVER_SELECTION_TIMEOUT_MS = 2000
"""How long a call looks for a primary; an election takes about as long."""

WITHOUT_PRIMARY_SECONDS = 0.4
"""How long a commit of a workflow does. Its first attempt keeps a workflow task open, and with it
whoever waits for an answer of the workflow."""

MAJORITY = WriteConcern(w="majority", j=True)
"""A boundary that was reported as written survives the loss of the primary and of its power."""


def open_client(db_url: str) -> Client:
    """A client with Perdure's options; it connects with its first call.

    Raises:
        StoreConfigurationError: the connection string is malformed. Not retryable.
    """
    try:
        return AsyncMongoClient[Document](
            db_url,
            appname=APPLICATION_NAME,
            tz_aware=True,
            retryWrites=True,
            serverSelectionTimeoutMS=SERVER_SELECTION_TIMEOUT_MS,
            connectTimeoutMS=SERVER_SELECTION_TIMEOUT_MS,
            event_listeners=command_listeners(),
        )
    except (PyMongoError, ValueError) as error:
        msg = f"cannot open a MongoDB client: {error}; correct the connection string"
        raise StoreConfigurationError(msg) from error


class MongoConnection:
    """A database and the client behind it, shared by the store objects of all workspaces.

    `close` leaves a client open that was passed in, and closes one made from a connection string.
    """

    def __init__(self, *, client: Client | None, db_url: str | None, database: str | None) -> None:
        if (client is None) == (db_url is None):
            msg = "pass exactly one of client= and db_url=: a shared client, or a connection string"
            raise ValueError(msg)
        if not database:
            msg = "pass database=: the name of the database that holds the runs"
            raise ValueError(msg)
        self._shared = client
        self._db_url = db_url
        self._name = database
        self._client: Client | None = None
        self._database: Database | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process_id: int | None = None
        self._is_closed = False

    @property
    def where(self) -> str:
        """Hosts and database in words, without user and password."""
        if self._db_url is not None:
            hosts = urlsplit(self._db_url).netloc.rpartition("@")[2]
        else:
            addresses = sorted(self.client().topology_description.server_descriptions())
            hosts = ",".join(f"{host}:{port}" for host, port in addresses)
        return f"{hosts}, database {self._name!r}"

    @property
    def database(self) -> Database:
        """The database, read from the primary and written with `MAJORITY` whatever the URI says."""
        client = self.client()
        if self._database is None:
            self._database = client.get_database(
                self._name,
                read_preference=ReadPreference.PRIMARY,
                read_concern=ReadConcern("majority"),
                write_concern=MAJORITY,
            )
        return self._database

    def client(self) -> Client:
        """The client, made now if this is the first use of a connection string.

        Raises:
            RuntimeError: the store is closed, or another process or event loop has connected it.
                Not retryable.
        """
        if self._is_closed:
            msg = f"the store on {self._name!r} is closed; open another one"
            raise RuntimeError(msg)
        process_id = os.getpid()
        if self._process_id not in {None, process_id}:
            msg = (
                f"the store on {self._name!r} was connected in process {self._process_id} and is "
                f"used in process {process_id}: a MongoDB client does not survive a fork. Start "
                "processes with spawn, or open the store after the fork"
            )
            raise RuntimeError(msg)
        loop = asyncio.get_running_loop()
        if self._client is None:
            self._client = self._shared or open_client(str(self._db_url))
            self._loop, self._process_id = loop, process_id
        if self._loop is not loop:
            msg = (
                f"the store on {self._name!r} was connected in another event loop; open a store in "
                "the loop that uses it"
            )
            raise RuntimeError(msg)
        return self._client

    @asynccontextmanager
    async def while_primary_is_known(self) -> AsyncGenerator[None]:
        """Give up what is done inside when the driver looks for a primary and finds none.

        A primary that is slow, or does not answer, is one.

        Raises:
            pymongo.errors.ServerSelectionTimeoutError: there was none for some tenths of a second.
        """
        loop, client = asyncio.get_running_loop(), self.client()
        limit = asyncio.timeout(None)
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            if client.topology_description.has_writable_server():
                timer = loop.call_later(WITHOUT_PRIMARY_SECONDS, look)
            else:
                limit.reschedule(loop.time())

        try:
            async with limit:
                timer = loop.call_later(WITHOUT_PRIMARY_SECONDS, look)
                try:
                    yield
                finally:
                    timer.cancel()
        except TimeoutError as error:
            if not limit.expired():
                raise
            servers = client.topology_description.server_descriptions().values()
            msg = f"no primary was found: {', '.join(str(each.error) for each in servers)}"
            raise ServerSelectionTimeoutError(msg) from error

    async def close(self) -> None:
        """Close the client if it was made here. Quiet a second time."""
        if self._client is not None and self._shared is None and not self._is_closed:
            await self.client().close()
        self._is_closed = True
