"""Effect policies: what a repeat of a tool call would do to the world, and what follows from that.

A tool declares its effect in its metadata; pydantic-ai's own means do so for many at once: a
toolset's `with_metadata(effect="read")`, or the capability `SetToolMetadata(tools=selector,
effect="read")` for the tools of an MCP server.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast, get_args

from pydantic_ai.tools import RunContext, ToolDefinition
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType, ActivityConfig

from stores.records import EffectPolicy
from workflows import policies
from workflows.lineage import Lineage, current_scope

EFFECT = "effect"
"""Key of a tool's metadata; its value is an `EffectPolicy`."""

ON_UNKNOWN = "on_unknown"
"""Key of a tool's metadata: `wait` (the default), `fail`, or how many seconds to wait."""

UNDECLARED: EffectPolicy = "once"
"""What a tool is that declares nothing: to be asked once too often is better than to pay twice."""


OUTCOME_UNKNOWN = "EffectOutcomeUnknownError"
"""Error type of an attempt that may not run since an earlier one may have done it."""


class UnknownEffectPolicyError(ValueError):
    """A tool declares an effect that does not exist."""

    def __init__(self, tool_name: str, found: object) -> None:
        self.tool_name = tool_name
        self.found = found
        super().__init__(tool_name, found)

    def __str__(self) -> str:
        """Which tool, what was found, what there is."""
        known = ", ".join(repr(each) for each in get_args(EffectPolicy))
        return f"tool {self.tool_name!r} declares the effect {self.found!r}; it must be {known}"


def effect(
    policy: EffectPolicy, *, on_unknown: str | timedelta = "wait", **metadata: object
) -> dict[str, Any]:
    """Metadata of a tool: `@agent.tool_plain(metadata=effect("idempotent"))`.

    Args:
        policy: `read`, `idempotent` or `once`.
        on_unknown: what a run does whose `once` call has an unknown outcome: `wait` for a decision,
            `fail`, or wait for so long and then fail.
        metadata: other entries of the tool's metadata.
    """
    found: dict[str, Any] = {EFFECT: policy, **metadata}
    if on_unknown != "wait":
        found[ON_UNKNOWN] = (
            on_unknown.total_seconds() if isinstance(on_unknown, timedelta) else on_unknown
        )
    return found


def declared_effect(tool: ToolDefinition) -> EffectPolicy | None:
    """What the tool itself declares, `None` when it declares nothing.

    Raises:
        UnknownEffectPolicyError: it declares something else.
    """
    return checked_policy(tool.name, (tool.metadata or {}).get(EFFECT))


def checked_policy(tool_name: str, found: object) -> EffectPolicy | None:
    """The policy, as one.

    Raises:
        UnknownEffectPolicyError: it is none.
    """
    for policy in get_args(EffectPolicy):
        if found == policy:
            checked: EffectPolicy = policy
            return checked
    if found is None:
        return None
    raise UnknownEffectPolicyError(tool_name, found)


def effect_of(tool: ToolDefinition, settled: Mapping[str, EffectPolicy]) -> EffectPolicy:
    """The policy that holds: what the worker was told of this tool, what it declares, or `once`.

    A tool that runs inside the workflow touches nothing outside by itself: it is `read` by nature.
    """
    found = settled.get(tool.name) or declared_effect(tool)
    return found or ("read" if runs_in_workflow(tool) else UNDECLARED)


def runs_in_workflow(tool: ToolDefinition) -> bool:
    """Whether the tool's function is no activity."""
    return (tool.metadata or {}).get("temporal") is False


def longest_wait(tool: ToolDefinition) -> timedelta | None:
    """How long a run waits for a decision on a call of this tool; `None` means for ever.

    Raises:
        ValueError: the tool says something else than `wait`, `fail` or a number of seconds.
    """
    found = (tool.metadata or {}).get(ON_UNKNOWN, "wait")
    if found == "wait":
        return None
    if found == "fail":
        return timedelta(0)
    if isinstance(found, int | float) and not isinstance(found, bool) and found >= 0:
        return timedelta(seconds=found)
    message = (
        f"tool {tool.name!r} declares {ON_UNKNOWN}={found!r}; it must be 'wait', 'fail' or a "
        "number of seconds"
    )
    raise ValueError(message)


def effect_key(ctx: RunContext[Any]) -> str:
    """A key for the idempotency header of an outside service: the same on every attempt of a call.

    Raises:
        RuntimeError: this is no tool call of a run with `StepPersistence`.
    """
    scope = current_scope.get()
    if scope is None or scope.lineage.tool_call_id != ctx.tool_call_id:
        message = (
            f"effect_key was asked for call {ctx.tool_call_id!r}, which no run with "
            "StepPersistence makes here; ask for it in the body of a tool"
        )
        raise RuntimeError(message)
    return call_key(scope.lineage)


def call_key(lineage: Lineage) -> str:
    """SHA-256 (hex) over run, branch, step and call index."""
    place = [lineage.run_id, lineage.branch, lineage.step_index, lineage.call_index]
    return hashlib.sha256(json.dumps(place, separators=(",", ":")).encode()).hexdigest()


def with_attempts(given: RetryPolicy | None, needed: RetryPolicy) -> RetryPolicy:
    """What somebody set for an agent's activities, with as many attempts as a policy needs.

    Pauses and errors that are final stay what they were. Only a longest pause that nobody set is
    the policy's, so that a run does not wait minutes for an outcome that is known.
    """
    if given is None:
        return needed
    pause = given.maximum_interval
    if pause is None and needed.maximum_interval is not None:
        pause = max(needed.maximum_interval, given.initial_interval)
    return replace(given, maximum_attempts=needed.maximum_attempts, maximum_interval=pause)


def activity_options(policy: EffectPolicy, tool: ToolDefinition) -> ActivityConfig:
    """Options of the activity that makes a call; what the tool itself sets wins over them.

    The run hears what became of an effect before it ends, even when it is cancelled. A `once` tool
    may be attempted without a bound, since its body runs once: the other attempts find out what
    the first one left.
    """
    if policy == "read":
        return ActivityConfig()
    own: Mapping[str, object] = (tool.metadata or {}).get("temporal") or {}
    options = ActivityConfig(cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED)
    if policy == "once":
        options["retry_policy"] = RetryPolicy(
            maximum_attempts=0, maximum_interval=policies.LONGEST_ATTEMPT_PAUSE
        )
    return cast("ActivityConfig", {k: v for k, v in options.items() if k not in own})
