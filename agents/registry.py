"""Loading agents from `module:attribute` paths."""

import importlib
from collections.abc import Iterable, Sequence
from typing import Any, cast

from pydantic_ai import Agent, UserError

from workflows.agents import AgentSetupError


def load_agents(paths: Iterable[str]) -> list[Agent[Any, Any]]:
    """Import each `module:attribute`: an agent, or a list of agents.

    Raises:
        AgentSetupError: a path is malformed, its module or attribute is missing, or it is no agent.
    """
    return [agent for path in paths for agent in _load(path)]


def _load(path: str) -> Sequence[Agent[Any, Any]]:
    module_name, separator, attribute = path.partition(":")
    if not separator or not module_name or not attribute:
        message = (
            f"PERDURE_AGENTS holds {path!r}; write module:attribute, such as agents.scripted:agent"
        )
        raise AgentSetupError(message)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        message = (
            f"PERDURE_AGENTS names {path!r}, and there is no module {error.name!r}. Is the folder "
            "that holds it on PYTHONPATH?"
        )
        raise AgentSetupError(message) from error
    except UserError as error:
        message = f"PERDURE_AGENTS names {path!r}, whose module cannot make its agents: {error}"
        raise AgentSetupError(message) from error
    found: object = getattr(module, attribute, None)
    is_list = isinstance(found, list | tuple)
    listed = cast("Sequence[object]", found) if is_list else [found]
    agents: list[Agent[Any, Any]] = [each for each in listed if isinstance(each, Agent)]
    if not agents or len(agents) < len(listed):
        message = (
            f"PERDURE_AGENTS names {path!r}, which is {type(found).__name__}; it must be a "
            "pydantic_ai.Agent or a list of them"
        )
        raise AgentSetupError(message)
    return agents
