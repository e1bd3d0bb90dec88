"""Perdure's storage driver for Temporal's External Storage."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TypeVar

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ExternalStorage,
    StorageDriver,
    StorageDriverActivityInfo,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverSelectContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)
from temporalio.exceptions import ApplicationError

from stores.errors import StoreError, StoreUnavailableError
from stores.identifiers import DEFAULT_WORKSPACE
from stores.payload_store import PayloadClaim, PayloadOwners, PayloadStore
from workflows.payloads import LARGEST_INLINE_BYTES, PLACE_KEY, WORKSPACE_KEY

DRIVER_NAME = "perdure"
"""In every claim, so it never changes."""

PATIENCE_SECONDS = 4.0
"""How long a store that is away is waited for: less than the shortest heartbeat timeout (5 s) and
than a workflow task may take (10 s). Activities wait on by themselves (`activities.payloads`), the
server repeats a workflow task."""

FIRST_PAUSE_SECONDS = 0.2

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class OwningWorkflow(StorageDriverWorkflowInfo):
    """A payload's target, when histories of more workflows than one will hold it."""

    others: tuple[str, ...] = ()


def external_storage(driver: "PayloadDriver", threshold_bytes: int) -> ExternalStorage:
    """Temporal's configuration: what is large enough goes to the driver, unless it must stay.

    A payload that belongs to no workflow stays, since nothing would tell when it may be removed: a
    memo, what an activity without a workflow is given and returns.
    """

    def select(context: StorageDriverSelectContext, payload: Payload) -> StorageDriver | None:
        if PLACE_KEY in payload.metadata:
            return None
        if _find_owners(context.target) is None:
            _check_inline(payload)
            return None
        return driver

    return ExternalStorage(
        drivers=[driver], driver_selector=select, payload_size_threshold=threshold_bytes
    )


class PayloadDriver(StorageDriver):
    """Stores payloads in a `PayloadStore`. Claims hold nothing secret: Temporal encodes none.

    Errors of the store come through as they are: they fail the workflow task, whose next attempt
    may find the store back or a chunk restored, never the workflow.
    """

    def __init__(self, store: PayloadStore) -> None:
        self.payloads = store

    def name(self) -> str:
        """See `StorageDriver.name`."""
        return DRIVER_NAME

    def type(self) -> str:
        """See `StorageDriver.type`."""
        return "perdure.chunks"

    async def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload]
    ) -> list[StorageDriverClaim]:
        """See `StorageDriver.store`.

        Raises:
            StoreError: it cannot be stored, or belongs to no workflow.
        """
        owners = _find_owners(context.target)
        if owners is None:  # `external_storage` selects no such payload
            message = "a payload that belongs to no workflow is not stored"
            raise StoreError(message)
        what = f"store a payload of workflow {owners.workflow_ids[0]!r}"
        return [await _patiently(partial(self._put, each, owners), what) for each in payloads]

    async def retrieve(
        self,
        context: StorageDriverRetrieveContext,  # noqa: ARG002 - the SDK's signature
        claims: Sequence[StorageDriverClaim],
    ) -> list[Payload]:
        """See `StorageDriver.retrieve`.

        Raises:
            StoreError: it cannot be read; the message names workflow and chunk.
        """
        return [
            await _patiently(
                partial(self._get, claim),
                f"read a payload of workflow {claim.claim_data.get('workflow')!r}",
            )
            for claim in claims
        ]

    async def _put(self, payload: Payload, owners: PayloadOwners) -> StorageDriverClaim:
        workspace = payload.metadata.get(WORKSPACE_KEY, DEFAULT_WORKSPACE.encode())
        claim = await self.payloads.put(
            bytes_of(payload),
            owners=owners,
            workspace_id=workspace.decode(),
        )
        data = {"root": claim.root.hex(), "workflow": claim.workflow_id}
        return StorageDriverClaim({**data, "key": claim.key_id} if claim.key_id else data)

    async def _get(self, claim: StorageDriverClaim) -> Payload:
        data = claim.claim_data
        stored = PayloadClaim(
            root=bytes.fromhex(data["root"]),
            workflow_id=data["workflow"],
            key_id=data.get("key"),
        )
        return payload_in(await self.payloads.get(stored))

    async def aclose(self) -> None:
        """Close the store."""
        await self.payloads.aclose()


class ReplayDriver(PayloadDriver):
    """Reads and writes nothing: a replay makes every command again, and compares no payload."""

    async def store(
        self,
        context: StorageDriverStoreContext,  # noqa: ARG002 - the SDK's signature
        payloads: Sequence[Payload],
    ) -> list[StorageDriverClaim]:
        """Claims that nobody keeps."""
        return [StorageDriverClaim({}) for _ in payloads]


_LENGTH_BYTES = 4


def bytes_of(payload: Payload) -> bytes:
    """The data, then the rest and its length: what is in front must not change with the length."""
    rest = Payload(metadata=payload.metadata).SerializeToString(deterministic=True)
    return payload.data + rest + len(rest).to_bytes(_LENGTH_BYTES)


def payload_in(stored: bytes) -> Payload:
    """The payload that `bytes_of` was given."""
    end = len(stored) - _LENGTH_BYTES
    start = end - int.from_bytes(stored[end:])
    payload = Payload.FromString(stored[start:end])
    payload.data = stored[:start]
    return payload


def _find_owners(
    target: StorageDriverActivityInfo | StorageDriverWorkflowInfo | None,
) -> PayloadOwners | None:
    """Whose histories will hold a payload with this target; `None` if no workflow's does."""
    if isinstance(target, StorageDriverWorkflowInfo) and target.id is not None:
        others = target.others if isinstance(target, OwningWorkflow) else ()
        ids = dict.fromkeys((target.id, *others))
        return PayloadOwners(namespace=target.namespace, workflow_ids=tuple(ids))
    if target is None and activity.in_activity():
        info = activity.info()
        if info.workflow_id is not None:
            namespace = info.workflow_namespace or info.namespace
            return PayloadOwners(namespace=namespace, workflow_ids=(info.workflow_id,))
    return None


def _check_inline(payload: Payload) -> None:
    size = payload.ByteSize()
    if size > LARGEST_INLINE_BYTES:
        message = (
            f"a payload of {size} bytes is too large for a memo or an activity without a workflow: "
            f"it belongs to no workflow, so it is not stored, and Temporal itself takes "
            f"{LARGEST_INLINE_BYTES}. Pass it by reference, or start a workflow"
        )
        raise ApplicationError(message, type="PayloadTooLargeError", non_retryable=True)


async def _patiently(call: Callable[[], Awaitable[Answer]], what: str) -> Answer:
    """The answer, from a store that may be away for a moment."""
    give_up_at = monotonic() + PATIENCE_SECONDS
    pause = FIRST_PAUSE_SECONDS
    last: StoreError | None = None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:  # ends: with the timeout at the latest
                try:
                    return await call()
                except StoreError as error:
                    if not error.retryable or monotonic() + pause > give_up_at:
                        raise
                    last = error
                await asyncio.sleep(pause)  # noqa: TID251 - outside workflow code
                pause *= 2
    except TimeoutError as error:
        message = f"{what}: no answer within {PATIENCE_SECONDS:.0f} s"
        raise last or StoreUnavailableError(message) from error
