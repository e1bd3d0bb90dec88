"""The workflow `conversation` on a real Temporal server: everything that a conversation is for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage, UsageLimits
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.service import RPCError
from temporalio.workflow import ActivityConfig

from stores.conversation_records import Turn
from stores.conversation_rows import ConversationRows
from stores.errors import ConversationNotFoundError
from stores.faulty import Fault, FaultPlan, with_faults
from stores.memory import InMemoryStepStore
from stores.rebuilding import rebuild_conversation
from tests.helpers.chatting import EchoModel, prompts
from tests.helpers.conversing import ConversationSuite
from tests.helpers.eventually import eventually
from tests.helpers.speaking import make_speaker, speech
from tests.helpers.speaking import words as words_of
from tests.helpers.workers import replay, running_worker
from workflows.conversation_models import ConversationStatus
from workflows.conversation_refusals import ConversationRefusedError, TurnFailedError
from workflows.durable import durable
from workflows.durable_conversation import DurableConversation

pytestmark = pytest.mark.integration

AT_ONCE = ActivityConfig(retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=50)))


@dataclass
class DurableTalking:
    client: Client
    store: InMemoryStepStore
    task_queue: str
    echo: EchoModel

    def begin(
        self, *, max_turns: int = 20, conversation_id: str = "", **settings: Any
    ) -> DurableConversation:
        settings = {"agent": "conversation", "store": self.store, **settings}
        return DurableConversation.connect(
            self.client,
            conversation_id=conversation_id or f"c-{uuid4().hex}",
            max_turns=max_turns,
            task_queue=self.task_queue,
            **settings,
        )

    async def turns(self, conversation: DurableConversation) -> list[Turn]:
        return await self.store.conversations.list_turns(conversation.conversation_id)

    async def status(self, conversation: DurableConversation) -> ConversationStatus:
        handle = self.client.get_workflow_handle(conversation.workflow_id)
        status: ConversationStatus = await handle.query("status", result_type=ConversationStatus)
        return status

    async def is_running(self, conversation: DurableConversation, position: int) -> bool:
        """Whether the model was asked about that turn."""
        running = (await self.status(conversation)).running
        asked = prompts(self.echo.seen[-1]) if self.echo.seen else []
        turns = await self.turns(conversation)
        is_there = running is not None and running.position == position
        return is_there and asked[-1:] == [turns[position].record.prompt]

    async def is_running_or_new(self, conversation: DurableConversation, position: int) -> bool:
        """As `is_running`; also before the conversation exists."""
        try:
            return await self.is_running(conversation, position)
        except (RPCError, ConversationNotFoundError):
            return False

    async def finished(self, conversation: DurableConversation) -> list[Turn]:
        """The turns, once all have ended."""
        turns = await self.turns(conversation)
        return turns if all(each.record.status != "running" for each in turns) else []

    async def spoil(self, conversation: DurableConversation) -> None:
        """Damage what is kept of turns: words, statuses, and all of a turn that nobody chose on."""

        conversation_id = conversation.conversation_id
        turns = await self.turns(conversation)

        async def work(rows: ConversationRows) -> None:
            for turn in turns:
                record = await rows.find_turn(conversation_id, turn.record.position)
                assert record is not None
                if record.is_inherited and len(turn.variants) == record.source_variant_count:
                    continue  # it has no run of its own here
                await rows.put_turns([replace(record, status="failed", variant_count=1)])
                own = [each for each in turn.variants if each.conversation_id == conversation_id]
                await rows.put_variants([replace(each, content="?", order=0) for each in own])

        await self.store.conversations.transact("spoil", work)

    async def is_open(self, conversation: DurableConversation) -> bool:
        """Whether its workflow runs."""
        try:
            status = await self.state_of(conversation.workflow_id)
        except RPCError:
            return False
        return status is WorkflowExecutionStatus.RUNNING

    async def state_of(self, run_id: str) -> WorkflowExecutionStatus | None:
        return (await self.client.get_workflow_handle(run_id).describe()).status


@pytest_asyncio.fixture
async def talk(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> AsyncIterator[DurableTalking]:
    echo = EchoModel()
    async with running_worker(temporal, memory, [echo.agent()], task_queue):
        yield DurableTalking(temporal, memory, task_queue, echo)


class TestDurableConversation(ConversationSuite):
    @pytest.fixture
    def talking(self, talk: DurableTalking) -> DurableTalking:
        return talk


def words(turns: Sequence[Turn]) -> list[tuple[str, str | None]]:
    return [(each.record.prompt, each.active.content if each.active else None) for each in turns]


async def collected(stream: AsyncIterator[str]) -> list[str]:
    return [each async for each in stream]


async def refused(asking: Awaitable[object]) -> str:
    with pytest.raises(ConversationRefusedError) as caught:
        await asking
    return caught.value.kind


async def test_thirty_says_at_once_are_thirty_turns_in_order_while_it_recycles(
    talk: DurableTalking,
) -> None:
    conversation = talk.begin(max_turns=2, recycle_turns=7, queue_limit=29)
    texts = [f"text {n}" for n in range(28)]
    await conversation.submit(texts[5], message_id=texts[5])  # of two texts the first has the id
    says = [conversation.say(text, message_id=text) for text in texts]
    twice = conversation.say("text 5", message_id="text 5")
    other = asyncio.create_task(conversation.say("text 5, otherwise", message_id="text 5"))
    results = await asyncio.gather(*says, twice)
    with pytest.raises(ConversationRefusedError, match="another text"):
        await other

    async def are_completed() -> bool:  # a reply is heard when its run ends, its turn right after
        return {each.record.status for each in await talk.turns(conversation)} == {"completed"}

    await eventually(are_completed)
    turns = await talk.turns(conversation)
    assert sorted(each.record.prompt for each in turns) == sorted(texts)
    assert [each.record.position for each in turns] == list(range(28))
    asked = [prompts(each)[-1] for each in talk.echo.seen]
    assert asked == [each.record.prompt for each in turns], "each is asked once, in order"
    assert results[-1].output == results[5].output
    answers = dict(words(turns))
    assert [each.output for each in results[:28]] == [answers[text] for text in texts]

    handle = talk.client.get_workflow_handle(conversation.workflow_id)
    first = await anext(talk.client.list_workflows(f"WorkflowId = '{handle.id}'"), None)
    assert first is not None
    assert (await talk.status(conversation)).turns <= 7  # 7 where it is about to recycle
    assert (await talk.status(conversation)).carried == 0
    await replay(handle, [talk.echo.agent()])


async def test_a_stream_yields_the_reply_as_the_model_gave_it_and_nothing_that_was_taken_back(
    temporal: Client, memory: InMemoryStepStore, task_queue: str, tmp_path: Path
) -> None:
    speaker = make_speaker(activities=AT_ONCE)
    talk = DurableTalking(temporal, memory, task_queue, EchoModel())
    final = "It is so, and this is why"
    lost = speech(final, steps=["Let me look."], stop_at=4, marker=tmp_path / "failed")
    slow = speech(final, pause=0.05)
    async with running_worker(temporal, memory, [speaker], task_queue):
        conversation = talk.begin(agent="speaker")
        waiting = asyncio.create_task(collected(conversation.stream(lost, message_id="lost")))
        assert await waiting == words_of(final)
        ticket = await conversation.submit(lost, message_id="lost")
        kinds = [each.kind async for each in conversation.follow(lost, ticket)]
        assert kinds.count("step_text") == 1

        first, second = await asyncio.gather(
            collected(conversation.stream(slow)), collected(conversation.stream(speech("Yes.")))
        )
        assert (first, second) == (words_of(final), ["Yes."]), "the second waits for its turn"

        hanging = speech(final, stop_at=1, marker=tmp_path / "hung", how="hang")
        doomed = await conversation.submit(hanging)
        events = conversation.follow("", doomed)
        assert (await anext(events)).text == "It "
        await temporal.get_workflow_handle(doomed.answer.run_id).terminate()
        assert "run_completed" not in [each.kind async for each in events]
        with pytest.raises(TurnFailedError):
            await conversation.reply("", doomed)


@pytest.mark.spec("CV-10")
async def test_what_members_choose_decides_what_is_remembered(talk: DurableTalking) -> None:
    conversation = talk.begin()
    for text in ("one", "two", "three"):
        await conversation.say(text)
    again = await conversation.regenerate(1, message_id="again")
    reply = await conversation.reply("", again)
    assert prompts(talk.echo.seen[3]) == ["one", "two"], "what came later is not seen"
    assert reply.output == "reply 4"
    assert words(await talk.turns(conversation))[1] == ("two", "reply 2")

    await conversation.select_variant(1, 2)
    await conversation.hide(0)
    await conversation.say("four")
    assert prompts(talk.echo.seen[4]) == ["two", "three", "four"]
    assert "reply 4" in str(talk.echo.seen[4])
    assert "reply 2" not in str(talk.echo.seen[4])
    await conversation.hide(0, is_on=False)
    await conversation.conceal(2)
    await conversation.say("five")
    assert prompts(talk.echo.seen[5]) == ["one", "two", "four", "five"]

    forked = await conversation.fork(1, into=f"{conversation.conversation_id}-fork")
    assert prompts(forked.history) == ["one", "two"]
    await forked.say("elsewhere")
    assert prompts(talk.echo.seen[6]) == ["one", "two", "elsewhere"]
    await forked.say("further")
    assert prompts(talk.echo.seen[7]) == ["one", "two", "elsewhere", "further"]
    assert len(await talk.turns(conversation)) == 5
    assert await refused(conversation.fork(9, into="nowhere")) == "TurnNotFoundError"
    assert await refused(conversation.regenerate(9)) == "TurnNotFoundError"

    for each in (conversation, forked):
        before = await eventually(partial(talk.finished, each))
        same = await rebuild_conversation(talk.store, each.conversation_id, now=datetime.now(UTC))
        assert same.changed_rows == 0, "what is maintained is what can be rebuilt"
        await talk.spoil(each)
        assert await talk.turns(each) != before
        anew = await rebuild_conversation(talk.store, each.conversation_id, now=datetime.now(UTC))
        assert anew.changed_rows > 0
        assert await talk.turns(each) == before

    await conversation.rename("Numbers", tags=("a",))
    await conversation.archive()
    head = await talk.store.conversations.find(conversation.conversation_id)
    assert head is not None
    assert (head.title, head.title_source, head.is_archived) == ("Numbers", "manual", True)
    for each in (conversation, forked):
        await replay(talk.client.get_workflow_handle(each.workflow_id), [talk.echo.agent()])


async def test_a_message_in_mid_turn_follows_the_policy(talk: DurableTalking) -> None:
    rejecting = talk.begin(mid_turn="reject")
    first = asyncio.create_task(rejecting.say("wait 1", message_id="m"))
    await eventually(lambda: talk.is_running_or_new(rejecting, 0))
    assert await refused(rejecting.say("and?")) == "TurnInProgressError"
    assert (await rejecting.submit("wait 1", message_id="m")).answer.position == 0
    assert await refused(rejecting.fork(0, into="nowhere")) == "TurnStateError"
    assert await refused(rejecting.regenerate(0)) == "TurnStateError"
    talk.echo.gate.set()
    await first
    assert await refused(rejecting.steer("now")) == "TurnStateError"
    assert await refused(rejecting.cancel()) == "TurnStateError"

    talk.echo.gate.clear()
    steering = talk.begin(mid_turn="steer")
    answer = asyncio.create_task(steering.say("wait 2"))
    await eventually(lambda: talk.is_running_or_new(steering, 0))
    ticket = await steering.submit("shorter", message_id="s")
    assert ticket.is_steer
    await steering.steer("shorter", message_id="s")  # the same one
    talk.echo.gate.set()
    reply = await answer
    assert prompts(talk.echo.seen[-1]) == ["wait 2", "shorter"]
    (turn,) = await eventually(lambda: talk.finished(steering))
    assert (turn.record.steers, words([turn])) == (("shorter",), [("wait 2", reply.output)])

    talk.echo.gate.clear()
    interrupting = talk.begin(mid_turn="interrupt", queue_limit=1)
    doomed = asyncio.create_task(interrupting.say("wait 3"))
    await eventually(lambda: talk.is_running_or_new(interrupting, 0))
    assert (await interrupting.say("instead")).output == f"reply {len(talk.echo.seen)}"
    with pytest.raises(TurnFailedError, match="cancelled"):
        await doomed
    assert prompts(talk.echo.seen[-1]) == ["instead"]
    with pytest.raises(TurnFailedError, match="failed"):
        await interrupting.say("fail")
    turns = await eventually(lambda: talk.finished(interrupting))
    assert [each.record.status for each in turns] == ["cancelled", "completed", "failed"]


@pytest.mark.parametrize("is_reported", [False, True])
async def test_what_is_said_while_the_end_of_a_run_is_committed_is_answered_all_the_same(
    temporal: Client,
    memory: InMemoryStepStore,
    task_queue: str,
    tmp_path: Path,
    *,
    is_reported: bool,
) -> None:
    """By the run, whose last task is repeated, or, when that is reported, by a turn of its own."""
    waits = Fault(name="ending", action="wait", holds="run_completed", until=tmp_path / "go")
    fails = Fault(name="away", action="fail", holds="run_completed")
    plan = FaultPlan(directory=tmp_path, faults=(fails, waits) if is_reported else (waits,))
    echo = EchoModel()
    talk = DurableTalking(temporal, memory, task_queue, echo)
    async with running_worker(temporal, with_faults(memory, plan), [echo.agent()], task_queue):
        conversation = talk.begin()
        first = asyncio.create_task(conversation.say("one"))
        await eventually(lambda: plan.has_fired("ending"))
        ticket = await conversation.steer("and this", message_id="s")
        assert (ticket.is_steer, ticket.answer.position) == (True, 0)
        (tmp_path / "go").touch()
        reply = await first
        expected: list[tuple[str, tuple[str, ...]]] = [("one", ()), ("and this", ())]
        if not is_reported:
            expected = [("one", ("and this",))]

        async def are_answered() -> bool:
            turns = await talk.finished(conversation)
            return [(each.record.prompt, each.record.steers) for each in turns] == expected

        await eventually(are_answered)
        assert reply.output == ("reply 1" if is_reported else "reply 2")
        assert [prompts(each) for each in echo.seen] == [["one"], ["one", "and this"]]
        (turn, *_) = await talk.turns(conversation)
        assert turn.active is not None
        for run_id in (conversation.workflow_id, turn.active.run_id):
            await replay(temporal.get_workflow_handle(run_id), [echo.agent()])


async def test_a_full_queue_and_a_closed_conversation_refuse(talk: DurableTalking) -> None:
    conversation = talk.begin(queue_limit=1)
    first = asyncio.create_task(conversation.say("wait"))
    await eventually(lambda: talk.is_running_or_new(conversation, 0))
    waiting = await conversation.submit("second", message_id="second")
    assert await refused(conversation.submit("third")) == "QueueFullError"
    assert (await conversation.submit("second", message_id="second")).answer == waiting.answer
    await conversation.close()
    assert await refused(conversation.say("more")) == "ConversationClosedError"
    talk.echo.gate.set()
    await asyncio.gather(first, conversation.reply("second", waiting))
    await talk.client.get_workflow_handle(conversation.workflow_id).result()
    assert await refused(conversation.say("more")) == "ConversationClosedError"
    await talk.store.conversations.delete(conversation.conversation_id, now=datetime.now(UTC))
    assert await refused(conversation.say("more")) == "ConversationClosedError"

    for asking in ("rename", "hide", "regenerate", "refresh"):
        messages: list[str] = []
        for missing in (
            replace(
                talk.begin(), workspace_id="other", conversation_id=conversation.conversation_id
            ),
            talk.begin(conversation_id="never"),
        ):
            arguments = {"rename": ("x",), "hide": (0,), "regenerate": (0,)}.get(asking, ())
            with pytest.raises(ConversationRefusedError) as caught:
                await getattr(missing, asking)(*arguments)
            assert caught.value.kind == "ConversationNotFoundError"
            messages.append(caught.value.reason.replace(missing.conversation_id, "ID"))
        assert messages[0] == messages[1]
    with pytest.raises(ValueError, match="at least 1"):
        talk.begin(max_turns=0)


async def test_it_ends_when_idle_and_the_same_message_has_the_same_answer_after_that(
    talk: DurableTalking,
) -> None:
    conversation = talk.begin(idle_seconds=0.5, names_itself=True, namer_model="test")
    first = await conversation.say("one", message_id="m1")
    handle = talk.client.get_workflow_handle(conversation.workflow_id)
    await handle.result()
    head = await talk.store.conversations.find(conversation.conversation_id)
    assert head is not None
    assert (head.title, head.title_source, head.naming_tokens > 0) == ("a", "generated", True)
    again = await conversation.say("one", message_id="m1")
    assert again.output == first.output
    without_store = replace(conversation, store=None)
    assert [each async for each in without_store.stream("one", message_id="m1")] == [first.output]
    with pytest.raises(RuntimeError, match="store="):
        await anext(without_store.follow("", await without_store.submit("one", message_id="m1")))
    await conversation.say("two")
    assert [prompts(each) for each in talk.echo.seen] == [["one"], ["one", "two"]]
    await replay(handle, [talk.echo.agent()])


async def test_a_conversation_that_is_cancelled_or_terminated_never_terminates_its_turn(
    talk: DurableTalking,
) -> None:
    conversation = talk.begin()
    first = asyncio.create_task(conversation.say("wait"))
    await eventually(lambda: talk.is_running_or_new(conversation, 0))
    handle = talk.client.get_workflow_handle(conversation.workflow_id)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    with pytest.raises(TurnFailedError, match="cancelled"):
        await first
    (turn,) = await talk.turns(conversation)
    assert turn.record.status == "cancelled"
    assert turn.active is not None
    assert await talk.state_of(turn.active.run_id) == WorkflowExecutionStatus.CANCELED
    await replay(handle, [talk.echo.agent()])

    second = asyncio.create_task(conversation.say("wait more", message_id="m"))
    await eventually(lambda: talk.is_running_or_new(conversation, 1))
    await talk.client.get_workflow_handle(conversation.workflow_id).terminate()
    with pytest.raises(TurnFailedError, match="cancelled"):
        await second
    talk.echo.gate.set()
    await conversation.say("three")  # takes up what the terminated workflow left
    turns = await eventually(lambda: talk.finished(conversation))
    assert [each.record.status for each in turns] == ["cancelled", "cancelled", "completed"]


@pytest.mark.spec("CV-17", "CV-21")
async def test_each_turn_has_the_limits_of_its_conversation_and_one_line_in_the_log(
    temporal: Client,
    memory: InMemoryStepStore,
    task_queue: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
        usage = RequestUsage(input_tokens=1, output_tokens=1, cost=Decimal("0.02"))
        return ModelResponse([TextPart("that was dear")], usage=usage)

    dear = Agent(FunctionModel(answer), name="dear", capabilities=durable())
    talk = DurableTalking(temporal, memory, task_queue, EchoModel())
    caplog.set_level("INFO", logger="activities.conversations")
    async with running_worker(temporal, memory, [dear], task_queue):
        limits = UsageLimits(request_limit=2, cost_limit=Decimal("0.01"))
        bounded = talk.begin(agent="dear", usage_limits=limits)
        with pytest.raises(TurnFailedError, match="cost_limit"):
            await bounded.say("what of it?")
        free = talk.begin(agent="dear")
        assert (await free.say("what of it?")).output == "that was dear"
        assert (await free.say("and now?")).usage.cost == Decimal("0.02"), "of each turn"
    assert [each.getMessage() for each in caplog.records] == [
        f"turn 0 of conversation {bounded.conversation_id!r}: 11 characters, 0 messages",
        f"turn 0 of conversation {free.conversation_id!r}: 11 characters, 0 messages",
        f"turn 1 of conversation {free.conversation_id!r}: 8 characters, 2 messages",
    ]


async def test_a_say_that_a_closing_workflow_aborts_is_repeated(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    talk = DurableTalking(temporal, memory, task_queue, EchoModel())
    conversation = talk.begin()
    saying = asyncio.create_task(conversation.say("one", message_id="m"))
    await eventually(lambda: talk.is_open(conversation))
    closing = temporal.get_workflow_handle(conversation.workflow_id)
    first = (await closing.describe()).run_id
    await closing.terminate()
    async with running_worker(temporal, memory, [talk.echo.agent()], task_queue):
        assert (await saying).output == "reply 1"
    assert (await closing.describe()).run_id != first
    assert [each.record.prompt for each in await talk.turns(conversation)] == ["one"]


async def test_a_say_that_its_caller_cancels_is_not_repeated(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> None:
    talk = DurableTalking(temporal, memory, task_queue, EchoModel())
    conversation = talk.begin()
    saying = asyncio.create_task(conversation.say("nobody works here"))
    await eventually(lambda: talk.is_open(conversation))
    saying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(saying, 5)
