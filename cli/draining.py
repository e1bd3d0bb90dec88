"""`perdure drain`: which open workflows hold an old build, those first that do not move alone."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import typer

from cli.connections import asking, connected_client, current_settings
from cli.failures import NotFoundError, WrongUsageError
from cli.options import AsJson
from cli.output import moment, note, print_json, print_table

if TYPE_CHECKING:
    from datetime import datetime

    from temporalio.api.deployment.v1 import WorkerDeploymentInfo
    from temporalio.client import Client, WorkflowExecution

MOST_LISTED = 1000
"""Open workflows of one build that are read; the count tells of all."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """An open workflow that is pinned to a build. `needs` is what has to happen first."""

    build_id: str
    workflow_id: str
    workflow_type: str
    started_at: "datetime"
    is_parked: bool
    needs: str


@dataclass(frozen=True, kw_only=True)
class Build:
    """A build of a deployment, as Temporal knows it; `holders` is how many hold it."""

    build_id: str
    status: str
    holders: int


def drain_command(
    *,
    build: Annotated[
        str | None,
        typer.Argument(
            metavar="BUILD",
            help="Its id; without it, each build that is not the current one.",
            show_default=False,
        ),
    ] = None,
    deployment: Annotated[
        str | None,
        typer.Option(envvar="PERDURE_DEPLOYMENT", help="Name of the worker deployment."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what holds old builds: runs that are parked first, since they wait for a person.

    A run moves to the current build at its next model request, a conversation between two turns.
    When nothing holds a build any more, its workers can be stopped.
    """
    settings = current_settings()
    name = deployment or settings.deployment
    if name is None:
        message = "drain needs the deployment's name: set PERDURE_DEPLOYMENT, or give --deployment"
        raise WrongUsageError(message)

    async def read() -> tuple[list[Build], list[Holder]]:
        client = await connected_client(settings)
        async with asking(client):
            return await _read(client, name, build)

    builds, holders = asyncio.run(read())
    if as_json:
        print_json({"deployment": name, "builds": builds, "holders": holders})
        return
    for each in builds:
        note(f"Build {each.build_id} ({each.status}): {each.holders} open workflows hold it.")
    if holders:
        print_table(
            ("build", "workflow", "type", "started", "needs"),
            [
                (
                    *(each.build_id, each.workflow_id, each.workflow_type),
                    *(moment(each.started_at), each.needs),
                )
                for each in holders
            ],
        )


async def _read(
    client: "Client", deployment: str, build: str | None
) -> tuple[list[Build], list[Holder]]:
    info = await _deployment(client, deployment)
    current = info.routing_config.current_deployment_version.build_id
    known = {
        each.deployment_version.build_id: _status(each.status) for each in info.version_summaries
    }
    if build is not None and build not in known:
        message = (
            f"deployment {deployment!r} has no build {build!r}; it has "
            f"{', '.join(map(repr, sorted(known))) or 'none'}"
        )
        raise NotFoundError(message)
    wanted = [build] if build else sorted(each for each in known if each != current)
    builds: list[Build] = []
    holders: list[Holder] = []
    for each in wanted:
        query = _query(deployment, each)
        count = (await client.count_workflows(query)).count
        builds.append(Build(build_id=each, status=known[each], holders=count))
        holders += [
            _holder(each, found) async for found in client.list_workflows(query, limit=MOST_LISTED)
        ]
    holders.sort(key=lambda each: (not each.is_parked, each.started_at))
    return builds, holders


def _query(deployment: str, build: str) -> str:
    version = f"{deployment}:{build}".replace("'", "\\'")
    return f"TemporalWorkerDeploymentVersion = '{version}' AND ExecutionStatus = 'Running'"


async def find_deployment(client: "Client", name: str) -> "WorkerDeploymentInfo | None":
    """What Temporal knows of a worker deployment; `None` when no worker of it has polled yet."""
    from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest  # noqa: PLC0415
    from temporalio.service import RPCError, RPCStatusCode  # noqa: PLC0415

    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=name)
    try:
        answer = await client.workflow_service.describe_worker_deployment(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None
    return answer.worker_deployment_info


async def _deployment(client: "Client", name: str) -> "WorkerDeploymentInfo":
    found = await find_deployment(client, name)
    if found is None:
        message = (
            f"namespace {client.namespace!r} has no worker deployment {name!r}; one appears when a "
            "worker with PERDURE_DEPLOYMENT polls"
        )
        raise NotFoundError(message)
    return found


def _status(number: int) -> str:
    from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus  # noqa: PLC0415

    name = WorkerDeploymentVersionStatus.Name(
        cast("WorkerDeploymentVersionStatus.ValueType", number)
    )
    return name.removeprefix("WORKER_DEPLOYMENT_VERSION_STATUS_").lower()


def _holder(build: str, found: "WorkflowExecution") -> Holder:
    from workflows.names import AGENT_RUN, CONVERSATION, STATE_ATTRIBUTE  # noqa: PLC0415

    state = found.typed_search_attributes.get(STATE_ATTRIBUTE)
    is_parked = state == "needs_attention"
    if is_parked:
        needs = f"a decision: perdure show {found.id}"
    elif found.workflow_type == AGENT_RUN:
        needs = "its next model request"
    elif found.workflow_type == CONVERSATION:
        needs = "its next message, or its idle time"
    else:
        needs = "its own code to continue as new"
    return Holder(
        build_id=build,
        workflow_id=found.id,
        workflow_type=found.workflow_type,
        started_at=found.start_time,
        is_parked=is_parked,
        needs=needs,
    )
