"""The command line `perdure`: its commands, its settings, and the one way out of it."""

import gc
import io
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Never

import typer

from cli.access import access_app
from cli.api import api_command
from cli.approving import approve_command, deny_command
from cli.chaos import chaos_command
from cli.chat import chat_command
from cli.codec_server import codec_server_command
from cli.collection import gc_command
from cli.continuing import continue_command, fork_command
from cli.conversations import (
    conversations_command,
    delete_conversation_command,
    rebuild_command,
)
from cli.demo import demo_command
from cli.dev import dev_command
from cli.difference import diff_command
from cli.draining import drain_command
from cli.erasing import erase_command
from cli.exporting import export_command, import_command
from cli.failures import CommandError, ExitCode
from cli.following import follow_command
from cli.importing import import_harness_command
from cli.inspection import show_command
from cli.ledger import effects_command, unresolved_command
from cli.new_agent import new_agent_command
from cli.output import note
from cli.processes import LocalServerError
from cli.reindexing import reindex_command
from cli.replay import replay_command
from cli.replay_checking import replay_check_command
from cli.resolving import resolve_command
from cli.retention import retention_app
from cli.runs import (
    events_command,
    messages_command,
    runs_command,
    snapshots_command,
)
from cli.searching import search_command
from cli.setup import doctor_command, init_command
from cli.submit import run_command
from cli.tree import tree_command
from cli.verifying import verify_command
from stores.errors import (
    ConversationNotFoundError,
    InvalidCursorError,
    InvalidIdentifierError,
    InvalidOffsetError,
    PrincipalNotFoundError,
    StoreError,
    StoreUnavailableError,
)

EXIT_CODES: tuple[tuple[type[Exception], ExitCode], ...] = (
    (StoreUnavailableError, ExitCode.UNREACHABLE),
    (ConversationNotFoundError, ExitCode.NOT_FOUND),
    (PrincipalNotFoundError, ExitCode.NOT_FOUND),
    (InvalidIdentifierError, ExitCode.WRONG_USAGE),
    (InvalidCursorError, ExitCode.WRONG_USAGE),
    (InvalidOffsetError, ExitCode.WRONG_USAGE),
    (StoreError, ExitCode.FAILED),
    (LocalServerError, ExitCode.FAILED),
)
"""For errors whose message says all that a person needs; the first that fits counts. Any other
error is a defect and keeps its traceback."""

