"""Stores with a fault planted in them, for the sweep to find: it must not be able to miss these."""

from dataclasses import replace
from typing import Any, cast

from stores.attempts import (
    AttemptEnd,
    AttemptStore,
    Entry,
    ToolAttempt,
    ToolCallPlace,
)
from stores.commits import Commit, CommitResult
from stores.errors import IdempotencyConflictError
from stores.operations import AppendEvent
from stores.protocols import StepStore
from stores.records import EffectPolicy


class _Passing:
    """Passes everything on."""

    def __init__(self, store: Any) -> None:  # noqa: ANN401 - a store, or its attempts
        self._store = store

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self._store, name)

    def for_workspace(self, workspace_id: str) -> StepStore:
        """The same, bound to another workspace."""
        return cast("StepStore", type(self)(self._store.for_workspace(workspace_id)))


class DroppingStore(_Passing):
    """Loses one write: the end of a tool call."""

    async def commit(self, commit: Commit) -> CommitResult:
        """Write all but that."""
        kept = tuple(
            each
            for each in commit.operations
            if not (isinstance(each, AppendEvent) and each.key == "2:tool_call_completed:0:0")
        )
        result: CommitResult = await self._store.commit(replace(commit, operations=kept))
        return result


class DigestlessStore(_Passing):
    """Takes a commit for a repeat without looking at what it holds."""

    async def commit(self, commit: Commit) -> CommitResult:
        """Never find a contradiction."""
        try:
            result: CommitResult = await self._store.commit(commit)
        except IdempotencyConflictError:
            number = commit.position.number if commit.position else None
            return CommitResult(verdict="suppress", number=number)
        return result


class FencelessStore(_Passing):
    """Has a ledger that takes the end of whatever attempt for that of the newest."""

    @property
    def attempts(self) -> AttemptStore:
        """Without a fence."""
        return cast("AttemptStore", _FencelessAttempts(self._store.attempts))


class _FencelessAttempts(_Passing):
    async def leave(self, place: ToolCallPlace, token: str, end: AttemptEnd) -> bool:
        gate = await self._store.find_gate(place)
        is_recorded: bool = await self._store.leave(
            place, gate.newest.token if gate else token, end
        )
        return is_recorded


class RepeatingStore(_Passing):
    """Has a ledger that lets every attempt run, also of a `once` tool."""

    @property
    def attempts(self) -> AttemptStore:
        """Without a gate."""
        return cast("AttemptStore", _RepeatingAttempts(self._store.attempts))


class _RepeatingAttempts(_Passing):
    async def enter(
        self, place: ToolCallPlace, attempt: ToolAttempt, *, tool_name: str, policy: EffectPolicy
    ) -> Entry:
        entry: Entry = await self._store.enter(
            place, attempt, tool_name=tool_name, policy="idempotent" if policy == "once" else policy
        )
        return replace(entry, verdict="run")


PLANTED: dict[str, type[_Passing]] = {
    "a store that drops a write": DroppingStore,
    "a store without digests": DigestlessStore,
    "a ledger without its fence": FencelessStore,
    "a retry that runs a once tool": RepeatingStore,
}
"""By what is wrong with it."""
