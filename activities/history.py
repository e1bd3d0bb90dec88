"""Loading what is stored of a run into a workflow."""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_ai.messages import ModelMessage
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.errors import as_application_error
from stores.continuing import find_starting_point
from stores.errors import StoreError
from stores.identifiers import DEFAULT_WORKSPACE
from stores.protocols import StepStore


class LoadHistoryRequest(BaseModel):
    """Whose snapshot to load, the newest or a named one. Frozen: recorded histories hold it."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    include_interrupted: bool = False
    workspace_id: str = DEFAULT_WORKSPACE
    at_snapshot: int | None = None
    at_step: int | None = None
    accept_unresolved: bool = False


class LoadHistoryResult(BaseModel):
    """The messages of the snapshot, and what it belongs to."""

    messages: list[ModelMessage]
    conversation_id: str | None = None
    snapshot_sequence: int = 0
    state: str = "complete"


class LoadSnapshotRequest(BaseModel):
    """Which snapshot of a run to load, as it is. Frozen: recorded histories hold it.

    `key` is the one that it was saved under: another one at its place is not the one that is meant.
    """

    model_config = ConfigDict(frozen=True)

    run_id: str
    sequence: int
    key: str
    workspace_id: str = DEFAULT_WORKSPACE


class LoadSnapshotResult(BaseModel):
    """The messages of the snapshot."""

    messages: list[ModelMessage]


class LoadUsageRequest(BaseModel):
    """Whose usage to load. Frozen: recorded histories hold it."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    workspace_id: str = DEFAULT_WORKSPACE


class LoadUsageResult(BaseModel):
    """What the run's record says that it used; `None` when there is no record or it does not."""

    usage: dict[str, Any] | None = None


class HistoryActivities:
    """Read activities over a store."""

    def __init__(self, store: StepStore) -> None:
        self._store = store

    @activity.defn(name="load_history")
    async def load_history(self, request: LoadHistoryRequest) -> LoadHistoryResult:
        """Load the history that a run goes on from. Reads only; journaled by the workflow.

        Raises:
            ApplicationError: type `LookupError` when the run has no such snapshot in this
                workspace, `UnresolvedEffectsError` when going on would cross tool effects of
                unknown outcome that were not accepted. Not retryable.
        """
        store = self._store.for_workspace(request.workspace_id)
        try:
            point = await find_starting_point(
                store,
                run_id=request.run_id,
                include_interrupted=request.include_interrupted,
                at_snapshot=request.at_snapshot,
                at_step=request.at_step,
            )
            if not request.accept_unresolved:
                point.check_unresolved()
        except StoreError as error:
            raise as_application_error(error) from error
        except LookupError as error:
            raise ApplicationError(str(error), type="LookupError", non_retryable=True) from error
        snapshot = point.snapshot
        return LoadHistoryResult(
            messages=point.messages,
            conversation_id=snapshot.conversation_id,
            snapshot_sequence=snapshot.sequence,
            state=snapshot.state,
        )

    @activity.defn(name="load_snapshot")
    async def load_snapshot(self, request: LoadSnapshotRequest) -> LoadSnapshotResult:
        """Load the history that a run goes on with in another execution. Reads only; journaled.

        Raises:
            ApplicationError: type `LookupError` when this workspace has no such snapshot, the
                store's error class when it cannot be read. Not retryable.
        """
        store = self._store.for_workspace(request.workspace_id)
        try:
            found = await store.find_snapshot(run_id=request.run_id, sequence=request.sequence)
        except StoreError as error:
            raise as_application_error(error) from error
        if found is None or found.idempotency_key != request.key:
            there = "there is none" if found is None else f"there is {found.idempotency_key!r}"
            message = (
                f"run {request.run_id!r} cannot go on: its execution before was to be followed "
                f"from snapshot {request.sequence} ({request.key!r}), and {there}. Was it pruned "
                "before a reset? `perdure snapshots` lists what there is, `perdure fork` goes on"
            )
            raise ApplicationError(message, type="LookupError", non_retryable=True)
        return LoadSnapshotResult(messages=found.messages)

    @activity.defn(name="load_usage")
    async def load_usage(self, request: LoadUsageRequest) -> LoadUsageResult:
        """Load what a run used. Reads only; journaled by the workflow."""
        try:
            run = await self._store.for_workspace(request.workspace_id).get_run(
                run_id=request.run_id
            )
        except StoreError as error:
            raise as_application_error(error) from error
        return LoadUsageResult(usage=run.usage if run else None)
