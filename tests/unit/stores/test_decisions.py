"""A decision that goes straight to the ledger."""

from stores.decisions import settle_tool_effect
from stores.memory import InMemoryStepStore
from stores.records import ToolEffectResolution
from tests.stores.records import effect, run_record
from tests.stores.writer import at


async def test_of_two_decisions_on_a_call_the_first_stands() -> None:
    store = InMemoryStepStore()
    await store.register_run(run_record())
    await store.record_tool_effect(effect("unknown", step_index=2, call_index=0))
    await store.record_tool_effect(effect(tool_call_id="call-2", step_index=2, call_index=1))
    first, second = await store.list_unresolved_tool_effects(run_id="run-1")
    ann = ToolEffectResolution(decision="failed", by="ann", why="no receipt")
    bob = ToolEffectResolution(decision="failed", by="bob")
    late = ToolEffectResolution(decision="completed", by="eve")

    assert await settle_tool_effect(store, first, ann, now=at(5), error="no") == ann
    assert await settle_tool_effect(store, first, bob, now=at(6), error="no") == ann
    assert await settle_tool_effect(store, first, late, now=at(7)) == ann

    settled, other = await store.list_tool_effects(run_id="run-1")
    assert (settled.status, settled.error, settled.ended_at) == ("resolved", "no", at(5))
    assert settled.resolution == ann
    assert other == second
