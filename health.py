"""A worker's health: whether it lives, whether it is ready, and the port that says so.

The port is served by a thread of its own, so that it answers, and says so, when the event loop does
not.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Self

from stores.errors import StoreError
from telemetry.prometheus import CONTENT_TYPE, PrometheusReader

logger = logging.getLogger("perdure.health")

LOOP_ANSWERS_WITHIN_SECONDS = 5.0
"""A loop that is busy for longer misses heartbeats and workflow tasks, too."""

POLLERS_GONE_SECONDS = 60.0
"""How long pollers may be away while slots are free: they are between two polls for moments, and
Temporal's server may be away for a while, of which a restart of the worker cures nothing."""

CHECK_EVERY_SECONDS = 5.0
"""A readiness answer is given again for so long, however many ask."""

Gauge = Iterable[tuple[dict[str, str], float]]
"""Points of a gauge: attributes and value."""


class HealthPortError(Exception):
    """The health port cannot be had."""


@dataclass(frozen=True, kw_only=True)
class PollerKind:
    """Pollers, and the slots that what they bring needs; both by Temporal's names."""

    poller_type: str
    worker_type: str


WORKFLOW_POLLERS = PollerKind(poller_type="workflow_task", worker_type="WorkflowWorker")
ACTIVITY_POLLERS = PollerKind(poller_type="activity_task", worker_type="ActivityWorker")


def missing_pollers(
    kinds: Iterable[PollerKind], pollers: Gauge, slots_free: Gauge, slots_used: Gauge
) -> list[str]:
    """Which kinds nobody polls for although there is room; a full worker rightly polls for none."""
    polled = _by(pollers, "poller_type")
    free = _by(slots_free, "worker_type")
    used = _by(slots_used, "worker_type")
    return [
        kind.poller_type
        for kind in kinds
        if polled.get(kind.poller_type, 0) == 0
        # The resource tuner tells no free slots: then one that uses none has room.
        and (free.get(kind.worker_type, 0) > 0 or used.get(kind.worker_type, 0) == 0)
    ]


def _by(points: Gauge, attribute: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for attributes, value in points:
        key = attributes.get(attribute, "")
        found[key] = found.get(key, 0) + value
    return found


class WorkerHealth:
    """What the worker's parts say of it.

    Args:
        kinds: pollers that this worker has, by its role.
        reader: where Temporal's gauges are.
        check_store: raises `StoreError` when MongoDB has no primary or lacks what is needed.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        *,
        kinds: Iterable[PollerKind],
        reader: PrometheusReader,
        check_store: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._kinds = tuple(kinds)
        self._reader = reader
        self._check_store = check_store
        self._clock = clock
        self._gone_since: dict[str, float] = {}
        self._newest: tuple[float, list[str]] | None = None
        self.is_draining = False
        self.answers: dict[str, bool] = {}
        """Whether the newest answer of each path was a good one."""

    def missing_pollers(self) -> list[str]:
        """Kinds of tasks that are not polled for although there is room."""
        read = self._reader.values
        return missing_pollers(
            self._kinds,
            read("temporal_num_pollers"),
            read("temporal_worker_task_slots_available"),
            read("temporal_worker_task_slots_used"),
        )

    def liveness_problems(self) -> list[str]:
        """Why the process should be restarted. Nothing while it drains: it ends by itself."""
        if self.is_draining:
            return []
        now, missing = self._clock(), self.missing_pollers()
        self._gone_since = {kind: self._gone_since.get(kind, now) for kind in missing}
        return [
            f"no {kind} poller for {now - since:.0f} s although slots are free"
            for kind, since in self._gone_since.items()
            if now - since >= POLLERS_GONE_SECONDS
        ]

    async def readiness_problems(self) -> list[str]:
        """Why the worker takes no work, or should get none."""
        if self.is_draining:
            return ["draining: it takes no new work"]
        now = self._clock()
        if self._newest is None or now - self._newest[0] >= CHECK_EVERY_SECONDS:
            self._newest = (now, await self._store_problems())
        pollers = [f"no {kind} poller" for kind in self.missing_pollers()]
        return [*self._newest[1], *pollers]

    async def _store_problems(self) -> list[str]:
        try:
            await self._check_store()
        except StoreError as error:
            return [str(error)]
        return []


class HealthServer:
    """`/healthz`, `/readyz` and `/metrics` on one port. As a context manager it is open.

    Args:
        health: of the worker.
        reader: what `/metrics` shows.
        loop: the worker's; readiness is asked in it.

    Raises:
        HealthPortError: the port is taken, or the address is none of this machine.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        health: WorkerHealth,
        reader: PrometheusReader,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._health = health
        self._reader = reader
        self._loop = loop
        try:
            self._server = _Server(address, _handler(self))
        except OSError as error:
            message = (
                f"the health port {address[0]}:{address[1]} cannot be had: {error.strerror}. Set "
                "PERDURE_HEALTH_PORT to a free one (further processes take the ones behind it), "
                "or leave it out"
            )
            raise HealthPortError(message) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="health", daemon=True
        )

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """Status, content type and body for a path."""
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE, self._reader.exposition()
        problems = self._problems(path)
        if problems is None:
            return HTTPStatus.NOT_FOUND, _PLAIN, b"there are /healthz, /readyz and /metrics\n"
        self._health.answers[path] = not problems
        status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
        return status, _PLAIN, ("\n".join(problems or ["ok"]) + "\n").encode()

    def _problems(self, path: str) -> list[str] | None:
        if path == "/healthz":
            return self._ask(_as_coroutine(self._health.liveness_problems))
        if path == "/readyz":
            return self._ask(self._health.readiness_problems)
        return None

    def _ask(self, question: Callable[[], Awaitable[list[str]]]) -> list[str]:
        """The answer of the worker's own loop: one that gives none is no healthy one."""

        async def asked() -> list[str]:
            return await question()

        future = asyncio.run_coroutine_threadsafe(asked(), self._loop)
        try:
            return future.result(LOOP_ANSWERS_WITHIN_SECONDS)
        except FutureTimeoutError:
            future.cancel()
            return [f"no answer from the event loop within {LOOP_ANSWERS_WITHIN_SECONDS:.0f} s"]


_PLAIN = "text/plain; charset=utf-8"


def _as_coroutine(call: Callable[[], list[str]]) -> Callable[[], Awaitable[list[str]]]:
    async def called() -> list[str]:
        return call()

    return called


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_port = False


def _handler(server: HealthServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content_type, body = server.answer(self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its signature
            """Nothing: a probe comes every few seconds."""

    return Handler
