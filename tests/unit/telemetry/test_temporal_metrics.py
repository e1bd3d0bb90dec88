"""What workflow code counts reaches the meter under its own name and attributes."""

import asyncio
from collections import Counter
from datetime import timedelta

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from temporalio.contrib.opentelemetry import MetricsExporter
from temporalio.runtime import Runtime, TelemetryConfig

from telemetry.temporal_metrics import LastingMetricBuffer


def totals(reader: InMemoryMetricReader) -> Counter[tuple[str, str]]:
    """What was counted, by name and by the names of attributes."""
    found: Counter[tuple[str, str]] = Counter()
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    labels = ",".join(set(point.attributes or {}) - {"service_name"})
                    found[metric.name, labels] += getattr(
                        point, "value", getattr(point, "count", 0)
                    )
    return found


async def test_metrics_that_come_and_go_are_not_taken_for_each_other() -> None:
    buffer = LastingMetricBuffer(10_000)
    runtime = Runtime(telemetry=TelemetryConfig(metrics=buffer))
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    meter = runtime.metric_meter
    async with MetricsExporter(buffer, provider, poll_interval=timedelta(milliseconds=1)):
        for number in range(100):
            parked = meter.with_additional_attributes({"queue": f"q-{number % 3}"})
            parked.create_counter("parked").add(1)
            await asyncio.sleep(0.002)
            meter.create_histogram("headroom").record(7)
            await asyncio.sleep(0.002)
    assert totals(reader) == {("parked", "queue"): 100, ("headroom", ""): 100}
