"""Local servers: a real Temporal and a real MongoDB, for `perdure dev`, the demo and the tests."""

import asyncio
import os
import re
import secrets
import socket
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError

from cli.binaries import find_mongod, find_temporal
from cli.data_directory import Addresses, DataDirectory
from cli.processes import ChildProcess, LocalServerError, pause, until
from stores.mongo.replica_set import REPLICA_SET_NAME, ensure_single_member_primary

HOST = "127.0.0.1"

FREE_PORTS = range(20_000, 32_768)
"""Below the range from which Linux takes the ports of outgoing connections, so that none of those
comes between the choice and the server's start."""

PORT_RELEASE = timedelta(seconds=1)
"""How long a port may still be held by a server that was killed a moment ago."""

READY_WITHIN = timedelta(seconds=60)
"""From start to first answer. Normally 1 s; MongoDB takes longer when it recovers much data."""


class LocalServer(ChildProcess):
    """A server on a port of this machine that keeps its port and its data between starts."""

    way_out: ClassVar[str]
    """What to set when a port is taken."""

    def __init__(
        self, name: str, command: Sequence[str | Path], *, log_path: Path, ports: tuple[int, ...]
    ) -> None:
        super().__init__(name, command, log_path=log_path)
        self.port = ports[0]
        self._ports = ports

    async def start(self) -> None:
        """Start it and return once it does its work.

        Raises:
            LocalServerError: the port is taken, it ended at once, or it did not answer within
                `READY_WITHIN`. Nothing is left running.
        """
        for port in self._ports:
            if not await until(partial(_is_free, port), within=PORT_RELEASE):
                message = (
                    f"Port {port} on {HOST} is taken, and {self.name} needs it. Stop what listens"
                    f" there, or {self.way_out}."
                )
                raise LocalServerError(message)
        self.spawn()
        try:
            async with asyncio.timeout(READY_WITHIN.total_seconds()):
                await self._listens()
                await self._become_ready()
        except BaseException as error:
            await self.kill()
            if not isinstance(error, TimeoutError):
                raise
            message = (
                f"{self.name} was started on port {self.port} and was not ready after"
                f" {READY_WITHIN.total_seconds():.0f} s. {self.last_words()}"
            )
            raise LocalServerError(message) from error

    async def _listens(self) -> None:
        while not _is_listening(self.port):
            if not self.is_running:
                raise LocalServerError(self.describe_end())
            await pause()

    async def _become_ready(self) -> None:
        """Return once the listening server can do its work."""
        raise NotImplementedError


class MongoServer(LocalServer):
    """A `mongod` that is a replica set of one, so that it has transactions."""

    way_out = (
        "choose another with --mongodb-port (PERDURE_MONGODB_PORT), or set PERDURE_MONGODB_URI to"
        " use a MongoDB of your own"
    )

    telling_line = re.compile(r'"s":"[EF]"')  # errors and fatal ones, among screens of JSON

    CACHE_GB = 0.5
    """With 0.25, the least, a transaction with one document of 15 MB is refused ("cache full")."""

    JOURNAL_FILE_SIZE = "16MB"
    """Instead of 100 MB: three such files are laid out at the start, which takes disk and time."""

    def __init__(self, mongod: Path, data_dir: Path, *, port: int) -> None:
        self.db_path = data_dir / "mongodb"
        super().__init__(
            "MongoDB",
            [
                mongod,
                *("--dbpath", self.db_path, "--port", str(port), "--bind_ip", HOST),
                *("--replSet", REPLICA_SET_NAME, "--oplogSize", "64", "--quiet", "--nounixsocket"),
                *("--wiredTigerCacheSizeGB", str(self.CACHE_GB)),
                "--wiredTigerEngineConfigString",
                f"log=(file_max={self.JOURNAL_FILE_SIZE})",
                *("--setParameter", "diagnosticDataCollectionEnabled=false"),
            ],
            log_path=data_dir / "logs" / "mongodb.log",
            ports=(port,),
        )

    @property
    def uri(self) -> str:
        """Connection string that names the replica set, as transactions need it."""
        return f"mongodb://{HOST}:{self.port}/?replicaSet={REPLICA_SET_NAME}"

    def spawn(self) -> None:
        """Run `mongod` on its directory, made if missing."""
        self.db_path.mkdir(parents=True, exist_ok=True)
        super().spawn()

    async def _become_ready(self) -> None:
        await ensure_single_member_primary(f"{HOST}:{self.port}")


class TemporalServer(LocalServer):
    """Temporal's development server, which keeps its state in one SQLite file."""

    way_out = (
        "choose another with --temporal-port (PERDURE_TEMPORAL_PORT), or set"
        " PERDURE_TEMPORAL_ADDRESS to use a Temporal server of your own"
    )

    def __init__(
        self,
        cli: Path,
        data_dir: Path,
        *,
        port: int,
        namespace: str = "default",
        search_attributes: Sequence[SearchAttributeKey[Any]] = (),
        with_ui: bool = False,
    ) -> None:
        self.namespace = namespace
        self.ui_port = port + 1000 if with_ui else None  # the distance that Temporal documents
        self._search_attributes = {key.name: _type_name(key) for key in search_attributes}
        super().__init__(
            "Temporal",
            [
                *(cli, "server", "start-dev", "--ip", HOST, "--port", str(port)),
                *("--db-filename", data_dir / "temporal.db", "--namespace", namespace),
                *("--log-level", "warn"),
                *(("--ui-port", str(self.ui_port)) if self.ui_port else ("--headless",)),
                *(f"--search-attribute={n}={t}" for n, t in self._search_attributes.items()),
            ],
            log_path=data_dir / "logs" / "temporal.log",
            ports=(port, self.ui_port) if self.ui_port else (port,),
        )

    @property
    def address(self) -> str:
        """`host:port` of the gRPC service."""
        return f"{HOST}:{self.port}"

    async def _become_ready(self) -> None:
        """Wait until the namespace knows the search attributes, which is the last thing to come."""
        client = await Client.connect(self.address, namespace=self.namespace, lazy=True)
        while not await self._knows_search_attributes(client):
            await pause()

    async def _knows_search_attributes(self, client: Client) -> bool:
        request = ListSearchAttributesRequest(namespace=self.namespace)
        try:
            known = await client.operator_service.list_search_attributes(request)
        except (RPCError, RuntimeError):  # the latter when it cannot connect yet
            return False
        return self._search_attributes.keys() <= known.custom_attributes.keys()


