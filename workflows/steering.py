"""What a user says to a run in progress: delivered before its next model request."""

from dataclasses import dataclass, field

from pydantic import BaseModel
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import RunContext
from temporalio import workflow

from workflows.executions import of_execution


class Steer(BaseModel):
    """Text for the run in progress; the same message counts once."""

    message_id: str
    text: str


@dataclass(kw_only=True)
class Steering:
    """Steers of a workflow execution, for the one run that it was started for."""

    _context: RunContext[object] | None = None
    _waiting: list[Steer] = field(default_factory=list[Steer])
    _seen: set[str] = field(default_factory=set[str])

    def bind(self, context: RunContext[object]) -> None:
        """From now on the run takes steers; those that came before it began are given to it."""
        self._context = context
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._give(each)

    def take(self, steer: Steer) -> None:
        """Give a steer to the run: its next request carries it, or it makes one more."""
        if steer.message_id in self._seen:
            return
        self._seen.add(steer.message_id)
        self._give(steer)

    @property
    def undelivered(self) -> tuple[str, ...]:
        """Ids of messages that came too late for the run."""
        return tuple(each.message_id for each in self._waiting)

    def _give(self, steer: Steer) -> None:
        if self._context is None:
            self._waiting.append(steer)
            return
        try:
            self._context.enqueue(steer.text)
        except UserError:  # the run has ended
            self._waiting.append(steer)


def let_steer(run_id: str, context: RunContext[object]) -> None:
    """Give steers of this execution to the run, when it is the one that it was started for."""
    if workflow.in_workflow() and run_id == workflow.info().workflow_id:
        steering_of_execution().bind(context)


def steering_of_execution() -> Steering:
    """The steering of the workflow that runs this code; made at the first call."""
    return of_execution(Steering, "steering")
