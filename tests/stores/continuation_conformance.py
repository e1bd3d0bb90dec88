"""Continuing and forking from a store: which history, what stands in the way, and who was first."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart
from pydantic_ai.messages import ToolReturnPart as Return

from stores.continuing import continue_run, find_continuation, find_starting_point, fork_run
from stores.errors import (
    AlreadyContinuedError,
    DamagedSnapshotError,
    InvalidIdentifierError,
    UnresolvedEffectsError,
)
from stores.protocols import StepStore
from stores.recovery import inspect_recovery
from tests.stores.abstract import StepStoreTests
from tests.stores.records import effect, event, run_record, snapshot
from tests.stores.writer import Execution, RunScript, at, new_run, request, response


def called(call_id: str = "call-1") -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart("look_up", {}, tool_call_id=call_id)], timestamp=at(1))


def returned(call_id: str = "call-1", **values: object) -> ModelRequest:
    metadata = values.get("metadata")
    part = Return("look_up", "x", tool_call_id=call_id, timestamp=at(1), metadata=metadata)
    return ModelRequest(parts=[part])


FIRST: list[ModelMessage] = [request("a"), response("b")]
SECOND: list[ModelMessage] = [*FIRST, request("c"), called()]


async def save_two(store: StepStore) -> None:
    """A complete snapshot 5 of step 1, and an interrupted one, 9, of step 2."""
    await store.register_run(run_record())
    await store.save_snapshot(snapshot(FIRST, sequence=5))
    await store.save_snapshot(snapshot(SECOND, step_index=2, state="interrupted", sequence=9))


class ContinuingConformance(StepStoreTests):
    @pytest.mark.spec("SP-5", "SP-28")
    async def test_continue_takes_the_newest_complete_history(self, store: StepStore) -> None:
        await save_two(store)
        assert await continue_run(store, run_id="run-1") == FIRST
        assert await continue_run(store, run_id="run-1", include_interrupted=True) == SECOND

    @pytest.mark.spec("SP-29")
    async def test_fork_has_the_shape_of_continue(self, store: StepStore) -> None:
        await save_two(store)
        assert await fork_run(store, run_id="run-1") == FIRST
        assert await fork_run(store, run_id="run-1", include_interrupted=True) == SECOND

    async def test_fork_may_start_at_any_snapshot(self, store: StepStore) -> None:
        await save_two(store)
        third = [*FIRST, request("d")]
        await store.save_snapshot(snapshot(third, step_index=3, sequence=12))
        assert await fork_run(store, run_id="run-1", at_snapshot=5) == FIRST
        assert await fork_run(store, run_id="run-1", at_step=1) == FIRST
        interrupted = partial(fork_run, store, run_id="run-1", include_interrupted=True)
        assert await interrupted(at_snapshot=9) == SECOND
        assert await interrupted(at_step=2) == SECOND
        assert await fork_run(store, run_id="run-1", at_step=3) == third
        with pytest.raises(ValueError, match="exclude each other"):
            await fork_run(store, run_id="run-1", at_step=1, at_snapshot=5)

    async def test_fork_at_a_step_takes_its_newest_fitting_snapshot(self, store: StepStore) -> None:
        await store.save_snapshot(snapshot([request("a")], sequence=1))
        await store.save_snapshot(snapshot(FIRST, sequence=2))
        await store.save_snapshot(snapshot(SECOND, state="interrupted", sequence=3))
        assert await fork_run(store, run_id="run-1", at_step=1) == FIRST

    @pytest.mark.spec("SP-28")
    async def test_an_unknown_run_cannot_be_continued(self, store: StepStore) -> None:
        await save_two(store)
        with pytest.raises(LookupError, match=r"'none' cannot be continued.*It has none") as here:
            await continue_run(store, run_id="none")
        with pytest.raises(LookupError) as elsewhere:
            await continue_run(store.for_workspace("other"), run_id="run-1")
        assert str(here.value).replace("none'", "run-1'") == str(elsewhere.value)

    @pytest.mark.parametrize("place", [{"at_snapshot": 6}, {"at_step": 7}])
    async def test_an_unknown_snapshot_is_refused_with_those_there_are(
        self, store: StepStore, place: dict[str, Any]
    ) -> None:
        await save_two(store)
        with pytest.raises(LookupError) as raised:
            await fork_run(store, run_id="run-1", **place)
        text = str(raised.value)
        assert "snapshot 5 (step 1, complete), snapshot 9 (step 2, interrupted)" in text
        assert str(next(iter(place.values()))) in text

    async def test_a_run_with_only_interrupted_snapshots_says_how_to_take_one(
        self, store: StepStore
    ) -> None:
        await store.save_snapshot(snapshot(SECOND, step_index=2, state="interrupted", sequence=9))
        with pytest.raises(LookupError, match=r"no complete snapshot.*9 \(step 2, interrupted\)"):
            await fork_run(store, run_id="run-1")
        with pytest.raises(LookupError, match=r"snapshot 9 is interrupted.*include_interrupted"):
            await fork_run(store, run_id="run-1", at_snapshot=9)
        assert await fork_run(store, run_id="run-1", include_interrupted=True) == SECOND

    async def test_a_damaged_history_is_named_with_one_that_can_be_read(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution()
        script.messages = [*FIRST]
        await store.commit(execution.commit(script.snapshot(1, 0)))
        await store.commit(execution.commit(script.snapshot(2, 2, ranges=((0, 9),))))
        await store.commit(execution.commit(script.snapshot(3, 2, ranges=((0, 8),))))
        for damaged in (
            continue_run(store, run_id="run-1"),
            fork_run(store, run_id="run-1", at_step=3),
        ):
            with pytest.raises(
                DamagedSnapshotError, match=r"snapshot 3 .*damaged: .*Its snapshot 1 \(step 1"
            ) as raised:
                await damaged
            assert "perdure fork run-1 --at-snapshot 1" in str(raised.value)
        assert await fork_run(store, run_id="run-1", at_snapshot=1) == FIRST

    async def test_a_damaged_history_without_another_one_says_so(self, store: StepStore) -> None:
        script, execution = RunScript(), Execution()
        script.messages = [*FIRST]
        await store.commit(execution.commit(script.snapshot(1, 0, ranges=((0, 9),))))
        with pytest.raises(DamagedSnapshotError, match="No other one"):
            await continue_run(store, run_id="run-1")

    async def test_a_snapshot_is_found_by_its_place(self, store: StepStore) -> None:
        await save_two(store)
        found = await store.find_snapshot(run_id="run-1", sequence=9)
        assert found == (await store.list_snapshots(run_id="run-1"))[-1]
        assert await store.find_snapshot(run_id="run-1", sequence=6) is None
        assert await store.find_snapshot(run_id="none", sequence=5) is None
        other = store.for_workspace("other")
        assert await other.find_snapshot(run_id="run-1", sequence=5) is None


class UnresolvedConformance(StepStoreTests):
    @pytest.mark.parametrize("status", ["started", "unknown"])
    async def test_an_unresolved_effect_is_crossed_from_where_it_started(
        self, store: StepStore, status: str
    ) -> None:
        await save_two(store)
        await store.record_tool_effect(
            effect(status, sequence=8, step_index=2, call_index=0, ended_at=at(2))
        )
        point = await find_starting_point(store, run_id="run-1")
        assert [each.tool_call_id for each in point.unresolved] == ["call-1"]
        with pytest.raises(UnresolvedEffectsError) as raised:
            point.check_unresolved()
        assert f"look_up (call 'call-1') of step 2, {status}, since 2026-03-01T12:00:01+00:00" in (
            str(raised.value)
        )
        at_end = await find_starting_point(
            store, run_id="run-1", include_interrupted=True, at_snapshot=9
        )
        assert at_end.unresolved == point.unresolved
        before = await find_starting_point(store, run_id="run-1", at_snapshot=5)
        assert before.unresolved == ()
        before.check_unresolved()

    @pytest.mark.parametrize("status", ["completed", "failed", "resolved"])
    async def test_an_effect_with_an_outcome_is_not_in_the_way(
        self, store: StepStore, status: str
    ) -> None:
        await save_two(store)
        await store.record_tool_effect(effect(status, ended_at=at(2)))
        assert (await find_starting_point(store, run_id="run-1")).unresolved == ()

    async def test_a_call_that_the_history_answers_is_not_in_the_way(
        self, store: StepStore
    ) -> None:
        await store.record_tool_effect(effect(sequence=3))
        await store.save_snapshot(snapshot([request("a"), called(), returned()], sequence=5))
        assert (await find_starting_point(store, run_id="run-1")).unresolved == ()

    async def test_an_answer_that_the_core_made_up_says_nothing(self, store: StepStore) -> None:
        made_up = returned(metadata={"pydantic_ai_synthesized_tool_return": True})
        await store.record_tool_effect(effect(sequence=3))
        await store.save_snapshot(snapshot([request("a"), called(), made_up], sequence=5))
        assert len((await find_starting_point(store, run_id="run-1")).unresolved) == 1

    async def test_an_answer_to_an_earlier_call_of_the_same_id_is_not_one(
        self, store: StepStore
    ) -> None:
        history: list[ModelMessage] = [request("a"), called(), returned(), called()]
        await store.record_tool_effect(
            effect("completed", sequence=3, step_index=1, call_index=0, ended_at=at(2))
        )
        await store.record_tool_effect(effect(sequence=6, step_index=2, call_index=0))
        await store.save_snapshot(snapshot(history, state="interrupted", sequence=8))
        point = await find_starting_point(store, run_id="run-1", include_interrupted=True)
        assert [each.step_index for each in point.unresolved] == [2]

    @pytest.mark.spec("SP-105", "SP-106")
    async def test_recovery_has_what_is_known_and_no_more(self, store: StepStore) -> None:
        await save_two(store)
        calls = (("read", "completed"), ("send", "failed"), ("pay", "started"))
        for index, (tool, status) in enumerate(calls):
            values: dict[str, Any] = {
                "tool_call_id": tool,
                "tool_name": tool,
                "sequence": 6 + index,
            }
            await store.record_tool_effect(effect(status, **values, ended_at=at(2)))
        found = await inspect_recovery(store, "run-1")
        assert found.newest is not None
        assert found.settled is not None
        assert (found.newest.state, found.newest.messages) == ("interrupted", SECOND)
        assert (found.settled.state, found.settled.messages) == ("complete", FIRST)
        assert [each.tool_name for each in found.unresolved] == ["pay"]
        assert (found.completed_tools, found.failed_tools) == (("read",), ("send",))
        assert not any("safe" in name for name in vars(found))

    @pytest.mark.spec("SP-105")
    async def test_recovery_of_an_unknown_run_is_empty(self, store: StepStore) -> None:
        found = await inspect_recovery(store, "none")
        assert (found.newest, found.settled, found.unresolved) == (None, None, ())


class ClaimConformance(StepStoreTests):
    async def test_the_origin_of_a_run_is_on_its_record(self, store: StepStore) -> None:
        continued = run_record("next", continued_from="run-1", from_snapshot=5)
        forked = run_record("fork", forked_from="run-1", from_snapshot=3, started_at=at(1))
        for record in (run_record(), continued, forked):
            await store.register_run(record)
        assert await store.get_run(run_id="next") == continued
        assert await store.list_runs(continued_from="run-1") == [continued]
        assert await store.list_runs(forked_from="run-1") == [forked]
        assert await store.list_runs(forked_from="next") == []

    @pytest.mark.parametrize("field", ["continued_from", "forked_from"])
    async def test_a_malformed_origin_is_refused(self, store: StepStore, field: str) -> None:
        with pytest.raises(InvalidIdentifierError, match=field):
            await store.register_run(run_record(**{field: " a"}))
        assert await store.list_runs() == []

    async def test_a_run_is_continued_once(self, store: StepStore) -> None:
        await store.register_run(run_record())
        winner = run_record("winner", continued_from="run-1")
        await store.register_run(winner)
        await store.register_run(winner)  # again, by the same registration
        with pytest.raises(AlreadyContinuedError, match=r"'run-1' is .* by run 'winner'") as raised:
            await store.register_run(run_record("late", continued_from="run-1"))
        assert (raised.value.run_id, raised.value.continued_by) == ("run-1", "winner")
        assert await store.get_run(run_id="late") is None
        assert await find_continuation(store, run_id="run-1") == winner
        assert await find_continuation(store, run_id="winner") is None

    async def test_a_run_is_forked_as_often_as_anybody_likes(self, store: StepStore) -> None:
        await store.register_run(run_record("next", continued_from="run-1"))
        for name in ("one", "two"):
            await store.register_run(run_record(name, forked_from="run-1"))
        assert len(await store.list_runs(forked_from="run-1")) == 2

    async def test_one_of_many_that_continue_a_run_at_once_wins(self, store: StepStore) -> None:
        await store.register_run(run_record())
        records = [
            run_record(f"next-{n}", registration_id=f"r{n}", continued_from="run-1")
            for n in range(6)
        ]
        results = await asyncio.gather(
            *(store.register_run(each) for each in records), return_exceptions=True
        )
        winner = records[results.index(None)]
        losses = [each for each in results if isinstance(each, AlreadyContinuedError)]
        assert len(losses) == 5, results
        assert {each.continued_by for each in losses} == {winner.run_id}
        assert await store.list_runs(continued_from="run-1") == [winner]

    async def test_two_in_one_workspace_do_not_meet_one_in_another(self, store: StepStore) -> None:
        await store.register_run(run_record("here", continued_from="run-1"))
        other = store.for_workspace("other")
        await other.register_run(run_record("there", continued_from="run-1"))
        assert len(await other.list_runs(continued_from="run-1")) == 1

    @pytest.mark.parametrize("error", ["ValueError()", "cancelled"])
    async def test_a_continuation_that_left_nothing_behind_is_in_nobodys_way(
        self, store: StepStore, error: str
    ) -> None:
        lost = run_record("lost", continued_from="run-1")
        await store.register_run(lost)
        await store.append_event(event(kind="run_failed", error=error, run_id="lost"))
        assert await find_continuation(store, run_id="run-1") is None
        await store.register_run(run_record("next", continued_from="run-1", started_at=at(5)))
        found = await find_continuation(store, run_id="run-1")
        assert found is not None
        assert found.run_id == "next"

    async def test_a_failed_continuation_with_a_history_is_the_one_to_continue(
        self, store: StepStore
    ) -> None:
        await store.register_run(run_record("failed", continued_from="run-1"))
        await store.save_snapshot(replace(snapshot(FIRST), run_id="failed"))
        await store.append_event(event(kind="run_failed", error="ValueError()", run_id="failed"))
        with pytest.raises(AlreadyContinuedError, match="'failed'"):
            await store.register_run(run_record("next", continued_from="run-1"))


class LostClaimConformance(StepStoreTests):
    async def test_a_registration_of_a_lost_task_frees_what_it_continued(
        self, store: StepStore
    ) -> None:
        lost, lost_run = new_run("lost")
        await store.commit(lost.commit(lost_run.register(continued_from="run-1")))
        lost.next_task(number=0)
        await store.commit(lost.commit())
        winner, winning_run = new_run("winner")
        result = await store.commit(winner.commit(winning_run.register(continued_from="run-1")))
        assert result.outcomes == ()
        found = await find_continuation(store, run_id="run-1")
        assert found is not None
        assert found.run_id == "run-winner"

    async def test_a_registration_that_comes_back_too_late_is_refused_with_its_run(
        self, store: StepStore
    ) -> None:
        lost, lost_run = new_run("lost")
        registration = lost_run.register(continued_from="run-1")
        await store.commit(lost.commit(registration))
        lost.next_task(number=0)
        await store.commit(lost.commit())
        winner, winning_run = new_run("winner")
        await store.commit(winner.commit(winning_run.register(continued_from="run-1")))
        result = await store.commit(lost.commit(registration, lost_run.event("run_started", 0)))
        assert [each.disposition for each in result.outcomes] == ["refused"] * 2
        assert {each.error_type for each in result.outcomes} == {"AlreadyContinuedError"}
        assert "run-winner" in str(result.outcomes[0].error)
        assert await store.get_run(run_id="run-lost") is None
        assert await store.list_events(run_id="run-lost") == []

    async def test_a_reset_to_before_the_registration_frees_what_it_continued(
        self, store: StepStore
    ) -> None:
        former, run = new_run("reset")
        await store.commit(former.commit(run.register(continued_from="run-1")))
        reset = replace(former, branch="branch-2", branch_time=at(60), number=0)
        await store.commit(reset.commit())
        assert await find_continuation(store, run_id="run-1") is None
        winner, winning_run = new_run("winner")
        result = await store.commit(winner.commit(winning_run.register(continued_from="run-1")))
        assert result.outcomes == ()

    async def test_two_registrations_of_one_commit_cannot_continue_one_run(
        self, store: StepStore
    ) -> None:
        execution, one = new_run("one")
        two = RunScript(run_id="run-two")
        registrations = [each.register(continued_from="run-1") for each in (one, two)]
        result = await store.commit(execution.commit(*registrations))
        assert [(each.index, each.error_type) for each in result.outcomes] == [
            (1, "AlreadyContinuedError")
        ]
        assert await store.get_run(run_id="run-two") is None
