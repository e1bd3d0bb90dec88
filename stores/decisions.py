"""Deciding on a tool call whose run cannot ask any more: straight in the ledger.

A run that goes on is told by its workflow's update, and records the decision itself.
"""

from datetime import datetime

from stores.commits import Commit
from stores.errors import DecidedResultTooLargeError, IdempotencyConflictError
from stores.operations import FinishToolEffect
from stores.protocols import StepStore
from stores.records import ToolEffectRecord, ToolEffectResolution

DECIDED_OUTSIDE = 1_000_000
"""Ordinal of a finish that no workflow records, far behind those that one counts: of two people who
decide at once, one does."""

RESOLVED_BY = "perdure_resolution"
"""Key in a tool return's metadata: a person or a check gave this result, not the tool."""

LARGEST_RESULT_BYTES = 64 * 1024
"""Of a decided result. It lies in the row of the effect, which is read with every list of them."""


async def settle_tool_effect(
    store: StepStore,
    effect: ToolEffectRecord,
    resolution: ToolEffectResolution,
    *,
    now: datetime,
    error: str | None = None,
    effect_summary: str | None = None,
) -> ToolEffectResolution:
    """Record what somebody decided on an effect; returns the decision that stands.

    That is another one where somebody else was faster. Repeats: the first decision stays.

    A run that continues this one tells its model what was decided (`stores.continuing`).

    Args:
        store: bound to the effect's workspace.
        effect: as the store gave it.
        resolution: who decides what, and why; for `completed` with the result.
        now: the time of the decision.
        error: what a `failed` call failed with.
        effect_summary: what a `completed` call did.

    Raises:
        DecidedResultTooLargeError: the result is. Nothing is recorded. Not retryable.
    """
    size = len((resolution.result or "").encode())
    if size > LARGEST_RESULT_BYTES:
        raise DecidedResultTooLargeError(effect.run_id, size, LARGEST_RESULT_BYTES)
    finish = FinishToolEffect(
        run_id=effect.run_id,
        tool_call_id=effect.tool_call_id,
        tool_name=effect.tool_name,
        step_index=effect.step_index,
        call_index=effect.call_index,
        status="resolved",
        error=error,
        error_type="Resolved" if error else None,
        effect_summary=effect_summary,
        resolution=resolution,
        ordinal=DECIDED_OUTSIDE,
    )
    result = await store.commit(Commit(operations=(finish,), now=now))
    for each in await store.list_tool_effects(run_id=effect.run_id):
        stands = _decision_on(each) if each.sequence == effect.sequence else None
        if stands is not None:
            return stands
    raise IdempotencyConflictError(finish.kind, effect.run_id, f"{finish.key} ({result.verdict})")


def _decision_on(effect: ToolEffectRecord) -> ToolEffectResolution | None:
    said = effect.approval
    if effect.resolution is not None or said is None or said.state == "asked":
        return effect.resolution
    return ToolEffectResolution(decision=said.state, by=said.by, why=said.why)
