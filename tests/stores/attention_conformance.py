"""What every `StepStore` must do with calls that wait for somebody's decision."""

import pytest

from stores.protocols import StepStore
from stores.records import ToolEffectResolution
from tests.stores.abstract import StepStoreTests
from tests.stores.asking import dispositions, started

RUN_AGAIN = ToolEffectResolution(decision="run_again", by="ann", why="the bank has nothing")
DONE = ToolEffectResolution(decision="completed", by="bob")


class AttentionConformance(StepStoreTests):
    """An event may say that its run needs attention; a finish may say who decided."""

    async def states(self, store: StepStore) -> tuple[str, list[str]]:
        run = await store.get_run(run_id="run-1")
        assert run is not None
        page = await store.page_runs(state="needs_attention")
        return run.state, [each.run_id for each in page.runs]

    async def test_event_puts_its_run_in_a_state_and_another_takes_it_out(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        parked = script.event(
            "tool_call_failed", 1, 0, error="unknown", run_state="needs_attention"
        )
        await store.commit(execution.commit(parked))
        assert await self.states(store) == ("needs_attention", ["run-1"])
        run = await store.get_run(run_id="run-1")
        assert run is not None
        assert (run.error, run.ended_at) == ("unknown", None)
        back = script.event("tool_call_completed", 1, 0, run_state="running")
        await store.commit(execution.commit(back))
        assert await self.states(store) == ("running", [])
        run = await store.get_run(run_id="run-1")
        assert run is not None
        assert run.error is None

    async def test_state_of_a_lost_task_is_taken_back(self, store: StepStore) -> None:
        execution, script = await started(store)
        execution.next_task()
        parked = script.event("tool_call_failed", 1, 0, run_state="needs_attention")
        await store.commit(execution.commit(parked))
        execution.next_task(number=1)
        await store.commit(execution.commit(script.event("tool_call_completed", 1, 0)))
        assert await self.states(store) == ("running", [])

    async def test_state_before_a_lost_task_comes_back(self, store: StepStore) -> None:
        execution, script = await started(store)
        parked = script.event("tool_call_failed", 1, 0, run_state="needs_attention")
        await store.commit(execution.commit(parked))
        execution.next_task()
        await store.commit(
            execution.commit(script.event("tool_call_completed", 1, 0, run_state="running"))
        )
        execution.next_task(number=2)
        await store.commit(execution.commit(script.event("model_request_started", 2)))
        assert await self.states(store) == ("needs_attention", ["run-1"])

    async def test_resolved_effect_tells_who_decided(self, store: StepStore) -> None:
        execution, script = await started(store)
        await store.commit(
            execution.commit(script.started(1), script.finished(1, status="unknown"))
        )
        (effect,) = await store.list_unresolved_tool_effects()
        assert (effect.status, effect.resolution) == ("unknown", None)
        finish = script.finished(1, status="resolved", ordinal=1, resolution=DONE)
        await store.commit(execution.commit(finish))
        (effect,) = await store.list_tool_effects(run_id="run-1")
        assert (effect.status, effect.resolution) == ("resolved", DONE)
        assert await store.list_unresolved_tool_effects() == []

    @pytest.mark.parametrize("status", ["completed", "failed"])
    async def test_decision_to_run_again_is_kept_while_the_outcome_stays_unknown(
        self, store: StepStore, status: str
    ) -> None:
        execution, script = await started(store)
        again = script.finished(1, status="unknown", ordinal=1, resolution=RUN_AGAIN)
        await store.commit(
            execution.commit(script.started(1), script.finished(1, status="unknown"), again)
        )
        (effect,) = await store.list_unresolved_tool_effects(run_id="run-1")
        assert (effect.status, effect.resolution) == ("unknown", RUN_AGAIN)
        await store.commit(execution.commit(script.finished(1, status=status, ordinal=2)))
        (effect,) = await store.list_tool_effects(run_id="run-1")
        assert (effect.status, effect.resolution) == (status, RUN_AGAIN)

    async def test_the_same_finish_with_another_decision_is_refused(self, store: StepStore) -> None:
        execution, script = await started(store)
        first = script.finished(1, status="resolved", resolution=DONE)
        await store.commit(execution.commit(script.started(1), first))
        other = script.finished(1, status="resolved", resolution=RUN_AGAIN)
        result = await store.commit(execution.commit(other))
        assert dispositions(result) == {0: "refused"}
        (effect,) = await store.list_tool_effects(run_id="run-1")
        assert effect.resolution == DONE
