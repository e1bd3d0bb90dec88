"""Where points are performed: one Temporal for all, and lanes with a MongoDB of their own each."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic

from temporalio.client import Client

from cli.binaries import find_mongod, find_temporal
from cli.servers import MongoServer, TemporalServer, free_port
from client import connect
from settings import Settings
from stores.errors import StoreUnavailableError
from stores.opening import open_step_store
from stores.protocols import StepStore
from workflows.names import SEARCH_ATTRIBUTES

LOOK = timedelta(milliseconds=20)
"""Between two looks for something that another process does."""


class TooLateError(Exception):
    """Something did not come in time; the message says what."""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One point after the other is performed here; what it does to MongoDB disturbs no other."""

    directory: Path
    client: Client
    temporal_address: str
    mongodb: MongoServer
    store: StepStore

    def settings(self, task_queue: str, **values: object) -> Settings:
        """Of workers that poll that queue."""
        given = {
            "temporal_address": self.temporal_address,
            "mongodb_uri": self.mongodb.uri,
            "mongodb_database": "sweep",
            "task_queue": task_queue,
            "agents": "cli.sweep.script:AGENTS",
            "graceful_shutdown_seconds": 5,
            **values,
        }
        return Settings.model_validate(given)


@asynccontextmanager
async def open_lanes(home: Path, count: int) -> AsyncGenerator[list[Lane]]:
    """So many lanes, with their data in `home`; all is stopped at the end."""
    async with AsyncExitStack() as running:
        temporal = TemporalServer(
            find_temporal(), home, port=free_port(), search_attributes=SEARCH_ATTRIBUTES
        )
        running.push_async_callback(temporal.stop)
        await temporal.start()
        client = await connect(Settings(temporal_address=temporal.address))
        mongod = find_mongod(copy_dir=home / "bin")
        lanes: list[Lane] = []
        for number in range(count):
            directory = home / f"lane-{number}"
            server = MongoServer(mongod, directory, port=free_port())
            running.push_async_callback(server.stop)
            await server.start()
            store = open_step_store("mongodb", db_url=server.uri, database="sweep")
            running.push_async_callback(store.aclose)
            await store.initialise()
            lanes.append(
                Lane(
                    directory=directory,
                    client=client,
                    temporal_address=temporal.address,
                    mongodb=server,
                    store=store,
                )
            )
        yield lanes


async def seen(
    look: Callable[[], Awaitable[bool]] | Callable[[], bool], *, within: timedelta, what: str
) -> None:
    """Return once it is so. MongoDB may be away meanwhile.

    Raises:
        TooLateError: it was not so in time.
    """
    deadline = monotonic() + within.total_seconds()
    while True:
        try:
            found = look()
            if found if isinstance(found, bool) else await found:
                return
        except StoreUnavailableError:
            pass
        if monotonic() > deadline:
            message = f"{what}: not within {within.total_seconds():.0f} s"
            raise TooLateError(message)
        await asyncio.sleep(LOOK.total_seconds())  # noqa: TID251 - nothing to wait on
