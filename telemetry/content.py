"""Keeps content of messages out of spans, and secrets out of those that may hold content."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Link, Status
from opentelemetry.util.types import AttributeValue

from stores.errors import RedactionError
from stores.redactor import MASK, Redactor

_WORDS = frozenset({"exception.message", "exception.stacktrace"})
"""A tool's error says what it was given, and a traceback ends with the same words."""

Attributes = Mapping[str, AttributeValue] | None


class ChangingExporter(SpanExporter):
    """Exports spans with other attributes and words than they were made with."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    @abstractmethod
    def attributes(self, attributes: Attributes) -> Attributes:
        """Of a span or a link, as they are exported."""

    @abstractmethod
    def event(self, attributes: Attributes) -> Attributes:
        """Of an event, likewise."""

    @abstractmethod
    def description(self, description: str) -> str:
        """Of what went wrong, likewise."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter.export`."""
        return self._exporter.export([self._changed(span) for span in spans])

    def shutdown(self) -> None:
        """See `SpanExporter.shutdown`."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanExporter.force_flush`."""
        return self._exporter.force_flush(timeout_millis)

    def _changed(self, span: ReadableSpan) -> ReadableSpan:
        description = span.status.description
        return ReadableSpan(
            name=span.name,
            context=span.get_span_context(),
            parent=span.parent,
            resource=span.resource,
            attributes=self.attributes(span.attributes),
            events=[
                Event(each.name, self.event(each.attributes), each.timestamp)
                for each in span.events
            ],
            links=[Link(each.context, self.attributes(each.attributes)) for each in span.links],
            kind=span.kind,
            status=Status(span.status.status_code, description and self.description(description)),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )


class WordlessExporter(ChangingExporter):
    """Exports spans without the words of errors; their types stay."""

    def attributes(self, attributes: Attributes) -> Attributes:
        """As they are: nothing puts content there by itself."""
        return attributes

    def event(self, attributes: Attributes) -> Attributes:
        """Without words."""
        return {key: value for key, value in (attributes or {}).items() if key not in _WORDS}

    def description(self, description: str) -> str:
        """`SomeError: what it says`, by Temporal's interceptor as by OpenTelemetry itself."""
        return description.partition(":")[0]


class MaskedExporter(ChangingExporter):
    """Exports spans with masks, as the store keeps what they tell."""

    def __init__(self, exporter: SpanExporter, redactor: Redactor) -> None:
        super().__init__(exporter)
        self._redactor = redactor

    def attributes(self, attributes: Attributes) -> Attributes:
        """With masks in strings and in what they hold as JSON."""
        return {key: self._masked(value) for key, value in (attributes or {}).items()}

    def event(self, attributes: Attributes) -> Attributes:
        """Likewise."""
        return self.attributes(attributes)

    def description(self, description: str) -> str:
        """Likewise."""
        return self._text(description)

    def _masked(self, value: AttributeValue) -> AttributeValue:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Sequence) and any(isinstance(each, str) for each in value):
            return [self._text(str(each)) for each in value]
        return value

    def _text(self, text: str) -> str:
        try:
            return self._redactor.json_text(text)
        except RedactionError:  # a hook that failed; the store refuses then, and so does this
            return MASK
