"""The workflow sandbox: the SDK's own, entered only to run workflow code."""

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import (
    DataConverter,
    SerializationContext,
    StorageDriverStoreContext,
    WithSerializationContext,
)
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import Info, SandboxImportNotificationPolicy

RESTRICTIONS = SandboxRestrictions.default.with_import_notification_policy(
    SandboxImportNotificationPolicy.WARN_ON_DYNAMIC_IMPORT
    | SandboxImportNotificationPolicy.RAISE_ON_UNINTENTIONAL_PASSTHROUGH
)
"""An unguarded import of our own code is an error."""


class ContextFreeSandboxRunner(SandboxedWorkflowRunner):
    """A sandbox that is not entered to ask for which command a payload is.

    Of each payload that goes into or out of a workflow the SDK asks that several times, to tell a
    payload codec or an external storage, and each time it enters the sandbox: without either of the
    two it drops the answer, and that is a third of what a local activity costs. How workflow code
    is run and what it may do is the SDK's, untouched.

    Read from temporalio 1.35.0 (`_CommandAwareDataConverter` in `temporalio.worker._workflow`);
    `tests/integration/test_sandbox.py` fails where a later version differs.
    """

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """The sandbox of one workflow execution."""
        return _ContextFreeInstance(super().create_instance(det))


class _ContextFreeInstance(WorkflowInstance):
    def __init__(self, sandboxed: WorkflowInstance) -> None:
        self._sandboxed = sandboxed

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        return self._sandboxed.activate(act)

    def get_info(self) -> Info:
        return self._sandboxed.get_info()

    def get_thread_id(self) -> int | None:
        return self._sandboxed.get_thread_id()

    def get_serialization_context(
        self,
        command_info: object,  # noqa: ARG002 - the SDK's signature
    ) -> SerializationContext | None:
        return None

    def get_external_store_context(
        self,
        command_info: object,  # noqa: ARG002 - the SDK's signature
    ) -> StorageDriverStoreContext:
        return StorageDriverStoreContext(target=None)


def workflow_runner(converter: DataConverter) -> SandboxedWorkflowRunner:
    """The sandbox of worker and replayer, for payloads that go through this converter."""
    is_told = isinstance(converter.payload_codec, WithSerializationContext)
    if is_told or converter.external_storage is not None:
        return SandboxedWorkflowRunner(restrictions=RESTRICTIONS)
    return ContextFreeSandboxRunner(restrictions=RESTRICTIONS)
