"""What every `StepStore` must do with what a tool says of its own effect."""

import asyncio

import pytest

from stores.errors import InvalidIdentifierError
from stores.operations import AnnotateToolEffect
from stores.protocols import StepStore
from stores.records import ToolEffectRecord
from tests.stores.abstract import StepStoreTests
from tests.stores.records import effect
from tests.stores.writer import Execution, RunScript, at


async def only(store: StepStore) -> ToolEffectRecord:
    (found,) = await store.list_tool_effects(run_id="run-1")
    return found


class AnnotationConformance(StepStoreTests):
    @pytest.mark.spec("SP-40", "SP-42")
    async def test_an_annotation_is_in_the_ledger_at_once_and_outlives_the_finish(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution()
        await store.commit(execution.commit(script.started(1), script.started(1, 1)))
        before = await store.list_tool_effects(run_id="run-1")
        await store.annotate_tool_effect(
            run_id="run-1", effect_key="1/1", idempotency_key="key", effect_summary="label set"
        )
        first, second = await store.list_tool_effects(run_id="run-1")
        assert first == before[0]
        assert (second.idempotency_key, second.effect_summary) == ("key", "label set")
        assert (second.status, second.started_at) == ("started", before[1].started_at)
        await store.commit(execution.commit(script.finished(1, 1)))
        _, second = await store.list_tool_effects(run_id="run-1")
        assert (second.status, second.idempotency_key) == ("completed", "key")
        assert second.effect_summary == "label set"

    async def test_an_annotation_adds_to_the_one_before_and_the_last_word_counts(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution()
        await store.commit(execution.commit(script.started(1, effect_summary="planned")))
        await store.annotate_tool_effect(run_id="run-1", effect_key="1/0", idempotency_key="a")
        found = await only(store)
        assert (found.idempotency_key, found.effect_summary) == ("a", "planned")
        await store.annotate_tool_effect(run_id="run-1", effect_key="1/0", effect_summary="done")
        await store.annotate_tool_effect(run_id="run-1", effect_key="1/0", idempotency_key="b")
        found = await only(store)
        assert (found.idempotency_key, found.effect_summary) == ("b", "done")
        await store.commit(execution.commit(script.finished(1, idempotency_key="c")))
        found = await only(store)
        assert (found.idempotency_key, found.effect_summary) == ("c", "done")

    async def test_an_annotation_that_comes_after_the_outcome_changes_nothing(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution()
        await store.commit(execution.commit(script.started(1), script.finished(1)))
        before = await only(store)
        await store.annotate_tool_effect(run_id="run-1", effect_key="1/0", idempotency_key="late")
        assert await only(store) == before

    async def test_an_effect_of_unknown_outcome_can_still_be_annotated(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution()
        await store.commit(
            execution.commit(script.started(1), script.finished(1, status="unknown"))
        )
        await store.annotate_tool_effect(run_id="run-1", effect_key="1/0", idempotency_key="key")
        found = await only(store)
        assert (found.status, found.idempotency_key) == ("unknown", "key")

    async def test_nothing_is_made_of_an_annotation_alone(self, store: StepStore) -> None:
        script, execution = RunScript(), Execution()
        await store.annotate_tool_effect(run_id="run-1", effect_key="1/0", idempotency_key="key")
        assert await store.list_tool_effects(run_id="run-1") == []
        await store.commit(execution.commit(script.register(), script.started(1)))
        before = await only(store)
        await store.annotate_tool_effect(run_id="run-1", effect_key="2/0", idempotency_key="key")
        await store.annotate_tool_effect(run_id="run-1", effect_key="1/0")
        stranger = store.for_workspace("another")
        await stranger.annotate_tool_effect(run_id="run-1", effect_key="1/0", idempotency_key="key")
        assert await only(store) == before
        with pytest.raises(InvalidIdentifierError):
            await store.annotate_tool_effect(run_id="", effect_key="1/0", idempotency_key="key")

    async def test_text_of_an_annotation_is_cut_and_made_storable(self, store: StepStore) -> None:
        await store.record_tool_effect(effect())
        await store.annotate_tool_effect(
            run_id="run-1",
            effect_key="call:call-1",
            idempotency_key="a\ud800",
            effect_summary="x" * 30_000,
        )
        found = await only(store)
        assert (found.idempotency_key, len(str(found.effect_summary))) == ("a\ufffd", 20_000)

    @pytest.mark.spec("SP-40")
    async def test_a_record_of_a_call_in_flight_annotates_it(self, store: StepStore) -> None:
        """So does the reference's own helper: it records the effect again, with more fields."""
        await store.record_tool_effect(effect(idempotency_key="first"))
        await store.record_tool_effect(
            effect(idempotency_key="key", effect_summary="label", started_at=at(9))
        )
        found = await only(store)
        assert (found.idempotency_key, found.effect_summary) == ("key", "label")
        assert (found.status, found.started_at) == ("started", at(1))
        await store.record_tool_effect(effect("completed", ended_at=at(2)))
        await store.record_tool_effect(effect(idempotency_key="late"))
        found = await only(store)
        assert (found.status, found.idempotency_key) == ("completed", "key")

    async def test_an_annotation_and_a_finish_at_once_are_both_kept_or_the_finish_alone(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution()
        for step in range(1, 6):
            await store.commit(execution.commit(script.started(step)))
            await asyncio.gather(
                store.annotate_tool_effect(
                    run_id="run-1", effect_key=f"{step}/0", idempotency_key="key"
                ),
                store.commit(execution.commit(script.finished(step))),
            )
        for each in await store.list_tool_effects(run_id="run-1"):
            assert each.status == "completed"
            assert each.idempotency_key in {"key", None}

    async def test_an_annotation_in_a_numbered_commit_is_refused_with_a_stale_one(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution(history_length=9)
        await store.commit(execution.commit(script.register(), script.started(1)))
        told = AnnotateToolEffect(run_id="run-1", effect_key="1/0", idempotency_key="key")
        late = Execution(history_length=3, number=execution.number)
        assert (await store.commit(late.commit(told))).verdict == "stale"
        assert (await only(store)).idempotency_key is None
        assert (await store.commit(execution.commit(told))).verdict == "apply"
        assert (await only(store)).idempotency_key == "key"
