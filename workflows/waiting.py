"""Calls of a workflow execution that wait for somebody's decision.

An update answers. What it may say is checked in its validator, so a wrong answer costs no history.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from stores.identifiers import DEFAULT_WORKSPACE

NOT_WAITING = "waits for no"
"""In the words of a refusal that may come too early."""


class Decision(Protocol):
    """Which call somebody decided on, and who; `decision` in a word."""

    run_id: str
    call: str
    by: str | None
    workspace_id: str

    @property
    def decision(self) -> str:
        """What was decided."""
        ...


@dataclass(kw_only=True)
class WaitingCall:
    """A call on which somebody has to decide."""

    run_id: str
    workspace_id: str
    tool_call_id: str
    tool_name: str
    step_index: int
    call_index: int
    verdict: str | None = None
    """What was decided and by whom, in words; `None` while it waits."""

    @property
    def place(self) -> str:
        """Step and call index, as a person names them."""
        return f"{self.step_index}/{self.call_index}"

    @property
    def words(self) -> str:
        """What a command takes that names the call."""
        words = [self.run_id, self.place]
        if self.workspace_id != DEFAULT_WORKSPACE:
            words += ["--workspace", self.workspace_id]
        return shlex.join(words)

    def is_of(self, decision: Decision) -> bool:
        """Whether it is a call of the run that is meant."""
        return (self.run_id, self.workspace_id) == (decision.run_id, decision.workspace_id)

    def is_named(self, call: str) -> bool:
        """Whether somebody means it by this place or tool call id."""
        return call in {self.place, self.tool_call_id}


CallT = TypeVar("CallT", bound=WaitingCall)


@dataclass(kw_only=True)
class Waiting(Generic[CallT]):
    """The calls of an execution, of all its runs, that wait for one kind of decision.

    Args:
        awaited: what they wait for, in a word.
        error_type: of a refusal.
        on_change: called when the first call waits and when the last one does not any more.
    """

    awaited: str
    error_type: str
    on_change: Callable[[], None] | None = None
    _calls: list[CallT] = field(default_factory=list[CallT])
    _decided: list[CallT] = field(default_factory=list[CallT])
    """So that who answers too late is told what was decided, and by whom."""

    @property
    def calls(self) -> tuple[CallT, ...]:
        """In the order in which they began to wait."""
        return tuple(self._calls)

    async def until_decided(
        self, call: CallT, *, announce: Callable[[], None], longest: timedelta | None = None
    ) -> None:
        """Return when somebody has decided on the call, or nobody has in time.

        Repeats: the first valid answer counts.

        Args:
            call: waits from now on.
            announce: tells people so.
            longest: how long it waits; `None` is for ever.
        """
        self._calls.append(call)
        announce()
        self._tell_change(len(self._calls) - 1)
        try:
            await workflow.wait_condition(lambda: call.verdict is not None, timeout=longest)
        except TimeoutError:
            pass
        finally:
            self._calls.remove(call)
        if call.verdict is not None:
            self._decided.append(call)
        self._tell_change(len(self._calls))

    def decide(self, request: Decision) -> CallT:
        """The call that is meant, which waits no more."""
        call = self.find(request)
        by = f" by {request.by}" if request.by else ""
        call.verdict = f"was decided{by} already: {request.decision}"
        return call

    def check_waits(self, request: Decision) -> CallT:
        """The call that is meant.

        Raises:
            ApplicationError: it does not wait, or somebody has decided.
        """
        call = self.find(request)
        if call.verdict is not None:
            raise self.refusal(request, call.verdict)
        return call

    def find(self, request: Decision) -> CallT:
        """The call that is meant; one of another workspace is as one that does not exist.

        Raises:
            ApplicationError: it never waited, or several are meant.
        """
        mine = [each for each in self._calls if each.is_of(request)]
        found = [each for each in mine if each.is_named(request.call)]
        decided = [each for each in self._decided if each.is_of(request)]
        found = found or [each for each in decided if each.is_named(request.call)][-1:]
        if len(found) == 1:
            return found[0]
        if found:
            places = ", ".join(each.place for each in found)
            raise self.refusal(request, f"is ambiguous; name one of {places}")
        mine.sort(key=lambda each: (each.step_index, each.call_index))
        waiting = ", ".join(f"{each.place} ({each.tool_name})" for each in mine) or "none"
        problem = (
            f"{NOT_WAITING} {self.awaited}; waiting calls of that run: {waiting}. One that was "
            "lost a moment ago waits when its run has come to it again: try again then"
        )
        raise self.refusal(request, problem)

    def refusal(self, request: Decision, problem: str) -> ApplicationError:
        """The error that refuses a decision."""
        message = f"call {request.call!r} of run {request.run_id!r} {problem}"
        return ApplicationError(message, type=self.error_type, non_retryable=True)

    def _tell_change(self, others: int) -> None:
        if not others and self.on_change:
            self.on_change()
