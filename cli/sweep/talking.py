"""One fault point of a conversation: what is said, the fault, and the look at what is left."""

import asyncio
import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle

from cli.sweep.disturbing import Disturber
from cli.sweep.judging import Outcome
from cli.sweep.performing import (
    ENDS_WITHIN,
    LATE_WITHIN,
    MODES,
    STRIKES_WITHIN,
    problems_of_history,
)
from cli.sweep.points import FAULT, Operation
from cli.sweep.stage import Lane, TooLateError, seen
from cli.sweep.talk_points import ROWS, TalkPoint
from cli.sweep.talk_script import RECYCLE_TURNS, SERVED, TALK, TALKER
from cli.sweep.traces import Trail, histories_of, trail_of
from cli.sweep.workers import CALLS, ListeningPlan, WorkerProcess
from stores.conversation_rows import turn_run_id
from stores.faulty import Fault, FaultPlan
from stores.following import follow_run, joined
from stores.identifiers import DEFAULT_WORKSPACE
from stores.protocols import StepStore
from stores.rebuilding import rebuild_conversation
from worker import build_replayer
from workflows.conversation_models import conversation_workflow_id
from workflows.durable_conversation import DurableConversation

CALLS_OF_ROWS = "calls-of-rows"
"""File of a listening plan: a line for each call of the conversation's rows."""

SETTLES_WITHIN = timedelta(seconds=60)
"""The last turn's end is written after its reply was heard."""


@dataclass(frozen=True, kw_only=True)
class UndisturbedTalk:
    """What a conversation leaves that nothing disturbs."""

    replies: dict[str, object]
    trails: dict[str, Trail]
    rows: dict[str, list[tuple[object, ...]]]
    executions: int


class TalkListeningPlan(ListeningPlan):
    """Notes the calls of a conversation's rows, too."""

    def claim(self, method: str, arguments: tuple[object, ...]) -> Fault | None:
        """Note the call; nothing strikes it."""
        if method in ROWS:
            with (self.directory / CALLS_OF_ROWS).open("a") as file:
                file.write(f"{method}\n")
        return super().claim(method, arguments)


class TalkPlan(FaultPlan):
    """Notes in whose activity the fault strikes, so that its report can be waited for."""

    def claim(self, method: str, arguments: tuple[object, ...]) -> Fault | None:
        """As the plan, with a note."""
        fault = super().claim(method, arguments)
        if fault is not None and fault.name == FAULT and activity.in_activity():
            info = activity.info()
            struck = [info.workflow_id, info.workflow_run_id, info.activity_id]
            (self.directory / "struck").write_text(json.dumps(struck))
        return fault


class _TalkDisturber(Disturber):
    """Knows when a call of the rows is reported: its activity has a result in the history."""

    async def _is_reported(self) -> bool:
        if isinstance(self._point, TalkPoint) and not self._point.is_of_rows:
            return await super()._is_reported()
        struck = json.loads((self._plan.directory / "struck").read_text())
        workflow_id, execution_id, activity_id = struck
        handle = self._lane.client.get_workflow_handle(workflow_id, run_id=execution_id)
        return activity_id in _reported((await handle.fetch_history()).events)


def _reported(events: Sequence[Any]) -> set[str]:
    """The ids of activities, local and regular, whose results a history holds."""
    scheduled = {
        each.event_id: each.activity_task_scheduled_event_attributes.activity_id
        for each in events
        if each.HasField("activity_task_scheduled_event_attributes")
    }
    found: set[str] = set()
    for each in events:
        if each.HasField("activity_task_completed_event_attributes"):
            ended = each.activity_task_completed_event_attributes.scheduled_event_id
            found.add(scheduled[ended])
        if each.HasField("marker_recorded_event_attributes"):
            details = each.marker_recorded_event_attributes.details["data"].payloads
            found |= {json.loads(payload.data)["activity_id"] for payload in details}
    return found


