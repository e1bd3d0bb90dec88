"""What every `StepStore` must keep of decisions on calls whose run is over: it is continued."""

from typing import Any, cast

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
)

from stores.answers import SUMMARY_KEY
from stores.continuing import continue_run, find_starting_point, fork_run
from stores.decisions import LARGEST_RESULT_BYTES, RESOLVED_BY, settle_tool_effect
from stores.errors import DecidedResultTooLargeError
from stores.operations import FinishToolEffect
from stores.protocols import StepStore
from stores.records import ToolEffectResolution
from tests.stores.abstract import StepStoreTests
from tests.stores.asking import started
from tests.stores.writer import Execution, RunScript, at, request, response

PAID = ToolEffectResolution(decision="completed", by="ann", why="seen", result='{"paid": 5}')
ASKED = ToolEffectResolution(decision="asked")
FAILED = ToolEffectResolution(decision="failed", by="bob")


async def cut_off(store: StepStore, *, calls: int = 1, **values: object) -> list[ModelMessage]:
    """A run of which a history is saved, and then calls of step 2 are begun; the history."""
    execution, script = await started(store)
    script.messages = [request("a"), response("b")]
    await store.commit(execution.commit(script.snapshot(1, 0)))
    begun = [script.started(2, call, **values) for call in range(calls)]
    await store.commit(execution.commit(*begun))
    return script.messages


async def settle(
    store: StepStore, call: int, said: ToolEffectResolution, *, error: str | None = None
) -> None:
    effects = await store.list_tool_effects(run_id="run-1")
    stands = await settle_tool_effect(store, effects[call], said, now=at(9), error=error)
    assert stands == said


