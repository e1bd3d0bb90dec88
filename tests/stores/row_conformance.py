"""What every `StepStore` must do with events, snapshots and tool effects."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, UserPromptPart

from stores.errors import DamagedSnapshotError, IdempotencyConflictError
from stores.protocols import StepStore
from tests.stores.abstract import StepStoreTests
from tests.stores.records import ODD_KEYS, effect, event, snapshot
from tests.stores.writer import Execution, RunScript, at, request, response


class EventConformance(StepStoreTests):
    @pytest.mark.spec("SP-64", "SP-132")
    async def test_an_event_is_read_as_it_was_written(self, store: StepStore) -> None:
        written = event(
            kind="tool_call_failed",
            conversation_id="talk",
            parent_run_id="parent",
            agent_name="agent",
            tool_call_id="call",
            tool_name="look_up",
            error="ValueError('no')",
            metadata=ODD_KEYS,
            key="k",
            sequence=5,
            call_index=2,
            branch="b",
        )
        await store.append_event(written)
        assert await store.list_events(run_id="run-1") == [written]

    @pytest.mark.spec("SP-18", "SP-20")
    async def test_a_key_that_was_applied_is_suppressed(self, store: StepStore) -> None:
        await store.append_event(event(key="k"))
        await store.append_event(event(key="k", timestamp=at(99), sequence=7))
        (only,) = await store.list_events(run_id="run-1")
        assert only.timestamp == at(1)

    @pytest.mark.spec("SP-20")
    async def test_a_key_with_other_content_conflicts_and_the_first_row_stays(
        self, store: StepStore
    ) -> None:
        await store.append_event(event(key="k", tool_name="first"))
        with pytest.raises(IdempotencyConflictError, match=r"append_event of run 'run-1': key 'k'"):
            await store.append_event(event(key="k", tool_name="second"))
        assert [each.tool_name for each in await store.list_events(run_id="run-1")] == ["first"]

    @pytest.mark.spec("SP-21", "SP-59")
    async def test_no_key_always_appends(self, store: StepStore) -> None:
        for _ in range(3):
            await store.append_event(event())
        assert len(await store.list_events(run_id="run-1")) == 3

    async def test_one_key_serves_many_runs(self, store: StepStore) -> None:
        await store.append_event(event(key="k"))
        await store.append_event(event(key="k", run_id="run-2", tool_name="x"))
        assert len(await store.list_events(run_id="run-2")) == 1

    @pytest.mark.spec("SP-3")
    async def test_order_is_the_sequence_and_never_time(self, store: StepStore) -> None:
        for step in (5, 3, 4, 4):
            await store.append_event(event(step, timestamp=at(100 - step), sequence=step))
        await store.append_event(event(9, timestamp=at(0)))
        listed = await store.list_events(run_id="run-1")
        assert [each.step_index for each in listed] == [3, 4, 4, 5, 9]
        assert listed[-1].sequence == 6

    async def test_a_hundred_events_of_one_instant_keep_their_order(self, store: StepStore) -> None:
        for step in range(100):
            await store.append_event(event(step, timestamp=at(0)))
        listed = await store.list_events(run_id="run-1")
        assert [each.step_index for each in listed] == list(range(100))
        assert [each.sequence for each in listed] == list(range(1, 101))

    @pytest.mark.spec("SP-20")
    async def test_one_key_from_many_writers_at_once_is_stored_once(self, store: StepStore) -> None:
        await asyncio.gather(*(store.append_event(event(key="k")) for _ in range(8)))
        assert len(await store.list_events(run_id="run-1")) == 1

    async def test_one_key_with_many_contents_at_once_is_stored_once(
        self, store: StepStore
    ) -> None:
        results = await asyncio.gather(
            *(store.append_event(event(key="k", tool_name=f"t{n}")) for n in range(6)),
            return_exceptions=True,
        )
        assert sum(result is None for result in results) == 1
        assert sum(isinstance(result, IdempotencyConflictError) for result in results) == 5
        (only,) = await store.list_events(run_id="run-1")
        assert only.tool_name == f"t{results.index(None)}"

    async def test_times_are_exact_to_the_microsecond_and_come_back_in_utc(
        self, store: StepStore
    ) -> None:
        zoned = datetime(2026, 1, 2, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
        await store.append_event(event(timestamp=zoned))
        (only,) = await store.list_events(run_id="run-1")
        assert only.timestamp == zoned
        assert only.timestamp.utcoffset() == timedelta(0)
        assert only.timestamp.microsecond == 123456

    async def test_times_before_1970_and_far_away_are_kept(self, store: StepStore) -> None:
        times = [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        ]
        for time in times:
            await store.append_event(event(timestamp=time))
        assert [each.timestamp for each in await store.list_events(run_id="run-1")] == times

    async def test_a_time_without_a_zone_is_refused(self, store: StepStore) -> None:
        with pytest.raises(ValueError, match="has no zone"):
            await store.append_event(event(timestamp=datetime(2026, 1, 1)))  # noqa: DTZ001 - on purpose
        assert await store.list_events(run_id="run-1") == []

    @pytest.mark.spec("SP-119")
    async def test_an_event_without_context_has_the_lineage_of_its_run(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution()
        lineage = {
            "conversation_id": "talk",
            "parent_run_id": "parent",
            "agent_name": "agent",
            "metadata": ODD_KEYS,
        }
        await store.commit(
            execution.commit(script.register(**lineage), script.event("run_started", 0))
        )
        (only,) = await store.list_events(run_id="run-1")
        assert {name: getattr(only, name) for name in lineage} == lineage
        assert (only.branch, only.commit_number) == ("branch-1", 1)

    async def test_text_that_utf8_cannot_hold_is_replaced_in_errors_and_names(
        self, store: StepStore
    ) -> None:
        await store.append_event(event(error="a\ud800b", tool_name="\udfff", tool_call_id="ok"))
        (only,) = await store.list_events(run_id="run-1")
        assert (only.error, only.tool_name, only.tool_call_id) == ("a\ufffdb", "\ufffd", "ok")


class SnapshotConformance(StepStoreTests):
    @pytest.mark.spec("SP-132")
    async def test_a_snapshot_is_read_as_it_was_written(self, store: StepStore) -> None:
        written = snapshot(
            [request("hello", run_id="run-1"), response("hi")],
            "k",
            conversation_id="talk",
            parent_run_id="parent",
            agent_name="agent",
            state="interrupted",
            sequence=4,
            branch="b",
        )
        await store.save_snapshot(written)
        assert await store.latest_snapshot(run_id="run-1", include_interrupted=True) == written
        assert await store.list_snapshots(run_id="run-1") == [written]

    @pytest.mark.spec("SP-4", "SP-5")
    async def test_the_newest_complete_snapshot_is_the_latest(self, store: StepStore) -> None:
        await store.save_snapshot(snapshot([request("a")]))
        await store.save_snapshot(snapshot([request("a"), response("b")], state="interrupted"))
        complete = await store.latest_snapshot(run_id="run-1")
        newest = await store.latest_snapshot(run_id="run-1", include_interrupted=True)
        assert complete is not None
        assert newest is not None
        assert (len(complete.messages), len(newest.messages)) == (1, 2)

    @pytest.mark.spec("SP-5")
    async def test_only_interrupted_snapshots_give_none(self, store: StepStore) -> None:
        await store.save_snapshot(snapshot([request("a")], state="interrupted"))
        assert await store.latest_snapshot(run_id="run-1") is None

    @pytest.mark.spec("SP-18", "SP-20")
    async def test_a_key_that_was_applied_is_suppressed(self, store: StepStore) -> None:
        await store.save_snapshot(snapshot([request("a")], "k"))
        await store.save_snapshot(snapshot([request("a", seconds=60)], "k", timestamp=at(60)))
        (only,) = await store.list_snapshots(run_id="run-1")
        assert only.timestamp == at(1)
        assert only.messages == [request("a")]

    @pytest.mark.spec("SP-20")
    async def test_a_key_with_other_content_conflicts(self, store: StepStore) -> None:
        await store.save_snapshot(snapshot([request("a")], "k"))
        with pytest.raises(IdempotencyConflictError, match="save_snapshot"):
            await store.save_snapshot(snapshot([request("b")], "k"))
        (only,) = await store.list_snapshots(run_id="run-1")
        assert only.messages == [request("a")]

    @pytest.mark.spec("SP-22")
    async def test_distinct_snapshots_of_one_step_keep_their_order_when_replayed(
        self, store: StepStore
    ) -> None:
        first: list[ModelMessage] = [request("a")]
        second: list[ModelMessage] = [request("a"), response("b")]
        for _ in range(2):
            await store.save_snapshot(snapshot(first, "1/3/complete", step_index=3))
            await store.save_snapshot(snapshot(second, "2/3/complete", step_index=3))
        listed = await store.list_snapshots(run_id="run-1")
        assert [each.messages for each in listed] == [first, second]
        latest = await store.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.messages == second

    @pytest.mark.spec("SP-21")
    async def test_no_key_always_saves(self, store: StepStore) -> None:
        for _ in range(2):
            await store.save_snapshot(snapshot([request("a")]))
        assert len(await store.list_snapshots(run_id="run-1")) == 2

    async def test_an_empty_history_can_be_saved(self, store: StepStore) -> None:
        await store.save_snapshot(snapshot([]))
        latest = await store.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.messages == []

    async def test_a_history_of_a_thousand_messages_comes_back_whole(
        self, store: StepStore
    ) -> None:
        messages: list[ModelMessage] = [request(f"{n} " + "x" * 500) for n in range(1000)]
        await store.save_snapshot(snapshot(messages))
        latest = await store.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.messages == messages

    async def test_repeated_and_rewritten_messages_come_back_in_their_places(
        self, store: StepStore
    ) -> None:
        again, other = request("again"), request("other")
        histories: list[list[ModelMessage]] = [
            [again, again, other],
            [other, again, again, again],
            [again],
            [response("new"), again, other],
        ]
        for history in histories:
            await store.save_snapshot(snapshot(history))
        listed = await store.list_snapshots(run_id="run-1")
        assert [each.messages for each in listed] == histories

    async def test_arguments_that_bson_would_refuse_come_back_equal(self, store: StepStore) -> None:
        arguments = {"n": 10**30, "a.b": 1, "$x": 2, "": {"nul\x00": None}}
        call = ModelResponse(
            parts=[ToolCallPart("t", arguments, tool_call_id="c")], timestamp=at(1)
        )
        await store.save_snapshot(snapshot([call]))
        latest = await store.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.messages == [call]

    @pytest.mark.spec("SP-109")
    async def test_messages_are_copied_on_the_way_in_and_out(self, store: StepStore) -> None:
        message = request("before")
        await store.save_snapshot(snapshot([message]))
        part = message.parts[0]
        assert isinstance(part, UserPromptPart)
        part.content = "after"
        for _ in range(2):
            latest = await store.latest_snapshot(run_id="run-1")
            assert latest is not None
            assert latest.messages == [request("before")]
            latest.messages.clear()

    async def test_writers_of_one_run_at_once_do_not_harm_each_other(
        self, store: StepStore
    ) -> None:
        histories: list[list[ModelMessage]] = [[request("a"), response(f"{n}")] for n in range(6)]
        await asyncio.gather(*(store.save_snapshot(snapshot(each)) for each in histories))
        listed = [each.messages for each in await store.list_snapshots(run_id="run-1")]
        assert len(listed) == len(histories)
        assert all(history in listed for history in histories)

    async def test_a_message_that_is_stamped_later_is_read_with_its_stamps(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(result_size=10), Execution()
        await store.commit(execution.commit(script.register()))
        bare = request("question")
        script.messages = [bare]
        await store.commit(execution.commit(script.snapshot(1, 0)))
        stamped = replace(bare, run_id="run-1", timestamp=at(3), instructions="be kind")
        script.messages = [stamped, response("answer")]
        await store.commit(execution.commit(script.snapshot(2, 0)))
        first, second = await store.list_snapshots(run_id="run-1")
        assert first.messages == [stamped]
        assert second.messages == [stamped, response("answer")]

    async def test_a_message_that_another_run_has_too_outlives_its_stamped_version(
        self, store: StepStore
    ) -> None:
        shared = request("shared")
        script, execution = RunScript(), Execution()
        script.messages = [shared]
        await store.commit(execution.commit(script.snapshot(1, 0)))
        await store.save_snapshot(snapshot([shared], run_id="run-2"))
        script.messages = [replace(shared, run_id="run-1")]
        await store.commit(execution.commit(script.snapshot(2, 0)))
        latest = await store.latest_snapshot(run_id="run-2")
        assert latest is not None
        assert latest.messages == [shared]

    async def test_ranges_say_which_messages_a_history_holds(self, store: StepStore) -> None:
        script, execution = RunScript(), Execution()
        script.messages = [request(str(n)) for n in range(10)]
        await store.commit(execution.commit(script.snapshot(1, 0)))
        script.messages.append(request("summary"))
        ranges = ((10, 11), (0, 2), (7, 9))
        await store.commit(execution.commit(script.snapshot(2, 10, ranges=ranges)))
        latest = await store.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.messages == [request(text) for text in ("summary", "0", "1", "7", "8")]
        summaries = await store.list_snapshot_summaries(run_id="run-1")
        assert [each.message_count for each in summaries] == [10, 5]

    async def test_a_single_save_goes_on_from_what_commits_have_stored(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution()
        script.messages = [request("a")]
        await store.commit(execution.commit(script.snapshot(1, 0)))
        await store.save_snapshot(snapshot([request("a"), response("b")]))
        latest = await store.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.messages == [request("a"), response("b")]
        assert latest.sequence == 2

    async def test_summaries_tell_all_but_the_messages(self, store: StepStore) -> None:
        await store.save_snapshot(snapshot([request("a")], "k", sequence=3, branch="b"))
        (summary,) = await store.list_snapshot_summaries(run_id="run-1")
        assert (summary.run_id, summary.sequence, summary.step_index) == ("run-1", 3, 1)
        assert (summary.state, summary.timestamp, summary.message_count) == ("complete", at(1), 1)
        assert (summary.idempotency_key, summary.branch) == ("k", "b")

    @pytest.mark.spec("SP-133")
    async def test_a_damaged_snapshot_raises_alone_and_is_left_out_of_lists(
        self, store: StepStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        script, execution = RunScript(), Execution()
        script.messages = [request("a")]
        await store.commit(execution.commit(script.snapshot(1, 0)))
        await store.commit(execution.commit(script.snapshot(2, 1, ranges=((0, 3),))))
        with pytest.raises(DamagedSnapshotError, match=r"snapshot 2 of run 'run-1'.*position 1"):
            await store.latest_snapshot(run_id="run-1")
        (whole,) = await store.list_snapshots(run_id="run-1")
        assert whole.messages == [request("a")]
        assert "snapshot 2 of run 'run-1' is damaged" in caplog.text
        assert len(await store.list_snapshot_summaries(run_id="run-1")) == 2


class EffectConformance(StepStoreTests):
    @pytest.mark.spec("SP-39", "SP-132")
    async def test_an_effect_is_read_as_it_was_written(self, store: StepStore) -> None:
        written = effect(
            "failed",
            ended_at=at(2),
            idempotency_key="key",
            effect_summary="label set",
            sequence=3,
            step_index=2,
            call_index=1,
            effect="once",
            error="ValueError()",
            branch="b",
        )
        await store.record_tool_effect(written)
        assert await store.list_tool_effects(run_id="run-1") == [written]
        assert await store.get_tool_effect(run_id="run-1", tool_call_id="call-1") == written

    @pytest.mark.spec("SP-6", "SP-42")
    async def test_the_finish_closes_the_start_and_keeps_what_it_knew(
        self, store: StepStore
    ) -> None:
        await store.record_tool_effect(effect(idempotency_key="key", effect_summary="label"))
        await store.record_tool_effect(effect("completed", started_at=at(50), ended_at=at(9)))
        (only,) = await store.list_tool_effects(run_id="run-1")
        assert (only.status, only.started_at, only.ended_at) == ("completed", at(1), at(9))
        assert (only.idempotency_key, only.effect_summary) == ("key", "label")

    @pytest.mark.spec("SP-130")
    async def test_an_error_is_the_summary_of_an_effect_without_one(self, store: StepStore) -> None:
        await store.record_tool_effect(effect("failed", error="OSError('no')"))
        await store.record_tool_effect(effect(tool_call_id="told", effect_summary="label"))
        await store.record_tool_effect(effect("failed", tool_call_id="told", error="OSError('no')"))
        bare, told = await store.list_tool_effects(run_id="run-1")
        assert (bare.effect_summary, bare.error) == ("OSError('no')", "OSError('no')")
        assert (told.effect_summary, told.error) == ("label", "OSError('no')")

    async def test_a_late_start_does_not_reopen_a_finished_effect(self, store: StepStore) -> None:
        await store.record_tool_effect(effect())
        await store.record_tool_effect(effect("completed", ended_at=at(2)))
        before = await store.list_tool_effects(run_id="run-1")
        await store.record_tool_effect(effect(started_at=at(7)))
        assert await store.list_tool_effects(run_id="run-1") == before
        assert await store.list_unresolved_tool_effects(run_id="run-1") == []

    async def test_a_finish_again_changes_nothing_and_another_one_conflicts(
        self, store: StepStore
    ) -> None:
        await store.record_tool_effect(effect("completed", ended_at=at(2)))
        await store.record_tool_effect(effect("completed", ended_at=at(3)))
        with pytest.raises(IdempotencyConflictError, match=r"finish_tool_effect.*call:call-1#1"):
            await store.record_tool_effect(effect("failed", error="no"))
        (only,) = await store.list_tool_effects(run_id="run-1")
        assert (only.status, only.ended_at, only.error) == ("completed", at(2), None)

    async def test_a_status_never_goes_back(self, store: StepStore) -> None:
        seen: list[str] = []
        for status in ("started", "unknown", "started", "completed", "unknown", "resolved"):
            await store.record_tool_effect(effect(status, ended_at=at(5)))
            (only,) = await store.list_tool_effects(run_id="run-1")
            seen.append(only.status)
        assert seen == ["started", "unknown", "unknown", "completed", "completed", "resolved"]
        await store.record_tool_effect(effect("completed", ended_at=at(6)))
        assert (await store.list_tool_effects(run_id="run-1"))[0].status == "resolved"

    async def test_another_outcome_under_another_ordinal_does_not_replace_the_first(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution()
        await store.commit(execution.commit(script.started(1), script.finished(1)))
        result = await store.commit(
            execution.commit(script.finished(1, status="failed", ordinal=1))
        )
        assert [each.disposition for each in result.outcomes] == ["suppressed"]
        (only,) = await store.list_tool_effects(run_id="run-1")
        assert only.status == "completed"

    @pytest.mark.spec("SP-6", "SP-27")
    async def test_unresolved_effects_are_those_started_or_unknown(self, store: StepStore) -> None:
        for number, status in enumerate(("started", "completed", "failed", "unknown", "resolved")):
            await store.record_tool_effect(
                effect(status, tool_call_id=f"call-{number}", started_at=at(9 - number))
            )
        await store.record_tool_effect(effect(run_id="run-2", started_at=at(7)))
        listed = await store.list_unresolved_tool_effects(run_id="run-1")
        assert [each.status for each in listed] == ["started", "unknown"]
        everywhere = await store.list_unresolved_tool_effects()
        assert [each.started_at for each in everywhere] == [at(6), at(7), at(9)]
        assert {each.workspace_id for each in everywhere} == {"default"}

    @pytest.mark.spec("SP-6")
    async def test_a_reused_call_id_gives_the_newest_effect(self, store: StepStore) -> None:
        script, execution = RunScript(), Execution()
        for step in (1, 2):
            await store.commit(execution.commit(script.started(step, tool_call_id="same")))
            await store.commit(execution.commit(script.finished(step, tool_call_id="same")))
        await store.commit(execution.commit(script.started(3, tool_call_id="same")))
        listed = await store.list_tool_effects(run_id="run-1")
        assert [(each.step_index, each.status) for each in listed] == [
            (1, "completed"),
            (2, "completed"),
            (3, "started"),
        ]
        assert await store.get_tool_effect(run_id="run-1", tool_call_id="same") == listed[-1]

    async def test_arguments_are_kept_as_digest_and_bounded_summary(self, store: StepStore) -> None:
        script, execution = RunScript(), Execution()
        long = '{"b": 1, "a": "' + "x" * 500 + '"}'
        await store.commit(execution.commit(script.started(1, arguments=long)))
        await store.commit(execution.commit(script.started(2, arguments="no\ud800 json")))
        await store.commit(execution.commit(script.started(3, arguments=None)))
        first, second, third = await store.list_tool_effects(run_id="run-1")
        assert first.arguments_summary == long[:200]
        assert first.arguments_digest is not None
        assert len(first.arguments_digest) == 64
        assert second.arguments_summary == "no\ufffd json"
        assert (third.arguments_summary, third.arguments_digest) == (None, None)
        assert first.effect == "idempotent"

    async def test_a_finish_without_a_start_makes_the_effect(self, store: StepStore) -> None:
        script, execution = RunScript(), Execution()
        await store.commit(execution.commit(script.finished(1, status="unknown", at=at(4))))
        (only,) = await store.list_tool_effects(run_id="run-1")
        assert (only.status, only.started_at, only.ended_at) == ("unknown", at(4), at(4))
        await store.commit(execution.commit(script.started(1, at=at(2))))
        (only,) = await store.list_tool_effects(run_id="run-1")
        assert (only.status, only.started_at, only.ended_at) == ("unknown", at(2), at(4))
        assert only.arguments_summary == '{"item": 1}'

    async def test_many_finishes_at_once_leave_one(self, store: StepStore) -> None:
        await store.record_tool_effect(effect())
        statuses = ("completed", "failed") * 4
        results = await asyncio.gather(
            *(store.record_tool_effect(effect(each, ended_at=at(5))) for each in statuses),
            return_exceptions=True,
        )
        won = {status for status, result in zip(statuses, results, strict=True) if result is None}
        (only,) = await store.list_tool_effects(run_id="run-1")
        assert won == {only.status}
        assert sum(isinstance(each, IdempotencyConflictError) for each in results) == 4
