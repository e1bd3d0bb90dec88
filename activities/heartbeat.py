"""Heartbeats for every activity that has a heartbeat timeout, also before and after its body."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

_SHARE = 3
"""Heartbeats in one timeout: two may be lost before the server gives the worker up."""


class HeartbeatInterceptor(Interceptor):
    """Heartbeats in the background for as long as an activity runs."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Wrap the chain."""
        return _HeartbeatInbound(next)


class _HeartbeatInbound(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's signature
        timeout = activity.info().heartbeat_timeout
        if not timeout:
            return await super().execute_activity(input)
        async with _heartbeats(timeout / _SHARE):
            return await super().execute_activity(input)


@contextlib.asynccontextmanager
async def _heartbeats(interval: timedelta) -> AsyncGenerator[None]:
    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(interval.total_seconds())  # noqa: TID251 - an activity

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
