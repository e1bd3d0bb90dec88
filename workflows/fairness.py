"""Who goes first where workers are busy: a share for each workspace, and a priority for a run.

Children and activities of a workflow inherit both.
"""

import hashlib
from collections.abc import Mapping

from temporalio.common import Priority

_LONGEST_KEY_BYTES = 64
"""Temporal's limit for a fairness key."""


def priority_of(
    workspace_id: str,
    *,
    priority: int | None = None,
    weights: Mapping[str, float] | None = None,
) -> Priority:
    """What a workflow of this workspace is started with.

    Args:
        workspace_id: its tenant; none gets more than its share while another one waits.
        priority: 1 to 5, 1 first; `None` is Temporal's 3.
        weights: by workspace, where the share is another than 1.
    """
    return Priority(
        priority_key=priority,
        fairness_key=_key(workspace_id),
        fairness_weight=(weights or {}).get(workspace_id),
    )


def _key(workspace_id: str) -> str:
    if len(workspace_id.encode()) <= _LONGEST_KEY_BYTES:
        return workspace_id
    return hashlib.sha256(workspace_id.encode()).hexdigest()
