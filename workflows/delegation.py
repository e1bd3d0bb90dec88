"""What a run takes over from the code that starts it: parent, workspace, where it is written."""

from pydantic_ai.durable_exec import conversation_id_from_run_id
from temporalio import workflow

from stores.identifiers import DEFAULT_WORKSPACE
from workflows.direct import AttemptWriter, DirectWriter
from workflows.journal import journal_of_execution
from workflows.lineage import Lineage, Scope, current_scope, inherited_lineage
from workflows.submission import current_run_id
from workflows.writing import BoundaryWriter


def outer_run_id() -> str | None:
    """The run whose code starts this one, in this workflow or as a child workflow.

    Not one of another workspace: nobody there could see it.
    """
    enclosing = current_run_id.get()
    inherited = inherited_lineage()
    if enclosing is not None or inherited is None:
        return enclosing
    is_own = inherited.workspace_id == journal_of_execution().workspace_id
    return inherited.run_id if is_own else None


def lineage_of_run(
    run_id: str, *, conversation_id: str | None, parent_run_id: str | None
) -> Lineage:
    """What activities and child workflows of a run that starts here are told."""
    outer = current_scope.get()
    workspace_id = outer.lineage.workspace_id if outer else DEFAULT_WORKSPACE
    is_durable = workflow.in_workflow()
    return Lineage(
        workspace_id=journal_of_execution().workspace_id if is_durable else workspace_id,
        run_id=run_id,
        conversation_id=conversation_id,
        parent_run_id=parent_run_id,
        branch=workflow.info().run_id if is_durable else None,
    )


def scope_of_attempt() -> Scope | None:
    """The scope of this code when it runs in an attempt of a tool activity."""
    scope = current_scope.get()
    return scope if scope and scope.attempt else None


def default_run_id() -> str | None:
    """In a tool activity the id of the next delegate, the same on every attempt."""
    scope = scope_of_attempt()
    return scope.next_delegate_id() if scope else None


def default_conversation_id(run_id: str) -> str | None:
    """In a tool activity a delegate's own conversation, the same on every attempt."""
    return conversation_id_from_run_id(run_id) if scope_of_attempt() else None


def worker_writer(run_id: str) -> BoundaryWriter | None:
    """A writer to the worker's store for a run that starts in an activity; elsewhere `None`."""
    scope = current_scope.get()
    if scope is None or scope.store is None:
        return None
    if scope.attempt is None:
        return DirectWriter(scope.store)
    return AttemptWriter(scope.store, run_id, parent=scope.lineage, attempt=scope.attempt)
