"""Retention of a whole installation: each workspace by its policy, then what nothing refers to."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.retaining import Retain
from settings import Settings
from stores.errors import StoreConfigurationError
from stores.protocols import StepStore
from stores.retention_policies import MARGIN, Policies, Retained, load_policies, policy_for

if TYPE_CHECKING:
    from stores.mongo.steps import MongoStepStore

Tell = Callable[[str], None]
"""Hears in words how far it has come."""


async def temporal_keeps(client: Client) -> timedelta:
    """How long the namespace keeps workflows that have ended."""
    request = DescribeNamespaceRequest(namespace=client.namespace)
    described = await client.workflow_service.describe_namespace(request)
    return described.config.workflow_execution_retention_ttl.ToTimedelta()


async def is_known(client: Client, workflow_id: str) -> bool:
    """Whether Temporal has an execution of this workflow id, open or within its retention.

    Raises:
        temporalio.service.RPCError: it cannot tell; also where it knows no such namespace.
    """
    try:
        await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
            return False
        raise
    return True


async def retain(
    store: "MongoStepStore",
    policies: Policies,
    client: Client,
    *,
    is_dry: bool,
    tell: Tell,
    now: datetime | None = None,
) -> dict[str, Retained]:
    """Apply the policies; what became of each workspace that has one.

    Args:
        store: of any workspace.
        policies: by workspace.
        client: is asked how long Temporal keeps what has ended, and which workflows it knows.
        is_dry: only say what would go.
        tell: hears of progress.
        now: of the policies' ages.
    """
    keeps = await temporal_keeps(client)
    done: dict[str, Retained] = {}
    for workspace_id in await store.workspace_ids():
        policy = policy_for(policies, workspace_id)
        if policy is None:
            continue

        def hear(so_far: Retained, workspace_id: str = workspace_id) -> None:
            tell(f"{workspace_id}: {in_words(so_far)}")

        done[workspace_id] = await store.for_workspace(workspace_id).retain(
            policy,
            temporal_keeps=keeps,
            now=now or datetime.now(UTC),  # noqa: TID251 - composition; workflows do not reach it
            is_dry=is_dry,
            tell=hear,
        )
    if not is_dry and any(not each.is_nothing for each in done.values()):
        await _collect(store, client, grace=keeps + MARGIN, tell=tell)
    return done


async def _collect(
    store: "MongoStepStore", client: Client, *, grace: timedelta, tell: Tell
) -> None:
    """What `perdure gc --delete` does."""

    async def is_needed(workflow_id: str) -> bool:
        return await is_known(client, workflow_id)

    def hear(swept: object) -> None:
        tell(f"messages: {swept}")

    await store.sweep(grace=grace, is_dry=False, all_workspaces=True, tell=hear)
    await store.sweep_payloads(
        grace=grace, namespace=client.namespace, is_needed=is_needed, is_dry=False
    )


def in_words(retained: Retained) -> str:
    """One line."""
    verb = "would remove" if retained.is_dry else "removed"
    return (
        f"looked at {retained.looked_at} runs; {verb} {retained.runs} runs and "
        f"{retained.conversations} conversations, details of {retained.detailed} runs, "
        f"{retained.snapshots} snapshots; {retained.unresolved} kept for calls of unknown outcome"
    )


def retention_of(settings: Settings, store: StepStore, client: Client) -> Retain:
    """What a worker's retention does; see `activities.retaining.Retain`."""

    async def apply(tell: Tell) -> dict[str, dict[str, int]]:
        from stores.mongo.steps import MongoStepStore  # noqa: PLC0415 - the driver takes long

        policies = load_policies(settings.retention)
        if not policies:
            return {}
        if not isinstance(store, MongoStepStore):
            msg = f"{type(store).__name__} has no retention; it is for MongoDB"
            raise StoreConfigurationError(msg)
        done = await retain(store, policies, client, is_dry=False, tell=tell)
        return {workspace_id: counts_of(each) for workspace_id, each in done.items()}

    return apply


def counts_of(retained: Retained) -> dict[str, int]:
    """The numbers alone."""
    names = ("looked_at", "snapshots", "detailed", "rows", "runs", "conversations", "unresolved")
    return {name: getattr(retained, name) for name in names}
