"""Boundary operations outside a workflow: each is written to the store at once."""

import asyncio
import uuid
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from typing import Protocol

import anyio

from activities.boundaries import RegistrationIdentityResult
from stores.commits import Commit, CommitPosition, CommitResult
from stores.errors import IdempotencyConflictError, RunIdTakenError, StoreError
from stores.operations import AnnotateToolEffect, Operation, Write
from workflows.lineage import Lineage, ToolAttempt
from workflows.notices import Notice


class StaleAttemptError(Exception):
    """A later attempt of the tool has begun this delegate again. Ends what is left of this one."""

    def __init__(self, run_id: str, attempt: ToolAttempt) -> None:
        self.run_id = run_id
        self.attempt = attempt
        super().__init__(run_id, attempt)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"run {self.run_id!r}, delegated by attempt {self.attempt.number} of a tool, cannot go "
            "on: a later attempt has begun it again, and that one counts. Let this attempt end"
        )


class Committer(Protocol):
    """What takes commits: a store, or the worker's from within an activity."""

    async def commit(self, commit: Commit) -> CommitResult:
        """See `StepStore.commit`."""
        ...


class _StoreWriter(ABC):
    """Writes one run's operations to a store, each at once."""

    def __init__(self, store: Committer) -> None:
        self._store = store
        self._sequence = 0

    @abstractmethod
    async def _write(self, operation: Write) -> None:
        """Commit an operation; raise what it was refused for."""

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
            StaleAttemptError: it belongs to an attempt of a tool, and a later one has begun.
            StoreError: it was refused, or the store is away.
        """
        await self._write(operation)
        if then is not None:
            await then()

    async def annotate(self, annotation: AnnotateToolEffect) -> None:
        """Write it, as `record` does."""
        await self._write(annotation)


class DirectWriter(_StoreWriter):
    """Writes one run's operations, one commit each, without a position.

    The branch is the registration identity, drawn at random: outside a workflow nothing is
    replayed.
    """

    def __init__(self, store: Committer) -> None:
        super().__init__(store)
        self._registration_id = str(uuid.uuid4())  # noqa: TID251 - never in a workflow

    async def identify(self, run_id: str) -> RegistrationIdentityResult:  # noqa: ARG002 - the protocol's
        """The identity of this writer's only run."""
        return RegistrationIdentityResult(registration_id=self._registration_id)

    async def _write(self, operation: Write) -> None:
        commit = Commit(operations=(operation,), now=_now(), branch=self._registration_id)
        with anyio.CancelScope(shield=True):
            _raise_refusal(operation, await self._store.commit(commit))


class AttemptWriter(_StoreWriter):
    """Writes a run that a tool activity delegates, as this attempt's branch of it.

    The run's registration identity stands for an execution, the attempts of the tool are its
    branches, and the commits of each are numbered from 1. So the commit protocol does the rest: the
    first commit of a later attempt takes the run over, and after that one of an earlier attempt
    comes too late. Another tool call that names the same run id is another execution, and refused.
    """

    def __init__(
        self, store: Committer, run_id: str, *, parent: Lineage, attempt: ToolAttempt
    ) -> None:
        """Bind the writer.

        Args:
            store: the worker's.
            run_id: of the delegate, the same on every attempt.
            parent: where the delegate was started; with the run id it is the registration identity.
            attempt: of the tool.
        """
        super().__init__(store)
        self._run_id = run_id
        self._registration_id = f"{parent.run_id}/{parent.effect_key}/{run_id}"
        self._attempt = attempt
        self._number = 0
        self._is_free = asyncio.Lock()

    async def identify(self, run_id: str) -> RegistrationIdentityResult:
        """The identity of the run, the same on every attempt.

        Raises:
            RunIdTakenError: another run of this attempt has the id.
        """
        self._attempt.claim(run_id)
        return RegistrationIdentityResult(registration_id=self._registration_id)

    async def _write(self, operation: Write) -> None:
        with anyio.CancelScope(shield=True):
            async with self._is_free:
                # A number that was tried is never taken again: whether it was written is unknown.
                self._number += 1
                commit = Commit(operations=(operation,), now=_now(), position=self._position())
                result = await self._store.commit(commit)
            if result.verdict == "stale":
                raise StaleAttemptError(self._run_id, self._attempt)
            _raise_refusal(operation, result)

    def _position(self) -> CommitPosition:
        attempt = self._attempt
        return CommitPosition(
            execution_id=self._registration_id,
            branch=f"{attempt.branch}/{attempt.number}/{self._run_id}",
            branch_time=attempt.started_at,
            number=self._number,
            history_length=attempt.number,
            queued_at=attempt.started_at,
        )


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - never in a workflow


def _raise_refusal(operation: Write, result: CommitResult) -> None:
    for outcome in result.refused():
        if outcome.error_type == RunIdTakenError.__name__:
            raise RunIdTakenError(operation.run_id)
        if outcome.error_type == IdempotencyConflictError.__name__:
            raise IdempotencyConflictError(operation.kind, operation.run_id, str(operation.key))
        message = f"{operation.kind} of run {operation.run_id!r} was refused: {outcome.error}"
        raise StoreError(message)
