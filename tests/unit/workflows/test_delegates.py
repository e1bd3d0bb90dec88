"""Delegates outside a workflow, and what a worker refuses before it polls."""

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import UsageLimits

from stores.memory import InMemoryStepStore
from tests.helpers.delegating import AGENTS, ANYTHING, HEAD, LEAD, MIRROR, asking
from tests.helpers.script import echo_steps, follow, make_agent, script
from workflows.agents import AgentSetupError, register_agents
from workflows.delegates import DelegationTooDeepError, check_delegates, delegate
from workflows.durable import durable
from workflows.persistence import StepPersistence


def make_persisting(name: str, store: InMemoryStepStore, **options: Any) -> Agent[Any, str]:
    return Agent(
        FunctionModel(follow),
        name=name,
        capabilities=[*durable(StepPersistence(store=store))],
        **options,
    )


@pytest.mark.spec("SP-36", "SP-37", "SP-38")
async def test_delegate_outside_a_workflow_runs_here_with_its_parent() -> None:
    store = InMemoryStepStore()
    child = make_persisting("child", store)
    parent = make_persisting("parent", store, tools=[delegate(child, description=ANYTHING)])
    prompt = asking(echo_steps(0), tool="ask_child")
    result = await parent.run(prompt, run_id="parent-1", conversation_id="dialogue")
    assert result.output == "led"
    (record,) = await store.list_runs(parent_run_id="parent-1")
    assert record.agent_name == "child"
    assert record.conversation_id == record.run_id
    assert record.usage is not None
    assert record.usage["requests"] == 1
    assert result.usage.requests == 2 + 1


async def test_agent_named_only_is_found_among_the_registered_ones() -> None:
    register_agents([make_agent("script")])
    result = await LEAD.run(asking(echo_steps(1)))
    assert result.usage.requests == 2 + 2
    register_agents([])
    with pytest.raises(AgentSetupError, match="'script' is not known in this process"):
        await LEAD.run(asking(echo_steps(1)))


async def test_failure_is_raised_or_told() -> None:
    failing = script([[("fail", {"text": "no luck"})]])
    told = await LEAD.run(asking(failing, tool="tell"))
    assert told.output == "led"
    assert told.usage.requests == 2 + 1
    with pytest.raises(RuntimeError, match="no luck"):
        await HEAD.run(asking(failing, tool="ask_lead"))


async def test_limits_of_the_caller_hold() -> None:
    with pytest.raises(UsageLimitExceeded):
        await LEAD.run(
            asking(echo_steps(9), tool="tell"), usage_limits=UsageLimits(request_limit=4)
        )


async def test_endless_delegation_is_refused_here_too() -> None:
    register_agents([MIRROR])
    prompt = echo_steps(0)
    for _ in range(9):
        prompt = asking(prompt, tool="ask_mirror")
    with pytest.raises(DelegationTooDeepError, match="depth 9; 8 is the most"):
        await MIRROR.run(prompt)


@dataclass
class Desk:
    floor: int


async def test_deps_are_made_from_those_of_the_caller() -> None:
    child = Agent(FunctionModel(follow), name="child", deps_type=Desk)

    @child.tool
    async def floor(ctx: RunContext[Desk]) -> int:
        """Where the desk stands."""
        seen.append(ctx.deps.floor)
        return ctx.deps.floor

    seen: list[int] = []
    parent = Agent(
        FunctionModel(follow),
        name="parent",
        deps_type=int,
        tools=[delegate(child, description=ANYTHING, deps=lambda ctx: Desk(ctx.deps + 1))],
    )
    await parent.run(asking(script([[("floor", {})]]), tool="ask_child"), deps=2)
    assert seen == [3]


def test_tool_is_described_for_the_model() -> None:
    tool = delegate("head of sales", description="Knows the customers.")
    assert (tool.name, tool.description) == ("ask_head_of_sales", "Knows the customers.")
    schema = tool.function_schema.json_schema
    assert list(schema["properties"]) == ["prompt"]
    assert schema["properties"]["prompt"]["description"].startswith("What the delegate is to do")


def test_agent_without_a_name_is_no_delegate() -> None:
    with pytest.raises(AgentSetupError, match="needs a name"):
        delegate(Agent("test"), description=ANYTHING)
    with pytest.raises(AgentSetupError, match="needs a name"):
        delegate("", description=ANYTHING)


def test_worker_serves_the_delegates_of_its_agents() -> None:
    check_delegates(AGENTS)
    with pytest.raises(AgentSetupError, match="'lead' delegates to 'script', which this worker"):
        check_delegates([LEAD])
    with pytest.raises(
        AgentSetupError, match="'lead' delegates to 'script', and the worker serves"
    ):
        check_delegates([LEAD, make_agent("script")])
