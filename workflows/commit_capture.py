"""What a workflow asks of its boundaries, heard while its history is replayed.

A history keeps of a commit that ran as a local activity only its result. A replay makes each
commit again, and this interceptor keeps what went into it. It adds no command.
"""

from dataclasses import dataclass, field
from typing import Any

from temporalio.worker import (
    Interceptor,
    StartActivityInput,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ActivityHandle

from activities.boundaries import BOUNDARIES, CommitBoundariesRequest, CommitHeader
from stores.operations import Operation

COMMITS = BOUNDARIES - {"registration_identity"}
"""Names of the activities that write."""


@dataclass
class CommitCapture(Interceptor):
    """For one replayer; `begin` before each history.

    Attributes:
        commits: by number; one that was made again, as a regular activity, is the same.
    """

    commits: dict[int, CommitBoundariesRequest] = field(
        default_factory=dict[int, CommitBoundariesRequest]
    )

    def begin(self) -> None:
        """Forget the history before."""
        self.commits = {}

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002, ARG002 - the SDK's signature
    ) -> type[WorkflowInboundInterceptor]:
        """The class that the SDK makes for each execution."""
        capture = self

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(_Outbound(outbound, capture))

        return Inbound

    def hear(self, activity: str, args: Any) -> None:  # noqa: ANN401 - arguments of any activity
        """Keep it when it is a commit."""
        if activity not in COMMITS or len(args) != 1 or not isinstance(args[0], CommitHeader):
            return
        request = args[0]
        if isinstance(request, CommitBoundariesRequest):
            self.commits[request.number] = request
            return
        operation: Operation = getattr(request, "operation")  # noqa: B009 - of every other request
        place = {name: getattr(request, name) for name in CommitHeader.model_fields}
        self.commits[request.number] = CommitBoundariesRequest(**place, operations=(operation,))


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, next: WorkflowOutboundInterceptor, capture: CommitCapture) -> None:  # noqa: A002 - the SDK's name
        super().__init__(next)
        self._capture = capture

    def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:  # noqa: A002 - the SDK's
        self._capture.hear(input.activity, input.args)
        return super().start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> ActivityHandle[Any]:  # noqa: A002 - the SDK's
        self._capture.hear(input.activity, input.args)
        return super().start_local_activity(input)
