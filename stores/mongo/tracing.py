"""A span for each command, under the span of what asks: names of command and collection alone."""

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)


def command_listeners() -> list[CommandListener]:
    """What a client is to tell its commands; nothing where this process exports no spans."""
    is_traced = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    return [CommandSpans()] if is_traced else []


class CommandSpans(CommandListener):
    """Makes the spans. No value of a command or an answer gets into them."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("perdure.mongodb")
        self._open: dict[tuple[object, int], Span] = {}

    def started(self, event: CommandStartedEvent) -> None:
        """See `CommandListener`. What no span asks for, such as a heartbeat, gets none."""
        if not trace.get_current_span().is_recording():
            return
        target = event.command.get(event.command_name)
        attributes = {
            "db.system.name": "mongodb",
            "db.namespace": event.database_name,
            "db.operation.name": event.command_name,
        }
        if isinstance(target, str):
            attributes["db.collection.name"] = target
        self._open[event.connection_id, event.request_id] = self._tracer.start_span(
            f"mongodb {event.command_name}", kind=SpanKind.CLIENT, attributes=attributes
        )

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """See `CommandListener`."""
        span = self._open.pop((event.connection_id, event.request_id), None)
        if span is not None:
            span.end()

    def failed(self, event: CommandFailedEvent) -> None:
        """See `CommandListener`."""
        span = self._open.pop((event.connection_id, event.request_id), None)
        if span is not None:
            span.set_status(Status(StatusCode.ERROR, str(event.failure.get("codeName", ""))))
            span.end()
