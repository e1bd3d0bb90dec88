"""The gate in front of tool bodies: at most once, unless the tool says that a repeat is harmless.

Temporal runs an activity at least once. The gate records each attempt before its body and after it,
and lets a later attempt in only if its tool's effect policy allows that.
"""

import asyncio
import logging
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.payloads import PayloadSettling
from activities.worker_store import when_store_is_back
from stores.attempts import AttemptEnd, AttemptStore, Entry, ToolAttempt, ToolCallPlace
from stores.errors import StoreError
from stores.protocols import StepStore
from stores.records import EffectPolicy
from workflows.effects import OUTCOME_UNKNOWN
from workflows.lineage import Lineage, current_scope, is_tool_activity

logger = logging.getLogger(__name__)

LAST_LOOKS = 3
"""Seconds in which a worker that stops may still record an end. A store that is away longer must
not keep the process alive; the outcome is then unknown."""

LARGEST_RESULT_BYTES = 8 * 1024 * 1024
"""Of a result that is recorded beside its attempt; what is stored as a payload is a reference."""


class ToolGateInterceptor(Interceptor):
    """Puts the gate around activities that make a tool call of a run.

    Args:
        store: the worker's; attempts are recorded in the workspace of each call.
        settling: stores large results; what is recorded is then a reference.
        worker: identity of this worker, shown with each attempt; process and host by default.
    """

    def __init__(
        self, store: StepStore, *, settling: PayloadSettling, worker: str | None = None
    ) -> None:
        self._store = store
        self._settling = settling
        self._worker = worker or f"{os.getpid()}@{socket.gethostname()}"

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Wrap the chain."""
        return _GateInbound(next, self._store, self._settling, self._worker)


class _GateInbound(ActivityInboundInterceptor):
    def __init__(
        self,
        next: ActivityInboundInterceptor,  # noqa: A002 - the SDK's name
        store: StepStore,
        settling: PayloadSettling,
        worker: str,
    ) -> None:
        super().__init__(next)
        self._store = store
        self._settling = settling
        self._worker = worker

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        scope = current_scope.get()
        is_tool = is_tool_activity(activity.info().activity_type)
        call = _GatedCall.of(scope.lineage) if scope and is_tool else None
        if call is None:
            return await super().execute_activity(input)
        attempt = _Attempt.of(
            call, self._store.for_workspace(call.workspace_id).attempts, worker=self._worker
        )
        if call.effect == "read":
            return await self._read(input, attempt)
        entry = await attempt.enter()
        match entry.verdict:
            case "run":
                return await self._run(input, attempt)
            case "recorded":
                return _recorded(entry, call)
            case "unknown":
                raise _unknown(entry, call)
            case "stale":
                message = f"{call}: a later attempt has begun; this one does nothing"
                raise ApplicationError(message, type="StaleAttemptError", non_retryable=True)

    async def _read(self, input: ExecuteActivityInput, attempt: "_Attempt") -> Any:  # noqa: A002, ANN401
        """Run the body of a tool that may run as often as it likes: nothing is asked before.

        Recorded are attempts that failed, and what came after them. A first attempt that succeeds,
        nearly every one, costs no write.
        """
        try:
            result = await super().execute_activity(input)
        except Exception as error:
            await attempt.enter()
            await attempt.leave(_failed(error))
            raise
        if activity.info().attempt > 1:
            await attempt.enter()
            await attempt.leave(AttemptEnd(outcome="completed", ended_at=_now()))
        return result

    async def _run(self, input: ExecuteActivityInput, attempt: "_Attempt") -> Any:  # noqa: A002, ANN401
        try:
            result = await super().execute_activity(input)
        except asyncio.CancelledError:
            await attempt.leave(AttemptEnd(outcome="cancelled", ended_at=_now()))
            raise
        except Exception as error:
            await attempt.leave(_failed(error))
            if attempt.call.effect == "once":
                _raise_final(error)
            raise
        return await self._settle(result, attempt)

    async def _settle(self, result: object, attempt: "_Attempt") -> RawValue:
        """Store the result if it is large, and record it; a result that cannot be kept is an error.

        The tool has done its work by then, so the error is final.
        """
        ended_at = _now()
        try:
            settled = await self._settling.settle(result)
        except asyncio.CancelledError:
            await attempt.leave(AttemptEnd(outcome="completed", ended_at=ended_at))
            raise
        except (ApplicationError, StoreError) as error:
            await attempt.leave(_failed(error))
            _raise_final(error)
        end = AttemptEnd(outcome="completed", ended_at=ended_at, **_recordable(settled))
        await attempt.leave(end)
        return settled


@dataclass(frozen=True, kw_only=True)
class _GatedCall:
    """The call that an activity makes, and what its tool says of a repeat."""

    workspace_id: str
    place: ToolCallPlace
    tool_name: str
    effect: EffectPolicy

    @classmethod
    def of(cls, lineage: Lineage) -> "_GatedCall | None":
        """`None` outside a call, or when the workflow that made it knew of no gate."""
        if lineage.effect is None or lineage.tool_name is None:
            return None
        if lineage.run_id is None or lineage.branch is None:
            return None
        if lineage.step_index is None or lineage.call_index is None:
            return None
        place = ToolCallPlace(
            run_id=lineage.run_id,
            branch=lineage.branch,
            step_index=lineage.step_index,
            call_index=lineage.call_index,
            round=lineage.round,
        )
        return cls(
            workspace_id=lineage.workspace_id,
            place=place,
            tool_name=lineage.tool_name,
            effect=lineage.effect,
        )

    def __str__(self) -> str:
        """The call in words."""
        place = self.place
        call = f"call {place.step_index}/{place.call_index} of run {place.run_id!r}"
        return f"{call}, tool {self.tool_name!r}"


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """This attempt of the call."""

    call: _GatedCall
    attempt: ToolAttempt
    store: AttemptStore

    @classmethod
    def of(cls, call: _GatedCall, store: AttemptStore, *, worker: str) -> "_Attempt":
        info = activity.info()
        attempt = ToolAttempt(
            token=f"{info.workflow_run_id}/{info.activity_id}/{info.attempt}",
            worker=worker,
            started_at=info.started_time,
        )
        return cls(call=call, attempt=attempt, store=store)

    async def enter(self) -> Entry:
        call = self.call
        return await when_store_is_back(
            lambda: self.store.enter(
                call.place, self.attempt, tool_name=call.tool_name, policy=call.effect
            )
        )

    async def leave(self, end: AttemptEnd) -> None:
        """Returns when the end is recorded, also while the activity is being cancelled."""
        writing = asyncio.ensure_future(
            when_store_is_back(lambda: self.store.leave(self.call.place, self.attempt.token, end))
        )
        is_cancelled = await _outlasting_cancellation(writing)
        if not writing.result():
            logger.warning("%s: the end of a stale attempt was not recorded", self.call)
            meter = activity.metric_meter()
            meter.create_counter("perdure_stale_attempts", "Late ends of attempts").add(1)
        if is_cancelled:
            raise asyncio.CancelledError


async def _outlasting_cancellation(writing: "asyncio.Future[Any]") -> bool:
    """Wait, and answer whether the activity was cancelled meanwhile.

    The SDK cancels an activity once, and not again when its worker stops.

    Raises:
        CancelledError: the worker stops, and the write came to no end in time.
    """
    is_cancelled = False
    looks = 0
    while not writing.done():
        try:
            await asyncio.wait([writing], timeout=1)
        except asyncio.CancelledError:
            is_cancelled = True
        if activity.is_cancelled() and activity.is_worker_shutdown():
            looks += 1
        if looks > LAST_LOOKS and not writing.done():
            writing.cancel()
            raise asyncio.CancelledError
    return is_cancelled


def _recorded(entry: Entry, call: _GatedCall) -> RawValue:
    """What an earlier attempt came to."""
    newest = entry.gate.newest
    if newest.outcome == "completed" and entry.gate.result is not None:
        return RawValue(Payload.FromString(entry.gate.result))
    message = newest.error or f"{call}: attempt {newest.number} {newest.outcome}"
    raise ApplicationError(message, type=newest.error_type, non_retryable=True)


def _unknown(entry: Entry, call: _GatedCall) -> ApplicationError:
    newest = entry.gate.newest
    what = "was cancelled in flight" if newest.outcome == "cancelled" else "never ended"
    message = (
        f"{call}: attempt {newest.number} began at {newest.started_at:%Y-%m-%d %H:%M:%S} "
        f"UTC on {newest.worker} and {what}; the tool may have done its work"
    )
    return ApplicationError(message, type=OUTCOME_UNKNOWN, non_retryable=True)


def _recordable(result: RawValue) -> dict[str, Any]:
    data = result.payload.SerializeToString()
    if len(data) <= LARGEST_RESULT_BYTES:
        return {"result": data}
    text = f"the tool returned {len(data)} bytes, and at most {LARGEST_RESULT_BYTES} can be kept"
    return {"error": text, "error_type": "ResultTooLargeError"}


def _failed(error: Exception) -> AttemptEnd:
    return AttemptEnd(
        outcome="failed", ended_at=_now(), error=_text_of(error), error_type=_type_of(error)
    )


def _raise_final(error: Exception) -> NoReturn:
    """The error as one that Temporal does not retry: the body ran, and may not run again."""
    details = error.details if isinstance(error, ApplicationError) else ()
    raise ApplicationError(
        _text_of(error), *details, type=_type_of(error), non_retryable=True
    ) from error


def _text_of(error: Exception) -> str:
    return error.message if isinstance(error, ApplicationError) else str(error)


def _type_of(error: Exception) -> str:
    if isinstance(error, ApplicationError) and error.type:
        return error.type
    return type(error).__name__


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - activities are where the clock is read
