"""The workflow `conversation`: one turn at a time, each a child `agent_run`."""

import asyncio
from datetime import timedelta
from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.conversations import (
        AdmitMessageRequest,
        AdmitMessageResult,
        AnswerHandle,
        ChangeConversationRequest,
        ConversationBeginning,
        ConversationChanged,
        FinishTurnRequest,
        FinishTurnResult,
        ForkConversationRequest,
        OpenConversationRequest,
        OpenConversationResult,
    )
    from activities.naming import NameConversationRequest, NameConversationResult
    from workflows import names, policies
    from workflows.conversation_journal import ConversationJournal
    from workflows.conversation_models import (
        ArchiveRequest,
        ConversationInput,
        ConversationSettings,
        ConversationStatus,
        ForkRequest,
        RegenerateRequest,
        RenameRequest,
        SayRequest,
        SelectVariantRequest,
        Ticket,
        TurnCancelled,
        VisibilityRequest,
    )
    from workflows.conversation_turn import TurnOutcome, run_turn, turn_input
    from workflows.hops import NEWEST
    from workflows.metering import count_hop
    from workflows.steering import Steer


@workflow.defn(name=names.CONVERSATION)
class ConversationWorkflow:
    """Holds handles of what is asked for and not answered; everything said is in the store.

    States: opening, then waiting or answering, until it has been idle for its time or was closed
    and has nothing left to answer. `say` and `regenerate` add to the queue; the queue of the store
    is the true one, and is taken up by the next execution. Continues as new after
    `recycle_turns` turns or `recycle_updates` updates, between two turns and never within one.
    """

    @workflow.init
    def __init__(self, request: ConversationInput) -> None:
        self._request = request
        self._journal = ConversationJournal()
        self._settings: ConversationSettings | None = None
        self._refusal: ApplicationError | None = None
        self._queue: list[AnswerHandle] = []
        self._running: AnswerHandle | None = None
        self._next_order = 0
        self._turns = 0
        self._updates = 0
        self._is_closing = False
        self._naming: workflow.ActivityHandle[NameConversationResult] | None = None
        self._steers: dict[str, SayRequest] = {}
        """Given to the turn in progress; forgotten with it."""

    @workflow.run
    async def run(self, request: ConversationInput) -> None:
        """Answer until idle or closed; continues as new in between."""
        await self._open()
        while self._refusal is None:
            reason = self._recycled_for()
            if reason is not None:
                await self._settle()
                count_hop(reason)
                workflow.continue_as_new(request, initial_versioning_behavior=NEWEST)
            if self._queue:
                await self._answer(self._queue[0])
            elif self._is_closing or not await self._is_awoken():
                await self._settle()
                if not self._queue:
                    return
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _settle(self) -> None:
        """Nothing is in progress any more: no handler, and no name being made."""
        if self._naming is not None:
            await asyncio.gather(self._naming, return_exceptions=True)
        await workflow.wait_condition(workflow.all_handlers_finished)

    def _recycled_for(self) -> str | None:
        """Why to go on in a fresh execution now; `None` when there is no reason."""
        settings, info = self._known_settings, workflow.info()
        if self._turns >= settings.recycle_turns:
            return "turns"
        if self._updates >= settings.recycle_updates:
            return "updates"
        if info.is_continue_as_new_suggested() and self._turns > 0:
            return "suggested"
        # Between turns a newer build takes over; a pinned execution does not move by itself.
        return "version" if info.is_target_worker_deployment_version_changed() else None

    async def _is_awoken(self) -> bool:
        """Whether something came within the idle time."""
        idle = timedelta(seconds=self._known_settings.idle_seconds)
        updates = self._updates

        def came() -> bool:
            return bool(self._queue) or self._is_closing or self._recycled_for() is not None

        try:
            await workflow.wait_condition(came, timeout=idle)
        except TimeoutError:
            return self._updates > updates  # somebody is here, if only to look: another idle time
        return True

    async def _open(self) -> None:
        settings = self._request.settings
        begin = None
        if settings is not None:
            begin = ConversationBeginning(
                agent=settings.agent,
                kind=settings.kind,
                max_turns=settings.max_turns,
                max_tokens=settings.max_tokens,
                principal=self._request.principal,
                settings=settings.model_dump_json(),
            )
        try:
            await self._reload(begin)
        except ApplicationError as error:
            self._refusal = error

    async def _reload(self, begin: ConversationBeginning | None) -> None:
        """Take settings and queue from the store."""
        place = self._request
        request = OpenConversationRequest(
            conversation_id=place.conversation_id, workspace_id=place.workspace_id, begin=begin
        )
        opened = await self._journal.write("open_conversation", request, OpenConversationResult)
        self._settings = ConversationSettings.model_validate_json(opened.settings)
        running = self._running
        self._queue = [
            each for each in opened.queue if running is None or each.run_id != running.run_id
        ]
        self._next_order = opened.next_order

    @property
    def _place(self) -> dict[str, str]:
        request = self._request
        return {"conversation_id": request.conversation_id, "workspace_id": request.workspace_id}

    @property
    def _known_settings(self) -> ConversationSettings:
        if self._settings is None:
            message = "the conversation is not open yet"
            raise RuntimeError(message)
        return self._settings

    # Turns

    async def _answer(self, answer: AnswerHandle) -> None:
        self._queue.remove(answer)
        self._running = answer
        request = turn_input(answer, self._known_settings, **self._place)
        try:
            outcome = await run_turn(answer.run_id, request)
        except asyncio.CancelledError:
            await asyncio.shield(self._finish(answer, TurnOutcome(status="cancelled")))
            raise
        await self._finish(answer, outcome)
        self._turns += 1
        self._running = None
        self._name()
        steers, self._steers = self._steers, {}
        for message_id in outcome.undelivered:
            said = steers.get(message_id)
            if said is not None:  # it came when the run had said its last word: a turn of its own
                late = said.model_copy(update={"message_id": f"{message_id}/late"})
                await self._admit(late)

    def _name(self) -> None:
        """Have a title made beside the next turn; one at a time, and none that fails matters."""
        settings = self._known_settings
        if settings.names_itself and (self._naming is None or self._naming.done()):
            self._naming = workflow.start_activity(
                "name_conversation",
                NameConversationRequest(
                    conversation_id=self._request.conversation_id,
                    workspace_id=self._request.workspace_id,
                    model=settings.namer_model,
                ),
                result_type=NameConversationResult,
                start_to_close_timeout=policies.NAMING_TIMEOUT,
                retry_policy=policies.NAMING_RETRIES,
            )

    async def _finish(self, answer: AnswerHandle, outcome: TurnOutcome) -> None:
        request = FinishTurnRequest(
            **self._place,
            position=answer.position,
            number=answer.number,
            run_id=answer.run_id,
            status=outcome.status,
            error=outcome.error,
        )
        await self._journal.write("finish_turn", request, FinishTurnResult)

    # Messages

    @workflow.update(name=names.SAY_UPDATE)
    async def say(self, request: SayRequest) -> Ticket:
        """Journal a message; the ticket says which run answers it."""
        settings = await self._ready()
        if self._running is None and not self._queue:
            return await self._admit(request)
        known = await self._look(request)
        if known is not None:
            return known
        if self._running is not None and settings.mid_turn == "reject":
            self._refuse("TurnInProgressError", "a turn is in progress; wait for its answer")
        if self._running is not None and settings.mid_turn == "steer":
            steered = await self._steer(request)
            if steered is not None:
                return steered
        self._check_room(settings)
        ticket = await self._admit(request)
        if self._running is not None and settings.mid_turn == "interrupt":
            await self._cancel(self._running)
        return ticket

    @say.validator
    def _check_say(self, request: SayRequest) -> None:
        self._check_text(request)

    @workflow.update(name=names.STEER_UPDATE)
    async def steer(self, request: SayRequest) -> Ticket:
        """Give text to the run in progress, before its next model request."""
        await self._ready()
        known = await self._look(request)
        ticket = known or await self._steer(request)
        if ticket is None:
            self._refuse("TurnStateError", "no turn is in progress; say it instead")
        return ticket

    @steer.validator
    def _check_steer(self, request: SayRequest) -> None:
        self._check_text(request)

    @workflow.update(name=names.REGENERATE_UPDATE)
    async def regenerate(self, request: RegenerateRequest) -> Ticket:
        """Ask for another answer to a turn; it counts when it is selected."""
        self._check_room(await self._ready())
        return await self._admit(
            SayRequest(text="", message_id=request.message_id, principal=request.principal),
            position=request.position,
        )

    @workflow.update(name=names.CANCEL_TURN_UPDATE)
    async def cancel(self) -> TurnCancelled:
        """Cancel the turn in progress."""
        await self._ready()
        if self._running is None:
            self._refuse("TurnStateError", "no turn is in progress")
        running = self._running
        await self._cancel(running)
        return TurnCancelled(run_id=running.run_id)

    def _check_text(self, request: SayRequest) -> None:
        if not request.text.strip():
            self._refuse("EmptyMessageError", "a message is empty; say something")
        if not request.message_id:
            self._refuse("EmptyMessageError", "a message has no id; give it one of its own")

    def _check_room(self, settings: ConversationSettings) -> None:
        if len(self._queue) >= settings.queue_limit:
            problem = f"{len(self._queue)} messages wait, which is the most; wait for answers"
            self._refuse("QueueFullError", problem)

    async def _ready(self) -> ConversationSettings:
        """Wait until it is open; refuse what the store refused."""
        self._updates += 1
        await workflow.wait_condition(
            lambda: self._settings is not None or self._refusal is not None
        )
        if self._refusal is not None:
            refusal = self._refusal
            raise ApplicationError(str(refusal.message), type=refusal.type, non_retryable=True)
        return self._known_settings

    async def _look(self, request: SayRequest) -> Ticket | None:
        looked = await self._message(request, intent="look")
        return None if looked.answer is None else self._ticket(looked.answer, is_new=False)

    async def _admit(self, request: SayRequest, *, position: int | None = None) -> Ticket:
        intent = "turn" if position is None else "regenerate"
        admitted = await self._message(request, intent=intent, position=position or 0)
        answer = admitted.answer
        if answer is None:
            message = f"activity admit_message gave no answer to intent {intent!r}"
            raise RuntimeError(message)
        if answer.order == self._next_order:
            self._next_order += 1
            self._queue.append(answer)
        elif answer.status == "pending" and not self._holds(answer):
            # Journaled by a workflow task that was lost, or by an execution that is gone.
            await self._reload(None)
        return self._ticket(answer, is_new=admitted.is_new)

    def _holds(self, answer: AnswerHandle) -> bool:
        held = [*self._queue, *([self._running] if self._running else [])]
        return any(each.run_id == answer.run_id for each in held)

    async def _steer(self, request: SayRequest) -> Ticket | None:
        """`None`: nothing is in progress, or it has ended before the text reached it."""
        running = self._running
        if running is None:
            return None
        self._steers[request.message_id] = request
        child = workflow.get_external_workflow_handle(running.run_id)
        steer = Steer(message_id=request.message_id, text=request.text)
        try:
            await child.signal(names.STEER_SIGNAL, steer)
        except ApplicationError:
            return None
        said = await self._message(
            request, intent="steer", position=running.position, number=running.number
        )
        ticket = self._ticket(said.answer or running, is_new=said.is_new)
        return ticket.model_copy(update={"is_steer": True})

    async def _message(
        self, request: SayRequest, *, intent: str, position: int = 0, number: int = 0
    ) -> AdmitMessageResult:
        admit = AdmitMessageRequest.model_validate(
            {
                **self._place,
                "message_id": request.message_id,
                "text": request.text,
                "principal": request.principal,
                "intent": intent,
                "position": position,
                "number": number,
            }
        )
        return await self._journal.write("admit_message", admit, AdmitMessageResult)

    def _ticket(self, answer: AnswerHandle, *, is_new: bool) -> Ticket:
        place = self._request
        return Ticket(
            conversation_id=place.conversation_id,
            workspace_id=place.workspace_id,
            answer=answer,
            is_new=is_new,
        )

    async def _cancel(self, answer: AnswerHandle) -> None:
        await workflow.get_external_workflow_handle(answer.run_id).cancel()

    def _refuse(self, kind: str, problem: str) -> NoReturn:
        message = f"conversation {self._request.conversation_id!r}: {problem}"
        raise ApplicationError(message, type=kind, non_retryable=True)

    # Changes

    @workflow.update(name=names.SELECT_VARIANT_UPDATE)
    async def select_variant(self, request: SelectVariantRequest) -> ConversationChanged:
        """Make another answer the one that is read and remembered."""
        return await self._change(change="select", position=request.position, number=request.number)

    @workflow.update(name=names.HIDE_UPDATE)
    async def hide(self, request: VisibilityRequest) -> ConversationChanged:
        """Hide a turn, or show it again: a member's choice."""
        return await self._change(change="hide", position=request.position, is_on=request.is_on)

    @workflow.update(name=names.CONCEAL_UPDATE)
    async def conceal(self, request: VisibilityRequest) -> ConversationChanged:
        """Conceal a turn, or show it again: for a policy, never for a member."""
        return await self._change(change="conceal", position=request.position, is_on=request.is_on)

    @workflow.update(name=names.RENAME_UPDATE)
    async def rename(self, request: RenameRequest) -> ConversationChanged:
        """Name the conversation by hand."""
        return await self._change(change="rename", **dict(request))

    @workflow.update(name=names.ARCHIVE_UPDATE)
    async def archive(self, request: ArchiveRequest) -> ConversationChanged:
        """Put the conversation away, or take it out again."""
        return await self._change(change="archive", is_on=request.is_on)

    @workflow.update(name=names.CLOSE_UPDATE)
    async def close(self) -> ConversationChanged:
        """Take nothing more; what waits is answered still."""
        changed = await self._change(change="close")
        self._is_closing = True
        return changed

    @workflow.update(name=names.FORK_UPDATE)
    async def fork(self, request: ForkRequest) -> ConversationChanged:
        """A new conversation that inherits the turns up to one."""
        await self._ready()
        forking = ForkConversationRequest.model_validate({**self._place, **dict(request)})
        return await self._journal.write("fork_conversation", forking, ConversationChanged)

    async def _change(self, **fields: object) -> ConversationChanged:
        await self._ready()
        request = ChangeConversationRequest.model_validate({**self._place, **fields})
        return await self._journal.write("change_conversation", request, ConversationChanged)

    @workflow.query(name=names.STATUS_QUERY)
    def status(self) -> ConversationStatus:
        """How the conversation's workflow stands."""
        return ConversationStatus(
            agent=self._settings.agent if self._settings else None,
            running=self._running,
            queued=len(self._queue),
            turns=self._turns,
            updates=self._updates,
            carried=len(self._queue) + len(self._steers) + bool(self._running),
        )
