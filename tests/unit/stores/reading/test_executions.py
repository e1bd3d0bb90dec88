"""What a turn's run has done, from real runs in memory: rounds, calls, branches, bounds."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_ai import Agent, ToolReturn
from pydantic_ai.messages import BinaryContent, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from stores.access import ReadingRights
from stores.commits import Commit
from stores.conversation_records import VariantStatus
from stores.conversation_rows import turn_run_id
from stores.memory import InMemoryStepStore
from stores.operations import AppendEvent, FinishToolEffect
from stores.reading.history import read_history
from stores.reading.pages import ExecutionView, HistoryPage
from stores.reading.parameters import HistoryParameters
from stores.reading.refusals import NotFoundError, ParameterInvalidError
from stores.reading.rounds import output_text
from stores.reading.task_keys import CALL_METADATA, branch_steps, delegate_run_id
from stores.records import EventKind, RunRecord, ToolEffectRecord, ToolEffectResolution
from tests.helpers.reading import NOW, Said, put_conversation
from tests.helpers.script import Call, follow, script
from workflows.persistence import StepPersistence

RIGHTS = ReadingRights(principal_id="ann", workspace_id="default")


@dataclass
class Stage:
    """A conversation in memory whose turns have real runs."""

    store: InMemoryStepStore = field(default_factory=InMemoryStepStore)
    public_id: str = ""

    async def say(self, said: Sequence[Said], conversation_id: str = "c") -> None:
        head = await put_conversation(self.store, conversation_id, said)
        self.public_id = head.public_id

    async def run(
        self,
        steps: Sequence[Sequence[Call]],
        *,
        position: int = 0,
        number: int = 1,
        final: str = "done",
        run_id: str | None = None,
        **registered: Any,
    ) -> str:
        """Run the script as the answer at a position; return the run's id."""
        run_id = run_id or turn_run_id("default", "c", f"m{position}", number)
        kept: list[Any] = [StepPersistence[None](store=self.store, **registered)]
        agent: Agent[None, str] = Agent(FunctionModel(follow), name="doer", capabilities=kept)
        agent.tool_plain(repeat)
        agent.tool_plain(fail)
        agent.tool_plain(dress)
        with contextlib.suppress(ZeroDivisionError):
            await agent.run(script(steps, final), run_id=run_id, conversation_id="c")
        return run_id

    async def read(self, **asked: Any) -> HistoryPage:
        parameters = HistoryParameters(include_execution=True, **asked)
        return await read_history(self.store, RIGHTS, self.public_id, parameters)

    async def execution(self, **asked: Any) -> ExecutionView:
        page = await self.read(**asked)
        assert page.execution is not None
        return page.execution


def repeat(text: str, times: int = 1) -> str:
    return text * times


def fail() -> str:
    message = "nothing to divide"
    raise ZeroDivisionError(message)


def dress() -> ToolReturn[str]:
    return ToolReturn(return_value="plain", metadata={"title": "For the screen"})


@pytest.fixture
def stage() -> Stage:
    return Stage()


def echo(text: str, times: int = 1) -> Call:
    return ("repeat", {"text": text, "times": times})


@pytest.mark.spec("HS-45", "HS-49", "HS-50", "HS-51", "HS-53", "HS-56")
async def test_rounds_have_keys_states_times_and_previews(stage: Stage) -> None:
    await stage.say([Said()])
    await stage.run([[echo("ab"), echo("cd")], [("dress", {})]], final="the end")
    found = await stage.execution()

    assert (found.active, found.status, found.run_status) == (True, "completed", "completed")
    assert [(e.key, e.status, e.call_count, e.text) for e in found.rounds] == [
        ("1", "completed", 2, ""),
        ("2", "completed", 1, ""),
        ("3", "completed", 0, "the end"),
    ]
    calls = [call for each in found.rounds for call in each.calls]
    assert [(e.key, e.tool_name, e.status, e.output) for e in calls] == [
        ("1/0", "repeat", "completed", "ab"),
        ("1/1", "repeat", "completed", "cd"),
        ("2/0", "dress", "completed", "plain"),
    ]
    assert all(e.ended_at and e.started_at <= e.ended_at for e in (*found.rounds, *calls))
    assert (found.pagination.has_older, found.pagination.next_before) == (False, None)
    told = found.model_dump(exclude_unset=True)
    assert not {"attention_reason", "failure_reason", "details_pruned_at"} & set(told)
    assert "For the screen" not in found.to_json()
    assert not found.truncated


