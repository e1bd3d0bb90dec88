"""Words of errors stay out of exported spans; their types, and everything else, stay in."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode

from telemetry.content import WordlessExporter


def test_words_of_an_error_stay_out() -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(WordlessExporter(memory)))
    tracer = provider.get_tracer("test")
    with (
        tracer.start_as_current_span("outer", attributes={"kept": 1}) as outer,
        tracer.start_as_current_span("inner") as span,
    ):
        error = ValueError("the passport number is P-123")
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"ValueError: {error}"))
    inner, whole = memory.get_finished_spans()
    assert "P-123" not in inner.to_json()
    assert inner.status.description == "ValueError"
    assert inner.status.status_code is StatusCode.ERROR
    assert dict(inner.events[0].attributes or {})["exception.type"] == "ValueError"
    assert inner.parent == outer.get_span_context()
    assert dict(whole.attributes or {}) == {"kept": 1}
