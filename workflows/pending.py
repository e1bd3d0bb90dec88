"""Tool calls that an earlier run has left unanswered, and that this one is to execute."""

from collections.abc import Collection, Sequence

from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ToolCallPart

from stores.continuing import pending_calls


class MissingToolsError(Exception):
    """A history's pending calls are of tools that the agent does not have."""


def check_pending_calls(calls: Sequence[ToolCallPart], tools: Collection[str]) -> None:
    """Return when the agent has the tool of each call.

    Raises:
        MissingToolsError: it does not; the message names them.
    """
    missing = [call for call in calls if call.tool_name not in tools]
    if missing:
        named = ", ".join(f"{call.tool_name} (call {call.tool_call_id!r})" for call in missing)
        known = ", ".join(sorted(tools)) or "none"
        message = (
            f"the history ends with calls of tools that the agent does not have: {named}; its "
            f"tools: {known}. Go on with an agent that has them, or fork from a snapshot before"
        )
        raise MissingToolsError(message)


def check_prompt(history: Sequence[ModelMessage]) -> None:
    """Return when a prompt may follow the history.

    The core would refuse it, too, but only after the run has been registered.

    Raises:
        UserError: calls at its end could still be executed, and none of them was.
    """
    calls = pending_calls(history)
    # Those of a response that was cut off are closed out by the core.
    if calls and getattr(history[-1], "state", None) == "complete":
        named = ", ".join(f"{call.tool_name} (call {call.tool_call_id!r})" for call in calls)
        message = (
            f"a prompt cannot follow calls that could still be executed: {named}. Go on without a "
            "prompt to execute them, or fork from a complete snapshot. In code, close them out "
            "with pydantic_ai.messages.repair_messages"
        )
        raise UserError(message)
