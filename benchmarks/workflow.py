"""The workflows that every benchmark runs, the same ones on both sides."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from pydantic_ai.usage import UsageLimits

    from benchmarks.scripted import AGENTS, Plan


@workflow.defn(name="benchmark_run")
class BenchmarkRunWorkflow:
    """One run of one agent, whether it persists or not; the run id is the workflow id."""

    @workflow.run
    async def run(self, agent: str, plan: Plan) -> str:
        """Run the agent to its end."""
        result = await AGENTS[agent].run(
            plan.prompt,
            run_id=workflow.info().workflow_id,
            usage_limits=UsageLimits(request_limit=None),
        )
        return result.output


@workflow.defn(name="benchmark_held_run")
class HeldRunWorkflow:
    """A run that has done its steps, in a workflow that stays open."""

    def __init__(self) -> None:
        self._has_done = False

    @workflow.run
    async def run(self, agent: str, plan: Plan) -> None:
        """Run the agent, then wait for nothing."""
        await AGENTS[agent].run(plan.prompt, run_id=workflow.info().workflow_id)
        self._has_done = True
        await workflow.wait_condition(lambda: False)

    @workflow.update
    async def has_done(self) -> None:
        """Return when the run has ended."""
        await workflow.wait_condition(lambda: self._has_done)


@workflow.defn(name="benchmark_nothing")
class NothingWorkflow:
    """Ends at once: what a workflow costs on this machine, at this minute."""

    @workflow.run
    async def run(self) -> None:
        """Do nothing."""


WORKFLOWS = (BenchmarkRunWorkflow, HeldRunWorkflow, NothingWorkflow)
