"""`durable(...)`: the capabilities that make a pydantic-ai agent one that Perdure runs."""

from collections.abc import Callable
from typing import Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec.temporal import TemporalDurability
from pydantic_ai.exceptions import ModelRequestRejectedError
from pydantic_ai.tools import RunContext
from temporalio import workflow
from temporalio.exceptions import ApplicationError
from temporalio.workflow import ActivityConfig

from workflows import policies
from workflows.deps import DepsFactory, DepsReference
from workflows.persistence import StepPersistence


class StableTemporalDurability(TemporalDurability[Any]):
    """`TemporalDurability` whose default run id does not change when a workflow is reset.

    It never continues a workflow as new; `workflows.hops` does. With a `deps_factory` deps go to
    activities by reference.
    """

    def __init__(self, *, deps_factory: DepsFactory | None = None, **options: Any) -> None:  # noqa: ANN401 - the core's
        if deps_factory is not None:
            options["deps_type"] = DepsReference
        super().__init__(**options)
        self.deps_factory = deps_factory

    def get_default_run_id(self) -> str | None:
        """The id that the core gives a run which names none; `None` outside a workflow."""
        if not self.in_durable_context:
            return None
        return f"{workflow.info().original_execution_run_id}:{workflow.uuid4()}"

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:
        """Refuse, in a workflow, deps that are not a reference to what the factory takes.

        Raises:
            ApplicationError: type `InvalidDepsError`. Not retryable.
        """
        is_reference = isinstance(ctx.deps, DepsReference)
        if self.in_durable_context and self.deps_factory is not None and not is_reference:
            message = (
                f"agent {self.name!r} has a deps_factory, which makes its deps of the input of the "
                "workflow agent_run; a workflow of your own cannot hand it deps. Start agent_run, "
                "or make the agent without a factory and pass small deps, such as an id"
            )
            raise ApplicationError(message, type="InvalidDepsError", non_retryable=True)
        return await super().for_run(ctx)


def durable(
    *capabilities: AbstractCapability[Any],
    activities: ActivityConfig | None = None,
    deps_factory: Callable[[Any], Any] | None = None,
) -> list[AbstractCapability[Any]]:
    """What an agent takes: `Agent(model, name=..., capabilities=[*durable()])`.

    Args:
        capabilities: added after these; one `StepPersistence` among them takes the default's place.
        activities: overrides for all of the agent's activities (timeouts, retries, task queue).
        deps_factory: makes the agent's deps, on the worker, in each activity, of the `deps` of the
            run's input: a function, also an async one, whose parameter's annotation says what they
            have to be. Only a reference travels. Without it deps are copied into every activity.

    Raises:
        ValueError: the factory has no annotation, or more than one `StepPersistence`, or
            a second durability, is among the capabilities.
    """
    recorders = [each for each in capabilities if isinstance(each, StepPersistence)]
    if len(recorders) > 1:
        message = f"durable() takes one StepPersistence, found {len(recorders)}"
        raise ValueError(message)
    if any(isinstance(each, TemporalDurability) for each in capabilities):
        message = (
            "durable() brings its own TemporalDurability; leave yours out and pass activities="
        )
        raise ValueError(message)
    overrides = activities or ActivityConfig()
    durability = StableTemporalDurability(
        activity_config={**policies.TOOL_ACTIVITY, **overrides},
        model_activity_config={**policies.MODEL_ACTIVITY, **overrides},
        # A key that is refused or a request that is malformed is so at the next attempt too.
        non_retryable_model_errors=(ModelRequestRejectedError,),
        deps_factory=DepsFactory.of(deps_factory) if deps_factory else None,
    )
    recorder: AbstractCapability[Any] = recorders[0] if recorders else StepPersistence()
    others = [each for each in capabilities if each is not recorder]
    return [durability, recorder, *others]
