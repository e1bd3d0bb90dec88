"""What the workflow tells the capability about the run it is about to start."""

from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class RunOrigin:
    """The run whose history a run began with, and the sequence of the snapshot that held it."""

    continued_from: str | None = None
    forked_from: str | None = None
    from_snapshot: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunSubmission:
    """Identity and lineage that a submitter gave; it wins over what the capability would derive."""

    run_id: str
    parent_run_id: str | None = None
    principal: str | None = None
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    origin: RunOrigin = field(default_factory=RunOrigin)
    stream: bool = False
    """Whether the run's model activities tell readers what the model says."""


current_submission: ContextVar[RunSubmission | None] = ContextVar(
    "perdure_current_submission", default=None
)
"""Set by `agent_run` around its one agent run; a delegate's run inside it must not see it."""

current_run_id: ContextVar[str | None] = ContextVar("perdure_current_run_id", default=None)
"""The run whose code this is: what a delegate that starts here names as its parent."""

delegation_depth: ContextVar[int] = ContextVar("perdure_delegation_depth", default=0)
"""How many delegations lie between this code's run and one that nobody delegated."""
