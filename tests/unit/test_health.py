"""Health by what Temporal's gauges say; the gauges are fed through the meter that serves them."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from cli.servers import free_port
from health import (
    ACTIVITY_POLLERS,
    POLLERS_GONE_SECONDS,
    WORKFLOW_POLLERS,
    HealthPortError,
    HealthServer,
    WorkerHealth,
)
from stores.errors import StoreUnavailableError
from telemetry.prometheus import PrometheusReader

Feed = Callable[[int, int, int], None]
"""Sets pollers, free slots and used slots of both kinds."""


@pytest.fixture
def reader() -> PrometheusReader:
    return PrometheusReader()


@pytest.fixture
def feed(reader: PrometheusReader) -> Feed:
    meter = MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")
    pollers = meter.create_gauge("temporal_num_pollers")
    free = meter.create_gauge("temporal_worker_task_slots_available")
    used = meter.create_gauge("temporal_worker_task_slots_used")

    def set_all(pollers_count: int, free_count: int, used_count: int) -> None:
        for kind in (WORKFLOW_POLLERS, ACTIVITY_POLLERS):
            pollers.set(pollers_count, {"poller_type": kind.poller_type, "task_queue": "q"})
            free.set(free_count, {"worker_type": kind.worker_type})
            used.set(used_count, {"worker_type": kind.worker_type})

    return set_all


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def _well() -> None:
    pass


async def _away() -> None:
    message = "no primary"
    raise StoreUnavailableError(message)


KINDS = (WORKFLOW_POLLERS, ACTIVITY_POLLERS)


async def test_liveness_fails_when_pollers_are_gone_for_long_while_slots_are_free(
    reader: PrometheusReader, feed: Feed
) -> None:
    clock = Clock()
    health = WorkerHealth(kinds=KINDS, reader=reader, check_store=_well, clock=clock)
    feed(5, 100, 0)
    assert health.liveness_problems() == []
    feed(0, 100, 0)
    assert health.liveness_problems() == []  # it may be between two polls
    clock.now = POLLERS_GONE_SECONDS
    problems = health.liveness_problems()
    assert [each.split(" for ")[0] for each in problems] == [
        "no workflow_task poller",
        "no activity_task poller",
    ]
    feed(5, 100, 0)
    assert health.liveness_problems() == []
    feed(0, 100, 0)
    assert health.liveness_problems() == []  # it begins to count again


async def test_a_worker_whose_slots_are_all_used_lives_and_is_ready(
    reader: PrometheusReader, feed: Feed
) -> None:
    clock = Clock()
    health = WorkerHealth(kinds=KINDS, reader=reader, check_store=_well, clock=clock)
    feed(0, 0, 100)
    assert health.liveness_problems() == []
    clock.now = 10 * POLLERS_GONE_SECONDS
    assert health.liveness_problems() == []
    assert await health.readiness_problems() == []


async def test_a_worker_is_ready_with_a_store_and_pollers_and_not_while_it_drains(
    reader: PrometheusReader, feed: Feed
) -> None:
    health = WorkerHealth(kinds=KINDS, reader=reader, check_store=_well)
    assert await health.readiness_problems() == [  # it has not polled yet
        "no workflow_task poller",
        "no activity_task poller",
    ]
    feed(5, 100, 0)
    assert await health.readiness_problems() == []
    health.is_draining = True
    assert await health.readiness_problems() == ["draining: it takes no new work"]
    assert health.liveness_problems() == []
    without = WorkerHealth(kinds=KINDS, reader=reader, check_store=_away)
    assert await without.readiness_problems() == ["no primary"]


async def test_a_role_is_asked_for_its_own_pollers_alone(
    reader: PrometheusReader,
) -> None:
    health = WorkerHealth(kinds=(ACTIVITY_POLLERS,), reader=reader, check_store=_well)
    assert await health.readiness_problems() == ["no activity_task poller"]


async def test_the_port_answers_and_a_taken_one_is_named(
    reader: PrometheusReader, feed: Feed
) -> None:
    feed(5, 100, 3)
    health = WorkerHealth(kinds=KINDS, reader=reader, check_store=_well)
    loop = asyncio.get_running_loop()
    address = ("127.0.0.1", free_port())
    with HealthServer(address, health=health, reader=reader, loop=loop):
        with pytest.raises(HealthPortError, match=f"health port 127.0.0.1:{address[1]} cannot be"):
            HealthServer(address, health=health, reader=reader, loop=loop)
        assert await _get(address, "/healthz") == (200, "ok\n")
        assert await _get(address, "/readyz") == (200, "ok\n")
        assert (await _get(address, "/nothing"))[0] == 404
        status, text = await _get(address, "/metrics")
        assert status == 200
        assert 'temporal_worker_task_slots_used{worker_type="ActivityWorker"} 3.0' in text
        health.is_draining = True
        assert await _get(address, "/readyz") == (503, "draining: it takes no new work\n")
        assert await _get(address, "/healthz") == (200, "ok\n")


async def _get(address: tuple[str, int], path: str) -> tuple[int, str]:
    url = f"http://{address[0]}:{address[1]}{path}"

    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(get)
