"""Attempts of tool calls, and what a later attempt of one may do.

An attempt is recorded by the activity that makes it, before the tool's body runs and after, in
writes of its own beside the six boundaries: only that tells a body that was never entered from one
whose outcome was lost.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, Protocol

from stores.identifiers import DEFAULT_WORKSPACE
from stores.records import EffectPolicy

AttemptOutcome = Literal["entered", "completed", "failed", "cancelled"]
"""`entered`: the body was begun and nothing more is known; `cancelled`: it was interrupted."""

EntryVerdict = Literal["run", "recorded", "unknown", "stale"]
"""What an attempt may do: run the body, take the recorded outcome, nothing since an earlier attempt
may have done it, or nothing since a later one has begun."""

MAX_ATTEMPTS_KEPT = 50
"""Of one call; the numbers of older ones stay counted. A tool that is retried for days must not
swell its document."""


@dataclass(frozen=True, kw_only=True)
class ToolCallPlace:
    """Which call all its attempts belong to.

    `branch` is the execution that made the call, so a call that was made before a reset is the same
    after it. `round` counts the times that somebody decided to run it again.
    """

    run_id: str
    branch: str
    step_index: int
    call_index: int
    round: int = 0


@dataclass(frozen=True, kw_only=True)
class ToolAttempt:
    """One attempt. `token` is unique to it; `started_at` is the server's and orders attempts."""

    token: str
    worker: str
    started_at: datetime
    number: int = 1
    ended_at: datetime | None = None
    outcome: AttemptOutcome = "entered"
    error: str | None = None
    error_type: str | None = None


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended. `result` is what the tool returned, encoded by the caller."""

    outcome: AttemptOutcome
    ended_at: datetime
    result: bytes | None = None
    error: str | None = None
    error_type: str | None = None


@dataclass(frozen=True, kw_only=True)
class ToolGate:
    """All attempts of one call in one round, oldest first, and what they came to.

    `late_writes` counts ends that came from an attempt after a later one had begun; they change
    nothing else.
    """

    workspace_id: str = DEFAULT_WORKSPACE
    place: ToolCallPlace
    tool_name: str
    attempts: tuple[ToolAttempt, ...]
    result: bytes | None = None
    late_writes: int = 0
    revision: int = 0

    @property
    def newest(self) -> ToolAttempt:
        """The attempt that decides."""
        return self.attempts[-1]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Answer to an attempt that asks to begin; `gate` holds the outcome when it is `recorded`."""

    verdict: EntryVerdict
    gate: ToolGate


class AttemptStore(Protocol):
    """Where a worker's activities record the attempts of tool calls, of one workspace.

    Errors of every method: `StoreUnavailableError` (retryable) when no server could be reached.
    """

    async def enter(
        self, place: ToolCallPlace, attempt: ToolAttempt, *, tool_name: str, policy: EffectPolicy
    ) -> Entry:
        """Record that an attempt begins, if it may.

        Repeats: the same attempt again may still run. Of two attempts that ask at once, at most one
        of a `once` tool may.
        """
        ...

    async def leave(self, place: ToolCallPlace, token: str, end: AttemptEnd) -> bool:
        """Record how an attempt ended; `False` when it is late, which changes nothing else.

        Repeats: the first end stays.
        """
        ...

    async def find_gate(self, place: ToolCallPlace) -> ToolGate | None:
        """The attempts of one call, `None` when none has begun."""
        ...

    async def list_gates(self, *, run_id: str) -> list[ToolGate]:
        """The attempts of a run's calls by step, call and round, without results."""
        ...


def judge_entry(gate: ToolGate, attempt: ToolAttempt, policy: EffectPolicy) -> EntryVerdict:
    """What an attempt may do that finds earlier ones."""
    newest = gate.newest
    if newest.token == attempt.token:
        return "run" if newest.outcome == "entered" else "recorded"
    if newest.outcome == "completed":
        return "recorded"
    if attempt.started_at <= newest.started_at:
        return "stale"
    if policy != "once":
        return "run"
    return "recorded" if newest.outcome == "failed" else "unknown"


def opened(
    place: ToolCallPlace, attempt: ToolAttempt, *, tool_name: str, workspace_id: str
) -> ToolGate:
    """The gate of a call whose first attempt begins."""
    return ToolGate(
        workspace_id=workspace_id, place=place, tool_name=tool_name, attempts=(attempt,)
    )


def entered(gate: ToolGate, attempt: ToolAttempt) -> ToolGate:
    """The gate after a further attempt has begun."""
    attempt = replace(attempt, number=gate.newest.number + 1)
    kept = (*gate.attempts, attempt)[-MAX_ATTEMPTS_KEPT:]
    return replace(gate, attempts=kept, revision=gate.revision + 1)


def left(gate: ToolGate, token: str, end: AttemptEnd) -> ToolGate:
    """The gate after an attempt has ended; the same one when it had ended before."""
    newest = gate.newest
    if newest.token != token:
        return replace(gate, late_writes=gate.late_writes + 1, revision=gate.revision + 1)
    if newest.outcome != "entered":
        return gate
    ended = replace(
        newest,
        ended_at=end.ended_at,
        outcome=end.outcome,
        error=end.error,
        error_type=end.error_type,
    )
    return replace(
        gate,
        attempts=(*gate.attempts[:-1], ended),
        result=end.result,
        revision=gate.revision + 1,
    )


def order_of(gate: ToolGate) -> tuple[int, int, int, datetime]:
    """Sort key: a run's calls in the order of its model's responses."""
    place = gate.place
    return (place.step_index, place.call_index, place.round, gate.attempts[0].started_at)
