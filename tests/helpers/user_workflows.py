"""Workflows as a user writes them, with agents inside."""

from typing import Literal

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel
    from pydantic_ai.usage import UsageLimits

    from workflows.agents import find_agent


class ScriptedRun(BaseModel):
    """One agent run: `prompt` is a script of `tests.helpers.script`."""

    prompt: str
    agent: str = "script"


class ScriptedRunsInput(BaseModel):
    """Runs to do one after the other, each with its own run id; then how to end.

    Once the workflow has heard something, `when_told` takes the place of those that have not begun.
    Without `names_runs` the run ids are left to the agents.
    """

    runs: list[ScriptedRun]
    when_told: list[ScriptedRun] | None = None
    then: Literal["return", "fail", "continue_as_new"] = "return"
    names_runs: bool = True


@workflow.defn(name="scripted_runs")
class ScriptedRunsWorkflow:
    """Runs agents; signals and updates change what it does next."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    @workflow.run
    async def run(self, request: ScriptedRunsInput) -> list[str]:
        """The outputs of the runs of this execution."""
        outputs: list[str] = []
        runs = list(request.runs)
        while runs or (self.heard and request.when_told):
            if self.heard and request.when_told is not None:
                runs, request.when_told = request.when_told, None
                continue
            run, runs = runs[0], runs[1:]
            name = f"{workflow.info().workflow_id}-{len(outputs)}-{request.then}"
            result = await find_agent(run.agent).run(
                run.prompt,
                run_id=name if request.names_runs else None,
                usage_limits=UsageLimits(request_limit=None),
            )
            outputs.append(result.output)
        if request.then == "fail":
            message = "as told"
            raise ApplicationError(message, non_retryable=True)
        if request.then == "continue_as_new":
            workflow.continue_as_new(request.model_copy(update={"then": "return"}))
        return outputs

    @workflow.signal
    def tell(self, word: str) -> None:
        """Hear a word."""
        self.heard.append(word)

    @workflow.update
    def ask(self, word: str) -> int:
        """Hear a word; answers how many were heard."""
        self.heard.append(word)
        return len(self.heard)

    @workflow.update
    def ping(self) -> str:
        """Answer."""
        return "pong"


@workflow.defn(name="trivial")
class TrivialWorkflow:
    """Ends at once."""

    @workflow.run
    async def run(self) -> str:
        """A word."""
        return "done"


USER_WORKFLOWS = (ScriptedRunsWorkflow, TrivialWorkflow)
"""What a worker process runs beside Perdure's own."""
