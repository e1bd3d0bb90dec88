"""Keeps out the spans of workflow code that end because an execution leaves a worker's memory."""

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from temporalio import workflow

OF_WORKFLOW = "perdure.execution_id"
"""Attribute of spans that workflow code began: its execution."""


class EvictionFilter(SpanProcessor):
    """Passes spans on, but for those of workflow code that anything else ends.

    Temporal's replay-safe spans end neither on a replay nor on an eviction. An execution that is
    idle when its worker stops is evicted by nobody: the garbage collector closes its coroutines,
    outside any workflow, and with them the spans that they are in (temporalio/sdk-python issue
    1849). The worker that takes the execution over ends them under the same ids.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        self._processor = processor

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """See `SpanProcessor.on_start`."""
        if workflow.in_workflow():
            span.set_attribute(OF_WORKFLOW, workflow.info().run_id)
        self._processor.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """See `SpanProcessor.on_end`."""
        execution_id = (span.attributes or {}).get(OF_WORKFLOW)
        if execution_id is not None:
            # Garbage is collected wherever memory runs out: in another workflow's code, too.
            here = workflow.info().run_id if workflow.in_workflow() else None
            if here != execution_id:
                return
        self._processor.on_end(span)

    def shutdown(self) -> None:
        """See `SpanProcessor.shutdown`."""
        self._processor.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanProcessor.force_flush`."""
        return self._processor.force_flush(timeout_millis)