@dataclass(kw_only=True)
class TalkPerformance:
    """A point of a conversation being performed in a lane."""

    lane: Lane
    point: TalkPoint
    outcome: Outcome = field(init=False)

    def __post_init__(self) -> None:
        """Name the conversation."""
        self.name = f"talk-{secrets.token_hex(8)}"
        self.directory = self.lane.directory / self.name
        self.handle = handle_of(self.lane.client, self.name)
        self.outcome = Outcome(
            point=self.point.name, group=self.point.group, disturbance=self.point.disturbance
        )

    async def perform(self, undisturbed: UndisturbedTalk) -> Outcome:
        """Go through it, and say what is wrong."""
        began = monotonic()
        self.directory.mkdir()
        plan = TalkPlan(directory=self.directory, faults=self.point.faults(self._fault()))
        settings = self.lane.settings(self.name, **MODES[self.point.mode])
        worker = WorkerProcess(settings=settings, plan=plan)
        disturber = _TalkDisturber(self.lane, self.point, self.handle, plan, worker)
        try:
            worker.start()
            await self._go_through(disturber, plan, undisturbed)
        except TooLateError as error:
            self.outcome.astray.append(str(error))
        finally:
            disturber.kill()
            with suppress(Exception):
                await self.handle.terminate("the point is over")
            if self.outcome.is_well:
                shutil.rmtree(self.directory, ignore_errors=True)
        self.outcome.seconds = round(monotonic() - began, 1)
        return self.outcome

    def _fault(self) -> Fault:
        told: dict[str, object] = {"until": self.directory / "go"}
        if self.point.fault.method == "commit":
            told["run_id"] = run_of(self.name, self.point.agent)
        return self.point.fault.model_copy(update=told)

    async def _go_through(
        self, disturber: Disturber, plan: FaultPlan, undisturbed: UndisturbedTalk
    ) -> None:
        talking = asyncio.create_task(hold_talk(self.lane, self.name))
        try:
            await seen(
                lambda: disturber.has_struck or talking.done(),
                within=STRIKES_WITHIN,
                what="the fault did not strike",
            )
            if not disturber.has_struck:
                return
            self.outcome.fired = 1
            await disturber.disturb()
            try:
                replies = await asyncio.wait_for(talking, ENDS_WITHIN.total_seconds())
            except TimeoutError as error:
                message = f"the talk did not end within {ENDS_WITHIN.total_seconds():.0f} s"
                raise TooLateError(message) from error
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)
        if replies != undisturbed.replies:
            self.outcome.astray.append(f"replied {replies}, not {undisturbed.replies}")
        await self._release(disturber, plan)
        await self._judge(undisturbed)

    async def _release(self, disturber: Disturber, plan: FaultPlan) -> None:
        """Let what is late happen now."""
        answer = await disturber.release(LATE_WITHIN)
        if self.point.late and answer not in self.point.late:
            wanted = " or ".join(sorted(self.point.late))
            self.outcome.divergent.append(f"a late write was answered {answer}, not {wanted}")
        if self.point.is_of_rows and self.point.writes_late:
            await seen(
                lambda: plan.answer(FAULT) is not None, within=LATE_WITHIN, what="no late call"
            )

    async def _judge(self, undisturbed: UndisturbedTalk) -> None:
        """Rows, runs, live text and histories, where all is over."""
        outcome, store = self.outcome, self.lane.store
        left = await left_by(self.lane, self.name)
        for kind, wanted in undisturbed.rows.items():
            outcome.compare_rows(kind, left.rows[kind], wanted)
        outcome.compare(left.trails, undisturbed.trails)
        if left.executions != undisturbed.executions:
            outcome.divergent.append(f"{left.executions} executions of the conversation")
        rebuilt = await rebuild_conversation(store, self.name, now=_now())
        if rebuilt.changed_rows:
            outcome.divergent.append(f"{rebuilt.changed_rows} rows differ from what runs say")
        for message, reply in undisturbed.replies.items():
            run_id = run_of(self.name, message)
            if (text := await _followed(store, run_id)) != reply:
                outcome.divergent.append(f"live text of {message} adds up to {text!r}")
            outcome.divergent += await problems_of_history(self.lane, run_id, agents=SERVED)
        outcome.divergent += await self._problems_of_conversation()

    async def _problems_of_conversation(self) -> list[str]:
        try:
            for history in await histories_of(self.lane.client, self.handle.id):
                await build_replayer(SERVED).replay_workflow(history)
        except Exception as error:  # noqa: BLE001 - whatever a replay finds
            return [f"replay of the conversation: {type(error).__name__}: {error}"]
        return []