app = typer.Typer(
    name="perdure",
    help="Durable runs of pydantic-ai agents: start them, watch them, see what happened.",
    epilog=(
        "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 cannot reach a server. "
        "Example: perdure demo"
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def settings_callback(
    *,
    temporal_address: Annotated[
        str | None, typer.Option(envvar="PERDURE_TEMPORAL_ADDRESS", help="host:port of Temporal.")
    ] = None,
    temporal_namespace: Annotated[
        str | None, typer.Option(envvar="PERDURE_TEMPORAL_NAMESPACE", help="Namespace in it.")
    ] = None,
    mongodb_uri: Annotated[
        str | None,
        typer.Option(envvar="PERDURE_MONGODB_URI", help="Connection string of a replica set."),
    ] = None,
    mongodb_database: Annotated[
        str | None, typer.Option(envvar="PERDURE_MONGODB_DATABASE", help="Database in it.")
    ] = None,
    task_queue: Annotated[
        str | None, typer.Option(envvar="PERDURE_TASK_QUEUE", help="Queue that workers poll.")
    ] = None,
    agents: Annotated[
        str | None,
        typer.Option(envvar="PERDURE_AGENTS", help="module:attribute of agents, comma-separated."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="PERDURE_DATA_DIR",
            help="Directory of `perdure dev`, whose servers are used where none are named.",
        ),
    ] = None,
) -> None:
    """Durable runs of pydantic-ai agents: start them, watch them, see what happened."""
    given = {
        "TEMPORAL_ADDRESS": temporal_address,
        "TEMPORAL_NAMESPACE": temporal_namespace,
        "MONGODB_URI": mongodb_uri,
        "MONGODB_DATABASE": mongodb_database,
        "TASK_QUEUE": task_queue,
        "AGENTS": agents,
        "DATA_DIR": str(data_dir) if data_dir else None,
    }
    # An option is its variable for the length of this process, so that every part of it, and the
    # workers that it starts, see the same settings.
    os.environ.update({f"PERDURE_{name}": value for name, value in given.items() if value})


def _add(name: str, function: Callable[..., None], example: str) -> None:
    app.command(name, epilog=f"Example: {example}")(function)


_add("dev", dev_command, "perdure dev --data-dir /tmp/perdure --ui")
_add("demo", demo_command, "perdure demo")
_add("init", init_command, "perdure init --dry-run")
_add("doctor", doctor_command, "perdure doctor")
_add("drain", drain_command, "perdure drain 2026-11-30.1 --deployment perdure")
_add("run", run_command, "perdure run scripted 'Pack my bag' --conversation-id trip-1")
_add("follow", follow_command, "perdure follow scripted-20260101-120000-3fa9c1")
_add("continue", continue_command, "perdure continue scripted-20260101-120000-3fa9c1 'And two'")
_add("fork", fork_command, "perdure fork scripted-20260101-120000-3fa9c1 --at-step 2 --dry-run")
_add("runs", runs_command, "perdure runs --agent scripted --state failed --limit 20")
_add("show", show_command, "perdure show scripted-20260101-120000-3fa9c1")
_add("events", events_command, "perdure events scripted-20260101-120000-3fa9c1 --json")
_add("snapshots", snapshots_command, "perdure snapshots scripted-20260101-120000-3fa9c1")
_add("effects", effects_command, "perdure effects scripted-20260101-120000-3fa9c1")
_add("unresolved", unresolved_command, "perdure unresolved --tool charge_card")
_add("resolve", resolve_command, "perdure resolve orders-7 2/0 --failed 'no such order'")
_add("approve", approve_command, "perdure approve orders-7 2/0 --by ann --why 'in the budget'")
_add("deny", deny_command, "perdure deny orders-7 2/0 --message 'Too dear: find another one.'")
_add("messages", messages_command, "perdure messages scripted-20260101-120000-3fa9c1 --json")
_add("search", search_command, "perdure search trip-1 'passport number' --context 3")
_add("reindex", reindex_command, "perdure reindex")
_add("gc", gc_command, "perdure gc --grace-days 90 --delete")
_add(
    "import-harness",
    import_harness_command,
    "perdure import-harness --uri mongodb://old --database agents",
)
_add("chat", chat_command, "perdure chat conversation --conversation-id trip-1")
_add("conversations", conversations_command, "perdure conversations --query lisbon")
_add("rebuild", rebuild_command, "perdure rebuild trip-1")
_add(
    "delete-conversation",
    delete_conversation_command,
    "perdure delete-conversation trip-1 --delete",
)
_add("erase", erase_command, "perdure erase trip-1 --delete --cancel")
_add("export", export_command, "perdure export trip-1 --to trip-1.jsonl")
_add("import", import_command, "perdure import trip-1.jsonl --as-new")
_add("new-agent", new_agent_command, "perdure new-agent concierge --like conversation")
_add("tree", tree_command, "perdure tree trip-1")
_add("diff", diff_command, "perdure diff scripted-20260101-120000-3fa9c1 mine --json")
_add("chaos", chaos_command, "perdure chaos --points 20 --seed 7")
_add("api", api_command, "perdure api --port 17280")
app.add_typer(access_app)
_add("codec-server", codec_server_command, "perdure codec-server --port 8234")
_add(
    "replay-check",
    replay_check_command,
    "perdure replay-check --since 7d --type agent_run --limit 200",
)
_add("verify", verify_command, "perdure verify scripted-20260101-120000-3fa9c1")
_add("replay", replay_command, "perdure replay scripted-20260101-120000-3fa9c1")


app.add_typer(retention_app)


def main() -> Never:
    """Run a command and end the process.

    The way out is `os._exit` after a flush: a process that has used a Temporal client and ends as
    Python does is killed by a signal in one of three cases, and reports a failure that did not
    happen (temporalio/sdk-python issue 300). Whatever must be released is by then.
    """
    # A command lives for a second or two and imports much, all of which stays: collecting between
    # costs a fifth of that time. `dev`, which lives long, imports and allocates little.
    gc.set_threshold(100_000)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack a character
    code = _run()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads any more
            stream.flush()
    os._exit(code)


def _run() -> int:
    try:
        app(prog_name="perdure")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except CommandError as error:
        note(f"perdure: {error}")
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last frame
        for kind, code in EXIT_CODES:
            if isinstance(error, kind):
                note(f"perdure: {error}")
                return code
        traceback.print_exc()
    return ExitCode.FAILED


if __name__ == "__main__":
    main()
