"""What a workflow execution keeps of its own, one of each kind."""

from collections.abc import Callable
from typing import TypeVar, cast

from temporalio import workflow

Kept = TypeVar("Kept")


def of_execution(kind: Callable[[], Kept], name: str) -> Kept:
    """What the workflow that runs this code keeps as `name`; made by `kind` at the first call.

    It is on the workflow's instance: it lives as long as the execution's cache entry, and handlers
    reach it, which do not share the context of the main task.
    """
    kept = cast("dict[str, Kept]", vars(workflow.instance()))
    attribute = f"__perdure_{name}__"
    if attribute not in kept:
        kept[attribute] = kind()
    return kept[attribute]
