"""Keeps content of messages out of spans, where it would come by way of an error's words."""

from collections.abc import Sequence

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status

_WORDS = frozenset({"exception.message", "exception.stacktrace"})
"""A tool's error says what it was given, and a traceback ends with the same words."""


class WordlessExporter(SpanExporter):
    """Exports spans without the words of errors; their types stay."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter.export`."""
        return self._exporter.export([_wordless(span) for span in spans])

    def shutdown(self) -> None:
        """See `SpanExporter.shutdown`."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanExporter.force_flush`."""
        return self._exporter.force_flush(timeout_millis)


def _wordless(span: ReadableSpan) -> ReadableSpan:
    description = span.status.description
    if description is None and not span.events:
        return span
    return ReadableSpan(
        name=span.name,
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        events=[_without_words(event) for event in span.events],
        links=span.links,
        kind=span.kind,
        # `SomeError: what it says`, by Temporal's interceptor as by OpenTelemetry itself.
        status=Status(span.status.status_code, description and description.partition(":")[0]),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _without_words(event: Event) -> Event:
    kept = {key: value for key, value in (event.attributes or {}).items() if key not in _WORDS}
    return Event(name=event.name, attributes=kept, timestamp=event.timestamp)
