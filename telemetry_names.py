"""Every metric that a worker exports: its name, kind, unit and what it says. Names alone.

Instruments are made of these entries, dashboards and alerts are checked against them. A name here
is OpenTelemetry's; `Metric.series` are the names under which Prometheus has it, from `/metrics` as
well as by way of a collector.
"""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    `unit` is UCUM's: `s`, `By`, or a word in braces for a count. `labels` are the names of its
    attributes as Prometheus has them. `buckets` are upper bounds, of histograms alone.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """Its name by OpenTelemetry's rules for Prometheus."""
        return prometheus_name(self.name, kind=self.kind, unit=self.unit)

    @property
    def series(self) -> tuple[str, ...]:
        """The names that a query may use."""
        name = self.prometheus_name
        if self.kind != "histogram":
            return (name,)
        return (f"{name}_bucket", f"{name}_count", f"{name}_sum")


_SUFFIXES = {"s": "seconds", "ms": "milliseconds", "By": "bytes"}


def prometheus_name(name: str, *, kind: Kind, unit: str) -> str:
    """What Prometheus calls a metric.

    Source: "Prometheus and OpenMetrics Compatibility" of the OpenTelemetry specification: other
    characters become `_`, the unit is added in words, a counter ends in `_total`.
    """
    found = re.sub(r"[^a-zA-Z0-9_:]", "_", name)
    suffix = _SUFFIXES.get(unit, "")
    if suffix and suffix not in found.split("_"):
        found = f"{found}_{suffix}"
    if kind == "counter" and not found.endswith("_total"):
        found = f"{found}_total"
    return found


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""Upper bounds of every histogram of seconds."""

EVENT_LIMIT = 51_200
"""Events after which Temporal's server ends an execution (`limit.historyCount.error`)."""

SIZE_LIMIT_BYTES = 50 * 1024 * 1024
"""Likewise, the size of its history (`limit.historySize.error`)."""

_EVENTS = (0, 1_000, 5_000, 10_000, 20_000, 30_000, 40_000, 45_000, 48_000, 50_000, EVENT_LIMIT)
_MIB = 1024 * 1024
_SIZES = (0, *(each * _MIB for each in (1, 5, 10, 20, 30, 40, 45, 48, 49, 50)))