@pytest.mark.spec("HS-47", "HS-48")
async def test_execution_is_null_without_a_run_and_absent_where_nobody_asks(stage: Stage) -> None:
    await stage.say([Said()])
    page = await stage.read(execution_before="x", execution_prefix="9/9")
    assert '"execution":null' in page.to_json()
    await stage.run([[echo("ab")]])
    parameters = HistoryParameters(execution_before="x", execution_prefix="9/9")
    page = await read_history(stage.store, RIGHTS, stage.public_id, parameters)
    assert "execution" not in page.to_json()


@pytest.mark.spec("HS-47")
async def test_execution_is_null_where_no_turn_is_in_the_window(stage: Stage) -> None:
    await stage.say([])
    assert '"execution":null' in (await stage.read()).to_json()


@pytest.mark.spec("HS-54", "HS-60", "HS-61")
async def test_older_rounds_come_by_their_cursor(stage: Stage) -> None:
    await stage.say([Said(), Said()])
    await stage.run([[echo(str(n))] for n in range(44)], position=1)
    await stage.run([[echo("x")] for _ in range(22)], position=0)
    steps: list[str] = []
    before: str | None = None
    while True:
        found = await stage.execution(execution_before=before)
        assert len(found.rounds) <= 20
        steps = [each.key for each in found.rounds] + steps
        assert found.pagination.has_older == (found.pagination.next_before is not None)
        if not found.pagination.has_older:
            break
        before = found.pagination.next_before
    assert steps == [str(n) for n in range(1, 46)]
    page = await stage.read(limit=2)
    other = await stage.execution(around_turn_public_id=page.turns[0].public_id)
    for wrong in (other.pagination.next_before, f"{before}x", "", "\N{SNOWMAN}", "[" * 5000):
        with pytest.raises(ParameterInvalidError) as refused:
            await stage.execution(execution_before=wrong)
        assert refused.value.parameter == "execution_before"


@pytest.mark.spec("HS-54")
async def test_a_wide_round_counts_all_calls_and_shows_24(stage: Stage) -> None:
    await stage.say([Said()])
    await stage.run([[echo(str(n)) for n in range(30)]])
    first = (await stage.execution()).rounds[0]
    assert first.call_count == 30
    assert [each.key for each in first.calls] == [f"1/{n}" for n in range(24)]
    assert [each.output for each in first.calls] == [str(n) for n in range(24)]


@pytest.mark.spec("HS-58", "HS-59", "HS-40")
async def test_text_goes_to_the_turn_then_to_its_newest_rounds_then_to_neighbours(
    stage: Stage,
) -> None:
    await stage.say([Said(prompt="a" * 2000), Said(prompt="b" * 2000, content="c" * 3000)])
    wide = [echo("x", 600)] * 10
    await stage.run([wide, [echo("y", 600)] * 15], position=1, final=".")
    page = await stage.read()
    execution = page.execution
    assert execution is not None
    left = 12_000 - 4_000
    shown = [len(call.output) for call in execution.rounds[1].calls]
    assert shown == [500] * 15
    left -= sum(shown) + len(execution.rounds[2].text)
    assert left == 499
    assert [len(call.output) for call in execution.rounds[0].calls] == [left] + [0] * 9
    assert [len(each.prompt) for each in page.turns] == [0, 2000]
    assert [len(each.content) for each in page.turns] == [0, 2000]
    assert execution.truncated
    assert page.truncated
    assert [each.truncated for each in page.turns] == [True, True]
    assert [(e.key, e.call_count) for e in execution.rounds] == [("1", 10), ("2", 15), ("3", 0)]


