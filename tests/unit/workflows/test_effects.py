"""Effect policies: which one holds, and what follows from it."""

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import RunUsage
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from settings import Settings
from stores.memory import InMemoryStepStore
from stores.records import EffectPolicy
from workflows import effects
from workflows.agents import AgentSetupError, register_agents
from workflows.durable import durable
from workflows.effects import UnknownEffectPolicyError, effect, effect_key
from workflows.lineage import Lineage, entered, scope_of
from workflows.persistence import StepPersistence

CALL = Lineage(run_id="run", branch="branch").in_call(1, 0, "call", tool_name="pay", effect="once")


def tool(metadata: dict[str, Any] | None) -> ToolDefinition:
    return ToolDefinition(name="pay", metadata=metadata)


def context(tool_call_id: str = "call") -> RunContext[None]:
    return RunContext(deps=None, model=TestModel(), usage=RunUsage(), tool_call_id=tool_call_id)


@pytest.mark.parametrize(
    ("metadata", "settled", "expected"),
    [
        (None, None, "once"),
        ({"other": 1}, None, "once"),
        (effect("read"), None, "read"),
        (effect("idempotent"), None, "idempotent"),
        (effect("once"), None, "once"),
        ({"temporal": False}, None, "read"),
        ({"temporal": False, "effect": "once"}, None, "once"),
        (None, "idempotent", "idempotent"),
        (effect("read"), "once", "once"),
    ],
)
def test_policy_is_the_workers_then_the_tools_then_once(
    metadata: dict[str, Any] | None, settled: EffectPolicy | None, expected: str
) -> None:
    told: dict[str, EffectPolicy] = {"other": "read"}
    if settled:
        told["pay"] = settled
    assert effects.effect_of(tool(metadata), told) == expected


@pytest.mark.parametrize("found", ["Once", "never", "", 1, ["once"]])
def test_effect_that_does_not_exist_is_refused_with_the_tools_name(found: object) -> None:
    with pytest.raises(UnknownEffectPolicyError, match=r"tool 'pay' declares .* it must be 'read'"):
        effects.effect_of(tool({"effect": found}), {})


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"effect": "twice"}, "tool 'pay' declares the effect 'twice'"),
        ({"effect": "once", "on_unknown": "later"}, "tool 'pay' declares on_unknown='later'"),
        ({"effect": "once", "on_unknown": -1}, "tool 'pay' declares on_unknown=-1"),
    ],
)
def test_worker_does_not_start_with_a_tool_that_declares_nonsense(
    metadata: dict[str, Any], problem: str
) -> None:
    agent = Agent(TestModel(), name="payer", capabilities=[*durable()])
    agent.tool_plain(metadata=metadata)(pay)
    with pytest.raises(AgentSetupError, match=re.escape(f"agent 'payer': {problem}")):
        register_agents([agent])


def pay() -> str:
    """Pay."""
    return "paid"


def test_worker_is_not_told_a_policy_that_does_not_exist() -> None:
    with pytest.raises(ValidationError, match="tool_effects"):
        Settings.model_validate({"tool_effects": {"pay": "twice"}})


@pytest.mark.parametrize(
    ("on_unknown", "expected"),
    [
        ("wait", None),
        ("fail", timedelta(0)),
        (timedelta(hours=1), timedelta(hours=1)),
    ],
)
def test_run_waits_as_long_as_the_tool_says(
    on_unknown: str | timedelta, expected: timedelta | None
) -> None:
    assert effects.longest_wait(tool(effect("once", on_unknown=on_unknown))) == expected


def test_tool_that_says_nothing_waits_for_ever() -> None:
    assert effects.longest_wait(tool(None)) is None


def test_options_follow_from_the_policy() -> None:
    assert effects.activity_options("read", tool(None)) == {}
    waits = {"cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED}
    assert effects.activity_options("idempotent", tool(None)) == waits
    once = effects.activity_options("once", tool(None))
    assert once.get("cancellation_type") == waits["cancellation_type"]
    retries = once.get("retry_policy")
    assert retries is not None
    assert retries.maximum_attempts == 0


def test_what_a_tool_sets_itself_wins_over_its_policy() -> None:
    own = {"temporal": {"retry_policy": RetryPolicy(maximum_attempts=2)}}
    assert "retry_policy" not in effects.activity_options("once", tool(own))


def test_retries_of_an_agents_activities_hold_but_for_the_attempts_that_once_needs() -> None:
    needed = effects.activity_options("once", tool(None)).get("retry_policy")
    assert needed is not None
    given = RetryPolicy(
        initial_interval=timedelta(seconds=30),
        backoff_coefficient=1.5,
        maximum_attempts=1,
        non_retryable_error_types=["UserError"],
    )
    merged = effects.with_attempts(given, needed)
    pause = timedelta(seconds=30)  # not below the first one, which the server would refuse
    assert merged == replace(given, maximum_attempts=0, maximum_interval=pause)
    own = replace(given, maximum_interval=timedelta(minutes=5))
    assert effects.with_attempts(own, needed) == replace(own, maximum_attempts=0)
    short = effects.with_attempts(RetryPolicy(), needed)
    assert short.maximum_interval == needed.maximum_interval
    assert effects.with_attempts(None, needed) == needed


async def test_tool_that_is_made_in_a_run_and_declares_nonsense_fails_it_unrecorded() -> None:
    store = InMemoryStepStore()
    agent = Agent(TestModel(), name="payer", capabilities=[StepPersistence(store=store)])

    @agent.toolset
    def made(_: RunContext[object]) -> FunctionToolset[object]:
        toolset = FunctionToolset[object]()
        toolset.add_function(pay, metadata={"effect": "twice"})
        return toolset

    with pytest.raises(UnknownEffectPolicyError, match="tool 'pay' declares the effect 'twice'"):
        await agent.run("pay")
    (run,) = await store.list_runs()
    assert run.state == "failed"
    assert await store.list_tool_effects(run_id=run.run_id) == []


def test_effect_key_is_the_same_on_every_attempt_and_in_every_round() -> None:
    def key(lineage: Lineage) -> str:
        with entered(scope_of(lineage)):
            return effect_key(context())

    assert re.fullmatch("[0-9a-f]{64}", key(CALL))
    assert key(CALL) == key(CALL.model_copy(update={"activity_index": 1, "round": 1}))
    others = [
        CALL,
        CALL.model_copy(update={"call_index": 1}),
        CALL.model_copy(update={"step_index": 2}),
        CALL.model_copy(update={"run_id": "another"}),
    ]
    assert len({key(each) for each in others}) == len(others)


def test_effect_key_is_refused_outside_a_call_of_a_run() -> None:
    with pytest.raises(RuntimeError, match="effect_key was asked for call 'call'"):
        effect_key(context())
    with entered(scope_of(CALL)), pytest.raises(RuntimeError, match="another"):
        effect_key(replace(context(), tool_call_id="another"))
