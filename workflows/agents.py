"""Name to agent: filled by the worker before it polls, read by workflows."""

from collections.abc import Iterable
from typing import Any

from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.durable_exec.temporal import TemporalDurability
from temporalio.exceptions import ApplicationError

from activities.reconciling import Reconcile
from workflows.conversation_search import ConversationSearch
from workflows.deps import DepsFactory
from workflows.durable import StableTemporalDurability
from workflows.effects import declared_effect, longest_wait
from workflows.persistence import StepPersistence

_agents: dict[str, Agent[Any, Any]] = {}


class AgentSetupError(ValueError):
    """An agent cannot be run by a worker; the message names it and says what to change."""


def register_agents(agents: Iterable[Agent[Any, Any]]) -> None:
    """Make `agents` the ones that this process runs, in place of any before.

    Raises:
        AgentSetupError: one has no name, shares its name, lacks `durable()` or brings a store.
    """
    checked: dict[str, Agent[Any, Any]] = {}
    for agent in agents:
        name = _checked_name(agent)
        if name in checked and checked[name] is not agent:
            message = (
                f"Two agents are named {name!r}; names reach histories, so each must be unique"
            )
            raise AgentSetupError(message)
        checked[name] = agent
    _agents.clear()
    _agents.update(checked)


def find_agent(name: str) -> Agent[Any, Any]:
    """The agent of that name.

    Raises:
        ApplicationError: type `UnknownAgentError`, listing the known ones. Not retryable.
    """
    agent = _agents.get(name)
    if agent is None:
        known = ", ".join(sorted(_agents)) or "none"
        message = f"agent {name!r} is not known to this worker; known agents: {known}"
        raise ApplicationError(message, type="UnknownAgentError", non_retryable=True)
    return agent


def _checked_name(agent: Agent[Any, Any]) -> str:
    if not agent.name:
        message = f"{agent!r} has no name; pass name=... (it reaches activity names and histories)"
        raise AgentSetupError(message)
    durability = TemporalDurability.from_agent(agent)
    if not isinstance(durability, StableTemporalDurability):
        found = "none" if durability is None else "pydantic-ai's own TemporalDurability"
        message = (
            f"agent {agent.name!r} must be made with capabilities=[*durable()]; its durability is "
            f"{found}, whose run ids change when a workflow is reset"
        )
        raise AgentSetupError(message)
    _check_recorder(agent)
    _check_searches(agent)
    _check_effects(agent)
    return agent.name


def find_deps_factory(agent_name: str) -> DepsFactory | None:
    """What makes the deps of that agent, `None` when it has none or is not known."""
    agent = _agents.get(agent_name)
    return deps_factory_of(agent) if agent else None


def deps_factory_of(agent: Agent[Any, Any]) -> DepsFactory | None:
    """What makes the agent's deps, `None` when they are passed as they are."""
    durability = TemporalDurability.from_agent(agent)
    return durability.deps_factory if isinstance(durability, StableTemporalDurability) else None


def find_reconcile(agent_name: str, tool_name: str) -> Reconcile | None:
    """The check that an agent's `StepPersistence` has for a tool, `None` when it has none."""
    agent = _agents.get(agent_name)
    recorders = _recorders_of(agent) if agent else []
    return next((r.reconcile[tool_name] for r in recorders if tool_name in r.reconcile), None)


def _recorders_of(agent: Agent[Any, Any]) -> list[StepPersistence[Any]]:
    recorders: list[StepPersistence[Any]] = []
    agent.root_capability.apply(
        lambda each: recorders.append(each) if isinstance(each, StepPersistence) else None
    )
    return recorders


def _check_effects(agent: Agent[Any, Any]) -> None:
    """Check what tools declare, as far as they are known before a run."""
    for toolset in agent.toolsets:
        tools = toolset.tools if isinstance(toolset, FunctionToolset) else {}
        for tool in tools.values():
            try:
                declared_effect(tool.tool_def)
                longest_wait(tool.tool_def)
            except ValueError as error:
                message = f"agent {agent.name!r}: {error}"
                raise AgentSetupError(message) from error


def _check_recorder(agent: Agent[Any, Any]) -> None:
    recorders = _recorders_of(agent)
    if not recorders:
        message = f"agent {agent.name!r} has no StepPersistence; make it with [*durable()]"
        raise AgentSetupError(message)
    if any(each.store is not None for each in recorders):
        message = (
            f"agent {agent.name!r} has a StepPersistence with a store of its own; inside a "
            "workflow the worker's store is the one written to, so leave store= out"
        )
        raise AgentSetupError(message)


def _check_searches(agent: Agent[Any, Any]) -> None:
    searches: list[ConversationSearch[Any]] = []
    agent.root_capability.apply(
        lambda each: searches.append(each) if isinstance(each, ConversationSearch) else None
    )
    if any(each.source is not None for each in searches):
        message = (
            f"agent {agent.name!r} has a ConversationSearch with a source of its own; inside a "
            "workflow the worker's store is the one that is searched, so leave source out"
        )
        raise AgentSetupError(message)
