"""`perdure init` and `perdure doctor`: make what a worker needs, and check that it is there."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from cli.connections import (
    DEFAULT_TEMPORAL_ADDRESS,
    connected_client,
    current_settings,
    initialised,
    opened_store,
)
from cli.data_directory import without_password
from cli.dev import DEV_AGENTS
from cli.failures import ExitCode, UnreachableError
from cli.findings import Finding
from cli.options import AsJson
from cli.output import print_json, print_table, print_text
from cli.rollout import examine_collector, examine_rollout
from stores.errors import StoreError
from stores.identifiers import DEFAULT_WORKSPACE

if TYPE_CHECKING:
    from temporalio.client import Client

    from settings import Settings


def init_command(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be touched, and touch nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make indexes and search attributes.

    The indexes are MongoDB's, the search attributes Temporal's. What is there stays as it is.
    """
    settings = current_settings()
    if settings.mongodb_uri is None:
        message = "init needs a MongoDB: set PERDURE_MONGODB_URI, or start `perdure dev`"
        raise UnreachableError(message)
    mongodb = without_password(settings.mongodb_uri)
    temporal = settings.temporal_address or DEFAULT_TEMPORAL_ADDRESS
    targets = [
        f"indexes of database {settings.mongodb_database!r} at {mongodb}",
        f"search attributes of namespace {settings.temporal_namespace!r} at Temporal {temporal}",
    ]
    done = [] if dry_run else asyncio.run(initialised(settings))
    if as_json:
        print_json({"targets": targets, "dry_run": dry_run, "done": done})
        return
    if dry_run:
        for target in targets:
            print_text(f"would make what is missing of the {target}")
        return
    for line in done or ["everything was there already"]:
        print_text(line)


def doctor_command(*, as_json: AsJson = False) -> None:
    """Check everything that a worker needs.

    Servers, search attributes, indexes, privileges, agents, pollers of each task queue, builds and
    the collector, each with what to do about it. Exit code 1 when something keeps a worker from
    running.
    """
    findings = asyncio.run(_examine(current_settings()))
    is_fit = all(finding.status != "problem" for finding in findings)
    if as_json:
        print_json({"ok": is_fit, "findings": findings})
    else:
        print_table(
            ("", "about", "found", "fix"),
            [(each.status, each.about, each.found, each.fix) for each in findings],
        )
    if not is_fit:
        raise typer.Exit(ExitCode.FAILED)


async def _examine(settings: "Settings") -> list[Finding]:
    return [
        finding
        for check in (
            _temporal(settings),
            _mongodb(settings),
            _agents(settings),
            examine_collector(os.environ),
        )
        async for finding in check
    ]


async def _temporal(settings: "Settings") -> AsyncIterator[Finding]:
    from temporalio.api.workflowservice.v1 import GetSystemInfoRequest  # noqa: PLC0415
    from temporalio.service import RPCError  # noqa: PLC0415

    try:
        client = await connected_client(settings)
    except UnreachableError as error:
        yield Finding(status="problem", about="Temporal", found=str(error))
        return
    info = await client.workflow_service.get_system_info(GetSystemInfoRequest())
    address = client.service_client.config.target_host
    found = f"server {info.server_version} at {address}, namespace {client.namespace!r}"
    yield Finding(status="ok", about="Temporal", found=found)
    try:
        yield await _search_attributes(client)
        async for finding in examine_rollout(client, settings):
            yield finding
    except RPCError as error:  # a hosted Temporal does not tell everybody
        yield Finding(status="warning", about="Temporal", found=f"does not say: {error.message}")


async def _search_attributes(client: "Client") -> Finding:
    from client import existing_search_attributes  # noqa: PLC0415
    from workflows.names import SEARCH_ATTRIBUTES  # noqa: PLC0415

    existing = await existing_search_attributes(client)
    missing = [key.name for key in SEARCH_ATTRIBUTES if key.name not in existing]
    if not missing:
        return Finding(status="ok", about="search attributes", found=", ".join(existing))
    return Finding(
        status="warning",
        about="search attributes",
        found=f"missing: {', '.join(missing)}; runs go without them",
        fix="perdure init",
    )


async def _mongodb(settings: "Settings") -> AsyncGenerator[Finding]:
    try:
        async with opened_store(settings, DEFAULT_WORKSPACE) as store:
            await store.verify()
    except (StoreError, UnreachableError) as error:
        yield Finding(status="problem", about="MongoDB", found=str(error))
        return
    name = settings.mongodb_database
    found = f"database {name!r}: replica set, version, indexes and privileges fit"
    yield Finding(status="ok", about="MongoDB", found=found)


async def _agents(settings: "Settings") -> AsyncGenerator[Finding]:
    from agents.registry import load_agents  # noqa: PLC0415
    from workflows.agents import AgentSetupError, register_agents  # noqa: PLC0415

    paths = settings.agent_paths or tuple(DEV_AGENTS.split(","))
    try:
        agents = load_agents(paths)
        register_agents(agents)
    except AgentSetupError as error:
        yield Finding(status="problem", about="agents", found=str(error))
        return
    except Exception as error:  # noqa: BLE001 - the user's own code, which may raise anything
        yield Finding(
            status="problem",
            about="agents",
            found=f"importing {', '.join(paths)} failed: {type(error).__name__}: {error}",
            fix="correct the module",
        )
        return
    names = ", ".join(sorted(agent.name or "" for agent in agents))
    source = "" if settings.agent_paths else " (the bundled ones: PERDURE_AGENTS is not set)"
    yield Finding(status="ok", about="agents", found=f"{names}{source}")