def handle_of(client: Client, name: str) -> WorkflowHandle[Any, Any]:
    """The conversation's workflow."""
    return client.get_workflow_handle(conversation_workflow_id(DEFAULT_WORKSPACE, name))


def run_of(name: str, message: str) -> str:
    """The run that answers a message, which is its own id."""
    return turn_run_id(DEFAULT_WORKSPACE, name, message, 1)


async def hold_talk(lane: Lane, name: str) -> dict[str, object]:
    """Say all there is to say, the last two at once; the replies, when every turn is written."""
    conversation = DurableConversation.connect(
        lane.client,
        agent=TALKER,
        conversation_id=name,
        task_queue=name,
        recycle_turns=RECYCLE_TURNS,
    )
    first, *others = TALK
    tickets = {first: await conversation.submit(first, message_id=first)}
    replies: dict[str, object] = {first: (await conversation.output(first, tickets[first])).output}
    for message in others:
        tickets[message] = await conversation.submit(message, message_id=message)
    for message in others:
        replies[message] = (await conversation.output(message, tickets[message])).output

    async def is_settled() -> bool:
        turns = await lane.store.conversations.list_turns(name)
        return {each.record.status for each in turns} == {"completed"}

    await seen(is_settled, within=SETTLES_WITHIN, what="a turn is not written as completed")
    return replies


async def left_by(lane: Lane, name: str) -> UndisturbedTalk:
    """All that a conversation has left, without ids and times that differ each time."""
    conversations = lane.store.conversations
    turns = await conversations.list_turns(name)
    head = await conversations.find(name)
    ids = [each.record.public_id for each in turns]
    runs = await lane.store.list_runs(conversation_id=name)
    known = {run_of(name, message): message for message in TALK}
    rows: Mapping[str, list[tuple[object, ...]]] = {
        "turn": [
            (t.position, t.message_id, t.prompt, t.status, t.steers, t.active_variant)
            for t in (each.record for each in turns)
        ],
        "variant": [
            ((v.position, v.number), v.status, v.content, v.error, v.order, v.path_revision)
            for each in turns
            for v in each.variants
        ],
        "head": []
        if head is None
        else [("head", head.state, head.turn_count, head.order_count, ids == sorted(ids))],
        "unfinished": [
            (variant.position, variant.status)
            for _, variant in await conversations.list_unfinished(name)
        ],
    }
    return UndisturbedTalk(
        replies={},
        trails={
            known.get(each.run_id, each.run_id): await trail_of(lane.store, each.run_id)
            for each in runs
        },
        rows=dict(rows),
        executions=len(await histories_of(lane.client, handle_of(lane.client, name).id)),
    )


async def talk_undisturbed(lane: Lane) -> tuple[UndisturbedTalk, list[str], list[Operation]]:
    """A conversation that nothing disturbs, with the calls of its rows, and its runs' commits."""
    name = f"undisturbed-{secrets.token_hex(8)}"
    directory = lane.directory / name
    directory.mkdir()
    plan = TalkListeningPlan(directory=directory)
    worker = WorkerProcess(settings=lane.settings(name), plan=plan)
    worker.start()
    try:
        replies = await asyncio.wait_for(hold_talk(lane, name), ENDS_WITHIN.total_seconds())
        left = await left_by(lane, name)
        await handle_of(lane.client, name).terminate("it is over")
    finally:
        worker.kill()
    known = {run_of(name, message): message for message in TALK}
    lines = map(json.loads, _lines(directory / CALLS))
    operations = [
        Operation(
            agent=known[line["run_id"]], number=line["number"], kind=line["kind"], key=line["key"]
        )
        for line in lines
    ]
    undisturbed = UndisturbedTalk(
        replies=replies, trails=left.trails, rows=left.rows, executions=left.executions
    )
    return undisturbed, _lines(directory / CALLS_OF_ROWS), operations


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


async def _followed(store: StepStore, run_id: str) -> str:
    """What a reader makes of the live text of a run that is over."""
    text = ""
    async for event in follow_run(store, run_id):
        text = joined(text, event)
    return text


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the command line has no other clock
