"""Deciding on a tool call whose run cannot ask any more: straight in the ledger.

A run that goes on is told by its workflow's update, and records the decision itself.
"""

from datetime import datetime

from stores.commits import Commit
from stores.errors import IdempotencyConflictError
from stores.operations import FinishToolEffect
from stores.protocols import StepStore
from stores.records import ToolEffectRecord, ToolEffectResolution

DECIDED_OUTSIDE = 1_000_000
"""Ordinal of a finish that no workflow records, far behind those that one counts: of two people who
decide at once, one does."""


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

    Args:
        store: bound to the effect's workspace.
        effect: as the store gave it.
        resolution: who decides what, and why.
        now: the time of the decision.
        error: what a `failed` call failed with.
        effect_summary: what a `completed` call did.
    """
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
        if each.sequence == effect.sequence and each.resolution is not None:
            return each.resolution
    raise IdempotencyConflictError(finish.kind, effect.run_id, f"{finish.key} ({result.verdict})")
