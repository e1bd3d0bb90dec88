"""`durable(...)`: the capabilities that make a pydantic-ai agent one that Perdure runs."""

from typing import Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec.temporal import TemporalDurability
from pydantic_ai.exceptions import ModelRequestRejectedError
from temporalio import workflow
from temporalio.workflow import ActivityConfig

from workflows import policies
from workflows.persistence import StepPersistence


class StableTemporalDurability(TemporalDurability[Any]):
    """`TemporalDurability` whose default run id does not change when a workflow is reset."""

    def get_default_run_id(self) -> str | None:
        """The id that the core gives a run which names none; `None` outside a workflow."""
        if not self.in_durable_context:
            return None
        return f"{workflow.info().original_execution_run_id}:{workflow.uuid4()}"


def durable(
    *capabilities: AbstractCapability[Any], activities: ActivityConfig | None = None
) -> list[AbstractCapability[Any]]:
    """What an agent takes: `Agent(model, name=..., capabilities=[*durable()])`.

    Args:
        capabilities: added after these; one `StepPersistence` among them takes the default's place.
        activities: overrides for all of the agent's activities (timeouts, retries, task queue).

    Raises:
        ValueError: more than one `StepPersistence`, or a second durability, is among them.
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
    )
    recorder: AbstractCapability[Any] = recorders[0] if recorders else StepPersistence()
    others = [each for each in capabilities if each is not recorder]
    return [durability, recorder, *others]