BOUNDARY_DURATION = Metric(
    name="perdure.boundary.duration",
    kind="histogram",
    unit="s",
    help="time that a commit of boundary operations took in its activity; `boundary` is the "
    "activity, `outcome` what the store did (apply, suppress, supersede, adopt, stale) or the "
    "error's type",
    labels=("boundary", "outcome"),
    buckets=SECONDS,
)
COMMIT_OPERATIONS = Metric(
    name="perdure.commit.operations",
    kind="histogram",
    unit="{operation}",
    help="operations in one commit: the size of a group",
    labels=("boundary",),
    buckets=(0, 1, 2, 3, 4, 5, 8, 12, 20, 50, 100),
)
COMMIT_SUPPRESSED = Metric(
    name="perdure.commit.suppressed",
    kind="counter",
    unit="{operation}",
    help="operations that were there already and were not written again",
)
COMMIT_CONFLICTS = Metric(
    name="perdure.commit.conflicts",
    kind="counter",
    unit="{operation}",
    help="commits or operations that contradict what is stored under their key; expected: 0",
)
COMMIT_REFUSED = Metric(
    name="perdure.commit.refused",
    kind="counter",
    unit="{operation}",
    help="operations that were refused for another reason; `error` is its type",
    labels=("error",),
)
COMMIT_STALE = Metric(
    name="perdure.commit.stale",
    kind="counter",
    unit="{commit}",
    help="commits of lost workflow tasks or abandoned branches that came too late; nothing written",
)
EFFECTS_UNRESOLVED = Metric(
    name="perdure.effects.unresolved",
    kind="gauge",
    unit="{effect}",
    help="tool calls in the store whose outcome is not known, those in flight included",
)
EFFECTS_UNRESOLVED_AGE = Metric(
    name="perdure.effects.unresolved_age",
    kind="gauge",
    unit="s",
    help="age of the oldest of them; 0 without one",
)
EFFECTS_PARKED = Metric(
    name="perdure.effects.parked",
    kind="gauge",
    unit="{effect}",
    help="tool calls of unknown outcome that wait for a decision",
)
EFFECTS_PARKED_AGE = Metric(
    name="perdure.effects.parked_age",
    kind="gauge",
    unit="s",
    help="age of the oldest of them; 0 without one",
)
HISTORY_EVENT_HEADROOM = Metric(
    name="perdure.history.event_headroom",
    kind="histogram",
    unit="{event}",
    help="events left before Temporal ends an execution, at each of its commits",
    labels=("namespace", "task_queue", "workflow_type"),
    buckets=_EVENTS,
)
HISTORY_SIZE_HEADROOM = Metric(
    name="perdure.history.size_headroom",
    kind="histogram",
    unit="By",
    help="bytes of history left before Temporal ends an execution, at each of its commits",
    labels=("namespace", "task_queue", "workflow_type"),
    buckets=_SIZES,
)
HOPS = Metric(
    name="perdure.hops",
    kind="counter",
    unit="{hop}",
    help="executions that went on in a fresh one (continue-as-new)",
    labels=("namespace", "reason", "task_queue", "workflow_type"),
)
SEARCH_DURATION = Metric(
    name="perdure.search.duration",
    kind="histogram",
    unit="s",
    help="time that a search of conversation history took in its activity; `outcome` is ok or the "
    "error's type",
    labels=("outcome",),
    buckets=SECONDS,
)
SEARCH_LAG = Metric(
    name="perdure.search.lag",
    kind="gauge",
    unit="{snapshot}",
    help="saved histories that the search index does not hold yet",
)
SEARCH_LAG_AGE = Metric(
    name="perdure.search.lag_age",
    kind="gauge",
    unit="s",
    help="age of the oldest of them; 0 without one",
)
STREAM_LAG = Metric(
    name="perdure.stream.lag",
    kind="histogram",
    unit="s",
    help="time from when live text was written to when a reader in this process took it",
    buckets=SECONDS,
)
PAYLOAD_GIVEN = Metric(
    name="perdure.payload.given",
    kind="counter",
    unit="By",
    help="bytes of large payloads that were to be stored beside histories",
)
PAYLOAD_WRITTEN = Metric(
    name="perdure.payload.written",
    kind="counter",
    unit="By",
    help="bytes of them that were written, after leaving out what is stored, and compression",
)
PAYLOAD_SAVED = Metric(
    name="perdure.payload.saved",
    kind="counter",
    unit="By",
    help="bytes given less bytes written",
)
WORKER_READY = Metric(
    name="perdure.worker.ready",
    kind="gauge",
    unit="{worker}",
    help="1 when `/readyz` answered 200 last, else 0; none before it was asked",
)
WORKER_LIVE = Metric(
    name="perdure.worker.live",
    kind="gauge",
    unit="{worker}",
    help="1 when `/healthz` answered 200 last, else 0; none before it was asked",
)
STORE_READ_FAILURES = Metric(
    name="perdure.store.read_failures",
    kind="counter",
    unit="{read}",
    help="times that the gauges about the store could not be read; they keep their last values",
)

_OF_WORKFLOWS = ("namespace", "task_queue", "workflow_type")

TOOL_EFFECTS_PARKED = Metric(
    name="perdure_tool_effects_parked",
    kind="counter",
    unit="",
    help="calls of unknown outcome that began to wait for a decision",
    labels=_OF_WORKFLOWS,
)
APPROVALS_ASKED = Metric(
    name="perdure_approvals_asked",
    kind="counter",
    unit="",
    help="calls that began to wait for an approval",
    labels=_OF_WORKFLOWS,
)
STALE_ATTEMPTS = Metric(
    name="perdure_stale_attempts",
    kind="counter",
    unit="",
    help="ends of a tool's attempts that came after another attempt had begun",
    labels=("activity_type", "namespace", "task_queue"),
)

