"""The workflow sandbox: the SDK's own, entered only to run workflow code."""

from temporalio.api.enums.v1 import CommandType
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import (
    DataConverter,
    SerializationContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
    WithSerializationContext,
)
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker._command_aware_visitor import CommandInfo
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import Info, SandboxImportNotificationPolicy

from payload_driver import OwningWorkflow

RESTRICTIONS = SandboxRestrictions.default.with_import_notification_policy(
    SandboxImportNotificationPolicy.WARN_ON_DYNAMIC_IMPORT
    | SandboxImportNotificationPolicy.RAISE_ON_UNINTENTIONAL_PASSTHROUGH
)
"""An unguarded import of our own code is an error."""


class ContextFreeSandboxRunner(SandboxedWorkflowRunner):
    """A sandbox that is not entered to ask for which command a payload is.

    Of each payload that goes into or out of a workflow the SDK asks that several times, to tell a
    payload codec or an external storage, and each time it enters the sandbox, which is a third of
    what a local activity costs. What a storage needs to know is known outside: whose history will
    hold the payload. How workflow code is run and what it may do is the SDK's, untouched.

    Read from temporalio 1.35.0 (`_CommandAwareDataConverter` in `temporalio.worker._workflow`);
    `tests/integration/test_sandbox.py` fails where a later version differs.
    """

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """The sandbox of one workflow execution."""
        return _ContextFreeInstance(super().create_instance(det), det.info)


class _ContextFreeInstance(WorkflowInstance):
    def __init__(self, sandboxed: WorkflowInstance, info: Info) -> None:
        self._sandboxed = sandboxed
        self._info = info

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        return self._sandboxed.activate(act)

    def get_info(self) -> Info:
        return self._sandboxed.get_info()

    def get_thread_id(self) -> int | None:
        return self._sandboxed.get_thread_id()

    def get_serialization_context(
        self,
        command_info: CommandInfo | None,  # noqa: ARG002 - the SDK's signature
    ) -> SerializationContext | None:
        return None

    def get_external_store_context(
        self, command_info: CommandInfo | None
    ) -> StorageDriverStoreContext:
        """Whose histories will hold the payload: of a child's input and result there are two.

        What has no command of its own, such as the details of an error, goes the way of a result.
        """
        others: list[str] = []
        parent = self._info.parent
        kind = command_info.command_type if command_info else None
        if kind in _TO_OTHERS:
            target = self._sandboxed.get_external_store_context(command_info).target
            if isinstance(target, StorageDriverWorkflowInfo) and target.id:
                others.append(target.id)
        elif parent is not None and kind in _TO_PARENT:
            others.append(parent.workflow_id)
        return StorageDriverStoreContext(
            target=OwningWorkflow(
                namespace=self._info.namespace,
                id=self._info.workflow_id,
                run_id=self._info.run_id,
                type=self._info.workflow_type,
                others=tuple(others),
            )
        )


_TO_OTHERS = {
    CommandType.COMMAND_TYPE_START_CHILD_WORKFLOW_EXECUTION,
    CommandType.COMMAND_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION,
}

_TO_PARENT = {None, CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION}


class _ContextualSandboxRunner(SandboxedWorkflowRunner):
    """Also tells a payload codec what it wants to know."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """The sandbox of one workflow execution."""
        return _ContextualInstance(super().create_instance(det), det.info)


class _ContextualInstance(_ContextFreeInstance):
    def get_serialization_context(
        self, command_info: CommandInfo | None
    ) -> SerializationContext | None:
        return self._sandboxed.get_serialization_context(command_info)


def workflow_runner(converter: DataConverter) -> SandboxedWorkflowRunner:
    """The sandbox of worker and replayer, for payloads that go through this converter."""
    if isinstance(converter.payload_codec, WithSerializationContext):
        return _ContextualSandboxRunner(restrictions=RESTRICTIONS)
    return ContextFreeSandboxRunner(restrictions=RESTRICTIONS)
