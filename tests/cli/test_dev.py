"""`perdure dev` as a person runs it: a process of its own, in a terminal of its own."""

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.data_directory import running_servers
from cli.servers import HOST, free_port
from tests.helpers.eventually import eventually
from tests.helpers.processes import has_ended, order_of_ends

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

STARTED_WITHIN = timedelta(seconds=45)
ENDED_WITHIN = timedelta(seconds=30)

PARTS = ("worker.py", "cli.main\0api", "start-dev", "mongod")
"""What tells the children's command lines apart, in the order in which they are stopped."""


@dataclass
class Dev:
    """A `perdure dev` that has said where it is."""

    process: Process
    found: dict[str, Any]
    parts: dict[int, str]

    async def end(self) -> tuple[int, str]:
        """Wait for its end; return exit code and standard error."""
        async with asyncio.timeout(ENDED_WITHIN.total_seconds()):
            _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


async def _run(data_dir: Path, *arguments: str, **variables: str) -> Process:
    """Run it on free ports, as the leader of a session, as a shell's terminal is."""
    ports = [] if "--mongodb-port" in arguments else ["--mongodb-port", "0"]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", "dev", "--data-dir", str(data_dir)),
        *("--temporal-port", "0", "--api-port", "0", *ports, *arguments),
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, **variables},
        start_new_session=True,
    )


@asynccontextmanager
async def _dev(data_dir: Path, *arguments: str, **variables: str) -> AsyncGenerator[Dev]:
    process = await _run(data_dir, "--json", *arguments, **variables)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(STARTED_WITHIN.total_seconds()):
            try:
                text = await process.stdout.readuntil(b"\n}\n")
            except asyncio.IncompleteReadError:
                _, errors = await process.communicate()
                pytest.fail(f"perdure dev did not start: {errors.decode()}")
        yield Dev(process, json.loads(text), await _parts(process.pid))
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def _children(pid: int) -> dict[int, str]:
    """Return the ids of its child processes with what `PARTS` they are."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    programs = {int(child): Path(f"/proc/{child}/cmdline").read_text() for child in pids}
    return {child: part for child, program in programs.items() for part in PARTS if part in program}


async def _parts(pid: int) -> dict[int, str]:
    def all_parts() -> dict[int, str] | None:
        found = _children(pid)  # a process that is just being loaded has no command line
        return found if sorted(found.values()) == sorted(PARTS) else None

    return await eventually(all_parts) or {}


async def _wait_for_worker(data_dir: Path) -> None:
    log = data_dir / "logs" / "worker.log"
    await eventually(lambda: "polls" in log.read_text(), within=STARTED_WITHIN)


async def test_ctrl_c_stops_worker_then_temporal_then_mongodb(tmp_path: Path) -> None:
    async with _dev(tmp_path) as dev:
        await _wait_for_worker(tmp_path)
        os.killpg(dev.process.pid, signal.SIGINT)  # as a terminal does: to all in the foreground
        assert await order_of_ends(dev.parts) == list(PARTS)
        exit_code, errors = await dev.end()
    assert exit_code == 0, errors
    assert "Traceback" not in errors
    assert "Stopping" in (tmp_path / "logs" / "worker.log").read_text()
    assert running_servers(tmp_path) is None


async def test_interrupting_the_start_stops_what_was_started(tmp_path: Path) -> None:
    process = await _run(tmp_path)
    parts = await eventually(lambda: _children(process.pid), within=STARTED_WITHIN)
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(ENDED_WITHIN.total_seconds()):
        await process.communicate()
    assert process.returncode == 0
    assert all(map(has_ended, parts))


async def test_nothing_is_left_when_it_is_killed(tmp_path: Path) -> None:
    async with _dev(tmp_path) as dev:
        dev.process.kill()
        assert sorted(await order_of_ends(dev.parts)) == sorted(PARTS)


async def test_a_second_start_says_that_one_runs(tmp_path: Path) -> None:
    async with _dev(tmp_path) as dev:
        assert running_servers(tmp_path)
        second = await _run(tmp_path)
        _, errors = await second.communicate()
        assert second.returncode == 1
        assert f"process {dev.process.pid}" in errors.decode()
        assert dev.found["temporal_address"] in errors.decode()
        dev.process.send_signal(signal.SIGHUP)  # the terminal is closed
        exit_code, _ = await dev.end()
        assert exit_code == 0
        assert all(map(has_ended, dev.parts))


async def test_a_worker_that_ends_by_itself_ends_all_and_shows_why(tmp_path: Path) -> None:
    async with _dev(tmp_path, PERDURE_AGENTS="nowhere.to_be_found:agent") as dev:
        exit_code, errors = await dev.end()
        assert exit_code == 1
        assert "The worker ended with exit code 1" in errors
        assert "nowhere" in errors
        assert str(tmp_path / "logs" / "worker.log") in errors
        assert all(map(has_ended, dev.parts))


async def test_a_server_that_ends_by_itself_ends_all_and_is_named(tmp_path: Path) -> None:
    async with _dev(tmp_path) as dev:
        (mongod,) = (pid for pid, part in dev.parts.items() if part == "mongod")
        os.kill(mongod, signal.SIGKILL)
        exit_code, errors = await dev.end()
        assert exit_code == 1
        assert "MongoDB ended with exit code -9" in errors
        assert all(map(has_ended, dev.parts))


async def test_a_taken_port_is_told_in_one_message(tmp_path: Path) -> None:
    with socket.create_server((HOST, free_port())) as occupant:
        port = occupant.getsockname()[1]
        process = await _run(tmp_path, "--mongodb-port", str(port))
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert f"Port {port} on {HOST} is taken, and MongoDB needs it" in errors.decode()
    assert "Traceback" not in errors.decode()
