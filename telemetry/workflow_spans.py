"""Spans of workflow code: passed on when the workflow task in which they ended was reported."""

import itertools
import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import inf
from time import monotonic
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from temporalio.bridge.proto.workflow_activation import RemoveFromCache, WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import SerializationContext, StorageDriverStoreContext
from temporalio.plugin import SimplePlugin
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.worker._command_aware_visitor import CommandInfo
from temporalio.workflow import Info

OF_WORKFLOW = "perdure.workflow_instance"
"""Attribute of spans that workflow code began: which of this process's instances it was."""


REFUSED_WITHIN = timedelta(seconds=2)
"""A report that the server does not take is known by then; a span waits so long where nothing else
comes."""

LOOKS_EVERY = timedelta(seconds=0.5)

MOST_LEFT = 1000
"""Executions of which a workflow task is remembered whose end is not known."""


@dataclass
class _Task:
    """A workflow task and the spans that ended in it, which are not passed on yet."""

    history_length: int = 0
    """Of the history that it was given; no other task of the execution has the same."""

    ended: list[ReadableSpan] = field(default_factory=list[ReadableSpan])


class WorkflowSpans(SpanProcessor):
    """Passes spans on; those of workflow code once, however often that code is executed.

    Temporal's replay-safe spans do not end while history is replayed. But what is not yet in the
    history is executed twice without being a replay: a workflow task is lost when its execution is
    evicted while a local activity of it runs, or when the server takes its report no more. So a
    span that ends in a workflow task waits here until that task is in the history. Where that is
    not known when the execution is evicted, it is seen when it comes back: what is in the history
    is replayed, the rest is executed anew.

    An execution that is idle when its worker stops is evicted by nobody: the garbage collector
    closes its coroutines, in whatever thread asks for memory, and with them the spans that they are
    in (temporalio/sdk-python issue 1849). Those are not passed on: the worker that takes the
    execution over ends them under the same ids.

    Args:
        processor: what they are passed on to.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        self._processor = processor
        self._current = _Current()
        self._lock = threading.Lock()
        self._sent: deque[tuple[float, _Task]] = deque()
        self._left: dict[str, _Task] = {}
        self._is_over = threading.Event()
        self._watch = threading.Thread(target=self._look, name="workflow-spans", daemon=True)
        self._watch.start()

    def plugin(self) -> SimplePlugin:
        """For clients, workers and replayers whose spans come here; after OpenTelemetry's own."""

        def observed(runner: WorkflowRunner | None) -> WorkflowRunner:
            if runner is None:
                message = "spans of workflow code need a workflow runner"
                raise ValueError(message)
            return _ObservedRunner(runner, self)

        return SimplePlugin("perdure.WorkflowSpans", workflow_runner=observed)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """See `SpanProcessor.on_start`."""
        instance = self._current.instance
        if instance is not None:
            span.set_attribute(OF_WORKFLOW, instance.number)
        self._processor.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """See `SpanProcessor.on_end`."""
        begun_in = (span.attributes or {}).get(OF_WORKFLOW)
        if begun_in is None:
            self._processor.on_end(span)
            return
        instance = self._current.instance
        if instance is not None and instance.number == begun_in:
            with self._lock:
                instance.task.ended.append(span)

    def pass_on(self, task: _Task) -> None:
        """It is in the history."""
        with self._lock:
            ended, task.ended = task.ended, []
        for span in ended:
            self._processor.on_end(span)

    def pass_on_soon(self, task: _Task) -> None:
        """It was reported; unless it is left soon, the report was taken."""
        self._sent.append((monotonic(), task))

    def leave(self, execution_id: str, task: _Task) -> None:
        """Whether it is in the history is not known."""
        with self._lock:
            left, task.ended = replace(task), []
            self._left[execution_id] = left
            if len(self._left) > MOST_LEFT:
                del self._left[next(iter(self._left))]

    def find_left(self, execution_id: str) -> _Task | None:
        """Such a task, for the instance that takes the execution over."""
        return self._left.pop(execution_id, None)

    def _look(self) -> None:
        while not self._is_over.wait(LOOKS_EVERY.total_seconds()):
            self._pass_on_sent(before=monotonic() - REFUSED_WITHIN.total_seconds())

    def _pass_on_sent(self, *, before: float) -> None:
        while self._sent and self._sent[0][0] <= before:
            self.pass_on(self._sent.popleft()[1])

    @contextmanager
    def come_from(self, instance: "_ObservedInstance") -> Generator[None]:
        """Meanwhile this thread executes the instance's code, and no other thread does."""
        self._current.instance = instance
        try:
            yield
        finally:
            self._current.instance = None

    def shutdown(self) -> None:
        """See `SpanProcessor.shutdown`."""
        self._is_over.set()
        self._watch.join()
        self._pass_on_sent(before=inf)
        self._processor.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanProcessor.force_flush`."""
        return self._processor.force_flush(timeout_millis)


class _Current(threading.local):
    instance: "_ObservedInstance | None" = None


class _ObservedRunner(WorkflowRunner):
    def __init__(self, runner: WorkflowRunner, spans: WorkflowSpans) -> None:
        self._runner = runner
        self._spans = spans

    def prepare_workflow(self, defn: Any) -> None:  # noqa: ANN401 - a private type of the SDK's
        self._runner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(
        self, types: Sequence[type[BaseException]]
    ) -> None:
        self._runner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _ObservedInstance(self._runner.create_instance(det), self._spans)


_numbers = itertools.count()


class _ObservedInstance(WorkflowInstance):
    """Sees each activation go in and its completion come out.

    A workflow task is one activation, and one more each time that local activities of it are done;
    the SDK's core reports it when none runs any more.
    """

    def __init__(self, instance: WorkflowInstance, spans: WorkflowSpans) -> None:
        self.number = next(_numbers)
        self.task = _Task()
        self._instance = instance
        self._spans = spans
        self._left = spans.find_left(instance.get_info().run_id)
        self._local: set[int] = set()
        """Numbers of local activities that run."""
        self._is_sent = False

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        evictions = [job.remove_from_cache for job in act.jobs if job.HasField("remove_from_cache")]
        if evictions:
            self._evict(act.run_id, evictions[0].reason)
        else:
            self._begin(act)
        with self._spans.come_from(self):
            completion = self._instance.activate(act)
        if not evictions:
            self._end(act, completion)
        return completion

    def _begin(self, act: WorkflowActivation) -> None:
        left = self._left
        if left is not None and act.history_length >= left.history_length:
            if act.is_replaying and act.history_length == left.history_length:
                self._spans.pass_on(left)
            self._left = None
        if act.history_length > self.task.history_length:
            # A task whose local activities take long is reported meanwhile, and goes on as another.
            self._spans.pass_on(self.task)
            self.task = _Task(act.history_length)

    def _end(self, act: WorkflowActivation, completion: WorkflowActivationCompletion) -> None:
        commands = completion.successful.commands
        self._local -= {
            job.resolve_activity.seq for job in act.jobs if job.HasField("resolve_activity")
        }
        self._local |= {
            each.schedule_local_activity.seq
            for each in commands
            if each.HasField("schedule_local_activity")
        }
        # The end of an execution is refused when something came in meanwhile: its eviction tells.
        closes = any(each.WhichOneof("variant") in _CLOSING for each in commands)
        self._is_sent = completion.HasField("successful") and not self._local and not closes
        if self._is_sent and self.task.ended:
            self._spans.pass_on_soon(self.task)

    def _evict(self, execution_id: str, reason: RemoveFromCache.EvictionReason.ValueType) -> None:
        if self._left is not None:
            self._spans.leave(execution_id, self._left)
        elif reason == _HAS_ENDED or (reason == _NO_ROOM and self._is_sent):
            self._spans.pass_on(self.task)
        elif self.task.ended:
            self._spans.leave(execution_id, self.task)
        self.task = _Task()  # what ends from here on does so because of the eviction

    def get_serialization_context(
        self, command_info: CommandInfo | None
    ) -> SerializationContext | None:
        return self._instance.get_serialization_context(command_info)

    def get_external_store_context(
        self, command_info: CommandInfo | None
    ) -> StorageDriverStoreContext:
        return self._instance.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._instance.get_info()

    def get_thread_id(self) -> int | None:
        return self._instance.get_thread_id()


_HAS_ENDED = RemoveFromCache.EvictionReason.WORKFLOW_EXECUTION_ENDING
_NO_ROOM = RemoveFromCache.EvictionReason.CACHE_FULL

_CLOSING = (
    "complete_workflow_execution",
    "fail_workflow_execution",
    "cancel_workflow_execution",
    "continue_as_new_workflow_execution",
)
