"""Boundary operations outside a workflow: each is written to the store at once."""

import uuid
from datetime import UTC, datetime

import anyio

from activities.boundaries import RegistrationIdentityResult
from stores.commits import Commit
from stores.errors import IdempotencyConflictError, RunIdTakenError, StoreError
from stores.operations import Operation
from stores.protocols import StepStore
from workflows.notices import Notice


class DirectWriter:
    """Writes one run's operations, one commit each, without a position.

    The branch is the registration identity, drawn at random: outside a workflow nothing is
    replayed.
    """

    def __init__(self, store: StepStore) -> None:
        self._store = store
        self._registration_id = str(uuid.uuid4())  # noqa: TID251 - never in a workflow
        self._sequence = 0

    async def identify(self, run_id: str) -> RegistrationIdentityResult:  # noqa: ARG002 - the protocol's
        """The identity of this writer's only run."""
        return RegistrationIdentityResult(registration_id=self._registration_id)

    def next_sequence(self, run_id: str) -> int:  # noqa: ARG002 - one writer, one run
        """The next place in the run's order."""
        self._sequence += 1
        return self._sequence - 1

    async def record(
        self,
        operation: Operation,
        *,
        barrier: bool = False,  # noqa: ARG002 - all are
        then: Notice | None = None,
    ) -> None:
        """Write the operation; a run that is being cancelled still writes.

        Raises:
            StoreError: it was refused, or the store is away.
        """
        commit = Commit(
            operations=(operation,),
            now=datetime.now(UTC),  # noqa: TID251 - never in a workflow
            branch=self._registration_id,
        )
        with anyio.CancelScope(shield=True):
            result = await self._store.commit(commit)
            for outcome in result.refused():
                raise _refusal(operation, outcome.error_type, outcome.error)
        if then is not None:
            await then()


def _refusal(operation: Operation, error_type: str | None, text: str | None) -> StoreError:
    if error_type == RunIdTakenError.__name__:
        return RunIdTakenError(operation.run_id)
    if error_type == IdempotencyConflictError.__name__:
        return IdempotencyConflictError(operation.kind, operation.run_id, str(operation.key))
    return StoreError(f"{operation.kind} of run {operation.run_id!r} was refused: {text}")
