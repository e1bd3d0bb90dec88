"""Workflows and an activity as a user writes them, which run agents for a run or for nobody."""

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from tests.helpers.delegating_agents import HELPER
    from tests.helpers.script import make_agent
    from workflows.agents import find_agent

IN_TIME: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=10)}


@activity.defn
async def help_out(prompt: str) -> str:
    """Run the helper; its run id."""
    return (await HELPER.run(prompt)).run_id


@workflow.defn(name="asks_for_help")
class AsksForHelp:
    """Runs the activity."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """The helper's run id."""
        return await workflow.execute_activity(help_out, prompt, **IN_TIME)


@workflow.defn(name="runs_an_agent")
class RunsAnAgent:
    """Goes on as new, then runs an agent."""

    @workflow.run
    async def run(self, prompt: str) -> str:
        """The agent's run id."""
        if workflow.info().continued_run_id is None:
            workflow.continue_as_new(prompt)
        return str((await find_agent("inner").run(prompt)).run_id)


INNER = make_agent("inner")
CALLING_OUT = make_agent("calling-out")


@CALLING_OUT.tool_plain(metadata={"temporal": False, "effect": "read"})
async def call_out(prompt: str) -> list[str]:
    """Run two activities and two child workflows from inside the workflow."""
    return [
        await workflow.execute_activity(help_out, prompt, **IN_TIME),
        await workflow.execute_local_activity(help_out, prompt, **IN_TIME),
        await workflow.execute_child_workflow(AsksForHelp.run, prompt),
        await workflow.execute_child_workflow(RunsAnAgent.run, prompt),
    ]