PERDURE: tuple[Metric, ...] = (
    TOOL_EFFECTS_PARKED,
    APPROVALS_ASKED,
    STALE_ATTEMPTS,
    BOUNDARY_DURATION,
    COMMIT_OPERATIONS,
    COMMIT_SUPPRESSED,
    COMMIT_CONFLICTS,
    COMMIT_REFUSED,
    COMMIT_STALE,
    EFFECTS_UNRESOLVED,
    EFFECTS_UNRESOLVED_AGE,
    EFFECTS_PARKED,
    EFFECTS_PARKED_AGE,
    HISTORY_EVENT_HEADROOM,
    HISTORY_SIZE_HEADROOM,
    HOPS,
    SEARCH_DURATION,
    SEARCH_LAG,
    SEARCH_LAG_AGE,
    STREAM_LAG,
    PAYLOAD_GIVEN,
    PAYLOAD_WRITTEN,
    PAYLOAD_SAVED,
    WORKER_READY,
    WORKER_LIVE,
    STORE_READ_FAILURES,
)
"""Perdure's own."""


def _temporal(kind: Kind, unit: str, *names: str, labels: tuple[str, ...] = ()) -> list[Metric]:
    return [
        Metric(
            name=f"temporal_{name}",
            kind=kind,
            unit=unit,
            help="see Temporal's SDK metrics reference",
            labels=("namespace", "service_name", "task_queue", *labels),
            buckets=SECONDS if kind == "histogram" else (),
        )
        for name in names
    ]


TEMPORAL: tuple[Metric, ...] = (
    *_temporal("counter", "", "request", "request_failure", labels=("operation", "status_code")),
    *_temporal("counter", "", "long_request", "long_request_failure", labels=("operation",)),
    *_temporal("histogram", "s", "request_latency", "long_request_latency", labels=("operation",)),
    *_temporal("counter", "", "worker_start", "activity_poll_no_task"),
    *_temporal("gauge", "", "num_pollers", labels=("poller_type",)),
    *_temporal(
        "gauge",
        "",
        "worker_task_slots_available",
        "worker_task_slots_used",
        labels=("worker_type",),
    ),
    *_temporal("counter", "", "sticky_cache_hit", "sticky_cache_miss", labels=("workflow_type",)),
    *_temporal("counter", "", "sticky_cache_total_forced_eviction"),
    *_temporal("gauge", "", "sticky_cache_size"),
    *_temporal("gauge", "", "resource_slots_cpu_usage", "resource_slots_mem_usage"),
    *_temporal(
        "counter",
        "",
        "workflow_completed",
        "workflow_canceled",
        "workflow_failed",
        "workflow_continue_as_new",
        labels=("workflow_type",),
    ),
    *_temporal(
        "counter", "", "workflow_task_execution_failed", labels=("failure_reason", "workflow_type")
    ),
    *_temporal("counter", "", "workflow_task_queue_poll_succeed", "workflow_task_queue_poll_empty"),
    *_temporal(
        "histogram",
        "s",
        "workflow_endtoend_latency",
        "workflow_task_execution_latency",
        "workflow_task_replay_latency",
        labels=("workflow_type",),
    ),
    *_temporal(
        "histogram",
        "s",
        "workflow_task_schedule_to_start_latency",
        "activity_schedule_to_start_latency",
    ),
    *_temporal(
        "counter",
        "",
        "activity_task_received",
        "activity_execution_failed",
        "unregistered_activity_invocation",
        "local_activity_total",
        "local_activity_execution_cancelled",
        "local_activity_execution_failed",
        labels=("activity_type", "workflow_type"),
    ),
    *_temporal(
        "histogram",
        "s",
        "activity_execution_latency",
        "activity_succeed_endtoend_latency",
        "local_activity_execution_latency",
        "local_activity_succeed_endtoend_latency",
        labels=("activity_type", "workflow_type"),
    ),
)
"""The SDK core's that dashboards use; a worker exports whatever it has."""

ALL: tuple[Metric, ...] = (*PERDURE, *TEMPORAL)

SERIES: frozenset[str] = frozenset(name for metric in ALL for name in metric.series)
"""All names that a Prometheus query may use. Prometheus adds `up` and the like itself."""