class LocalServers:
    """Temporal and MongoDB together, with their data in one directory that they lock.

    The directory holds `temporal.db`, `mongodb/`, `logs/`, `lock` and, while they run,
    `servers.json`. Nothing is bound to an event loop, but see `ChildProcess` about threads. As a
    context manager it is started and stopped.

    Args:
        data_dir: made if missing.
        temporal_port: 0 takes a free one at the first start, and keeps it.
        mongodb_port: likewise.
        temporal_address: a Temporal server of one's own; then none is started.
        mongodb_uri: a MongoDB of one's own; then none is started.
        temporal_namespace: made when the server is started here.
        search_attributes: registered when the server is started here.
        with_ui: serve Temporal's web pages, on the Temporal port + 1000.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        temporal_port: int = 0,
        mongodb_port: int = 0,
        temporal_address: str | None = None,
        mongodb_uri: str | None = None,
        temporal_namespace: str = "default",
        search_attributes: Sequence[SearchAttributeKey[Any]] = (),
        with_ui: bool = False,
    ) -> None:
        self._directory = DataDirectory(data_dir)
        self._temporal: TemporalServer | None = None
        self._mongodb: MongoServer | None = None
        self._temporal_port = temporal_port
        self._mongodb_port = mongodb_port
        self._temporal_address = temporal_address
        self._mongodb_uri = mongodb_uri
        self._temporal_namespace = temporal_namespace
        self._search_attributes = search_attributes
        self._with_ui = with_ui

    @property
    def temporal(self) -> TemporalServer:
        """The Temporal server that was started here.

        Raises:
            LocalServerError: `start` was not called, or one's own server is used.
        """
        if self._temporal is None:
            message = f"No Temporal server was started here: {self._temporal_address!r} is used."
            raise LocalServerError(message)
        return self._temporal

    @property
    def mongodb(self) -> MongoServer:
        """The MongoDB that was started here; raises as `temporal` does."""
        if self._mongodb is None:
            message = "No MongoDB was started here: one's own is used, or `start` was not called."
            raise LocalServerError(message)
        return self._mongodb

    @property
    def addresses(self) -> Addresses:
        """Where both answer, those of one's own included; known after `start`."""
        ui_port = self._temporal.ui_port if self._temporal else None
        return Addresses(
            pid=os.getpid(),
            temporal_address=self._temporal_address or self.temporal.address,
            temporal_namespace=self._temporal_namespace,
            mongodb_uri=self._mongodb_uri or self.mongodb.uri,
            temporal_ui=f"http://{HOST}:{ui_port}" if ui_port else None,
        )

    async def start(self) -> Addresses:
        """Lock the directory, start what is not one's own, both at once, and publish where.

        Raises:
            LocalServerError: the directory is in use, a binary or a port cannot be had, or a
                server did not come up. Then nothing is left running or locked.
        """
        await self._directory.lock()
        try:
            self._prepare()
            async with asyncio.TaskGroup() as starting:
                for server in self.started:
                    starting.create_task(server.start())
            self._directory.publish(self.addresses)
        except BaseExceptionGroup as group:
            await self.kill()
            raise group.exceptions[0] from None
        except BaseException:
            await self.kill()
            raise
        return self.addresses

    async def stop(self) -> None:
        """End Temporal, then MongoDB, and unlock; quiet when nothing runs."""
        try:
            for server in self.started:
                await server.stop()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End both at once, as a crash would, and unlock. What was acknowledged is kept."""
        for server in self.started:
            await server.kill()
        self._directory.unlock()

    async def __aenter__(self) -> Self:
        """Start both."""
        await self.start()
        return self

    async def __aexit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop both."""
        await self.stop()

    @property
    def started(self) -> list[LocalServer]:
        """What is not one's own, in the order in which it is stopped; empty before `start`."""
        return [server for server in (self._temporal, self._mongodb) if server is not None]

    def _prepare(self) -> None:
        """Find the binaries and the ports, once."""
        path = self._directory.path
        if self._temporal_address is None and self._temporal is None:
            self._temporal = TemporalServer(
                find_temporal(),
                path,
                port=self._temporal_port or free_port(),
                namespace=self._temporal_namespace,
                search_attributes=self._search_attributes,
                with_ui=self._with_ui,
            )
        if self._mongodb_uri is None and self._mongodb is None:
            mongod = find_mongod(copy_dir=path / "bin")
            self._mongodb = MongoServer(mongod, path, port=self._mongodb_port or free_port())


def free_port() -> int:
    """Return a port on which nothing listens now."""
    while not _is_free(port := secrets.choice(FREE_PORTS)):
        pass
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Connections of a server that has ended do not count, as they will not for the next one.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _type_name(key: SearchAttributeKey[Any]) -> str:
    """Spell a type as the Temporal CLI takes it: `KEYWORD_LIST` is `KeywordList`."""
    return key.indexed_value_type.name.title().replace("_", "")
