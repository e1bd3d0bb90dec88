"""What of the settings a Temporal worker takes: role, build, slots, pollers, rates."""

from datetime import timedelta

from temporalio.common import VersioningBehavior
from temporalio.worker import (
    PollerBehavior,
    PollerBehaviorAutoscaling,
    PollerBehaviorSimpleMaximum,
    ResourceBasedSlotConfig,
    WorkerConfig,
    WorkerDeploymentConfig,
    WorkerDeploymentVersion,
    WorkerTuner,
)

from settings import Settings

_RAMP_THROTTLE = timedelta(milliseconds=50)
"""Between two new activity slots of the resource tuner, so that it sees what the last one cost."""


def worker_options(settings: Settings) -> WorkerConfig:
    """The options of `temporalio.worker.Worker` that settings decide."""
    pollers = _pollers(settings)
    return {
        "task_queue": settings.task_queue,
        "max_cached_workflows": settings.max_cached_workflows,
        "workflow_task_poller_behavior": pollers,
        "activity_task_poller_behavior": pollers,
        "max_activities_per_second": settings.max_activities_per_second,
        "max_task_queue_activities_per_second": settings.max_queue_activities_per_second,
        "graceful_shutdown_timeout": settings.graceful_shutdown,
        # Commits are local activities, which a worker for workflows runs itself.
        "no_remote_activities": settings.role == "workflows",
        **_slots(settings),
        **_build(settings),
    }


def _slots(settings: Settings) -> WorkerConfig:
    if settings.tuner == "fixed":
        return {
            "max_concurrent_workflow_tasks": settings.max_concurrent_workflow_tasks,
            "max_concurrent_activities": settings.max_concurrent_activities,
            "max_concurrent_local_activities": settings.max_concurrent_local_activities,
        }
    return {
        "tuner": WorkerTuner.create_resource_based(
            target_memory_usage=settings.target_memory,
            target_cpu_usage=settings.target_cpu,
            workflow_config=ResourceBasedSlotConfig(
                minimum_slots=2, maximum_slots=settings.max_concurrent_workflow_tasks
            ),
            activity_config=ResourceBasedSlotConfig(
                minimum_slots=1,
                maximum_slots=settings.max_concurrent_activities,
                ramp_throttle=_RAMP_THROTTLE,
            ),
            local_activity_config=ResourceBasedSlotConfig(
                # A workflow task that waits for a commit holds a slot of its own: as many of these.
                minimum_slots=min(2, settings.max_concurrent_local_activities),
                maximum_slots=settings.max_concurrent_local_activities,
            ),
        )
    }


def _pollers(settings: Settings) -> PollerBehavior:
    most = settings.max_pollers
    if settings.poller_autoscaling:
        return PollerBehaviorAutoscaling(minimum=1, maximum=most, initial=min(5, most))
    return PollerBehaviorSimpleMaximum(maximum=most)


def _build(settings: Settings) -> WorkerConfig:
    if settings.deployment is None:
        return {"build_id": settings.build_id}
    return {
        "deployment_config": WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(
                deployment_name=settings.deployment, build_id=settings.build_id
            ),
            use_worker_versioning=True,
            # A run stays on the build that began it, and moves when it goes on in a fresh
            # execution: only then has no decision of the old code to be made again by the new.
            default_versioning_behavior=VersioningBehavior.PINNED,
        )
    }
