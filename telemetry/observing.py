"""Metrics that are read rather than counted: of the store, of stored payloads, of health."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from temporalio.converter import DataConverter

import telemetry_names as names
from payload_driver import PayloadDriver
from stores.errors import StoreError
from stores.mongo.standing import Backlog, Standing
from stores.payload_store import PayloadCounts
from telemetry.instruments import METER, counter

logger = logging.getLogger("perdure.telemetry")

Read = Callable[[], float | None]
"""The value now; `None` when there is none."""


def gauge(meter: Meter, metric: names.Metric, read: Read) -> None:
    """Have a gauge read whenever metrics are."""
    meter.create_observable_gauge(
        metric.name, [_observing(read)], unit=metric.unit, description=metric.help
    )


def _observing(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        value = read()
        return [] if value is None else [Observation(float(value))]

    return observe


def observe_payloads(converter: DataConverter) -> None:
    """Export what the converter's driver has stored."""
    meter = metrics.get_meter(METER)
    storage = converter.external_storage
    for driver in storage.drivers if storage else ():
        if isinstance(driver, PayloadDriver):
            _observe_counts(meter, driver.payloads.counts)


def _observe_counts(meter: Meter, counts: PayloadCounts) -> None:
    reads: tuple[tuple[names.Metric, Read], ...] = (
        (names.PAYLOAD_GIVEN, lambda: counts.bytes_given),
        (names.PAYLOAD_WRITTEN, lambda: counts.bytes_written),
        (names.PAYLOAD_SAVED, lambda: max(counts.bytes_given - counts.bytes_written, 0)),
    )
    for metric, read in reads:
        meter.create_observable_counter(
            metric.name, [_observing(read)], unit=metric.unit, description=metric.help
        )


def observe_health(answers: Mapping[str, bool]) -> None:
    """Export what `/readyz` and `/healthz` answered last; nothing before they were asked."""
    meter = metrics.get_meter(METER)
    for metric, path in ((names.WORKER_READY, "/readyz"), (names.WORKER_LIVE, "/healthz")):
        gauge(meter, metric, partial(answers.get, path))


class StoreObserver:
    """Reads how the store stands, now and then, so that a scrape costs the store nothing.

    Every worker that does so reports the same figures: a query takes the largest of them.

    Args:
        read: the store's `read_standing`.
        every: between two reads.
        now: the clock, aware.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[Standing]],
        *,
        every: timedelta,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),  # noqa: TID251 - outside workflows
    ) -> None:
        self._read = read
        self._every = every
        self._now = now
        self._standing: Standing | None = None
        meter = metrics.get_meter(METER)
        self._failures = counter(meter, names.STORE_READ_FAILURES)
        self._failures.add(0)
        gauge(meter, names.EFFECTS_UNRESOLVED, self._count(lambda each: each.unresolved))
        gauge(meter, names.EFFECTS_UNRESOLVED_AGE, self._age(lambda each: each.unresolved))
        gauge(meter, names.EFFECTS_PARKED, self._count(lambda each: each.parked))
        gauge(meter, names.EFFECTS_PARKED_AGE, self._age(lambda each: each.parked))
        gauge(meter, names.SEARCH_LAG, self._count(lambda each: each.unindexed))
        gauge(meter, names.SEARCH_LAG_AGE, self._age(lambda each: each.unindexed))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Read now and then meanwhile."""
        task = asyncio.create_task(self._go_on())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _go_on(self) -> None:
        while True:  # ends: it is cancelled
            try:
                self._standing = await self._read()
            except StoreError as error:
                self._failures.add(1)
                logger.debug("metrics of the store were not read: %s", error)
            await asyncio.sleep(self._every.total_seconds())  # noqa: TID251 - no workflow

    def _count(self, of: Callable[[Standing], Backlog]) -> Read:
        return lambda: None if self._standing is None else of(self._standing).count

    def _age(self, of: Callable[[Standing], Backlog]) -> Read:
        def read() -> float | None:
            if self._standing is None:
                return None
            oldest = of(self._standing).oldest_at
            return 0.0 if oldest is None else (self._now() - oldest).total_seconds()

        return read
