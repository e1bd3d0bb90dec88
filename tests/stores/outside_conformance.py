"""What every `StepStore` must do with writes from outside a workflow beside those of its tasks."""

from stores.commits import Commit
from stores.operations import FinishToolEffect
from stores.protocols import StepStore
from tests.stores.abstract import StepStoreTests
from tests.stores.asking import started
from tests.stores.writer import Execution, RunScript, at


def resolution(script: RunScript, *, now: float) -> Commit:
    """Somebody says what became of the call of step 1."""
    operation = script.finished(1, status="resolved", ordinal=2, effect_summary="seen by hand")
    return Commit(operations=(operation,), now=at(now), branch="outside")


async def effect_of(store: StepStore) -> tuple[str, str | None]:
    (effect,) = await store.list_tool_effects(run_id="run-1")
    return effect.status, effect.effect_summary


class OutsideConformance(StepStoreTests):
    """They have no place in an execution: no task is lost with them, no reset takes them."""

    async def test_a_resolution_counts_when_the_settlement_it_met_was_of_a_lost_task(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        unknown: FinishToolEffect = script.finished(1, status="unknown")
        await store.commit(execution.commit(script.started(1), unknown))
        execution.next_task()
        settled = script.finished(1, status="resolved", ordinal=1, effect_summary="lost")
        await store.commit(execution.commit(settled))
        await store.commit(resolution(script, now=9))
        assert await effect_of(store) == ("resolved", "lost")
        execution.next_task(number=2)
        await store.commit(execution.commit(script.event("model_request_started", 2)))
        assert await effect_of(store) == ("resolved", "seen by hand")
        assert await store.list_unresolved_tool_effects() == []

    async def test_a_settlement_that_comes_again_was_said_before_a_resolution(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        unknown: FinishToolEffect = script.finished(1, status="unknown")
        await store.commit(execution.commit(script.started(1), unknown))
        settled = execution.commit(script.finished(1, status="resolved", ordinal=1))
        await store.commit(settled)
        await store.commit(resolution(script, now=9))
        (held,) = await store.list_tool_effects(run_id="run-1")
        assert (held.commit_number, held.effect_summary) == (execution.number, None)
        assert (await store.commit(settled)).verdict == "suppress"
        assert await store.list_tool_effects(run_id="run-1") == [held]

    async def test_a_resolution_goes_with_the_call_that_it_is_about(self, store: StepStore) -> None:
        _, script = await started(store)
        execution = Execution(number=1)
        await store.commit(execution.commit(script.started(1)))
        await store.commit(resolution(script, now=9))
        assert await effect_of(store) == ("resolved", "seen by hand")
        reset = Execution(branch="branch-2", branch_time=at(60), number=1)
        await store.commit(reset.commit(script.started(1)))
        assert await effect_of(store) == ("started", None)

    async def test_a_resolution_comes_back_with_the_start_of_a_lost_task(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        execution.next_task()
        start = script.started(1)
        await store.commit(execution.commit(start))
        await store.commit(resolution(script, now=9))
        execution.next_task(number=1)
        await store.commit(execution.commit())
        assert await store.list_tool_effects(run_id="run-1") == []
        await store.commit(execution.commit(start))
        assert await effect_of(store) == ("resolved", "seen by hand")