@pytest.mark.spec("HS-58")
async def test_neighbours_get_what_is_left(stage: Stage) -> None:
    await stage.say([Said(prompt="a" * 2000), Said(prompt="b")])
    await stage.run([[echo("x", 3)]], position=1, final=".")
    page = await stage.read()
    assert [len(each.prompt) for each in page.turns] == [2000, 1]
    assert page.execution is not None
    assert not page.truncated
    assert not page.execution.truncated


@pytest.mark.spec("HS-52", "HS-53")
async def test_a_failed_run_tells_why(stage: Stage) -> None:
    await stage.say([Said(status="failed", content=None)])
    await stage.run([[echo("a")], [("fail", {})]])
    found = await stage.execution()
    assert (found.status, found.run_status) == ("failed", "failed")
    assert "nothing to divide" in found.failure_reason
    calls = [call for each in found.rounds for call in each.calls]
    assert [(e.status, e.output, bool(e.error)) for e in calls] == [
        ("completed", "a", False),
        ("failed", "", True),
    ]


async def record(stage: Stage, run_id: str, call: int, **fields: Any) -> None:
    effect = ToolEffectRecord(
        tool_call_id=f"id{call}",
        tool_name="charge",
        run_id=run_id,
        step_index=1,
        call_index=call,
        started_at=NOW,
        **fields,
    )
    await stage.store.record_tool_effect(effect)


async def begin(stage: Stage, run_id: str, **registered: Any) -> None:
    await stage.store.register_run(
        RunRecord(run_id=run_id, conversation_id="c", started_at=NOW, **registered)
    )
    kinds: tuple[EventKind, ...] = ("model_request_started", "model_request_completed")
    for sequence, kind in enumerate(kinds, start=1):
        event = AppendEvent(
            run_id=run_id,
            sequence=sequence,
            key=f"1:{kind}",
            event=kind,
            step_index=1,
            run_state="needs_attention" if registered.get("principal") == "waits" else None,
        )
        await stage.store.commit(Commit(operations=(event,), now=NOW))


@pytest.mark.spec("HS-52", "HS-53")
async def test_a_run_that_waits_for_a_person_says_for_what(stage: Stage) -> None:
    await stage.say([Said(status="running", content=None)])
    run_id = turn_run_id("default", "c", "m0", 1)
    await begin(stage, run_id, principal="waits")
    await record(stage, run_id, 0, status="started")
    asked = FinishToolEffect(
        run_id=run_id,
        sequence=9,
        tool_call_id="id0",
        tool_name="charge",
        step_index=1,
        call_index=0,
        status="started",
        resolution=ToolEffectResolution(decision="asked"),
        ordinal=0,
    )
    await stage.store.commit(Commit(operations=(asked,), now=NOW))
    await record(stage, run_id, 1, status="unknown")
    found = await stage.execution()
    assert found.run_status == "needs_attention"
    assert "call 1/0 of tool 'charge' waits for approval" in found.attention_reason
    assert "call 1/1 of tool 'charge' waits for a decision" in found.attention_reason
    (first,) = found.rounds
    assert (first.status, first.ended_at) == ("running", None)
    assert [each.status for each in first.calls] == ["awaiting_approval", "unknown"]
    assert [each.output for each in first.calls] == ["", ""]


