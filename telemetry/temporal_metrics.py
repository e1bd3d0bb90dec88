"""Temporal's metrics, buffered so that each update reaches the instrument that it is meant for."""

from collections.abc import Sequence
from dataclasses import dataclass

from temporalio.common import MetricAttributes
from temporalio.runtime import (
    BufferedMetric,
    BufferedMetricUpdate,
    MetricBuffer,
    MetricBufferDurationFormat,
)

AttributeSet = frozenset[tuple[str, str | int | float | bool]]


@dataclass(frozen=True, slots=True)
class _Update:
    metric: BufferedMetric
    value: float
    attributes: MetricAttributes


class LastingMetricBuffer(MetricBuffer):
    """Has one object for each metric and each set of attributes, for as long as it lives.

    `temporalio.contrib.opentelemetry.MetricsExporter` (1.35.0) tells both by `id()` and keeps no
    reference. A metric that workflow code makes is a new object each time, gone after the drain,
    and the next one has its address: counts go to another instrument, under other attributes. When
    the exporter knows metrics by name, this can go.
    """

    def __init__(self, buffer_size: int) -> None:
        """Create one for so many updates between two drains; durations are in seconds."""
        super().__init__(buffer_size, MetricBufferDurationFormat.SECONDS)
        self._metrics: dict[tuple[object, ...], BufferedMetric] = {}
        self._attributes: dict[AttributeSet, MetricAttributes] = {}

    def retrieve_updates(self) -> Sequence[BufferedMetricUpdate]:
        """See `MetricBuffer.retrieve_updates`."""
        return [self._lasting(each) for each in super().retrieve_updates()]

    def _lasting(self, update: BufferedMetricUpdate) -> _Update:
        metric, attributes = update.metric, update.attributes
        return _Update(
            self._metrics.setdefault((metric.name, metric.kind, metric.unit), metric),
            update.value,
            self._attributes.setdefault(frozenset(attributes.items()), attributes),
        )
