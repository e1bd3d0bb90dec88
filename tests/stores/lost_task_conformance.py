"""What every `StepStore` must do when tasks are lost, executions reset and continued as new."""

import pytest

from stores.protocols import StepStore
from stores.records import RunBranch
from tests.stores.abstract import StepStoreTests
from tests.stores.asking import dispositions, everything, kinds, started
from tests.stores.writer import Execution, RunScript, at, request, response


class SupersedeConformance(StepStoreTests):
    """A workflow task was lost after its commits were written; the next attempt decides anew."""

    async def test_rows_of_the_lost_task_are_not_read(self, store: StepStore) -> None:
        execution, script = await started(store)
        execution.next_task()
        script.messages = [request("a")]
        lost = (*script.before_tool(1), script.snapshot(1, 0))
        await store.commit(execution.commit(*lost))
        await store.commit(execution.commit(script.event("run_completed", 1, usage={"a": 1})))
        execution.next_task(number=1)
        result = await store.commit(
            execution.commit(script.event("run_failed", 1, error="cancelled"))
        )
        assert (result.verdict, result.number, result.outcomes) == ("supersede", 2, ())
        assert await kinds(store) == ["run_started", "run_failed"]
        assert await store.list_snapshots(run_id="run-1") == []
        assert await store.list_snapshot_summaries(run_id="run-1") == []
        assert await store.list_tool_effects(run_id="run-1") == []
        assert await store.get_tool_effect(run_id="run-1", tool_call_id="call-1-0") is None
        assert await store.list_unresolved_tool_effects() == []
        run = await store.get_run(run_id="run-1")
        assert run is not None
        assert (run.state, run.error, run.usage) == ("cancelled", "cancelled", None)

    @pytest.mark.spec("SP-18")
    async def test_an_equal_operation_takes_its_row_back_with_its_first_times(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        execution.next_task()
        script.messages = [request("a")]
        operations = (*script.before_tool(1), script.snapshot(1, 0))
        await store.commit(execution.commit(*operations, now=10))
        before = await everything(store)
        execution.next_task(number=1)
        result = await store.commit(execution.commit(*operations, now=99))
        assert result.verdict == "supersede"
        assert dispositions(result) == dict.fromkeys(range(4), "superseding")
        assert await everything(store) == before
        assert (await store.list_events(run_id="run-1"))[-1].timestamp == at(10)

    async def test_another_content_replaces_the_row(self, store: StepStore) -> None:
        execution, script = await started(store)
        execution.next_task()
        script.messages = [request("a")]
        await store.commit(
            execution.commit(
                script.event("tool_call_started", 1, 0, tool_name="old"),
                script.started(1, arguments='"old"'),
                script.snapshot(1, 0, key="1/1"),
                now=10,
            )
        )
        execution.next_task(number=1)
        script.messages = [request("b")]
        result = await store.commit(
            execution.commit(
                script.event("tool_call_started", 1, 0, tool_name="new"),
                script.started(1, arguments='"new"'),
                script.snapshot(1, 0, key="1/1"),
                now=20,
            )
        )
        assert dispositions(result) == dict.fromkeys(range(3), "superseding")
        last = (await store.list_events(run_id="run-1"))[-1]
        assert (last.tool_name, last.timestamp, last.commit_number) == ("new", at(20), 2)
        (effect,) = await store.list_tool_effects(run_id="run-1")
        assert (effect.arguments_summary, effect.started_at) == ('"new"', at(20))
        (snapshot,) = await store.list_snapshots(run_id="run-1")
        assert snapshot.messages == [request("b")]

    async def test_later_commits_of_the_new_attempt_take_rows_back_too(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        execution.next_task()
        first, second = script.before_tool(1), script.after_tool(1)
        await store.commit(execution.commit(*first, now=10))
        await store.commit(execution.commit(*second, now=11))
        execution.next_task(number=1)
        # Grouped otherwise this time: what was in the second commit comes partly in the first.
        result = await store.commit(execution.commit(*first, *second[:2], now=20))
        assert (result.verdict, len(result.outcomes)) == ("supersede", 5)
        result = await store.commit(execution.commit(*second[2:], now=21))
        assert result.verdict == "apply"
        assert dispositions(result) == dict.fromkeys(range(2), "superseding")
        assert [each.timestamp for each in await store.list_events(run_id="run-1")] == [
            at(0),
            *[at(10)] * 2,
            *[at(11)] * 2,
        ]
        assert (await store.latest_snapshot(run_id="run-1")) is not None
        (effect,) = await store.list_tool_effects(run_id="run-1")
        assert (effect.status, effect.ended_at, effect.commit_number) == ("completed", at(11), 2)

    async def test_an_effect_goes_back_to_what_the_live_path_says(self, store: StepStore) -> None:
        execution, script = await started(store)
        await store.commit(execution.commit(script.started(1), now=5))
        execution.next_task()
        finish = script.finished(1, effect_summary="done")
        await store.commit(execution.commit(finish, now=10))
        execution.next_task(number=2)
        await store.commit(execution.commit(script.event("model_request_started", 2)))
        (only,) = await store.list_unresolved_tool_effects(run_id="run-1")
        assert (only.status, only.started_at, only.ended_at) == ("started", at(5), None)
        assert only.effect_summary is None
        result = await store.commit(execution.commit(finish, now=20))
        assert dispositions(result) == {0: "superseding"}
        (only,) = await store.list_tool_effects(run_id="run-1")
        assert (only.status, only.ended_at, only.commit_number) == ("completed", at(10), 4)

    async def test_an_equal_finish_takes_its_transition_back(self, store: StepStore) -> None:
        execution, script = await started(store)
        await store.commit(execution.commit(script.started(1), now=5))
        execution.next_task()
        finish = script.finished(1)
        await store.commit(execution.commit(finish, now=10))
        execution.next_task(number=2)
        result = await store.commit(execution.commit(finish, now=20))
        assert dispositions(result) == {0: "superseding"}
        (only,) = await store.list_tool_effects(run_id="run-1")
        assert (only.status, only.ended_at) == ("completed", at(10))

    async def test_another_finish_replaces_the_transition(self, store: StepStore) -> None:
        execution, script = await started(store)
        await store.commit(execution.commit(script.started(1), now=5))
        execution.next_task()
        await store.commit(execution.commit(script.finished(1), now=10))
        execution.next_task(number=2)
        lost = script.finished(1, status="failed", error="no", error_type="ValueError")
        result = await store.commit(execution.commit(lost, now=20))
        assert dispositions(result) == {0: "superseding"}
        (only,) = await store.list_tool_effects(run_id="run-1")
        assert (only.status, only.ended_at, only.error) == ("failed", at(20), "no")

    async def test_a_run_of_the_lost_task_is_not_read_and_its_id_stays_taken(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        execution.next_task()
        other = RunScript(run_id="run-2")
        register = other.register()
        await store.commit(execution.commit(register, other.event("run_started", 0), now=10))
        execution.next_task(number=1)
        await store.commit(execution.commit(script.event("run_completed", 1)))
        assert await store.get_run(run_id="run-2") is None
        assert [run.run_id for run in await store.list_runs()] == ["run-1"]
        assert [run.run_id for run in (await store.page_runs()).runs] == ["run-1"]
        assert await kinds(store, "run-2") == []
        thief = register.model_copy(update={"registration_id": "thief"})
        result = await store.commit(execution.commit(thief))
        assert [each.error_type for each in result.refused()] == ["RunIdTakenError"]
        result = await store.commit(execution.commit(register, now=20))
        assert dispositions(result) == {0: "superseding"}
        run = await store.get_run(run_id="run-2")
        assert run is not None
        assert run.started_at == at(10)

    async def test_the_first_commit_of_a_run_can_be_superseded(self, store: StepStore) -> None:
        script, execution = RunScript(), Execution()
        operations = (script.register(), script.event("run_started", 0))
        await store.commit(execution.commit(*operations, now=1))
        first = await store.get_run(run_id="run-1")
        execution.next_task(number=0)
        result = await store.commit(execution.commit(*operations, now=2))
        assert (result.verdict, dispositions(result)) == (
            "supersede",
            {0: "superseding", 1: "superseding"},
        )
        run = await store.get_run(run_id="run-1")
        assert run is not None
        assert (run.started_at, run.state) == (at(1), "running")
        assert first is not None
        assert first.public_id is not None
        assert run.public_id == first.public_id

    async def test_a_message_of_the_lost_task_is_replaced_at_its_position(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        script.messages = [request("a")]
        await store.commit(execution.commit(script.snapshot(1, 0)))
        execution.next_task()
        script.messages = [request("a", run_id="run-1"), response("lost")]
        await store.commit(execution.commit(script.snapshot(2, 0)))
        execution.next_task(number=2)
        script.messages = [request("a", run_id="run-1"), response("kept"), request("b")]
        await store.commit(execution.commit(script.snapshot(2, 0)))
        first, second = await store.list_snapshots(run_id="run-1")
        assert first.messages == [request("a", run_id="run-1")]
        assert second.messages == script.messages

    async def test_rows_of_a_run_that_nobody_registered_are_superseded_too(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution()
        await store.commit(execution.commit(script.event("run_started", 0)))
        execution.next_task(number=0)
        await store.commit(execution.commit(script.event("run_failed", 0)))
        assert await kinds(store) == ["run_failed"]
        assert await store.get_run(run_id="run-1") is None

    async def test_an_equal_fence_with_the_next_number_belongs_to_the_same_task(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        assert (await store.commit(execution.commit(*script.before_tool(1)))).verdict == "apply"
        assert len(await kinds(store)) == 3

    async def test_equal_history_lengths_are_told_apart_by_time(self, store: StepStore) -> None:
        execution, script = await started(store)
        execution.queued_seconds += 1
        result = await store.commit(execution.commit(script.event("run_completed", 1), number=1))
        assert result.verdict == "supersede"
        assert await kinds(store) == ["run_completed"]
        assert await store.get_run(run_id="run-1") is None

    async def test_numbers_go_on_from_the_superseding_commit(self, store: StepStore) -> None:
        execution, script = await started(store)
        execution.next_task()
        for step in (1, 2, 3):
            await store.commit(execution.commit(script.event("model_request_started", step)))
        execution.next_task(number=1)
        for step in (4, 5):
            await store.commit(execution.commit(script.event("model_request_started", step)))
        head = await store.find_commit_head(execution_id="execution-1")
        assert head is not None
        assert (head.number, head.gap_count) == (3, 0)
        assert [each.step_index for each in await store.list_events(run_id="run-1")] == [0, 4, 5]


class ResetConformance(StepStoreTests):
    """A reset starts a new branch of an execution; a continue-as-new starts another execution."""

    async def test_the_tail_of_the_old_branch_is_not_read(self, store: StepStore) -> None:
        execution, script = await started(store)
        await store.commit(execution.commit(*script.before_tool(1), now=5))
        await store.commit(execution.commit(*script.after_tool(1)))
        await store.commit(execution.commit(script.event("run_completed", 2)))
        reset = Execution(branch="branch-2", branch_time=at(60), number=2)
        script.sequence = 5
        result = await store.commit(reset.commit(script.event("model_request_failed", 1)))
        assert (result.verdict, result.outcomes) == ("adopt", ())
        assert await kinds(store) == [
            "run_started",
            "model_request_completed",
            "tool_call_started",
            "model_request_failed",
        ]
        assert await store.list_snapshots(run_id="run-1") == []
        (effect,) = await store.list_unresolved_tool_effects()
        assert (effect.status, effect.started_at) == ("started", at(5))
        run = await store.get_run(run_id="run-1")
        assert run is not None
        assert (run.state, run.ended_at) == ("running", None)
        assert run.branches == (
            RunBranch(execution_id="execution-1", branch="branch-1", first_sequence=1),
            RunBranch(execution_id="execution-1", branch="branch-2", first_sequence=6),
        )
        head = await store.find_commit_head(execution_id="execution-1")
        assert head is not None
        assert (head.branch, head.former_branches, head.number) == ("branch-2", ("branch-1",), 3)

    async def test_an_abandoned_row_is_not_taken_back(self, store: StepStore) -> None:
        execution, script = await started(store)
        tail = script.before_tool(1)
        await store.commit(execution.commit(*tail, now=5))
        reset = Execution(branch="branch-2", branch_time=at(60), number=1)
        result = await store.commit(reset.commit(*tail, now=70))
        assert (result.verdict, result.outcomes) == ("adopt", ())
        listed = await store.list_events(run_id="run-1")
        assert [each.timestamp for each in listed] == [at(0), at(70), at(70)]
        (effect,) = await store.list_tool_effects(run_id="run-1")
        assert (effect.branch, effect.started_at) == ("branch-2", at(70))

    async def test_former_and_earlier_branches_are_stale(self, store: StepStore) -> None:
        execution, script = await started(store)
        reset = Execution(branch="branch-2", branch_time=at(60), number=1)
        await store.commit(reset.commit(script.event("model_request_started", 1)))
        before = await everything(store)
        execution.next_task()
        assert (await store.commit(execution.commit(*script.before_tool(1)))).verdict == "stale"
        execution.branch_time = at(99)
        assert (await store.commit(execution.commit(*script.before_tool(1)))).verdict == "stale"
        between = Execution(branch="branch-x", branch_time=at(30), number=1)
        assert (await store.commit(between.commit(*script.before_tool(1)))).verdict == "stale"
        assert await everything(store) == before
        head = await store.find_commit_head(execution_id="execution-1")
        assert head is not None
        assert head.stale_count == 3

    async def test_two_resets_leave_the_last_branch(self, store: StepStore) -> None:
        execution, script = await started(store)
        await store.commit(execution.commit(*script.before_tool(1)))
        second = Execution(branch="branch-2", branch_time=at(60), number=2)
        await store.commit(second.commit(script.event("model_request_failed", 1)))
        third = Execution(branch="branch-3", branch_time=at(90), number=1)
        script.sequence = 2
        await store.commit(third.commit(script.event("run_completed", 1)))
        assert await kinds(store) == ["run_started", "run_completed"]
        run = await store.get_run(run_id="run-1")
        assert run is not None
        assert [each.branch for each in run.branches] == ["branch-1", "branch-3"]

    async def test_a_task_can_be_lost_after_a_reset_too(self, store: StepStore) -> None:
        execution, script = await started(store)
        await store.commit(execution.commit(*script.before_tool(1)))
        reset = Execution(branch="branch-2", branch_time=at(60), number=2)
        await store.commit(reset.commit(script.event("model_request_failed", 1)))
        reset.next_task(number=2)
        result = await store.commit(reset.commit(script.event("run_completed", 1)))
        assert result.verdict == "supersede"
        assert (await kinds(store))[1:] == [
            "model_request_completed",
            "tool_call_started",
            "run_completed",
        ]

    async def test_messages_behind_the_reset_give_way(self, store: StepStore) -> None:
        execution, script = await started(store)
        script.messages = [request("a"), response("b")]
        await store.commit(execution.commit(script.snapshot(1, 0)))
        script.messages += [request("old"), response("old answer")]
        await store.commit(execution.commit(script.snapshot(2, 2)))
        reset = Execution(branch="branch-2", branch_time=at(60), number=2)
        script.messages[2:] = [request("new")]
        await store.commit(reset.commit(script.snapshot(2, 2)))
        script.messages[2] = request("new", run_id="run-1")
        script.messages.append(response("new answer"))
        await store.commit(reset.commit(script.snapshot(3, 2)))
        listed = [each.messages for each in await store.list_snapshots(run_id="run-1")]
        assert listed == [script.messages[:2], script.messages[:3], script.messages]

    async def test_a_reset_before_the_registration_starts_the_run_again(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution()
        operations = (script.register(), script.event("run_started", 0))
        await store.commit(execution.commit(*operations, now=1))
        reset = Execution(branch="branch-2", branch_time=at(60))
        result = await store.commit(reset.commit(*operations, now=70))
        assert (result.verdict, dispositions(result)) == ("adopt", {0: "superseding"})
        run = await store.get_run(run_id="run-1")
        assert run is not None
        assert run.started_at == at(1)
        assert [each.branch for each in run.branches] == ["branch-2"]
        assert [each.timestamp for each in await store.list_events(run_id="run-1")] == [at(70)]

    async def test_a_hop_goes_on_with_the_run(self, store: StepStore) -> None:
        execution, script = await started(store)
        await store.commit(execution.commit(*script.before_tool(1)))
        hop = Execution(execution_id="execution-2", branch="branch-2", branch_time=at(60))
        assert (await store.commit(hop.commit(*script.after_tool(1)))).verdict == "apply"
        run = await store.get_run(run_id="run-1")
        assert run is not None
        assert run.branches == (
            RunBranch(execution_id="execution-1", branch="branch-1", first_sequence=1),
            RunBranch(execution_id="execution-2", branch="branch-2", first_sequence=6),
        )
        (effect,) = await store.list_tool_effects(run_id="run-1")
        assert (effect.status, effect.branch) == ("completed", "branch-1")

    async def test_a_reset_abandons_the_hops_behind_it_and_they_refuse(
        self, store: StepStore
    ) -> None:
        _, script = await started(store)
        hops = [
            Execution(execution_id=f"execution-{n}", branch=f"branch-{n}", branch_time=at(n))
            for n in (2, 3)
        ]
        other = RunScript(run_id="run-2")
        await store.commit(hops[0].commit(script.event("run_completed", 1), other.register()))
        # The second hop holds nothing of the first run: it is found by way of the second one.
        await store.commit(hops[1].commit(other.event("run_started", 0)))
        await store.commit(hops[1].commit(other.started(1)))
        reset = Execution(branch="branch-9", branch_time=at(60), number=1)
        script.sequence = 2
        await store.commit(reset.commit(script.event("model_request_started", 1)))
        assert await kinds(store) == ["run_started", "model_request_started"]
        run = await store.get_run(run_id="run-1")
        assert run is not None
        assert (run.state, [each.branch for each in run.branches]) == (
            "running",
            ["branch-1", "branch-9"],
        )
        assert await store.get_run(run_id="run-2") is None
        assert await kinds(store, "run-2") == []
        assert await store.list_unresolved_tool_effects() == []
        for hop in hops:
            hop.next_task()
            assert (await store.commit(hop.commit(other.event("run_failed", 9)))).verdict == "stale"
            head = await store.find_commit_head(execution_id=hop.execution_id)
            assert head is not None
            assert (head.is_abandoned, head.stale_count) == (True, 1)
        assert await kinds(store, "run-2") == []

    async def test_a_hop_is_abandoned_once_however_many_runs_lead_to_it(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        other = RunScript(run_id="run-2")
        await store.commit(execution.commit(other.register()))
        for number in (2, 3):
            hop = Execution(execution_id=f"execution-{number}", branch=f"branch-{number}")
            hop.branch_time = at(number)
            events = [each.event("run_completed", number) for each in (script, other)]
            await store.commit(hop.commit(*events))
        reset = Execution(branch="branch-9", branch_time=at(60), number=2)
        events = [each.event("model_request_failed", 9) for each in (script, other)]
        await store.commit(reset.commit(*events))
        for run_id in ("run-1", "run-2"):
            assert (await kinds(store, run_id))[-1:] == ["model_request_failed"]
            run = await store.get_run(run_id=run_id)
            assert run is not None
            assert run.state == "running"
            assert [each.branch for each in run.branches] == ["branch-1", "branch-9"]
        assert len(await kinds(store, "run-2")) == 1

    async def test_a_hop_whose_first_commit_comes_after_the_reset_is_stale(
        self, store: StepStore
    ) -> None:
        _, script = await started(store)
        reset = Execution(branch="branch-9", branch_time=at(60), number=1)
        await store.commit(reset.commit(script.event("model_request_started", 1)))
        late = Execution(execution_id="execution-2", branch="branch-2", branch_time=at(30))
        assert (await store.commit(late.commit(script.event("run_failed", 1)))).verdict == "stale"
        assert await store.find_commit_head(execution_id="execution-2") is None
        later = Execution(execution_id="execution-3", branch="branch-3", branch_time=at(90))
        assert (await store.commit(later.commit(script.event("run_failed", 1)))).verdict == "apply"

    async def test_an_effect_that_was_finished_behind_the_reset_is_open_again(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        await store.commit(execution.commit(script.started(1), now=3))
        await store.commit(execution.commit(script.finished(1), now=4))
        reset = Execution(branch="branch-2", branch_time=at(60), number=2)
        await store.commit(reset.commit(script.event("model_request_started", 2)))
        (only,) = await store.list_unresolved_tool_effects(run_id="run-1")
        assert (only.status, only.started_at) == ("started", at(3))
        result = await store.commit(reset.commit(script.finished(1), now=70))
        assert result.outcomes == ()
        (only,) = await store.list_tool_effects(run_id="run-1")
        assert (only.status, only.ended_at) == ("completed", at(70))
