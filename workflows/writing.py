"""Where a run's operations go: what the journal and the direct writers have in common."""

from typing import Protocol

from activities.boundaries import RegistrationIdentityResult
from stores.operations import AnnotateToolEffect, Operation
from workflows.notices import Notice


class BoundaryWriter(Protocol):
    """Where a run's operations go: the journal in a workflow, the store itself outside."""

    async def identify(self, run_id: str) -> RegistrationIdentityResult:
        """The registration identity of a run, fixed before anything is written."""
        ...

    def next_sequence(self, run_id: str) -> int:
        """The next place in the run's order."""
        ...

    async def record(
        self, operation: Operation, *, barrier: bool = False, then: Notice | None = None
    ) -> None:
        """Write an operation; with `barrier` return only when it is stored. `then` follows that.

        Raises:
            ApplicationError: (in a workflow) it was refused, or an earlier one of the run was that
                nobody waited for; the type is the store's error class.
            StoreError: (outside) it was refused.
        """
        ...

    async def annotate(self, annotation: AnnotateToolEffect) -> None:
        """Write at once what a tool says of its effect, where code may; its end repeats it."""
        ...
