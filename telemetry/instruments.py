"""What a worker's activities tell of themselves: metrics by their results, ids on their spans."""

from collections.abc import Iterator
from time import perf_counter
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.metrics import Counter, Histogram, Meter
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

import telemetry_names as names
from activities.boundaries import BOUNDARIES, CommitBoundariesResult, CommitHeader
from stores.errors import IdempotencyConflictError
from workflows.lineage import current_scope
from workflows.names import AGENT_RUN, SEARCH_ACTIVITY

METER = "perdure"

_CONFLICT = IdempotencyConflictError.__name__


def counter(meter: Meter, metric: names.Metric) -> Counter:
    """The instrument of a metric."""
    return meter.create_counter(metric.name, unit=metric.unit, description=metric.help)


def histogram(meter: Meter, metric: names.Metric) -> Histogram:
    """The instrument of a metric."""
    return meter.create_histogram(metric.name, unit=metric.unit, description=metric.help)


class MeteringInterceptor(Interceptor):
    """Counts what boundaries and searches do. It goes around the body, inside all others."""

    def __init__(self) -> None:
        self._meters = _Instruments(metrics.get_meter(METER))

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Wrap the chain."""
        return _MeteringInbound(next, self._meters)


class _Instruments:
    def __init__(self, meter: Meter) -> None:
        self.boundary = histogram(meter, names.BOUNDARY_DURATION)
        self.operations = histogram(meter, names.COMMIT_OPERATIONS)
        self.suppressed = counter(meter, names.COMMIT_SUPPRESSED)
        self.conflicts = counter(meter, names.COMMIT_CONFLICTS)
        self.refused = counter(meter, names.COMMIT_REFUSED)
        self.stale = counter(meter, names.COMMIT_STALE)
        self.search = histogram(meter, names.SEARCH_DURATION)
        # A counter that nothing was added to is not exported; an alert asks how it grows from 0.
        for each in (self.suppressed, self.conflicts, self.stale):
            each.add(0)


class _MeteringInbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, meters: _Instruments) -> None:  # noqa: A002 - the SDK's name
        super().__init__(next)
        self._meters = meters

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        name = activity.info().activity_type
        trace.get_current_span().set_attributes(dict(_ids(input)))
        if name == SEARCH_ACTIVITY:
            return await self._search(input)
        if name in BOUNDARIES and name != "registration_identity":
            return await self._commit(name, input)
        return await super().execute_activity(input)

    async def _search(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        outcome, began = "ok", perf_counter()
        try:
            return await super().execute_activity(input)
        except BaseException as error:
            outcome = _kind(error)
            raise
        finally:
            self._meters.search.record(perf_counter() - began, {"outcome": outcome})

    async def _commit(self, name: str, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        outcome, began = "unknown", perf_counter()
        count = len(_operations(input))
        try:
            result = await super().execute_activity(input)
            if isinstance(result, CommitBoundariesResult):
                outcome = result.verdict
                self._count(result, count)
        except BaseException as error:
            outcome = _kind(error)
            if outcome == _CONFLICT:
                self._meters.conflicts.add(1)
            raise
        else:
            return result
        finally:
            labels = {"boundary": name, "outcome": outcome}
            self._meters.boundary.record(perf_counter() - began, labels)
            self._meters.operations.record(count, {"boundary": name})

    def _count(self, result: CommitBoundariesResult, count: int) -> None:
        if result.verdict == "stale":
            self._meters.stale.add(1)
            return
        if result.verdict == "suppress":  # its outcomes are those of the first time
            self._meters.suppressed.add(count)
            return
        for each in result.outcomes:
            if each.disposition == "suppressed":
                self._meters.suppressed.add(1)
            elif each.disposition == "refused" and each.error_type == _CONFLICT:
                self._meters.conflicts.add(1)
            elif each.disposition == "refused":
                self._meters.refused.add(1, {"error": each.error_type or "unknown"})


def _kind(error: BaseException) -> str:
    found = error.type if isinstance(error, ApplicationError) else None
    return found or type(error).__name__


def _operations(input: ExecuteActivityInput) -> tuple[Any, ...]:  # noqa: A002 - the SDK's name
    request = input.args[0] if input.args else None
    one = getattr(request, "operation", None)
    return getattr(request, "operations", ()) if one is None else (one,)


def _ids(input: ExecuteActivityInput) -> Iterator[tuple[str, str | int]]:  # noqa: A002 - the SDK's name
    info = activity.info()
    request = input.args[0] if input.args else None
    if info.workflow_type == AGENT_RUN and info.workflow_id:
        yield "perdure.run_id", info.workflow_id
    if isinstance(request, CommitHeader):
        yield "perdure.workspace_id", request.workspace_id
        yield "perdure.commit_number", request.number
        yield "perdure.operations", len(_operations(input))
        return
    scope = current_scope.get()
    if scope is not None:
        for name in ("run_id", "conversation_id", "workspace_id", "tool_name"):
            value = getattr(scope.lineage, name)
            if value is not None:
                yield f"perdure.{name}", value
