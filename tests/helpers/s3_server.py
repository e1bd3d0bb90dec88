"""A real S3-compatible server: `rclone serve s3` over a directory."""

import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import SO_REUSEADDR, SOL_SOCKET, create_connection, socket
from typing import Any

BUCKET = "bucket"
KEY = "perdure-tests"
SECRET = "perdure-tests-secret"  # noqa: S105 - of a server that lives for a test
REGION = "us-east-1"

STARTS_WITHIN_SECONDS = 20.0


@dataclass(kw_only=True)
class S3Server:
    """The process, which may be killed, and what a client needs."""

    directory: Path
    log_path: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `S3MediaStore`."""
        return {
            "bucket": BUCKET,
            "endpoint": self.endpoint,
            "region": REGION,
            "access_key_id": KEY,
            "secret_access_key": SECRET,
        }

    def parts_received(self) -> int:
        """Of uploads in parts, so far."""
        return self.log_path.read_text().count(": put multipart upload ")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def s3_server(directory: Path, port: int = 0) -> Generator[S3Server]:
    """A server with one bucket, which is the directory of that name; on a free port by default."""
    (directory / BUCKET).mkdir(parents=True, exist_ok=True)
    with socket() as free:
        free.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))
        port = free.getsockname()[1]
    rclone = Path(sys.executable).parent / "rclone"
    options = ["-vv", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
    log_path = directory.with_name(f"{directory.name}.log")
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [rclone, "serve", "s3", directory, *options], stdout=log, stderr=log
        )
    server = S3Server(directory=directory, log_path=log_path, port=port, process=process)
    try:
        _await_port(server)
        yield server
    finally:
        server.kill()


def _await_port(server: S3Server) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_SECONDS
    while True:
        try:
            create_connection(("127.0.0.1", server.port), timeout=1).close()
        except OSError:
            if server.process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
