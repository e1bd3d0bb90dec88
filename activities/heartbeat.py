"""Heartbeats for every activity that has a heartbeat timeout, also before and after its body."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

_SHARE = 3
"""Heartbeats in one timeout: two may be lost before the server gives the worker up."""


class HeartbeatInterceptor(Interceptor):
    """Heartbeats in the background for as long as an activity runs."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Wrap the chain."""
        return _HeartbeatInbound(next)


class _Progress(ActivityOutboundInterceptor):
    """Remembers what the activity last said of its progress, so that a beat does not erase it."""

    details: Sequence[Any] = ()

    def heartbeat(self, *details: Any) -> None:  # noqa: ANN401 - the SDK's
        self.details = details
        super().heartbeat(*details)


class _HeartbeatInbound(ActivityInboundInterceptor):
    """One for each attempt of an activity."""

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self._progress = _Progress(outbound)
        super().init(self._progress)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401
        info = activity.info()
        if not info.heartbeat_timeout:
            return await super().execute_activity(input)
        self._progress.details = info.heartbeat_details
        beats = asyncio.create_task(self._beat(info.heartbeat_timeout / _SHARE))
        try:
            return await super().execute_activity(input)
        finally:
            beats.cancel()

    async def _beat(self, interval: timedelta) -> None:
        while True:
            activity.heartbeat(*self._progress.details)
            await asyncio.sleep(interval.total_seconds())  # noqa: TID251 - an activity
