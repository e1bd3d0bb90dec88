"""What one turn of a conversation gives."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage

Output = TypeVar("Output")


class StepResult(Protocol):
    """What is asked of the result of a step; pydantic-ai's `AgentRunResult` has it."""

    @property
    def usage(self) -> RunUsage:
        """What the step used."""
        ...

    def all_messages(self) -> list[ModelMessage]:
        """The history with this step: that of the next turn."""
        ...


@dataclass(frozen=True, kw_only=True)
class Step:
    """One run of an agent, by its name."""

    agent: str
    result: StepResult


@dataclass(frozen=True, kw_only=True)
class RunResult(Generic[Output]):
    """An answer, and the steps that led to it: for a turn of a conversation, one."""

    output: Output
    steps: Sequence[Step] = field(default_factory=tuple[Step, ...])

    @property
    def usage(self) -> RunUsage:
        """What all steps used together."""
        total = RunUsage()
        for step in self.steps:
            total.incr(step.result.usage)
        return total
