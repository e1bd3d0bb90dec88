"""`perdure run`: start a run of an agent, watch it, print its output."""

import asyncio
import json
import re
import secrets
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connections import current_settings, misfits, opened_store, submitting_client
from cli.failures import CommandError, WrongUsageError
from cli.options import AsJson, Workspace
from cli.output import note, print_json, print_text
from cli.progress import EventFollower

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

    from settings import Settings
    from workflows.agent_run_models import AgentRunInput, AgentRunOutput

QUIET_BEFORE_HINT = timedelta(seconds=10)
"""A run whose first event is not there by then has probably no worker; a worker starts in five."""


def run_command(
    *,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Its name.", show_default=False)],
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="What to ask; - reads it from standard input.",
            show_default=False,
        ),
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(help="Id of the run; a fresh readable one by default.")
    ] = None,
    conversation_id: Annotated[
        str | None, typer.Option(help="Conversation that the run belongs to.")
    ] = None,
    continue_from: Annotated[
        str | None, typer.Option(help="Run whose history this one continues.")
    ] = None,
    fork_from: Annotated[
        str | None, typer.Option(help="Run whose history this one branches off from.")
    ] = None,
    include_interrupted: Annotated[
        bool,
        typer.Option("--include-interrupted", help="Also from a history with unanswered calls."),
    ] = False,
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Stored on the run; repeatable.")
    ] = None,
    deps: Annotated[str | None, typer.Option(help="JSON that the agent's deps_type takes.")] = None,
    model: Annotated[
        str | None, typer.Option(help="pydantic-ai model in place of the agent's own.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            envvar="PERDURE_PRIORITY", min=1, max=5, help="1 goes first where workers are busy."
        ),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Have `perdure follow` show text while it comes.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the output, or print the id alone.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be sent, and send nothing.")
    ] = False,
    workspace: Workspace = "default",
    as_json: AsJson = False,
) -> None:
    """Run an agent.

    Its output goes to standard output, its events to standard error. The prompt may be left out
    with --continue-from and --fork-from: then unanswered tool calls of that history are executed.
    The same run sent twice under one id runs once.
    """
    request = run_request(
        agent=agent,
        prompt=sys.stdin.read() if prompt == "-" else prompt,
        conversation_id=conversation_id,
        continue_from=continue_from,
        fork_from=fork_from,
        include_interrupted=include_interrupted,
        metadata=_metadata(metadata or []),
        deps=parsed_deps(deps),
        model=model,
        stream=stream,
        workspace_id=workspace,
    )
    submission = Submission(
        settings=current_settings().model_copy(update={"priority": priority}),
        run_id=checked_run_id(run_id) if run_id is not None else fresh_run_id(agent),
        is_fresh=run_id is None,
        request=request,
    )
    if dry_run:
        print_json(submission.as_document())
    else:
        start_run(submission, wait=wait, as_json=as_json)


def start_run(submission: "Submission", *, wait: bool, as_json: bool) -> None:
    """Start the run and print what it gives: its output, or with `wait` off its id."""
    try:
        output = asyncio.run(submission.send(wait=wait))
    except _RunEndedError as error:
        if as_json:
            print_json({"run_id": submission.run_id, "state": error.state, "error": str(error)})
        raise
    if as_json:
        print_json(output or {"run_id": submission.run_id, "state": "running"})
    elif output is None:
        print_text(submission.run_id)
    else:
        text = output.output
        print_text(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False))


