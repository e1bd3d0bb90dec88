"""A blob of a gigabyte, streamed into media stores and out of them: the memory that it takes.

Run as a program it is one store's process, so that its memory is its own.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any
from uuid import uuid4

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from cli.processes import LocalServerError
from stores.media.disk import DiskMediaStore
from stores.media.protocols import StreamingMediaStore
from stores.media.s3 import S3MediaStore
from stores.mongo.media import MongoMediaStore
from tests.helpers.s3_server import S3Server, s3_server

PIECE_BYTES = 1024 * 1024
PIECES = 1024
QUICK_PIECES = 64

BUDGET_MB = 100.0
"""A tenth of the blob: four parts of an upload to S3 are 34 MB."""


async def measure_media(bench: Bench) -> Sequence[Figure]:
    """The blob through each store that streams, S3 being a server on this machine."""
    pieces = QUICK_PIECES if bench.is_quick else PIECES
    database = f"media_{uuid4().hex}"
    figures: list[Figure] = []
    with TemporaryDirectory(prefix="perdure-media-") as home, s3_server(Path(home) / "s3") as s3:
        places: dict[str, dict[str, Any]] = {
            "MongoMediaStore": {"db_url": bench.mongodb_uri, "database": database},
            "DiskMediaStore": {"directory": f"{home}/disk"},
            "S3MediaStore": s3.options,
        }
        try:
            for name, options in places.items():
                found = await _streamed(name, options, pieces)
                figures.append(_figure(name, found, pieces))
            figures.append(_parts(s3, pieces))
        finally:
            await bench.mongodb.drop_database(database)
    return figures


async def _streamed(name: str, options: dict[str, Any], pieces: int) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.media", name, json.dumps(options), str(pieces)),
        cwd=Path(__file__).parents[1],
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    if process.returncode != 0:
        message = f"streaming through {name} ended with exit status {process.returncode}"
        raise LocalServerError(message)
    found: dict[str, float] = json.loads(out)
    return found


def _figure(name: str, found: dict[str, float], pieces: int) -> Figure:
    return Figure(
        name=f"memory that {pieces} MiB through {name} take, at their peak",
        unit="MB",
        measured=found["grown_mb"],
        budget=BUDGET_MB,
        detail=f"put in {found['put']:.1f} s, got in {found['got']:.1f} s, "
        f"{found['processor']:.1f} s of processor time",
    )


def _parts(server: S3Server, pieces: int) -> Figure:
    return Figure(
        name=f"parts in which {pieces} MiB went to S3",
        unit="",
        measured=server.parts_received(),
        detail="a server of this machine, `rclone serve s3`",
    )


def _opened(name: str, options: dict[str, Any]) -> StreamingMediaStore:
    kinds = {each.__name__: each for each in (MongoMediaStore, DiskMediaStore, S3MediaStore)}
    return kinds[name](**options)


async def _blob(pieces: int) -> AsyncIterator[bytes]:
    for _ in range(pieces):
        yield os.urandom(PIECE_BYTES)


async def _stream(name: str, options: dict[str, Any], pieces: int) -> dict[str, float]:
    store = _opened(name, options)
    await store.put(b"small")  # what a first call loads is no part of it
    before = _memory_mb("VmRSS")
    start = perf_counter()
    uri = await store.put_stream(_blob(pieces))
    put = perf_counter() - start
    size_bytes = 0
    async for piece in store.get_stream(uri):
        size_bytes += len(piece)
    if size_bytes != pieces * PIECE_BYTES:
        message = f"{uri} came back with {size_bytes} bytes"
        raise ValueError(message)
    times = os.times()
    return {
        "grown_mb": _memory_mb("VmHWM") - before,
        "put": put,
        "got": perf_counter() - start - put,
        "processor": times.user + times.system,
    }


def _memory_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (each for each in lines if each.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    kind, given, count = sys.argv[1:]
    print(json.dumps(asyncio.run(_stream(kind, json.loads(given), int(count)))))
    sys.stdout.flush()
    os._exit(0)
