"""What workflow code counts. The SDK's meter records nothing again on a replay."""

from temporalio import workflow

from telemetry_names import (
    EVENT_LIMIT,
    HISTORY_EVENT_HEADROOM,
    HISTORY_SIZE_HEADROOM,
    HOPS,
    SIZE_LIMIT_BYTES,
)


def measure_headroom() -> None:
    """Record how far off the server's limits for an execution are."""
    info, meter = workflow.info(), workflow.metric_meter()
    for metric, left in (
        (HISTORY_EVENT_HEADROOM, EVENT_LIMIT - info.get_current_history_length()),
        (HISTORY_SIZE_HEADROOM, SIZE_LIMIT_BYTES - info.get_current_history_size()),
    ):
        meter.create_histogram(metric.name, metric.help, metric.unit).record(max(left, 0))


def count_hop(reason: str) -> None:
    """Record that this execution is left for a fresh one."""
    meter = workflow.metric_meter().with_additional_attributes({"reason": reason})
    meter.create_counter(HOPS.name, HOPS.help, HOPS.unit).add(1)
