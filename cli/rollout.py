"""What a first deployment gets wrong around its workers: queues, builds, the collector."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from cli.draining import find_deployment
from cli.findings import Finding

if TYPE_CHECKING:
    from temporalio.client import Client

    from settings import Settings

ANSWERS_WITHIN_SECONDS = 2.0
"""Of a collector that is asked for a connection."""

_PORTS = {"http": 80, "https": 443}


async def examine_rollout(client: "Client", settings: "Settings") -> AsyncIterator[Finding]:
    """Whether workers wait on each queue that runs go through, and on a build that gets runs.

    Raises:
        temporalio.service.RPCError: Temporal does not say.
    """
    for kind in ("workflow", "activity"):
        yield await _pollers(client, settings.task_queue, kind)
    for routed, queue in settings.routes.items():
        finding = await _pollers(client, queue, "activity")
        yield finding if finding.status == "ok" else _unrouted(finding, routed, queue)
    if settings.deployment is not None:
        yield await _deployment(client, settings.deployment, settings.build_id)


async def _pollers(
    client: "Client", task_queue: str, kind: Literal["workflow", "activity"]
) -> Finding:
    from temporalio.api.enums.v1 import TaskQueueType  # noqa: PLC0415
    from temporalio.api.taskqueue.v1 import TaskQueue  # noqa: PLC0415
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest  # noqa: PLC0415

    kinds = {
        "workflow": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        "activity": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    }
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=task_queue),
        task_queue_type=kinds[kind],
    )
    pollers = (await client.workflow_service.describe_task_queue(request)).pollers
    about = "workers" if kind == "workflow" else "workers for activities"
    if pollers:
        identities = ", ".join(sorted({poller.identity for poller in pollers}))
        found = f"polled task queue {task_queue!r} in the last minutes: {identities}"
        return Finding(status="ok", about=about, found=found)
    waiting = "runs wait for one" if kind == "workflow" else "models and tools wait for one"
    found = f"none polls task queue {task_queue!r}; {waiting}"
    fix = "perdure dev, or python worker.py"
    return Finding(status="warning", about=about, found=found, fix=fix)


def _unrouted(finding: Finding, routed: str, queue: str) -> Finding:
    return Finding(
        status="problem",
        about=finding.about,
        found=f"PERDURE_ROUTES sends {routed} to task queue {queue!r}, and no worker polls it",
        fix=f"a worker with PERDURE_ROLE=activities PERDURE_TASK_QUEUE={queue}",
    )


async def _deployment(client: "Client", name: str, build_id: str) -> Finding:
    about = "builds"
    set_current = (
        f"temporal worker deployment set-current-version --deployment-name {name} "
        f"--build-id {build_id}"
    )
    deployment = await find_deployment(client, name)
    if deployment is None:
        found = f"no worker of deployment {name!r} has polled yet"
        return Finding(status="warning", about=about, found=found, fix="start one")
    current = deployment.routing_config.current_deployment_version.build_id
    if not current:
        found = f"deployment {name!r} has no current build, so no worker of it gets a new run"
        return Finding(status="problem", about=about, found=found, fix=set_current)
    if current != build_id:
        found = f"new runs of deployment {name!r} go to build {current!r}; this one is {build_id!r}"
        return Finding(status="warning", about=about, found=found, fix=set_current)
    found = f"new runs of deployment {name!r} go to build {current!r}"
    return Finding(status="ok", about=about, found=found)


async def examine_collector(environment: Mapping[str, str]) -> AsyncIterator[Finding]:
    """Whether something listens where spans and metrics are to go; nothing where none are."""
    endpoint = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint:
        return
    url = urlsplit(endpoint)
    port = url.port or _PORTS.get(url.scheme, 0)
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_SECONDS):
            _, writer = await asyncio.open_connection(url.hostname, port)
    except (OSError, TimeoutError) as error:
        yield Finding(
            status="warning",
            about="collector",
            found=f"nothing takes spans and metrics at {endpoint}: {str(error) or 'no answer'}",
            fix="start the collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT; runs go on without",
        )
        return
    writer.close()
    yield Finding(status="ok", about="collector", found=f"listens at {endpoint}")
