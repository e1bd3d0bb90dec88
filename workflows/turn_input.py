"""How a run of `agent_run` that answers a turn gets its prompt and what it remembers."""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_ai import Agent
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from activities.conversations import BeginTurnRequest, BeginTurnResult
from workflows import policies
from workflows.conversation_journal import attempt_locally
from workflows.window import ChatDeps


class TurnPlace(BaseModel):
    """The answer of a conversation that a run is to give, and how far it may look back."""

    model_config = ConfigDict(frozen=True)

    position: int
    number: int
    max_turns: int = 20
    max_tokens: int | None = None

    def deps_for(self, agent: Agent[Any, Any]) -> object:
        """The window as deps, for an agent that takes them; else nothing."""
        kind: Any = agent.deps_type  # any type form, not only a class
        if isinstance(kind, type) and issubclass(kind, ChatDeps):
            return {"max_turns": self.max_turns, "max_tokens": self.max_tokens}
        return None


async def begin_turn(
    place: TurnPlace, *, conversation_id: str, workspace_id: str
) -> BeginTurnResult:
    """Mark the answer as running; its prompt and history, journaled.

    Raises:
        ApplicationError: the conversation has no such turn. Not retryable.
    """
    request = BeginTurnRequest(
        conversation_id=conversation_id,
        workspace_id=workspace_id,
        position=place.position,
        number=place.number,
        max_turns=place.max_turns,
        max_tokens=place.max_tokens,
    )
    begun = await attempt_locally("begin_turn", request, BeginTurnResult)
    if begun is not None:
        return begun
    try:
        result: BeginTurnResult = await workflow.execute_activity(
            "begin_turn",
            request,
            result_type=BeginTurnResult,
            start_to_close_timeout=policies.READ_TIMEOUT,
            retry_policy=policies.READ_RETRIES,
        )
    except ActivityError as error:
        raise error.cause if isinstance(error.cause, ApplicationError) else error from error
    return result