@pytest.mark.spec("HS-46", "HS-55", "HS-61")
async def test_a_delegated_run_is_read_by_its_key(stage: Stage) -> None:
    await stage.say([Said(status="running", content=None)])
    run_id = turn_run_id("default", "c", "m0", 1)
    await begin(stage, run_id)
    await record(stage, run_id, 0, status="started")
    await record(stage, run_id, 1, status="started")
    told: dict[str, Any] = {"metadata": {CALL_METADATA: "1/0"}, "parent_run_id": run_id}
    await stage.run([[echo("deep")]], run_id="child", **told)
    await stage.run([], run_id="second", final="again", **told)
    made = delegate_run_id(run_id, "1/1", activity_index=0, order=0)
    await stage.run([], run_id=made, final="in an activity", parent_run_id=run_id)
    grandchild: dict[str, Any] = {"metadata": {CALL_METADATA: "1/0"}, "parent_run_id": "child"}
    await stage.run([], run_id="grandchild", final="deepest", **grandchild)
    await stage.run([], run_id="stray", parent_run_id=run_id)

    main = await stage.execution()
    assert main.rounds[0].branches == ["1/0", "1/0:1", "1/1"]
    child = await stage.execution(execution_prefix="1/0")
    assert (child.run_public_id, child.run_status) == (main.run_public_id, main.run_status)
    assert [each.key for each in child.rounds] == ["1/0/1", "1/0/2"]
    assert child.rounds[0].calls[0].key == "1/0/1/0"
    assert child.rounds[0].calls[0].output == "deep"
    assert child.rounds[0].branches == ["1/0/1/0"]
    deepest = await stage.execution(execution_prefix="1/0/1/0")
    assert [each.text for each in deepest.rounds] == ["deepest"]
    assert [e.text for e in (await stage.execution(execution_prefix="1/0:1")).rounds] == ["again"]
    activity = await stage.execution(execution_prefix="1/1")
    assert [each.text for each in activity.rounds] == ["in an activity"]
    for unknown in ("", "9/9", "1", "1/0/1", "1/0:7", "x/y", "1/0/" * 40, "01/0", "-1/0"):
        with pytest.raises(NotFoundError) as refused:
            await stage.execution(execution_prefix=unknown)
        assert refused.value.parameter == "execution_prefix"


def test_branch_keys_are_pairs_of_numbers() -> None:
    assert branch_steps("2/0") == ("2/0",)
    assert branch_steps("2/0:1/3/4") == ("2/0:1", "3/4")
    assert branch_steps("2") is None
    assert branch_steps("2/0/3") is None


@pytest.mark.spec("HS-50", "HS-51")
@pytest.mark.parametrize("others", [("pending", "running"), ("running",), ("pending",)])
async def test_a_variant_in_progress_is_looked_into_before_the_active_one(
    stage: Stage, others: tuple[VariantStatus, ...]
) -> None:
    await stage.say([Said(content="the old answer", others=others)])
    number = others.index("running" if "running" in others else "pending") + 2
    await stage.run([], number=1)
    await stage.run([[echo("new")]], number=number)
    page = await stage.read()
    assert page.execution is not None
    assert page.turns[0].content == "the old answer"
    assert (page.execution.active, page.execution.status) == (False, others[number - 2])
    assert len(page.execution.rounds) == 2


@pytest.mark.spec("HS-47")
async def test_a_fork_opens_no_run_of_a_source_that_one_may_not_read(stage: Stage) -> None:
    await stage.say([Said()])
    await stage.run([[echo("secret")]])
    source = stage.public_id
    fork = await stage.store.conversations.fork("c", at_position=0, into="f", now=NOW)
    parameters = HistoryParameters(include_execution=True)
    narrow = ReadingRights(
        principal_id="ann",
        workspace_id="default",
        reach="own",
        conversation_ids=frozenset({"f"}),
    )
    read = await read_history(stage.store, narrow, fork.public_id, parameters)
    assert [each.content for each in read.turns] == ["hi"]
    assert read.execution is None
    with pytest.raises(NotFoundError):
        await read_history(stage.store, narrow, source, parameters)
    wide = await read_history(stage.store, RIGHTS, fork.public_id, parameters)
    assert wide.execution is not None
    await stage.store.conversations.set_visibility("c", 0, is_concealed=True, now=NOW)
    concealed = await read_history(stage.store, RIGHTS, fork.public_id, parameters)
    assert (concealed.execution, len(concealed.turns)) == (None, 1)


@pytest.mark.spec("HS-57")
def test_outputs_are_text_and_never_bytes() -> None:
    def output(content: Any) -> str:
        return output_text(ToolReturnPart("t", content=content, tool_call_id="c"))

    assert output("plain") == "plain"
    assert output({"a": 1}) == '{"a":1}'
    picture = BinaryContent(data=b"\x89PNG", media_type="image/png")
    assert output(["seen", picture]) == "seen"
    assert output(picture) == ""
