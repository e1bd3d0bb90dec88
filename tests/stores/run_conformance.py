"""What every `StepStore` must do with runs and workspaces, and of its own life."""

import asyncio
import uuid
from typing import Any

import pytest

from stores.errors import InvalidCursorError, InvalidIdentifierError, RunIdTakenError
from stores.protocols import StepStore
from tests.stores.abstract import StepStoreTests
from tests.stores.records import ODD_KEYS, effect, event, run_record, snapshot
from tests.stores.writer import Execution, RunScript, at, request


class RunConformance(StepStoreTests):
    @pytest.mark.spec("SP-64", "SP-132")
    async def test_a_registered_run_is_read_as_it_was_written(self, store: StepStore) -> None:
        record = run_record(
            "tenant/a:b..c",
            conversation_id="talk",
            parent_run_id="parent",
            agent_name="agent",
            metadata=ODD_KEYS,
            principal="ann",
        )
        await store.register_run(record)
        assert await store.get_run(run_id="tenant/a:b..c") == record

    @pytest.mark.spec("SP-27", "SP-50")
    async def test_a_missing_run_is_none_and_lists_are_empty(self, store: StepStore) -> None:
        assert await store.get_run(run_id="none") is None
        assert await store.list_runs() == []
        assert (await store.page_runs()).runs == []
        assert await store.list_events(run_id="none") == []
        assert await store.list_snapshots(run_id="none") == []
        assert await store.list_snapshot_summaries(run_id="none") == []
        assert await store.latest_snapshot(run_id="none", include_interrupted=True) is None
        assert await store.list_tool_effects(run_id="none") == []
        assert await store.get_tool_effect(run_id="none", tool_call_id="call-1") is None
        assert await store.list_unresolved_tool_effects() == []
        assert await store.find_commit_head(execution_id="none") is None

    @pytest.mark.spec("SP-19")
    async def test_the_same_registration_again_keeps_the_first_start(
        self, store: StepStore
    ) -> None:
        await store.register_run(run_record())
        await store.register_run(run_record(started_at=at(60), agent_name="other"))
        assert await store.list_runs() == [run_record()]

    async def test_a_run_gets_its_public_id_when_it_is_first_kept_and_never_another(
        self, store: StepStore
    ) -> None:
        script = RunScript()
        await store.register_run(run_record(public_id="chosen-by-a-caller"))
        await store.register_run(run_record(started_at=at(60)))
        await store.register_run(run_record("run-2"))
        first, second = await store.get_run(run_id="run-1"), await store.get_run(run_id="run-2")
        assert first is not None
        assert second is not None
        kept = str(first.public_id)
        assert uuid.UUID(kept).version == 7
        assert kept != second.public_id
        await store.append_event(event(run_id=script.run_id))
        assert {each.run_id: each.public_id for each in await store.list_runs()} == {
            "run-1": kept,
            "run-2": second.public_id,
        }

    @pytest.mark.spec("SP-11", "SP-19", "SP-54")
    @pytest.mark.parametrize(("first", "second"), [("mine", "other"), ("mine", None), (None, None)])
    async def test_another_registration_of_a_taken_id_fails_and_changes_nothing(
        self, store: StepStore, first: str | None, second: str | None
    ) -> None:
        await store.register_run(run_record(registration_id=first))
        with pytest.raises(RunIdTakenError, match="run_id 'run-1' is taken") as raised:
            await store.register_run(run_record(registration_id=second, started_at=at(9)))
        assert isinstance(raised.value, ValueError)
        assert await store.list_runs() == [run_record(registration_id=first)]

    @pytest.mark.spec("SP-54")
    async def test_many_registrations_at_once_give_one_run(self, store: StepStore) -> None:
        records = [run_record(registration_id=f"r{n}", started_at=at(n)) for n in range(8)]
        results = await asyncio.gather(
            *(store.register_run(each) for each in records), return_exceptions=True
        )
        assert sum(result is None for result in results) == 1
        assert sum(isinstance(result, RunIdTakenError) for result in results) == 7
        assert (await store.list_runs()) == [records[results.index(None)]]

    @pytest.mark.spec("SP-19")
    async def test_the_same_registration_many_times_at_once_succeeds(
        self, store: StepStore
    ) -> None:
        await asyncio.gather(*(store.register_run(run_record()) for _ in range(8)))
        assert await store.list_runs() == [run_record()]

    @pytest.mark.parametrize("field", ["run_id", "conversation_id", "parent_run_id"])
    @pytest.mark.parametrize("value", ["", " a", "a\n", "nul\x00", "\ud800", "x" * 201])
    async def test_a_malformed_id_is_refused_and_nothing_is_written(
        self, store: StepStore, field: str, value: str
    ) -> None:
        with pytest.raises(InvalidIdentifierError, match=field):
            await store.register_run(run_record(**{field: value}))
        assert await store.list_runs() == []

    async def test_malformed_ids_are_refused_by_every_write(self, store: StepStore) -> None:
        for write in (
            store.append_event(event(run_id="")),
            store.append_event(event(conversation_id=" ")),
            store.save_snapshot(snapshot([], parent_run_id="\n")),
            store.record_tool_effect(effect(run_id="x" * 201)),
        ):
            with pytest.raises(InvalidIdentifierError):
                await write
        with pytest.raises(InvalidIdentifierError, match="workspace_id"):
            store.for_workspace("\ud800")

    @pytest.mark.spec("SP-25", "SP-26", "SP-37")
    async def test_list_runs_combines_filters_and_sorts_by_start_then_id(
        self, store: StepStore
    ) -> None:
        for run_id, started, talk, parent in (
            ("c", 1, "talk", "parent"),
            ("a", 2, "talk", None),
            ("b", 1, "talk", "parent"),
            ("d", 0, "other", "parent"),
        ):
            await store.register_run(
                run_record(
                    run_id, started_at=at(started), conversation_id=talk, parent_run_id=parent
                )
            )

        async def listed(**filters: str) -> list[str]:
            return [run.run_id for run in await store.list_runs(**filters)]

        assert await listed() == ["d", "b", "c", "a"]
        assert await listed(conversation_id="talk") == ["b", "c", "a"]
        assert await listed(parent_run_id="parent") == ["d", "b", "c"]
        assert await listed(parent_run_id="parent", conversation_id="talk") == ["b", "c"]
        assert await listed(parent_run_id="nobody") == []

    async def test_pages_hold_each_run_once_also_while_runs_are_added(
        self, store: StepStore
    ) -> None:
        for number in range(7):
            await store.register_run(run_record(f"run-{number}", started_at=at(number // 2)))
        seen: list[str] = []
        after = None
        for page_number in range(4):
            page = await store.page_runs(limit=2, after=after)
            seen += [run.run_id for run in page.runs]
            after = page.after
            await store.register_run(run_record(f"new-{page_number}", started_at=at(99)))
        assert after is None
        assert seen == [f"run-{number}" for number in reversed(range(7))]

    async def test_a_full_last_page_says_that_it_is_the_last(self, store: StepStore) -> None:
        for number in range(2):
            await store.register_run(run_record(f"run-{number}"))
        page = await store.page_runs(limit=2)
        assert (len(page.runs), page.after) == (2, None)

    async def test_pages_can_be_filtered(self, store: StepStore) -> None:
        for number in range(4):
            await store.register_run(
                run_record(
                    f"run-{number}",
                    started_at=at(number),
                    agent_name="even" if number % 2 == 0 else "odd",
                    conversation_id="talk",
                    parent_run_id="parent",
                )
            )
        await store.append_event(event(kind="run_completed", run_id="run-2"))

        async def paged(**filters: Any) -> list[str]:
            return [run.run_id for run in (await store.page_runs(**filters)).runs]

        assert await paged(agent_name="even") == ["run-2", "run-0"]
        assert await paged(state="running") == ["run-3", "run-1", "run-0"]
        assert await paged(state="completed", agent_name="even") == ["run-2"]
        assert await paged(conversation_id="talk", parent_run_id="parent", limit=1) == ["run-3"]
        assert await paged(conversation_id="other") == []

    async def test_a_cursor_of_another_listing_is_refused(self, store: StepStore) -> None:
        for number in range(3):
            await store.register_run(run_record(f"run-{number}", agent_name="a"))
        page = await store.page_runs(limit=1, agent_name="a")
        for cursor in (page.after, "nonsense", "e30=", "", "é"):
            with pytest.raises(InvalidCursorError):
                await store.page_runs(limit=1, after=cursor)

    @pytest.mark.parametrize("limit", [0, 1001])
    async def test_a_page_of_another_size_is_refused(self, store: StepStore, limit: int) -> None:
        with pytest.raises(ValueError, match="between 1 and 1000"):
            await store.page_runs(limit=limit)

    async def test_the_newest_run_event_is_the_state_of_the_run(self, store: StepStore) -> None:
        await store.register_run(run_record())
        usage = {"requests": 2, "details": {"big": 10**30}}
        script = RunScript()
        script.register()
        execution = Execution()
        first = script.event("run_started", 0)
        last = script.event("run_completed", 2, usage=usage, at=at(7.5))
        await store.commit(execution.commit(first, last))
        run = await store.get_run(run_id="run-1")
        assert run is not None
        assert (run.state, run.ended_at, run.usage) == ("completed", at(7.5), usage)
        # Older by its sequence, though it is written later.
        await store.append_event(event(kind="run_started", sequence=1, branch="late"))
        assert await store.get_run(run_id="run-1") == run

    @pytest.mark.parametrize(
        ("error", "state"), [("cancelled", "cancelled"), ("ValueError()", "failed")]
    )
    async def test_a_failed_run_keeps_its_error_and_a_cancelled_one_is_told_apart(
        self, store: StepStore, error: str, state: str
    ) -> None:
        await store.register_run(run_record())
        await store.append_event(event(kind="run_started"))
        await store.append_event(event(kind="run_failed", error=error))
        run = await store.get_run(run_id="run-1")
        assert run is not None
        assert (run.state, run.error, run.ended_at) == (state, error, at(1))

    async def test_what_is_read_can_be_changed_without_harm(self, store: StepStore) -> None:
        await store.register_run(run_record(metadata={"a": "1"}))
        run = await store.get_run(run_id="run-1")
        assert run is not None
        run.metadata["a"] = "changed"
        again = await store.get_run(run_id="run-1")
        assert again is not None
        assert again.metadata == {"a": "1"}


class WorkspaceConformance(StepStoreTests):
    async def test_another_workspace_reads_nothing(self, store: StepStore) -> None:
        script, execution = RunScript(), Execution()
        await store.commit(execution.commit(script.register(conversation_id="talk")))
        await store.commit(execution.commit(*script.before_tool(1), *script.after_tool(1)[:-2]))
        await store.save_snapshot(snapshot([request("a")]))
        await store.record_tool_effect(effect())
        other = store.for_workspace("other")
        assert other.workspace_id == "other"
        assert store.workspace_id == "default"
        assert await other.get_run(run_id="run-1") is None
        assert await other.list_runs(conversation_id="talk") == []
        assert (await other.page_runs()).runs == []
        assert await other.list_events(run_id="run-1") == []
        assert await other.latest_snapshot(run_id="run-1", include_interrupted=True) is None
        assert await other.list_snapshots(run_id="run-1") == []
        assert await other.list_snapshot_summaries(run_id="run-1") == []
        assert await other.list_tool_effects(run_id="run-1") == []
        assert await other.get_tool_effect(run_id="run-1", tool_call_id="call-1") is None
        assert await other.list_unresolved_tool_effects() == []
        assert await other.list_unresolved_tool_effects(run_id="run-1") == []
        assert await other.find_commit_head(execution_id="execution-1") is None
        assert len(await store.list_unresolved_tool_effects()) == 1

    @pytest.mark.spec("SP-11")
    async def test_a_run_id_that_is_taken_elsewhere_gets_the_same_words(
        self, store: StepStore
    ) -> None:
        await store.register_run(run_record())
        with pytest.raises(RunIdTakenError) as here:
            await store.register_run(run_record(registration_id="other"))
        other = store.for_workspace("other")
        with pytest.raises(RunIdTakenError) as there:
            await other.register_run(run_record())
        assert str(here.value) == str(there.value)
        for write in (
            other.append_event(event()),
            other.save_snapshot(snapshot([request("a")])),
            other.record_tool_effect(effect("completed")),
        ):
            with pytest.raises(RunIdTakenError, match="'run-1' is taken"):
                await write
        assert await store.list_events(run_id="run-1") == []

    async def test_rows_of_a_run_that_nobody_registered_stay_in_their_workspace(
        self, store: StepStore
    ) -> None:
        other = store.for_workspace("other")
        await store.append_event(event(key="k", tool_name="here"))
        await other.append_event(event(key="k", tool_name="there"))
        await store.save_snapshot(snapshot([request("here")]))
        await other.save_snapshot(snapshot([request("there")]))
        assert [each.tool_name for each in await store.list_events(run_id="run-1")] == ["here"]
        assert [each.tool_name for each in await other.list_events(run_id="run-1")] == ["there"]
        latest = await other.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.messages == [request("there")]


class LifeConformance(StepStoreTests):
    async def test_initialise_and_verify_can_be_repeated(self, store: StepStore) -> None:
        await store.initialise()
        assert await store.initialise() == []
        await store.verify()

    async def test_close_can_be_repeated(self, store: StepStore) -> None:
        await store.aclose()
        await store.aclose()
