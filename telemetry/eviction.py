"""Keeps out the spans of workflow code that end because an execution leaves a worker's memory."""

import asyncio
import itertools
from weakref import WeakKeyDictionary

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from temporalio import workflow

OF_WORKFLOW = "perdure.workflow_instance"
"""Attribute of spans that workflow code began: which of this process's instances it was."""


class EvictionFilter(SpanProcessor):
    """Passes spans on, but for those of workflow code that anything else ends.

    Temporal's replay-safe spans end neither on a replay nor on an eviction. An execution that is
    idle when its worker stops is evicted by nobody: the garbage collector closes its coroutines,
    outside any workflow, and with them the spans that they are in (temporalio/sdk-python issue
    1849). The worker that takes the execution over ends them under the same ids.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        self._processor = processor
        self._numbers: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._counted = itertools.count()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """See `SpanProcessor.on_start`."""
        if workflow.in_workflow():
            span.set_attribute(OF_WORKFLOW, self._number())
        self._processor.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """See `SpanProcessor.on_end`."""
        begun_in = (span.attributes or {}).get(OF_WORKFLOW)
        if begun_in is not None:
            # Garbage is collected wherever memory is asked for: in another workflow's code, too, or
            # in the same one's, which has come back to the cache as another instance.
            here = self._number() if workflow.in_workflow() else None
            if here != begun_in:
                return
        self._processor.on_end(span)

    def _number(self) -> int:
        """Of the workflow instance that runs this code: its loop is its own."""
        loop = asyncio.get_running_loop()
        if loop not in self._numbers:
            self._numbers[loop] = next(self._counted)
        return self._numbers[loop]

    def shutdown(self) -> None:
        """See `SpanProcessor.shutdown`."""
        self._processor.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanProcessor.force_flush`."""
        return self._processor.force_flush(timeout_millis)
