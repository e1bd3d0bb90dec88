"""OpenTelemetry's providers for this process, and Temporal's runtime that feeds the same meters.

What is exported where is told by OpenTelemetry's standard variables: spans and metrics go out by
OTLP once `OTEL_EXPORTER_OTLP_ENDPOINT` (or its `_TRACES_`, `_METRICS_` forms) is set. The health
port serves metrics, too. Without either nothing is recorded.
"""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from opentelemetry import metrics, trace
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricReader,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from temporalio.contrib.opentelemetry import (
    MetricsExporter,
    OpenTelemetryPlugin,
    ReplaySafeMeterProvider,
    ReplaySafeTracerProvider,
    create_tracer_provider,
)
from temporalio.plugin import SimplePlugin
from temporalio.runtime import (
    Runtime,
    TelemetryConfig,
)

import telemetry_names as names
from redacting import build_redaction
from settings import Settings
from stores.redaction import NO_REDACTION
from stores.redactor import Redactor
from telemetry.content import MaskedExporter, WordlessExporter
from telemetry.prometheus import PrometheusReader
from telemetry.temporal_metrics import LastingMetricBuffer
from telemetry.workflow_spans import WorkflowSpans

logger = logging.getLogger("perdure.telemetry")

BUFFER_SIZE = 100_000
"""Updates of Temporal's metrics between two drains; a busy worker makes some thousands a second."""

DRAIN_EVERY = timedelta(seconds=1)

EXPORT_WITHIN = timedelta(seconds=3)
"""How long the end of a process waits for the last spans and metrics to be taken."""

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class TelemetryError(Exception):
    """The variables for OpenTelemetry do not fit."""


@dataclass(kw_only=True)
class Telemetry:
    """What this process records, and where it goes.

    Args:
        runtime: Temporal's, for `Client.connect`; `None` where it measures nothing.
        reader: what `/metrics` reads.
        buffer: where `runtime` puts its metrics.
        tracers: export spans; `None` where nobody takes any.
        meters: export metrics; likewise.
        plugins: of client, worker and replayer: with them a trace goes on from one to the next.
    """

    runtime: Runtime | None = None
    reader: PrometheusReader | None = None
    buffer: LastingMetricBuffer | None = None
    tracers: ReplaySafeTracerProvider | None = None
    meters: MeterProvider | None = None
    plugins: list[SimplePlugin] = field(default_factory=list[SimplePlugin])

    @property
    def is_measured(self) -> bool:
        """Whether anybody reads metrics."""
        return self.meters is not None

    @property
    def is_traced(self) -> bool:
        """Whether spans are exported."""
        return self.tracers is not None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Take over Temporal's metrics meanwhile; at the end send what is left."""
        try:
            if self.buffer is None:
                yield
                return
            async with MetricsExporter(
                self.buffer, self.meters, meter_name="temporal", poll_interval=DRAIN_EVERY
            ):
                yield
        finally:
            await asyncio.to_thread(self.end)

    def end(self) -> None:
        """Send what is left, for `EXPORT_WITHIN` at most: a collector may be away."""
        sending = threading.Thread(target=self._shut_down, daemon=True)
        sending.start()
        sending.join(EXPORT_WITHIN.total_seconds())

    def _shut_down(self) -> None:
        if self.tracers is not None:
            self.tracers.shutdown()
        if self.meters is not None:
            self.meters.shutdown(timeout_millis=EXPORT_WITHIN.total_seconds() * 1000)


def begin_telemetry(
    settings: Settings,
    *,
    service: str,
    environment: Mapping[str, str] = os.environ,
    is_scraped: bool = False,
    exports_metrics: bool = True,
) -> Telemetry:
    """Set up this process, once, before its first client is connected.

    Args:
        settings: whether content of messages goes into spans, and what is masked in it.
        service: `service.name`, where `OTEL_SERVICE_NAME` does not say another.
        environment: OpenTelemetry's variables.
        is_scraped: whether a health port serves metrics.
        exports_metrics: whether they go out by OTLP where that is asked for; a command has none.

    Raises:
        TelemetryError: another protocol than `http/protobuf` is asked for.
        StoreError: of `build_redaction`.
    """
    resource = _resource(settings, service, environment)
    telemetry = Telemetry()
    if _is_exported("TRACES", environment):
        # As far as the variables are set: a worker looks, later, whether all of them are.
        redaction = build_redaction(settings, is_strict=False) if settings.redacts else NO_REDACTION
        _trace(
            telemetry,
            resource,
            with_content=settings.telemetry_content,
            redactor=redaction.redactor,
        )
    readers: list[MetricReader] = []
    if is_scraped:
        telemetry.reader = PrometheusReader()
        readers.append(telemetry.reader)
    if exports_metrics and _is_exported("METRICS", environment):
        readers.append(PeriodicExportingMetricReader(_metric_exporter()))
    if readers:
        _measure(telemetry, resource, readers)
    if telemetry.is_traced:
        _trace_agents(with_content=settings.telemetry_content)
    return telemetry


