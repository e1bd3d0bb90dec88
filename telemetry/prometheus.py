"""Metrics in Prometheus's text format, read when somebody asks.

OpenTelemetry's own exporter for Prometheus is a pre-release; what is needed of it is a reader that
is asked, and the names of `telemetry_names.prometheus_name`.
"""

import re
import threading
from collections.abc import Iterable, Iterator

from opentelemetry.sdk.metrics.export import (
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricReader,
    MetricsData,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as ReadMetric
from opentelemetry.util.types import Attributes
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from telemetry_names import Kind, prometheus_name

CONTENT_TYPE = CONTENT_TYPE_LATEST


class PrometheusReader(MetricReader):
    """The metrics of this process as they are now."""

    def __init__(self) -> None:
        super().__init__()
        self._asking = threading.Lock()
        self._newest: list[MetricsData] = []
        self._registry = CollectorRegistry()
        self._registry.register(_Families(self))

    def exposition(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def metrics(self) -> list[ReadMetric]:
        """All metrics, as OpenTelemetry's SDK reads them."""
        with self._asking:
            self._newest = []
            self.collect()  # which calls `_receive_metrics`, unless nothing was measured
            newest = self._newest
        return [
            metric
            for each in newest
            for resource in each.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]

    def values(self, name: str) -> list[tuple[dict[str, str], float]]:
        """The points of a counter or gauge: attributes and value."""
        return [
            (_labels(point.attributes), float(point.value))
            for metric in self.metrics()
            if metric.name == name
            for point in metric.data.data_points
            if isinstance(point, NumberDataPoint)
        ]

    def _receive_metrics(
        self,
        metrics_data: MetricsData,
        timeout_millis: float = 10_000,  # noqa: ARG002 - the SDK's signature
        **_: object,
    ) -> None:
        self._newest = [metrics_data]

    def shutdown(self, timeout_millis: float = 30_000, **_: object) -> None:
        """See `MetricReader.shutdown`: there is nothing to send."""


class _Families(Collector):
    def __init__(self, reader: PrometheusReader) -> None:
        self._reader = reader

    def collect(self) -> Iterator[Family]:
        """What `generate_latest` asks for."""
        families: dict[str, Family] = {}
        for metric in self._reader.metrics():
            kind = _kind(metric)
            name = prometheus_name(metric.name, kind=kind, unit=metric.unit or "")
            # The library adds `_total` to a counter's family itself.
            name = name.removesuffix("_total") if kind == "counter" else name
            family = families.get(name)
            if family is None:
                family = families[name] = Family(name, metric.description or metric.name, kind)
            for point in metric.data.data_points:
                _add(family, name, point, kind)
        yield from families.values()

    def describe(self) -> Iterable[Family]:
        """Nothing: names are not known before they are read."""
        return ()


def _kind(metric: ReadMetric) -> Kind:
    match metric.data:
        case Sum(is_monotonic=True):
            return "counter"
        case Sum() | Gauge():
            return "gauge"
        case Histogram():
            return "histogram"
        case _:  # only with a view of one's own
            message = f"metric {metric.name!r} has points of type {type(metric.data).__name__}"
            raise TypeError(message)


def _add(family: Family, name: str, point: object, kind: Kind) -> None:
    if isinstance(point, NumberDataPoint):
        suffix = "_total" if kind == "counter" else ""
        family.add_sample(f"{name}{suffix}", _labels(point.attributes), point.value)
    elif isinstance(point, HistogramDataPoint):
        labels = _labels(point.attributes)
        count = 0
        bounds = [*map(_bound, point.explicit_bounds), "+Inf"]
        for bound, added in zip(bounds, point.bucket_counts, strict=True):
            count += added
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{name}_count", labels, point.count)
        family.add_sample(f"{name}_sum", labels, point.sum)


def _bound(value: float) -> str:
    return repr(float(value))


def _labels(attributes: Attributes) -> dict[str, str]:
    return {
        re.sub(r"[^a-zA-Z0-9_]", "_", key): str(value) for key, value in (attributes or {}).items()
    }
