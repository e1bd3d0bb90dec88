"""What a tool says of its own effect while it runs."""

from typing import Any

from pydantic_ai.tools import RunContext

from stores.protocols import StepStore
from workflows.lineage import current_scope


async def annotate_tool_effect(
    store: StepStore | None,  # noqa: ARG001 - see its description
    ctx: RunContext[Any],
    *,
    idempotency_key: str | None = None,
    effect_summary: str | None = None,
) -> None:
    """Add to the ledger's record of the tool call that runs this code.

    Returns when it is stored, so that after a crash right behind it the ledger shows it. A tool
    that runs inside the workflow writes nothing there: the record of its end carries both.
    Repeats: `None` leaves what was said before, other values take its place. Nothing happens
    outside a tool call of a run with `StepPersistence`.

    Args:
        store: where the run keeps its steps; `None` is as good. It is found by the call itself: in
            a worker it is the worker's store, whatever is given here.
        ctx: the context that the tool was called with.
        idempotency_key: under which the outside world knows the effect.
        effect_summary: what the tool is about to do, for a person who must decide later.
    """
    scope = current_scope.get()
    if scope is None or ctx.tool_call_id is None:
        return
    if scope.lineage.tool_call_id == ctx.tool_call_id:
        await scope.annotate(idempotency_key=idempotency_key, effect_summary=effect_summary)
