"""A turn at a terminal: its text while it comes, its tool calls, and approvals asked in place."""

import asyncio
import sys
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING

from cli.approving import Decision, decide
from cli.deciding import decider
from cli.failures import CommandError
from cli.output import note, printable
from cli.standings import place_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from stores.following import StreamEvent
    from stores.protocols import StepStore
    from stores.records import ToolEffectRecord
    from workflows.conversation_models import Ticket
    from workflows.durable_conversation import DurableConversation
    from workflows.live_reply import HeldReply

QUIET = timedelta(milliseconds=300)
"""After which the ledger is asked whether a call waits for approval."""


class TurnDisplay:
    """Shows turns of one conversation.

    Text goes to a terminal as it comes. Where standard output is none, only what is of the reply
    goes there, once that is sure. Everything else goes to standard error.
    """

    def __init__(
        self, conversation: "DurableConversation", store: "StepStore", *, by: str | None
    ) -> None:
        self._conversation = conversation
        self._store = store
        self._by = by
        self._is_live = sys.stdout.isatty()
        self._asked: set[tuple[str, str, str | None]] = set()

    async def show(self, text: str, ticket: "Ticket") -> None:
        """Show the answer to `text` until it is whole; raises what `reply` raises."""
        from stores.errors import StoreUnavailableError  # noqa: PLC0415 - slow to load
        from workflows.live_reply import HeldReply  # noqa: PLC0415

        held = HeldReply()
        try:
            async with aclosing(self._conversation.follow(text, ticket)) as events:
                await self._hear(events, held, ticket.answer.run_id)
        except StoreUnavailableError as error:
            note(f"Waiting for the reply: {error}")
            held = HeldReply()
        output = str((await self._conversation.reply(text, ticket)).output)
        if not self._is_live or not held.adds_up_to(output):
            sys.stdout.write(printable(output))
        sys.stdout.write("\n")
        sys.stdout.flush()

    async def _hear(
        self, events: "AsyncGenerator[StreamEvent]", held: "HeldReply", run_id: str
    ) -> None:
        coming: asyncio.Task[StreamEvent | None] | None = None
        try:
            while True:  # ends: with the run
                coming = coming or asyncio.ensure_future(anext(events, None))
                await asyncio.wait([coming], timeout=QUIET.total_seconds())
                if not coming.done():
                    await self._ask_approvals(run_id)
                    continue
                event, coming = coming.result(), None
                if event is None:
                    return
                held.take(event)
                self._show(event)
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    def _show(self, event: "StreamEvent") -> None:
        match event.kind:
            case "text" if self._is_live:
                sys.stdout.write(printable(event.text))
            case "step_text" if self._is_live:
                sys.stdout.write("\n")
            case "retry" | "reset" if self._is_live:
                note("\n(that does not count; it begins again)", is_dim=True)
                sys.stdout.write(printable(event.text))
            case "tool_call_started" | "tool_call_completed" | "tool_call_failed":
                error = f": {event.error}" if event.error else ""
                what = event.kind.removeprefix("tool_call_")
                note(f"  {event.tool_name} {what}{error}", is_dim=True)
            case _:
                pass
        sys.stdout.flush()

    async def _ask_approvals(self, run_id: str) -> None:
        """Ask about calls that wait, of the run and of the delegates below it that go on."""
        from stores.errors import StoreUnavailableError  # noqa: PLC0415 - slow to load

        asked = [run_id]
        while asked:  # ends: a run has one parent
            each = asked.pop(0)
            try:
                effects = await self._store.list_tool_effects(run_id=each)
                children = await self._store.list_runs(parent_run_id=each)
            except StoreUnavailableError:  # the next look may be luckier
                return
            asked += [child.run_id for child in children if child.ended_at is None]
            for effect in effects:
                place = (each, place_of(effect), effect.arguments_digest)
                if effect.awaits_approval and place not in self._asked:
                    self._asked.add(place)
                    await self._ask(effect, by_delegate=each != run_id)

    async def _ask(self, effect: "ToolEffectRecord", *, by_delegate: bool) -> None:
        run_id, call = effect.run_id, place_of(effect)
        whose = f" of delegate {run_id}" if by_delegate else ""
        note(f"{effect.tool_name}{whose} wants to run with {effect.arguments_summary}")
        said = ""
        while said not in {"y", "yes", "n", "no"}:
            line = await asyncio.to_thread(read_line, "Let it? [y/n] ")
            if not line:
                message = (
                    f"the turn waits: `perdure approve {run_id} {call}` or `perdure deny {run_id} "
                    f"{call}`, or go on with the conversation"
                )
                raise CommandError(message)
            said = line.strip().lower()
        decision = Decision(
            decision="approved" if said.startswith("y") else "denied",
            by=decider(self._by),
            why=None,
        )
        workspace, digest = effect.workspace_id, effect.arguments_digest
        try:
            await decide(run_id, call, decision, workspace, digest, is_dry=False)
        except CommandError as error:  # somebody else was faster
            note(str(error))
        else:
            note(f"  {effect.tool_name} {decision.decision}", is_dim=True)


def read_line(mark: str) -> str:
    """The next line of standard input, empty at its end; a person is shown the mark."""
    if sys.stdin.isatty():
        sys.stderr.write(mark)
        sys.stderr.flush()
    return sys.stdin.readline()
