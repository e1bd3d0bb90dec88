"""Retention as an activity: what a schedule does, told by heartbeats, stopped by a cancellation."""

from collections.abc import Awaitable, Callable

from pydantic import BaseModel
from temporalio import activity

from activities.errors import as_application_error
from stores.errors import StoreError

Retain = Callable[[Callable[[str], None]], Awaitable[dict[str, dict[str, int]]]]
"""Applies all policies; it is given whom to tell of progress, and answers counts by workspace."""


class ApplyRetentionRequest(BaseModel):
    """Nothing yet: the policies are those of the worker's settings."""


class ApplyRetentionResult(BaseModel):
    """What was removed, by workspace and kind."""

    counts: dict[str, dict[str, int]] = {}


class RetentionActivities:
    """Over what applies the policies of this worker's settings."""

    def __init__(self, retain: Retain) -> None:
        self._retain = retain

    @activity.defn(name="apply_retention")
    async def apply_retention(self, request: ApplyRetentionRequest) -> ApplyRetentionResult:  # noqa: ARG002 - frozen
        """Apply all policies. Repeats: what is done is done."""
        try:
            return ApplyRetentionResult(counts=await self._retain(activity.heartbeat))
        except StoreError as error:
            raise as_application_error(error) from error
