"""What every `StepStore` must do with commits that stand in a workflow execution."""

import asyncio
from dataclasses import replace

import pytest

from stores.commits import Commit
from stores.errors import IdempotencyConflictError, RunIdTakenError
from stores.protocols import StepStore
from stores.records import RunBranch
from tests.stores.abstract import StepStoreTests
from tests.stores.asking import dispositions, everything, kinds, started
from tests.stores.writer import Execution, RunScript, at, request


class CommitConformance(StepStoreTests):
    async def test_a_commit_is_applied_and_answers_compactly(self, store: StepStore) -> None:
        script, execution = RunScript(), Execution()
        operations = (script.register(), script.event("run_started", 0), script.started(1))
        commit = execution.commit(*operations)
        result = await store.commit(commit)
        assert (result.verdict, result.number, result.outcomes) == ("apply", 1, ())
        assert [(each.run_id, each.first, each.last) for each in result.spans] == [("run-1", 1, 3)]
        head = await store.find_commit_head(execution_id="execution-1")
        assert head is not None
        assert (head.number, head.branch, head.fence) == (1, "branch-1", (3, at(0)))
        assert (head.digest, head.gap_count, head.stale_count) == (result.digest, 0, 0)
        assert (head.workspace_id, head.former_branches) == ("default", ())

    async def test_the_same_commit_again_changes_nothing(self, store: StepStore) -> None:
        execution, script = await started(store)
        commit = execution.commit(*script.before_tool(1), *script.after_tool(1))
        await store.commit(commit)
        before = await everything(store)
        again = await store.commit(replace(commit, now=at(99)))
        assert again.verdict == "suppress"
        assert dispositions(again) == dict.fromkeys(range(7), "suppressed")
        assert await everything(store) == before

    async def test_the_same_commit_from_many_at_once_is_applied_once(
        self, store: StepStore
    ) -> None:
        script, execution = RunScript(), Execution()
        commit = execution.commit(script.register(), script.event("run_started", 0))
        results = await asyncio.gather(*(store.commit(commit) for _ in range(6)))
        verdicts = sorted(each.verdict for each in results)
        assert verdicts == ["apply"] + ["suppress"] * 5
        assert await kinds(store) == ["run_started"]

    async def test_another_content_under_one_number_and_fence_conflicts(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        before = await everything(store)
        other = execution.commit(script.event("run_completed", 1), number=1)
        with pytest.raises(IdempotencyConflictError, match="commit of run 'run-1': key '1'"):
            await store.commit(other)
        assert await everything(store) == before

    @pytest.mark.parametrize("number", [1, 2, 3])
    async def test_a_lower_fence_is_stale_whatever_it_holds(
        self, store: StepStore, number: int
    ) -> None:
        execution, script = await started(store)
        late = execution.commit(*script.before_tool(1), number=number)
        execution.next_task(number=1)
        await store.commit(execution.commit(*script.before_tool(2)))
        before = await everything(store)
        for count in (1, 2):
            result = await store.commit(late)
            assert (result.verdict, result.outcomes) == ("stale", ())
            head = await store.find_commit_head(execution_id="execution-1")
            assert head is not None
            assert (head.number, head.stale_count) == (2, count)
        assert await everything(store) == before

    async def test_a_lower_number_under_the_same_fence_is_stale(self, store: StepStore) -> None:
        execution, script = await started(store)
        second = execution.commit(script.event("model_request_started", 1))
        await store.commit(second)
        await store.commit(execution.commit(*script.before_tool(1)))
        assert (await store.commit(second)).verdict == "stale"

    async def test_a_number_that_skips_one_is_applied_and_noted(self, store: StepStore) -> None:
        execution, script = await started(store)
        result = await store.commit(execution.commit(*script.before_tool(1), number=4))
        assert result.verdict == "apply"
        head = await store.find_commit_head(execution_id="execution-1")
        assert head is not None
        assert (head.number, head.gap_count) == (4, 1)

    async def test_a_key_that_a_lower_number_holds_is_suppressed_or_refused_alone(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        await store.commit(execution.commit(*script.before_tool(1)))
        other_event = script.event("model_request_completed", 1, tool_name="other")
        other_start = script.started(1, arguments="{}")
        result = await store.commit(
            execution.commit(
                script.event(
                    "tool_call_started", 1, 0, tool_call_id="call-1-0", tool_name="look_up"
                ),
                other_event,
                script.started(1),
                other_start,
                script.event("tool_call_completed", 1, 0),
            )
        )
        assert result.verdict == "apply"
        assert dispositions(result) == {
            0: "suppressed",
            1: "refused",
            2: "suppressed",
            3: "refused",
        }
        assert {each.error_type for each in result.refused()} == {"IdempotencyConflictError"}
        assert "append_event of run 'run-1'" in str(result.refused()[0].error)
        assert "start_tool_effect of run 'run-1': key '1/0'" in str(result.refused()[1].error)
        assert (await kinds(store))[-1] == "tool_call_completed"

    async def test_one_key_twice_in_a_commit_is_one_row(self, store: StepStore) -> None:
        script, execution = RunScript(), Execution()
        one = script.event("run_started", 0)
        other = one.model_copy(update={"tool_name": "other"})
        result = await store.commit(execution.commit(one, one, other))
        assert dispositions(result) == {1: "suppressed", 2: "refused"}
        assert await kinds(store) == ["run_started"]

    async def test_an_event_without_a_key_is_always_appended(self, store: StepStore) -> None:
        script, execution = RunScript(), Execution()
        one = script.event("run_started", 0, key=None)
        assert (await store.commit(execution.commit(one, one))).outcomes == ()
        assert len(await kinds(store)) == 2

    async def test_a_refused_registration_refuses_all_of_its_run_and_nothing_else(
        self, store: StepStore
    ) -> None:
        await started(store)
        script, other = RunScript(), RunScript(run_id="run-2")
        script.messages = [request("a")]
        execution = Execution(execution_id="execution-2", branch="branch-2")
        result = await store.commit(
            execution.commit(
                script.event("model_request_started", 9),
                script.register(registration_id="another"),
                script.snapshot(9, 0),
                script.started(9),
                script.finished(9),
                other.register(),
                other.event("run_started", 0),
            )
        )
        assert result.verdict == "apply"
        assert dispositions(result) == dict.fromkeys(range(5), "refused")
        assert {each.error_type for each in result.refused()} == {"RunIdTakenError"}
        assert {each.error for each in result.refused()} == {str(RunIdTakenError("run-1"))}
        assert await kinds(store) == ["run_started"]
        assert await kinds(store, "run-2") == ["run_started"]
        run = await store.get_run(run_id="run-1")
        assert run is not None
        assert run.branches == (
            RunBranch(execution_id="execution-1", branch="branch-1", first_sequence=1),
        )
        assert await store.list_tool_effects(run_id="run-1") == []

    async def test_a_commit_that_comes_again_is_refused_in_the_same_words(
        self, store: StepStore
    ) -> None:
        """Its first answer may have been lost; the second must not read like a success."""
        await started(store)
        script, other = RunScript(), RunScript(run_id="run-2")
        execution = Execution(execution_id="execution-2", branch="branch-2")
        commit = execution.commit(
            other.register(),
            script.register(registration_id="another"),
            script.event("run_failed", 1),
        )
        first = await store.commit(commit)
        again = await store.commit(commit)
        assert (first.verdict, again.verdict) == ("apply", "suppress")
        assert again.refused() == first.refused() != ()
        assert dispositions(again) == {0: "suppressed", 1: "refused", 2: "refused"}

    async def test_every_operation_on_a_run_of_another_workspace_is_refused(
        self, store: StepStore
    ) -> None:
        _, script = await started(store)
        other = store.for_workspace("other")
        result = await other.commit(Execution().commit(*script.before_tool(1)))
        assert dispositions(result) == dict.fromkeys(range(3), "refused")
        assert {each.error_type for each in result.refused()} == {"RunIdTakenError"}
        assert await other.list_events(run_id="run-1") == []

    async def test_writers_without_a_position_are_told_apart_by_their_branch(
        self, store: StepStore
    ) -> None:
        script = RunScript()
        one = script.event("run_started", 0, sequence=None)
        other = one.model_copy(update={"tool_name": "other"})
        for operation, branch in ((one, "a"), (other, "b"), (one, "b"), (one, "a")):
            await store.commit(Commit(operations=(operation,), now=at(1), branch=branch))
        listed = await store.list_events(run_id="run-1")
        assert [(each.branch, each.tool_name, each.sequence) for each in listed] == [
            ("a", None, 1),
            ("b", "other", 2),
        ]

    async def test_a_commit_without_operations_moves_the_head(self, store: StepStore) -> None:
        assert (await store.commit(Execution().commit())).verdict == "apply"
        assert await store.find_commit_head(execution_id="execution-1") is not None

    async def test_a_finish_moves_the_effect_that_an_earlier_branch_has_started(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        await store.commit(execution.commit(script.started(1)))
        reset = Execution(branch="branch-2", branch_time=at(60), number=2)
        await store.commit(reset.commit(script.finished(1)))
        (only,) = await store.list_tool_effects(run_id="run-1")
        assert (only.status, only.branch, only.commit_number) == ("completed", "branch-1", 3)