class _RunEndedError(CommandError):
    """The run did not complete."""

    def __init__(self, message: str, state: str) -> None:
        self.state = state
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One run to be started. `is_fresh`: nobody else can have its id."""

    settings: "Settings"
    run_id: str
    is_fresh: bool
    request: "AgentRunInput"

    def as_document(self) -> dict[str, Any]:
        """What `--dry-run` prints."""
        return {
            "run_id": self.run_id,
            "temporal_address": self.settings.temporal_address,
            "temporal_namespace": self.settings.temporal_namespace,
            "task_queue": self.settings.task_queue,
            "input": self.request.model_dump(mode="json", exclude_defaults=True),
        }

    async def send(self, *, wait: bool) -> "AgentRunOutput | None":
        """Start the run; with `wait` return its output.

        Raises:
            UnreachableError: Temporal does not answer.
            WrongUsageError: the input is larger than Temporal takes.
            CommandError: the id is taken, or the run did not complete.
        """
        async with submitting_client(self.settings) as client:
            return await self._send(client, wait=wait)

    async def _send(self, client: "Client", *, wait: bool) -> "AgentRunOutput | None":
        handle = await self._start(client)
        note(f"Run {self.run_id} of agent {self.request.agent} is started.")
        if not wait:
            note(f"It goes on by itself; `perdure show {self.run_id}` says how it stands.")
            return None
        try:
            output = await self._result(handle)
        except asyncio.CancelledError:
            note(f"The run goes on by itself; `perdure show {self.run_id}` says how it stands.")
            raise
        note(
            f"Run {self.run_id} completed: {output.message_count} messages, "
            f"{output.usage.requests} model requests. Look further with `perdure show "
            f"{self.run_id}` and `perdure messages {self.run_id}`."
        )
        return output

    async def _start(self, client: "Client") -> "WorkflowHandle[Any, AgentRunOutput]":
        from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy  # noqa: PLC0415
        from temporalio.exceptions import (  # noqa: PLC0415
            ApplicationError,
            WorkflowAlreadyStartedError,
        )
        from temporalio.service import RPCError  # noqa: PLC0415

        from workflows.agent_run_models import AgentRunOutput  # noqa: PLC0415
        from workflows.fairness import priority_of  # noqa: PLC0415
        from workflows.names import AGENT_RUN  # noqa: PLC0415

        settings = self.settings
        priority = priority_of(
            self.request.workspace_id,
            priority=settings.priority,
            weights=settings.fairness_weights,
        )
        try:
            handle = await client.start_workflow(
                AGENT_RUN,
                self.request,
                id=self.run_id,
                task_queue=settings.task_queue,
                result_type=AgentRunOutput,
                priority=priority,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            )
        except WorkflowAlreadyStartedError as error:
            raise CommandError(self._taken()) from error
        except RPCError as error:
            message = f"the run was not sent: Temporal refused it: {error.message}"
            raise CommandError(message) from error
        except ApplicationError as error:  # of our converter, which measures what it encodes
            message = f"the run was not sent: {error.message}"
            raise WrongUsageError(message) from error
        if not self.is_fresh and await self._is_another(client):
            raise CommandError(self._taken())
        return handle

    async def _is_another(self, client: "Client") -> bool:
        """Whether the open run of this id was started with something else than this request."""
        from workflows.agent_run_models import AgentRunInput  # noqa: PLC0415
        from workflows.names import AGENT_RUN  # noqa: PLC0415

        handle = client.get_workflow_handle(self.run_id)
        async for event in handle.fetch_history_events(page_size=1):
            started = event.workflow_execution_started_event_attributes
            if started.workflow_type.name != AGENT_RUN:
                return True
            payloads = started.input.payloads
            sent = await client.data_converter.decode(payloads, [AgentRunInput])
            return sent != [self.request]
        return False

    def _taken(self) -> str:
        from stores.errors import RunIdTakenError  # noqa: PLC0415

        return str(RunIdTakenError(self.run_id))

    async def _result(self, handle: "WorkflowHandle[Any, AgentRunOutput]") -> "AgentRunOutput":
        from temporalio.client import WorkflowFailureError  # noqa: PLC0415

        watcher = asyncio.create_task(self._watch())
        try:
            return await handle.result()
        except WorkflowFailureError as error:
            raise self._ended(error) from error
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    async def _watch(self) -> None:
        """Tell the run's events. Not being able to is no failure: the result is Temporal's."""
        from stores.errors import StoreError  # noqa: PLC0415

        try:
            async with opened_store(self.settings, self.request.workspace_id) as store:
                follower = EventFollower(store, self.run_id)
                try:
                    await follower.follow(hint_after=QUIET_BEFORE_HINT, hint=self._hint())
                finally:
                    await follower.tell()
        except (StoreError, CommandError) as error:
            note(f"Its events cannot be shown: {error}")

    def _hint(self) -> str:
        return (
            "Nothing has happened yet. Does a worker poll task queue "
            f"{self.settings.task_queue!r}? "
            "The run waits for one: `perdure dev`, or `python worker.py`."
        )

    def _ended(self, error: "WorkflowFailureError") -> _RunEndedError:
        from temporalio.exceptions import (  # noqa: PLC0415
            CancelledError,
            TerminatedError,
            TimeoutError,  # noqa: A004
        )

        kinds: dict[type[BaseException], str] = {
            CancelledError: "cancelled",
            TerminatedError: "terminated",
            TimeoutError: "timed_out",
        }
        state = next((s for kind, s in kinds.items() if isinstance(error.cause, kind)), "failed")
        words = getattr(error.cause, "message", None) or str(error.cause)
        message = f"{words} (run {self.run_id!r} {state}; see `perdure show {self.run_id}`)"
        return _RunEndedError(message, state)


def run_request(**fields: Any) -> "AgentRunInput":  # noqa: ANN401 - checked by the model
    """The input of `agent_run` with these fields.

    Raises:
        WrongUsageError: they do not fit.
    """
    from pydantic import ValidationError  # noqa: PLC0415

    from workflows.agent_run_models import AgentRunInput  # noqa: PLC0415

    try:
        return AgentRunInput(**fields)
    except ValidationError as error:
        message = f"the run was not sent: {misfits(error)}"
        raise WrongUsageError(message) from error


def checked_run_id(run_id: str) -> str:
    """The id, when a run may have it."""
    from stores.identifiers import check_identifier  # noqa: PLC0415

    return check_identifier("run_id", run_id)


def fresh_run_id(agent: str) -> str:
    """`<agent>-<UTC time>-<random>`: sorts by time, can be read aloud, and nobody else has it."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", agent).strip("-")[:40] or "run"
    now = datetime.now(UTC)  # noqa: TID251 - a name for people, made outside any workflow
    return f"{slug}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def _metadata(pairs: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            message = f"--metadata {pair!r} is no KEY=VALUE"
            raise WrongUsageError(message)
        found[key] = value
    return found


def parsed_deps(text: str | None) -> object:
    """What the JSON of `--deps` says.

    Raises:
        WrongUsageError: it is no JSON.
    """
    if text is None:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        message = f"--deps is no JSON: {error}"
        raise WrongUsageError(message) from error
