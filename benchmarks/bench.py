"""What every benchmark measures with: real servers of its own, and the state of the machine."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from pymongo import AsyncMongoClient
from temporalio.client import Client
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from benchmarks.figures import Baseline, median, percentile
from benchmarks.ours import our_side
from benchmarks.reference import Reference
from benchmarks.side import Side
from cli.binaries import find_mongod, find_temporal
from cli.servers import MongoServer, TemporalServer, free_port
from client import connect
from settings import Settings
from workflows.names import SEARCH_ATTRIBUTES

LARGEST_HISTORY_BYTES = 1024**3
"""Temporal ends a run at 50 MB of history. Each model request carries the whole history of the
run, so 200 steps of 5 KB need twice that: the limit is raised, and nothing else is."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where benchmarks run.

    Attributes:
        nothing: a side that is good for workflows that do nothing.
        reference: `None` when it is left out.
        is_quick: whether figures may be rough: then everything is measured less often.
        soak_minutes: how long a load goes on.
    """

    client: Client
    mongodb_uri: str
    mongodb: AsyncMongoClient[dict[str, Any]]
    nothing: Side
    reference: Reference | None
    is_quick: bool
    soak_minutes: float

    async def baseline(self) -> Baseline:
        """What everything here is made of: a round trip to MongoDB, and a workflow."""
        pings: list[float] = []
        for _ in range(50):
            start = perf_counter()
            await self.mongodb.admin.command("ping")
            pings.append(1000 * (perf_counter() - start))
        workflows = [1000 * await self.nothing.seconds_of_nothing() for _ in range(30)]
        return Baseline(
            load=os.getloadavg()[0],
            ping_median=median(pings),
            ping_p95=percentile(pings, 0.95),
            workflow_median=median(workflows),
            workflow_p95=percentile(workflows, 0.95),
        )


@asynccontextmanager
async def open_bench(
    home: Path, reference_python: Path | None, *, is_quick: bool, soak_minutes: float
) -> AsyncGenerator[Bench]:
    """Servers with their data in `home`, stopped at the end.

    Args:
        home: a directory.
        reference_python: the interpreter of the reference's environment; `None` leaves it out.
        is_quick: see `Bench`.
        soak_minutes: likewise.
    """
    # Below errors the SDK only says that the long run's model requests are large, again and again.
    errors = LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR"))
    Runtime.set_default(
        Runtime(telemetry=TelemetryConfig(logging=errors)), error_if_already_set=False
    )
    async with _servers(home) as (temporal, mongodb):
        client = await connect(Settings(temporal_address=temporal.address))
        reference = None
        if reference_python is not None:
            reference = Reference(
                client=client,
                address=temporal.address,
                mongodb_uri=mongodb.uri,
                python=reference_python,
                log_dir=home / "logs",
            )
        try:
            async with (
                AsyncMongoClient[dict[str, Any]](mongodb.uri) as driver,
                our_side(client, mongodb.uri, []) as nothing,
            ):
                yield Bench(
                    client=client,
                    mongodb_uri=mongodb.uri,
                    mongodb=driver,
                    nothing=nothing,
                    reference=reference,
                    is_quick=is_quick,
                    soak_minutes=soak_minutes,
                )
        finally:
            if reference is not None:
                await reference.stop()


@asynccontextmanager
async def _servers(home: Path) -> AsyncGenerator[tuple[TemporalServer, MongoServer]]:
    temporal = TemporalServer(
        find_temporal(), home, port=free_port(), search_attributes=SEARCH_ATTRIBUTES
    )
    limit = f"limit.historySize.error={LARGEST_HISTORY_BYTES}"
    temporal.command = (*temporal.command, "--dynamic-config-value", limit)
    mongodb = MongoServer(find_mongod(copy_dir=home / "bin"), home, port=free_port())
    try:
        await temporal.start()
        await mongodb.start()
        yield temporal, mongodb
    finally:
        await temporal.stop()
        await mongodb.stop()
