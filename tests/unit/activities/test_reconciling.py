"""Asking a tool's check: what it is told, and what is said where there is none."""

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.reconciling import (
    Completed,
    Finding,
    Reconcile,
    ReconcileActivities,
    ReconcileRequest,
    UnknownCall,
)

REQUEST = ReconcileRequest(
    agent_name="payer",
    tool_name="pay",
    tool_call_id="call-1",
    run_id="run-1",
    arguments={"cents": 5},
    effect_key="key",
)


async def test_check_of_the_agents_tool_is_told_of_the_call() -> None:
    async def check(call: UnknownCall) -> Finding:
        return Completed([call.tool_name, call.tool_call_id, call.arguments, call.effect_key])

    def find(agent_name: str, tool_name: str) -> Reconcile | None:
        return check if (agent_name, tool_name) == ("payer", "pay") else None

    activities = ReconcileActivities(find)
    found = await ActivityEnvironment().run(activities.reconcile_tool_effect, REQUEST)
    assert found.finding == "completed"
    assert found.result == ["pay", "call-1", {"cents": 5}, "key"]


async def test_worker_that_knows_no_check_says_so_at_once() -> None:
    def find(_agent_name: str, _tool_name: str) -> Reconcile | None:
        return None

    activities = ReconcileActivities(find)
    with pytest.raises(ApplicationError, match="tool 'pay' of agent 'payer' has no") as caught:
        await ActivityEnvironment().run(activities.reconcile_tool_effect, REQUEST)
    assert (caught.value.type, caught.value.non_retryable) == ("NoReconcileError", True)
