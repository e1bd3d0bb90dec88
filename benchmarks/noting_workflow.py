"""The workflow in which the reference makes many calls at once."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchmarks.noting import NOTING_AGENTS, Customer


@workflow.defn(name="benchmark_noting_run")
class NotingRunWorkflow:
    """One run of its agent; the run id is the workflow id."""

    @workflow.run
    async def run(self, customer: Customer) -> str:
        """Run the agent to its end."""
        (agent,) = NOTING_AGENTS
        run_id = workflow.info().workflow_id
        return (await agent.run("go", run_id=run_id, deps=customer)).output
