"""Histories of workflows: of one over all its executions, and of all that ran since some time."""

import re
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cli.failures import WrongUsageError

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHistory
    from temporalio.converter import DataConverter

_AGE = re.compile(r"(\d+)\s*([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The executions of a workflow id that went on from each other, oldest first.

    `is_whole` is false where Temporal keeps an older one no more.
    """

    workflow_id: str
    histories: tuple["WorkflowHistory", ...] = ()
    is_whole: bool = False


async def chain_of(client: "Client", workflow_id: str) -> Chain:
    """The newest execution of a workflow id and those before it; empty when there is none."""
    from temporalio.service import RPCError, RPCStatusCode  # noqa: PLC0415

    found: list[WorkflowHistory] = []
    execution_id: str | None = None
    is_whole = False
    try:
        while not is_whole:
            handle = client.get_workflow_handle(workflow_id, run_id=execution_id)
            found.insert(0, await handle.fetch_history())
            started = found[0].events[0].workflow_execution_started_event_attributes
            execution_id = started.continued_execution_run_id
            is_whole = not execution_id
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
    return Chain(workflow_id=workflow_id, histories=tuple(found), is_whole=is_whole)


@dataclass(frozen=True, kw_only=True)
class ListedExecution:
    """One execution, as Temporal lists it."""

    workflow_id: str
    execution_id: str
    workflow_type: str


async def listed(
    client: "Client",
    *,
    types: Iterable[str],
    since: datetime | None = None,
    only_open: bool = False,
    limit: int | None = None,
) -> AsyncGenerator[ListedExecution]:
    """Executions of these workflow types, newest first.

    Args:
        client: needs no data converter.
        types: of workflows.
        since: only those that ran at or after this time.
        only_open: only those that go on.
        limit: not more than that; `None` is all.
    """
    names = " OR ".join(f"WorkflowType = '{each}'" for each in types)
    parts = [f"({names})"]
    if since is not None:
        time = since.astimezone(UTC).isoformat().replace("+00:00", "Z")
        running = "ExecutionStatus = 'Running'"
        parts.append(f"({running} OR StartTime >= '{time}' OR CloseTime >= '{time}')")
    if only_open:
        parts.append("ExecutionStatus = 'Running'")
    async for each in client.list_workflows(" AND ".join(parts), limit=limit):
        yield ListedExecution(
            workflow_id=each.id, execution_id=each.run_id, workflow_type=each.workflow_type
        )


def time_before(now: datetime, age: str) -> datetime:
    """The time so long ago: `30m`, `12h`, `7d`, `2w`.

    Raises:
        WrongUsageError: it is no such age.
    """
    found = _AGE.fullmatch(age.strip())
    try:
        return now - timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else _refuse(age)
    except OverflowError:
        return _refuse(age)


def _refuse(age: str) -> datetime:
    message = f"--since {age!r} is no age; write for example 30m, 12h, 7d or 2w"
    raise WrongUsageError(message)


async def agent_of(history: "WorkflowHistory", converter: "DataConverter") -> str | None:
    """The agent that an `agent_run` was started with; `None` for other workflows.

    Raises:
        ApplicationError: its input does not fit this code.
    """
    from workflows.agent_run_models import AgentRunInput  # noqa: PLC0415
    from workflows.names import AGENT_RUN  # noqa: PLC0415

    started = history.events[0].workflow_execution_started_event_attributes
    if started.workflow_type.name != AGENT_RUN:
        return None
    (request,) = await converter.decode(started.input.payloads, [AgentRunInput])
    return str(request.agent)


def words_of(failure: BaseException) -> str:
    """The message inside the core's dump of a replay's failure, which is as Rust prints it."""
    text = str(failure)
    messages = re.findall(r'message: "((?:[^"\\]|\\.)*)"', text)
    if not messages:
        return text
    # What pydantic says of a bad value is followed by the value itself: content of a message.
    readable = (each.replace('\\"', '"').replace("\\n", " ") for each in messages)
    return ": ".join(re.sub(r" \[type=.*", "", each) for each in readable)
