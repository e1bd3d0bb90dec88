"""Payloads of activities where they are stored beside the history, while that store is away.

The SDK decodes what an activity is given before its heartbeats begin, and encodes what it returns
after they end; a store that is away in those moments would cost one of the few attempts that a tool
has. So both are done, and waited for, in between.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.worker_store import when_store_is_back


class PayloadSettling:
    """Stores what an activity returns, if it is large enough."""

    def __init__(self, converter: DataConverter) -> None:
        self._converter = converter
        storage = converter.external_storage
        self._stored_from_bytes = storage.payload_size_threshold if storage else None

    async def settle(self, value: object) -> RawValue:
        """The value as a payload, or what stands for it once it is stored; the SDK adds nothing.

        A store that is away is waited for.

        Raises:
            ApplicationError: the value cannot be encoded or is too large.
            StoreError: it cannot be stored later either, or the activity was cancelled meanwhile.
        """
        plain = value.payload if isinstance(value, RawValue) else _payload(value)
        limit = self._stored_from_bytes
        if limit is None or plain.ByteSize() < limit:
            return RawValue(plain)
        stored = await when_store_is_back(
            lambda: self._converter.encode([RawValue(plain)]), gives_up=activity.is_cancelled
        )
        # Smaller than it was: it stands for the payload. Else a codec has worked on it, and will.
        is_stored = bool(stored[0].external_payloads)
        return RawValue(stored[0] if is_stored else plain)


def _payload(value: object) -> Payload:
    return activity.payload_converter().to_payload(value)


class PayloadInterceptor(Interceptor):
    """Waits, under heartbeats, for the store of payloads before an activity's body and after it."""

    def __init__(self, settling: PayloadSettling) -> None:
        self._settling = settling

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Wrap the chain."""
        return _PayloadInbound(next, self._settling)


@dataclass(frozen=True)
class Undecoded:
    """Stands for the arguments of an activity that could not be read yet; first of them."""

    decode: Callable[[], Awaitable[list[Any]]]


class _PayloadInbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, settling: PayloadSettling) -> None:  # noqa: A002 - the SDK's name
        super().__init__(next)
        self._settling = settling

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        if activity.info().is_local:
            return await super().execute_activity(input)
        if input.args and isinstance(input.args[0], Undecoded):
            input.args = await when_store_is_back(
                input.args[0].decode, gives_up=activity.is_cancelled
            )
        result = await super().execute_activity(input)
        return await self._settling.settle(result)
