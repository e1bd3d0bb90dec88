"""The text that Prometheus reads, by its own parser; and that every metric has its name there."""

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client.parser import text_string_to_metric_families

import telemetry_names as names
from telemetry.prometheus import PrometheusReader
from telemetry.providers import _views


def test_counters_gauges_and_histograms_read_as_they_were_recorded() -> None:
    reader = PrometheusReader()
    provider = MeterProvider(metric_readers=[reader], views=_views(), shutdown_on_exit=False)
    meter = provider.get_meter("test")
    meter.create_counter("a.count", unit="By").add(3, {"some.label": 'a "quoted" value'})
    meter.create_gauge("a.gauge").set(1.5)
    spans = meter.create_histogram("a.time", unit="s")
    for value in (0.002, 0.2, 1000):
        spans.record(value, {"kind": "x"})
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reader.exposition().decode())
        for sample in family.samples
    }
    assert samples["a_count_bytes_total", (("some_label", 'a "quoted" value'),)] == 3
    assert samples["a_gauge", ()] == 1.5
    assert samples["a_time_seconds_count", (("kind", "x"),)] == 3
    assert samples["a_time_seconds_sum", (("kind", "x"),)] == pytest.approx(1000.202)
    assert samples["a_time_seconds_bucket", (("kind", "x"), ("le", "0.25"))] == 2
    assert samples["a_time_seconds_bucket", (("kind", "x"), ("le", "+Inf"))] == 3
    assert reader.values("a.gauge") == [({}, 1.5)]


@pytest.mark.parametrize(
    ("name", "kind", "unit", "expected"),
    [
        ("perdure.boundary.duration", "histogram", "s", "perdure_boundary_duration_seconds"),
        ("temporal_local_activity_total", "counter", "", "temporal_local_activity_total"),
        ("perdure.payload.saved", "counter", "By", "perdure_payload_saved_bytes_total"),
        ("perdure.commit.operations", "histogram", "{operation}", "perdure_commit_operations"),
    ],
)
def test_names(name: str, kind: names.Kind, unit: str, expected: str) -> None:
    assert names.prometheus_name(name, kind=kind, unit=unit) == expected


def test_no_two_metrics_share_a_name() -> None:
    found = [metric.prometheus_name for metric in names.ALL]
    assert len(found) == len(set(found))
    assert all(metric.help for metric in names.ALL)
    assert all(bool(metric.buckets) == (metric.kind == "histogram") for metric in names.ALL)
