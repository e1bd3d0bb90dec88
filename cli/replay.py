"""`perdure replay`: does this code still fit a run's history?"""

import asyncio
import logging
from typing import TYPE_CHECKING

import typer

from cli.connections import connected_client, current_settings
from cli.dev import DEV_AGENTS
from cli.failures import CommandError, ExitCode, NotFoundError
from cli.histories import agent_of, chain_of, words_of
from cli.options import AsJson, RunId
from cli.output import print_json, print_text

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHistory
    from temporalio.converter import DataConverter
    from temporalio.worker import Replayer

    from settings import Settings


def replay_command(*, run_id: RunId, as_json: AsJson = False) -> None:
    """Replay a run on this code.

    Its history comes from Temporal, its agent from PERDURE_AGENTS. Of a run that went on in several
    executions each is replayed, as far back as Temporal keeps them. Nothing is executed and nothing
    is written. Exit code 1 and the first difference when this code would take the run another way.
    """
    settings = current_settings()
    # The SDK logs a traceback of each failure, which is told below in one line.
    logging.getLogger("temporalio").setLevel(logging.CRITICAL)
    histories, divergence = asyncio.run(_replay(settings, run_id))
    count = sum(len(each.events) for each in histories)
    if as_json:
        document = {
            "run_id": run_id,
            "ok": divergence is None,
            "events": count,
            "executions": len(histories),
            "divergence": divergence,
        }
        print_json(document)
    elif divergence is None:
        where = f" of {len(histories)} executions" if len(histories) > 1 else ""
        print_text(
            f"ok: this code takes run {run_id} the same way through all {count} events{where}"
        )
    else:
        print_text(f"differs: run {run_id} does not replay on this code: {divergence}")
    if divergence is not None:
        raise typer.Exit(ExitCode.FAILED)


async def _replay(settings: "Settings", run_id: str) -> "tuple[list[WorkflowHistory], str | None]":
    """The histories, oldest first, and what this code does otherwise; `None` when nothing."""
    client = await connected_client(settings)
    histories = await _histories(client, run_id)
    converter = client.data_converter
    replayer = _replayer(settings, await _agent_name(histories[0], converter), converter)
    for number, history in enumerate(histories, start=1):
        result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
        failure = result.replay_failure
        if failure is not None:
            where = f"execution {number} of {len(histories)}: " if len(histories) > 1 else ""
            return histories, f"{where}{type(failure).__name__}: {words_of(failure)}"
    return histories, None


async def _histories(client: "Client", run_id: str) -> "list[WorkflowHistory]":
    """Of each execution of the run, oldest first; those before the newest may be gone.

    Raises:
        NotFoundError: there is none.
    """
    chain = await chain_of(client, run_id)
    if chain.histories:
        return list(chain.histories)
    message = (
        f"run {run_id!r} cannot be replayed: Temporal's namespace "
        f"{client.namespace!r} has no workflow of this id. A run inside another "
        "workflow is replayed by that one's id; a history is gone after its retention time"
    )
    raise NotFoundError(message)


async def _agent_name(history: "WorkflowHistory", converter: "DataConverter") -> str:
    """The agent that the run was started with.

    Raises:
        CommandError: the workflow is none of Perdure's.
    """
    agent = await agent_of(history, converter)
    if agent is None:
        started = history.events[0].workflow_execution_started_event_attributes
        message = (
            f"workflow {history.workflow_id!r} is of type {started.workflow_type.name!r}, which is "
            "not Perdure's; replay it with a temporalio.worker.Replayer that knows its class"
        )
        raise CommandError(message)
    return agent


def _replayer(settings: "Settings", agent_name: str, converter: "DataConverter") -> "Replayer":
    """A replayer set up as the worker is.

    Raises:
        CommandError: an agent cannot be loaded, or the run's agent is not among them.
    """
    from agents.registry import load_agents  # noqa: PLC0415
    from worker import build_replayer  # noqa: PLC0415
    from workflows.agents import AgentSetupError  # noqa: PLC0415

    try:
        agents = load_agents(settings.agent_paths or DEV_AGENTS.split(","))
        replayer = build_replayer(agents, converter=converter)
    except AgentSetupError as error:
        raise CommandError(str(error)) from error
    known = sorted(agent.name or "" for agent in agents)
    if agent_name not in known:
        message = (
            f"the run's agent {agent_name!r} is not on this code: PERDURE_AGENTS gives "
            f"{', '.join(known)}. Name its module:attribute there"
        )
        raise CommandError(message)
    return replayer
