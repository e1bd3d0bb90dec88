"""The workflow that a schedule starts: retention, once."""

from datetime import timedelta

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RetryPolicy

from workflows import names

with workflow.unsafe.imports_passed_through():
    from activities.retaining import ApplyRetentionRequest, ApplyRetentionResult

LONGEST = timedelta(days=2)
"""Of one attempt; what it has done by then is done."""

QUIET = timedelta(minutes=5)
"""Between two pages, each of which takes moments."""


class RetentionInput(BaseModel):
    """Nothing yet."""


class RetentionOutput(BaseModel):
    """What was removed, by workspace and kind."""

    counts: dict[str, dict[str, int]] = {}


@workflow.defn(name=names.RETENTION)
class RetentionWorkflow:
    """Applies the policies of the worker that gets the activity."""

    @workflow.run
    async def run(self, request: RetentionInput) -> RetentionOutput:  # noqa: ARG002 - frozen
        """Apply them all, as long as it takes."""
        done: ApplyRetentionResult = await workflow.execute_activity(
            "apply_retention",
            ApplyRetentionRequest(),
            result_type=ApplyRetentionResult,
            start_to_close_timeout=LONGEST,
            heartbeat_timeout=QUIET,
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=10), maximum_interval=timedelta(minutes=5)
            ),
        )
        return RetentionOutput(counts=done.counts)