def answers(messages: list[ModelMessage]) -> list[tuple[object, str, object]]:
    """What the tools of a history returned: content, outcome, and who said so."""
    return [
        (part.content, part.outcome, cast("dict[str, Any]", part.metadata or {}).get(RESOLVED_BY))
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


class DecidedConformance(StepStoreTests):
    async def test_decisions_on_calls_that_no_history_holds_follow_it(
        self, store: StepStore
    ) -> None:
        history = await cut_off(store, calls=2)
        await settle(store, 0, PAID)
        await settle(store, 1, FAILED, error="no funds")

        messages = await continue_run(store, run_id="run-1")
        assert messages[:2] == history
        (asked,) = [each for each in messages[2:] if isinstance(each, ModelResponse)]
        assert [(call.tool_name, call.tool_call_id, call.args) for call in asked.tool_calls] == [
            ("look_up", f"call-2-{call}", {"item": 2}) for call in range(2)
        ]
        assert answers(messages[3:]) == [
            ({"paid": 5}, "success", {"by": "ann", "why": "seen"}),
            ("no funds", "failed", {"by": "bob", "why": None}),
        ]
        assert await continue_run(store, run_id="run-1") == messages
        assert await fork_run(store, run_id="run-1") == messages
        assert await fork_run(store, run_id="run-1", at_step=1) == history

    async def test_arguments_that_the_ledger_does_not_have_whole_are_marked(
        self, store: StepStore
    ) -> None:
        long = f'{{"text": "{"x" * 300}"}}'
        await cut_off(store, arguments=long)
        await settle(store, 0, PAID)
        *_, asked, _ = await continue_run(store, run_id="run-1")
        assert isinstance(asked.parts[0], ToolCallPart)
        assert asked.parts[0].args == {SUMMARY_KEY: long[:200]}

    @pytest.mark.parametrize("is_made_up", [False, True])
    async def test_decision_answers_the_call_that_a_history_holds(
        self, store: StepStore, *, is_made_up: bool
    ) -> None:
        execution, script = await started(store)
        calls = [ToolCallPart("look_up", {}, tool_call_id=f"call-2-{n}") for n in range(2)]
        script.messages = [request("a"), ModelResponse(parts=calls, timestamp=at(1))]
        if is_made_up:
            metadata = {"pydantic_ai_synthesized_tool_return": True}
            made_up = [
                ToolReturnPart("look_up", "?", tool_call_id=each.tool_call_id, metadata=metadata)
                for each in calls
            ]
            script.messages.append(ModelRequest(parts=made_up))
        await store.commit(execution.commit(script.started(2, 0), script.started(2, 1)))
        saved = script.snapshot(2, 0, state="interrupted")
        await store.commit(execution.commit(saved))
        await settle(store, 1, PAID)

        point = await find_starting_point(store, run_id="run-1", include_interrupted=True)
        assert [each.call_index for each in point.unresolved] == [0]
        assert len(point.messages) == 3
        said = ({"paid": 5}, "success", {"by": "ann", "why": "seen"})
        assert answers(point.messages) == ([("?", "success", None), said] if is_made_up else [said])
        assert point.snapshot.messages == script.messages

    async def test_decision_that_the_history_has_heard_is_not_told_twice(
        self, store: StepStore
    ) -> None:
        execution, script = await started(store)
        await store.commit(execution.commit(*script.before_tool(1)))
        await store.commit(execution.commit(script.finished(1, status="unknown", error="lost")))
        said = script.finished(1, status="resolved", error="no", ordinal=1, resolution=FAILED)
        await store.commit(execution.commit(said))
        _, _, saved, _ = script.after_tool(1)
        await store.commit(execution.commit(saved))
        assert await continue_run(store, run_id="run-1") == script.messages
        # Nor when somebody took the call out of the history since.
        script.messages = [request("shorter")]
        await store.commit(execution.commit(script.snapshot(2, 0)))
        assert await continue_run(store, run_id="run-1") == script.messages

    async def test_result_that_is_too_large_to_keep_is_refused_and_decides_nothing(
        self, store: StepStore
    ) -> None:
        await cut_off(store)
        large = ToolEffectResolution(decision="completed", result="x" * (LARGEST_RESULT_BYTES + 1))
        with pytest.raises(DecidedResultTooLargeError, match=r"run 'run-1' has 65537 bytes"):
            await settle(store, 0, large)
        assert len(await store.list_unresolved_tool_effects()) == 1

    async def test_call_that_waits_to_be_approved_stands_in_nobodys_way(
        self, store: StepStore
    ) -> None:
        history = await cut_off(store)
        execution = Execution(number=3)
        await store.commit(execution.commit(asking(ASKED, 0)))
        (effect,) = await store.list_unresolved_tool_effects()
        assert effect.awaits_approval
        assert (effect.status, effect.resolution) == ("started", None)
        point = await find_starting_point(store, run_id="run-1")
        point.check_unresolved()
        assert point.messages == history

        approved = ToolEffectResolution(decision="approved", by="ann", why="cheap")
        await store.commit(execution.commit(asking(approved, 1), now=7))
        (effect,) = await store.list_unresolved_tool_effects()
        approval = effect.approval
        assert approval is not None
        assert (approval.state, approval.by, approval.why) == ("approved", "ann", "cheap")
        assert (approval.at, effect.ended_at) == (at(7), None)
        assert len((await find_starting_point(store, run_id="run-1")).unresolved) == 1

    async def test_denial_of_a_run_that_is_over_is_its_calls_answer(self, store: StepStore) -> None:
        await cut_off(store)
        await store.commit(Execution(number=3).commit(asking(ASKED, 0)))
        await settle(
            store, 0, ToolEffectResolution(decision="denied", by="ann", why="dear"), error="denied"
        )
        messages = await continue_run(store, run_id="run-1")
        assert answers(messages) == [("denied", "denied", {"by": "ann", "why": "dear"})]
        assert await store.list_unresolved_tool_effects() == []


def asking(said: ToolEffectResolution, ordinal: int) -> FinishToolEffect:
    """That an approval is asked for, or given."""
    script = RunScript(sequence=20 + ordinal)
    return script.finished(2, status="started", ordinal=ordinal, resolution=said)
