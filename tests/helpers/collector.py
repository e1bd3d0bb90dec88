"""A collector: takes spans by OTLP over HTTP and keeps them."""

import threading
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class TakenSpan:
    """A span as it was sent; ids in hex, `parent_id` empty for a root."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str]


class Collector:
    """Listens while it is entered."""

    def __init__(self) -> None:
        self.spans: list[TakenSpan] = []
        self.bodies: list[bytes] = []
        """All that was sent, to look for what must not be in it."""
        self.metric_names: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """For `OTEL_EXPORTER_OTLP_ENDPOINT`."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def of_trace(self, trace_id: str) -> list[TakenSpan]:
        """Its spans."""
        return [span for span in list(self.spans) if span.trace_id == trace_id]

    def names_of_run(self, run_id: str) -> Counter[str]:
        """How often each span was sent of the traces that the run is in."""
        traces = {
            span.trace_id
            for span in list(self.spans)
            if span.attributes.get("temporalWorkflowID") == run_id
        }
        return Counter(span.name for span in list(self.spans) if span.trace_id in traces)

    def take(self, path: str, body: bytes) -> None:
        """Keep what was sent."""
        self.bodies.append(body)
        if path.endswith("/v1/traces"):
            self.spans += _spans(ExportTraceServiceRequest.FromString(body))
        else:
            sent = ExportMetricsServiceRequest.FromString(body)
            self.metric_names |= {
                metric.name
                for resource in sent.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
            }

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _spans(request: ExportTraceServiceRequest) -> list[TakenSpan]:
    found: list[TakenSpan] = []
    for resource in request.resource_spans:
        facts = {each.key: each.value.string_value for each in resource.resource.attributes}
        found += [
            TakenSpan(
                service=facts["service.name"],
                name=span.name,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                attributes={each.key: each.value.string_value for each in span.attributes},
            )
            for scope in resource.scope_spans
            for span in scope.spans
        ]
    return found


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its signature
            pass

    return Handler