def _resource(settings: Settings, service: str, environment: Mapping[str, str]) -> Resource:
    attributes = {"perdure.build_id": settings.build_id, "perdure.role": settings.role}
    if "OTEL_SERVICE_NAME" not in environment:
        attributes["service.name"] = service
    attributes["service.instance.id"] = f"{os.uname().nodename}-{os.getpid()}"
    return Resource.create(attributes)


def _is_exported(signal: str, environment: Mapping[str, str]) -> bool:
    """Whether the standard variables ask for the export of `TRACES` or `METRICS`."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    asked = environment.get(f"OTEL_{signal}_EXPORTER", "otlp")
    own = f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"
    if not (environment.get(_ENDPOINT) or environment.get(own)) or asked == "none":
        return False
    if asked != "otlp":
        message = f"OTEL_{signal}_EXPORTER={asked!r}: only `otlp` and `none` are there"
        raise TelemetryError(message)
    general = environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    protocol = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", general)
    if protocol != "http/protobuf":
        message = (
            f"OTLP goes out by http/protobuf alone, and {protocol!r} is asked for; set "
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf and the collector's port for it, mostly 4318"
        )
        raise TelemetryError(message)
    return True


def _trace(
    telemetry: Telemetry, resource: Resource, *, with_content: bool, redactor: Redactor | None
) -> None:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - slow
        OTLPSpanExporter,
    )

    exporter: SpanExporter = OTLPSpanExporter()
    if redactor is not None:
        exporter = MaskedExporter(exporter, redactor)
    if not with_content:
        exporter = WordlessExporter(exporter)
    provider = create_tracer_provider(resource=resource, shutdown_on_exit=False)
    spans = WorkflowSpans(BatchSpanProcessor(exporter))
    provider.add_span_processor(spans)
    trace.set_tracer_provider(provider)
    telemetry.tracers = provider
    telemetry.plugins += [OpenTelemetryPlugin(add_temporal_spans=True), spans.plugin()]


def _trace_agents(*, with_content: bool) -> None:
    """Have pydantic-ai make spans of runs, model requests and tool calls, too."""
    from pydantic_ai import Agent  # noqa: PLC0415 - slow
    from pydantic_ai.models.instrumented import InstrumentationSettings  # noqa: PLC0415 - as above

    Agent.instrument_all(
        InstrumentationSettings(include_content=with_content, include_binary_content=False)
    )


def _metric_exporter() -> MetricExporter:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415 - slow
        OTLPMetricExporter,
    )

    return OTLPMetricExporter()


def _measure(telemetry: Telemetry, resource: Resource, readers: list[MetricReader]) -> None:
    provider = MeterProvider(
        metric_readers=readers, resource=resource, views=instrument_views(), shutdown_on_exit=False
    )
    metrics.set_meter_provider(ReplaySafeMeterProvider(provider))
    buffer = LastingMetricBuffer(BUFFER_SIZE)
    telemetry.meters = provider
    telemetry.buffer = buffer
    telemetry.runtime = Runtime(telemetry=TelemetryConfig(metrics=buffer))


def instrument_views() -> list[View]:
    """Bounds of histograms: OpenTelemetry's own are for milliseconds."""
    of_seconds = View(
        instrument_type=Histogram,
        instrument_unit="s",
        aggregation=ExplicitBucketHistogramAggregation(names.SECONDS),
    )
    others = [
        View(
            instrument_name=metric.name,
            aggregation=ExplicitBucketHistogramAggregation(metric.buckets),
        )
        for metric in names.PERDURE
        if metric.kind == "histogram" and metric.unit != "s"
    ]
    return [of_seconds, *others]
