"""The local model as a server of `perdure dev`."""

import sys
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from agents import local_model
from cli.processes import LocalServerError, pause
from cli.servers import HOST, LocalServer, free_port


class LocalModelServer(LocalServer):
    """`agents.local_model` in a process of its own.

    Raises:
        LocalServerError: the extra is not installed.
    """

    way_out = "start again, which takes another"

    def __init__(self, data_dir: Path) -> None:
        try:
            local_model.model_path()
        except local_model.LocalModelUnavailableError as error:
            raise LocalServerError(str(error)) from error
        port = free_port()
        super().__init__(
            "The local model",
            [sys.executable, "-m", "agents.local_model", "--port", str(port)],
            log_path=data_dir / "logs" / "local-model.log",
            ports=(port,),
        )

    @property
    def environment(self) -> dict[str, str]:
        """What a worker is told so that the bundled assistant talks to this model."""
        return local_model.environment(f"http://{HOST}:{self.port}/v1")

    async def _become_ready(self) -> None:
        while not self._is_healthy():
            await pause()

    def _is_healthy(self) -> bool:
        connection = HTTPConnection(HOST, self.port, timeout=1)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == HTTPStatus.OK  # 503 while it loads
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()
