"""Every command as an operator runs it: a process, real servers, no worker where none is needed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import typer.main
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models.function import FunctionModel
from pymongo import MongoClient
from typer.core import TyperGroup

from cli.dev import worker_process
from cli.main import app
from cli.processes import ChildProcess
from client import connect
from settings import Settings
from stores.opening import open_step_store
from tests.architecture.source_tree import ROOT
from tests.helpers.eventually import eventually
from tests.helpers.script import echo_steps, follow, make_agent, script
from tests.helpers.workers import running_worker
from workflows.agent_run_models import AgentRunInput
from workflows.durable import durable

pytestmark = pytest.mark.integration

NOWHERE = "127.0.0.1:1"
"""An address that refuses connections."""

BINARIES = {"PERDURE_MONGOD", "PERDURE_TEMPORAL_CLI"}

INHERITED = {
    name: value
    for name, value in os.environ.items()
    # Without compiled modules a command takes four times as long, and there are a hundred here.
    if name in BINARIES or not name.startswith(("PERDURE_", "PYTHONDONTWRITEBYTECODE"))
}

agents = [make_agent()]
"""What the worker process of this module runs: PERDURE_AGENTS names this module."""

agents_without_tools = [Agent(FunctionModel(follow), name="script", capabilities=[*durable()])]
"""The same agent after a change that breaks its running workflows."""


@dataclass(frozen=True)
class Perdure:
    """The command line with the settings of one installation."""

    settings: dict[str, str]

    def __call__(
        self, *arguments: str, stdin: str | None = None, **changed: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; `changed` are settings for it alone."""
        return subprocess.run(
            [sys.executable, "-m", "cli.main", *arguments],
            cwd=ROOT,
            env=self.environment(**changed),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def document(self, *arguments: str, **changed: str) -> Any:
        """What a command prints with `--json`; it has to succeed."""
        done = self(*arguments, "--json", **changed)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def environment(self, **changed: str) -> dict[str, str]:
        settings = {**self.settings, **changed}
        return {**INHERITED, **{f"PERDURE_{name.upper()}": text for name, text in settings.items()}}


@dataclass(frozen=True)
class Stage:
    """An installation without a worker, and what its last worker left behind."""

    perdure: Perdure
    request: AgentRunInput
    """What `stuck` was started with."""
    documents: dict[tuple[str, ...], Any] = field(default_factory=dict[tuple[str, ...], Any])

    def document(self, *arguments: str) -> Any:
        """As `Perdure.document`, once: nothing changes here any more."""
        if arguments not in self.documents:
            self.documents[arguments] = self.perdure.document(*arguments)
        return self.documents[arguments]


@pytest.fixture(scope="module")
def stage(
    temporal_address: str, mongodb_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """Runs `done`, `failed`, `stuck`, `terminated` and `nobody`; then their worker was killed."""
    data_dir = tmp_path_factory.mktemp("stage")
    settings = Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=f"test_{uuid4().hex}",
        task_queue=f"test-{uuid4().hex}",
        agents="tests.cli.test_commands:agents",
        data_dir=data_dir,
        hop_after_requests=4,  # `done` goes on in a second execution, and reads as one run
    )
    told = settings.model_dump(mode="json", exclude_none=True)
    perdure = Perdure({name: str(value) for name, value in told.items()})
    initialised = perdure("init")
    assert initialised.returncode == 0, initialised.stderr
    assert "made index" in initialised.stdout
    worker = worker_process(settings, {"PYTHONPATH": str(ROOT)})
    request = AgentRunInput(
        agent="script",
        prompt=_wait_script(data_dir, "stuck"),
        metadata={"note": "[bold]\x1b[31m"},
    )
    worker.spawn()
    try:
        asyncio.run(_leave_runs(settings, worker, request))
    finally:
        asyncio.run(worker.kill())
    yield Stage(perdure=perdure, request=request)
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        client.drop_database(settings.mongodb_database)


PREFIX = uuid4().hex[:8]
"""Run ids are unique in Temporal, which other test modules use too."""


def _id(name: str) -> str:
    return f"{PREFIX}-{name}"


def _wait_script(directory: Path, name: str) -> str:
    never = {"path": str(directory / "never"), "marker": str(directory / name)}
    return script([[("wait_for", never), ("echo", {"text": "x"})]])


async def _leave_runs(settings: Settings, worker: ChildProcess, request: AgentRunInput) -> None:
    client = await connect(settings)
    count = {"path": str(settings.data_dir / "count"), "times": 99}
    requests = {
        "done": AgentRunInput(
            agent="script",
            prompt=echo_steps(7, parallel=2),
            conversation_id=_id("conversation"),
            metadata={"ticket": "4711"},
            principal="anna",
        ),
        "failed": AgentRunInput(
            agent="script", prompt=script([[("retry", count)]] * 5), parent_run_id=_id("done")
        ),
        "stuck": request,
        "terminated": AgentRunInput(
            agent="script", prompt=_wait_script(settings.data_dir, "terminated")
        ),
        "nobody": AgentRunInput(agent="nobody", prompt="hello"),
    }
    handles = {
        name: await client.start_workflow(
            "agent_run", each, id=_id(name), task_queue=settings.task_queue
        )
        for name, each in requests.items()
    }
    waiting = [settings.data_dir / name for name in ("stuck", "terminated")]

    async def is_left() -> bool:
        assert worker.is_running, worker.describe_end()
        descriptions = [await handles[name].describe() for name in ("done", "failed", "nobody")]
        is_over = all(each.close_time is not None for each in descriptions)
        return is_over and all(marker.exists() for marker in waiting)

    await eventually(is_left, within=timedelta(seconds=45), what="the runs")
    await _until_echoed(settings)
    await worker.kill()
    await handles["terminated"].terminate("no longer needed")


async def _until_echoed(settings: Settings) -> None:
    """Wait until the store knows that of both waiting runs only `wait_for` is open."""
    store = open_step_store(
        "mongodb", db_url=settings.mongodb_uri, database=settings.mongodb_database
    )
    try:

        async def only_waiting_is_open() -> bool:
            found = await store.list_unresolved_tool_effects()
            return [effect.tool_name for effect in found] == ["wait_for", "wait_for"]

        await eventually(only_waiting_is_open)
    finally:
        await store.aclose()


# --- reading, with no worker ---


def test_runs_lists_what_the_store_knows_with_what_temporal_knows(stage: Stage) -> None:
    document = stage.document("runs")
    table = stage.perdure("runs")

    states = {run["run_id"]: run["joined_state"] for run in document["runs"]}
    assert states == {
        _id("done"): "completed",
        _id("failed"): "failed",
        _id("stuck"): "running",
        _id("terminated"): "terminated",
    }
    assert document["after"] is None
    assert table.returncode == 0
    for run_id, state in states.items():
        (line,) = [line for line in table.stdout.splitlines() if run_id in line.split()[:1]]
        assert state in line.split()


def test_runs_filters(stage: Stage) -> None:
    def ids(*options: str) -> list[str]:
        return [run["run_id"] for run in stage.perdure.document("runs", *options)["runs"]]

    assert ids("--conversation", _id("conversation"), "--state", "completed") == [_id("done")]
    assert ids("--parent", _id("done"), "--agent", "script") == [_id("failed")]
    assert ids("--agent", "nobody") == []


def test_runs_pages_through_all_runs_once(stage: Stage) -> None:
    everything = [run["run_id"] for run in stage.document("runs")["runs"]]

    first = stage.perdure("runs", "--limit", "3")
    cursor = first.stderr.split("--after ")[1].strip()
    rest = stage.perdure.document("runs", "--limit", "3", "--after", cursor)

    assert all(run_id in first.stdout for run_id in everything[:3])
    assert [run["run_id"] for run in rest["runs"]] == everything[3:]
    assert rest["after"] is None


def test_show_has_everything_about_a_finished_run(stage: Stage) -> None:
    page = stage.perdure("show", _id("done"))
    document = stage.document("show", _id("done"))

    assert page.returncode == 0, page.stderr
    for text in ("completed (Temporal: COMPLETED)", "ticket=4711", "anna", _id("conversation")):
        assert text in page.stdout
    for heading in ("Usage", "Timeline (the newest 40 of 46; ", "Tool effects", "Snapshots"):
        assert heading in page.stdout
    assert [event["kind"] for event in document["events"]].count("tool_call_completed") == 14
    assert {effect["standing"] for effect in document["effects"]} == {"completed"}
    assert document["snapshots"][-1]["state"] == "complete"
    assert document["run"]["usage"]["tool_calls"] == 14
    assert document["temporal"]["doing"] == []


def test_show_says_what_a_stuck_run_is_doing_with_no_worker(stage: Stage) -> None:
    page = stage.perdure("show", _id("stuck"))
    document = stage.perdure.document("show", _id("stuck"))

    assert page.returncode == 0, page.stderr
    (doing,) = [line for line in page.stdout.splitlines() if line.startswith("Doing")]
    assert "wait_for: " in doing
    assert "of 5, since 20" in doing
    assert document["state"] == "running"
    (activity,) = document["temporal"]["pending_activities"]
    assert activity["tool_name"] == "wait_for"
    assert activity["attempt"] >= 1
    first, second = (effect["standing_kind"] for effect in document["effects"])
    assert first in {"in flight", "retrying"}
    assert second == "ended"


def test_stored_text_cannot_drive_the_terminal(stage: Stage) -> None:
    page = stage.perdure("show", _id("stuck"))

    assert "note=[bold]\\x1b[31m" in page.stdout
    assert "\x1b" not in page.stdout


def test_show_joins_in_that_a_run_was_terminated(stage: Stage) -> None:
    document = stage.perdure.document("show", _id("terminated"))
    page = stage.perdure("show", _id("terminated"))

    assert document["state"] == "terminated"
    assert document["run"]["state"] == "running"
    standings = [effect["standing"] for effect in document["effects"]]
    assert standings[0] == "unknown: the run ended TERMINATED before the call did"
    assert "the run's own last word: running" in page.stdout


def test_show_knows_a_run_that_only_temporal_knows(stage: Stage) -> None:
    page = stage.perdure("show", _id("nobody"))

    assert page.returncode == 0, page.stderr
    assert "failed (Temporal: FAILED)" in page.stdout
    assert "agent 'nobody' is not known to this worker; known agents: script" in page.stdout
    assert "The store has no such run" in page.stderr


def test_show_without_temporal_shows_the_stores_part_and_says_so(stage: Stage) -> None:
    page = stage.perdure("show", _id("stuck"), temporal_address=NOWHERE)

    assert page.returncode == 0, page.stderr
    assert "Timeline" in page.stdout
    assert "started; Temporal does not answer" in page.stdout
    assert f"Temporal at {NOWHERE}" in page.stderr


def test_events_snapshots_and_effects_are_those_of_the_page(stage: Stage) -> None:
    page = stage.document("show", _id("done"))

    for name in ("events", "snapshots", "effects"):
        assert stage.document(name, _id("done"))[name] == page[name]
        table = stage.perdure(name, _id("done"))
        assert table.returncode == 0
        assert len(table.stdout.splitlines()) == len(page[name]) + 1  # and the columns' names


def test_unresolved_tells_what_is_in_flight_from_what_needs_a_decision(stage: Stage) -> None:
    effects = stage.perdure.document("unresolved")["effects"]
    table = stage.perdure("unresolved")

    standings = {effect["run_id"]: effect["standing"] for effect in effects}
    assert set(standings) == {_id("stuck"), _id("terminated")}
    assert standings[_id("stuck")].startswith(("in flight: ", "retrying: "))
    assert " attempt " in standings[_id("stuck")]
    assert standings[_id("terminated")].startswith("unknown: the run ended TERMINATED")
    assert _id("stuck") in table.stdout


def test_follow_tells_with_no_worker_what_is_stored(stage: Stage) -> None:
    with ThreadPoolExecutor() as threads:
        text, lines, ended = threads.map(
            _follower(stage),
            [
                (_id("done"),),
                (_id("done"), "--json"),
                (_id("terminated"),),
            ],
        )
    events = [json.loads(line) for line in lines.stdout.splitlines()]
    rest = stage.perdure("follow", _id("done"), "--json", "--from", events[-3]["offset"])

    assert (text.returncode, text.stdout) == (0, "done\n"), text.stderr
    assert "echo (call-1-0) started\necho (call-1-1) started\n" in text.stderr
    assert [event["kind"] for event in events].count("tool_call_completed") == 14
    assert [json.loads(line) for line in rest.stdout.splitlines()] == events[-2:]
    assert [(event["kind"], event["text"]) for event in events[-2:]] == [
        ("text", "done"),
        ("run_completed", ""),
    ]
    assert ended.returncode == 1
    assert f"run '{_id('terminated')}' was terminated before it came to an end" in ended.stderr


def _follower(stage: Stage) -> Callable[[Sequence[str]], subprocess.CompletedProcess[str]]:
    return lambda arguments: stage.perdure("follow", *arguments)


def test_messages_prints_the_newest_history_or_an_older_one(stage: Stage) -> None:
    newest = stage.perdure.document("messages", _id("done"))
    first = stage.document("snapshots", _id("done"))["snapshots"][0]
    older = stage.perdure.document("messages", _id("done"), "--snapshot", str(first["sequence"]))
    text = stage.perdure("messages", _id("done"))

    messages = ModelMessagesTypeAdapter.validate_python(newest["messages"])
    assert len(messages) == 16
    assert len(older["messages"]) == first["message_count"] == 3
    assert "tool-call echo (call-1-0): " in text.stdout
    assert "tool-return echo (call-1-1): 0-1x" in text.stdout
    assert stage.perdure("messages", _id("done"), "--snapshot", "99").returncode == 3


def test_replay_tells_code_that_fits_from_code_that_does_not(stage: Stage) -> None:
    same = stage.perdure("replay", _id("done"))
    changed = "tests.cli.test_commands:agents_without_tools"
    different = stage.perdure("replay", _id("done"), "--json", agents=changed)
    missing = stage.perdure("replay", _id("done"), agents="agents.scripted:agent")

    assert same.returncode == 0, same.stderr
    assert same.stdout.startswith("ok: ")
    assert same.stdout.endswith(" events of 2 executions\n")
    assert different.returncode == 1
    assert json.loads(different.stdout)["ok"] is False
    assert "NondeterminismError" in json.loads(different.stdout)["divergence"]
    assert missing.returncode == 1
    assert "'script' is not on this code: PERDURE_AGENTS gives scripted" in missing.stderr


@pytest.mark.parametrize("command", ["show", "messages", "replay", "follow"])
def test_a_run_that_nobody_knows_is_not_found(stage: Stage, command: str) -> None:
    done = stage.perdure(command, _id("missing"))

    assert done.returncode == 3
    assert _id("missing") in done.stderr
    assert done.stdout == ""


def test_a_run_of_another_workspace_is_not_found(stage: Stage) -> None:
    done = stage.perdure("events", _id("done"), "--workspace", "elsewhere")

    assert done.returncode == 3
    assert "workspace 'elsewhere'" in done.stderr


def test_servers_that_do_not_answer_have_their_own_exit_code(stage: Stage, tmp_path: Path) -> None:
    no_mongodb = f"mongodb://{NOWHERE}/?serverSelectionTimeoutMS=200"

    stores = stage.perdure("runs", mongodb_uri=no_mongodb)
    temporal = stage.perdure("run", "script", "hello", temporal_address=NOWHERE)
    none_known = Perdure({"data_dir": str(tmp_path)})("runs")

    assert [done.returncode for done in (stores, temporal, none_known)] == [4, 4, 4]
    assert NOWHERE in stores.stderr
    assert f"Temporal does not answer at {NOWHERE}" in temporal.stderr
    assert "PERDURE_MONGODB_URI" in none_known.stderr
    assert str(tmp_path) in none_known.stderr


@pytest.mark.timeout(240)
def test_twenty_runs_of_a_command_that_asks_both_servers_all_succeed(stage: Stage) -> None:
    # A process that has used a Temporal client and ends as Python does is killed by a signal in
    # one of three cases.
    with ThreadPoolExecutor(2) as both_cores:
        done = list(both_cores.map(stage.perdure, ["unresolved"] * 20))

    assert [each.returncode for each in done] == [0] * 20
    assert len({len(each.stdout.splitlines()) for each in done}) == 1


def test_a_reader_that_stops_reading_is_no_error(stage: Stage) -> None:
    command = [sys.executable, "-m", "cli.main", "events", _id("done"), "--json"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=stage.perdure.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(30)

    assert b"Traceback" not in errors
    assert process.returncode in (0, 1)


# --- starting runs ---


async def test_run_waits_and_prints_the_output(
    temporal_address: str, mongodb_uri: str, mongodb_database: str, task_queue: str
) -> None:
    settings = Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=mongodb_database,
        task_queue=task_queue,
    )
    told = settings.model_dump(mode="json", exclude_none=True)
    perdure = Perdure({name: str(value) for name, value in told.items()})
    store = open_step_store("mongodb", db_url=mongodb_uri, database=mongodb_database)
    client = await connect(settings)
    assert perdure("init").returncode == 0
    try:
        async with running_worker(client, store, agents, task_queue):
            run = _in_thread(perdure)
            text = await run(
                *("run", "script", echo_steps(1), "--metadata", "a=b", "--workspace", "lab")
            )
            document = await run("run", "script", "-", "--json", stdin=echo_steps(1))
            failed = await run("run", "nobody", "hello", "--json")
            run_id = json.loads(document.stdout)["run_id"]
            continued = await run(
                *("run", "script", echo_steps(1), "--continue-from", run_id, "--json")
            )
    finally:
        await store.aclose()

    assert (text.returncode, text.stdout) == (0, "done\n"), text.stderr
    assert "tool_call_completed  echo (call-1-0)" in text.stderr
    (listed,) = perdure.document("runs", "--workspace", "lab")["runs"]
    assert listed["metadata"] == {"a": "b"}
    assert f"perdure show {listed['run_id']}" in text.stderr
    assert listed["run_id"].startswith("script-20")
    assert json.loads(document.stdout)["message_count"] == 4
    assert json.loads(continued.stdout)["message_count"] == 8
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["state"] == "failed"
    assert "known agents: script" in failed.stderr


def _in_thread(
    perdure: Perdure,
) -> Callable[..., Awaitable[subprocess.CompletedProcess[str]]]:
    """The command line from a test whose event loop has to go on: a worker runs in it."""

    def run(*arguments: str, **options: Any) -> Awaitable[subprocess.CompletedProcess[str]]:
        return asyncio.to_thread(perdure, *arguments, **options)

    return run


def test_a_run_id_is_used_once(stage: Stage) -> None:
    closed = stage.perdure("run", "script", "hello", "--run-id", _id("done"))
    other = stage.perdure("run", "script", "hello", "--run-id", _id("stuck"), "--no-wait")
    prompt = stage.request.prompt
    assert isinstance(prompt, str)
    same = stage.perdure(
        *("run", "script", prompt, "--run-id", _id("stuck"), "--no-wait"),
        *("--metadata", "note=[bold]\x1b[31m"),
    )

    for refused in (closed, other):
        assert refused.returncode == 1
        assert "is taken: a run is registered once" in refused.stderr
    assert same.returncode == 0, same.stderr
    assert same.stdout == f"{_id('stuck')}\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["script"], "prompt is missing"),
        (["script", "x", "--conversation-id", " a"], "conversation_id ' a' has white space"),
        (["script", "x", "--run-id", "a\x07"], "run_id 'a\\x07' holds a control character"),
        (["script", "x", "--workspace", ""], "workspace_id '' is empty"),
        (["script", "x", "--metadata", "a"], "--metadata 'a' is no KEY=VALUE"),
        (["script", "x", "--deps", "{"], "--deps is no JSON"),
        (["script", "x", "--continue-from", "a", "--fork-from", "b"], "exclude each other"),
    ],
)
def test_bad_input_is_refused_before_a_server_is_asked(
    arguments: Sequence[str], expected: str
) -> None:
    done = Perdure({"temporal_address": NOWHERE})("run", *arguments)

    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_prompt_that_temporal_would_refuse_is_not_sent(stage: Stage) -> None:
    name = _id("large")
    done = stage.perdure(
        "run", "script", "-", "--run-id", name, stdin="x" * 2**21, payload_storage="false"
    )

    assert done.returncode == 2
    assert "2097534 bytes are too large; the limit is 2097152" in done.stderr
    assert stage.perdure("show", name).returncode == 3


@pytest.mark.parametrize(
    "arguments", [["runs", "--after", "nonsense"], ["runs", "--limit", "0"], ["bogus"], []]
)
def test_wrong_usage_has_its_own_exit_code(stage: Stage, arguments: Sequence[str]) -> None:
    assert stage.perdure(*arguments).returncode == 2


def test_a_setting_that_does_not_fit_is_named() -> None:
    done = Perdure({"max_cached_workflows": "many"})("runs")

    assert done.returncode == 2
    assert "PERDURE_MAX_CACHED_WORKFLOWS: Input should be a valid integer" in done.stderr


def test_a_dry_run_sends_nothing(stage: Stage) -> None:
    done = stage.perdure("run", "script", "hello", "--run-id", _id("dry"), "--dry-run")

    assert json.loads(done.stdout)["input"] == {"agent": "script", "prompt": "hello"}
    assert stage.perdure("show", _id("dry")).returncode == 3


# --- setting up ---


def test_init_is_done_once_and_doctor_says_so(
    temporal_address: str, mongodb_uri: str, mongodb_database: str, task_queue: str
) -> None:
    perdure = Perdure(
        {
            "temporal_address": temporal_address,
            "mongodb_uri": mongodb_uri,
            "mongodb_database": mongodb_database,
            "task_queue": task_queue,
            "agents": "tests.cli.test_commands:agents",
        }
    )
    dry = perdure("init", "--dry-run")
    before = perdure("doctor")
    first = perdure.document("init")
    second = perdure.document("init")
    after = perdure.document("doctor")

    assert f"indexes of database {mongodb_database!r}" in dry.stdout
    assert before.returncode == 1
    assert "perdure init" in before.stdout
    assert first["done"]
    assert second["done"] == []
    assert after["ok"] is True
    found = {finding["about"]: finding for finding in after["findings"]}
    assert "server 1." in found["Temporal"]["found"]
    assert found["workers"]["status"] == "warning"
    assert found["agents"]["found"] == "script"


def test_doctor_names_each_problem(stage: Stage) -> None:
    done = stage.perdure(
        *("doctor", "--json"),
        temporal_namespace="nowhere",
        agents="no_such_module:agent",
        mongodb_uri=f"mongodb://{NOWHERE}/?serverSelectionTimeoutMS=200",
    )

    assert done.returncode == 1
    findings = json.loads(done.stdout)["findings"]
    assert [finding["status"] for finding in findings] == ["problem"] * 3
    assert "no namespace 'nowhere'" in findings[0]["found"]
    assert NOWHERE in findings[1]["found"]
    assert "no module 'no_such_module'" in findings[2]["found"]


def test_the_help_of_each_command_ends_with_an_example() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    perdure = Perdure({})

    for name in group.commands:
        done = perdure(name, "--help")
        assert done.returncode == 0
        assert done.stdout.rstrip().splitlines()[-1].strip().startswith("Example: perdure"), name
    assert "0 done, 1 failed, 2 wrong usage" in perdure("--help").stdout


# --- the demo ---


@pytest.mark.crash
@pytest.mark.timeout(180)
def test_the_demo_ends_by_itself_with_the_whole_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "demo", "--data-dir", tmp_path],
        cwd=ROOT,
        env=Perdure({}).environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )

    assert done.returncode == 0, done.stderr
    assert "got SIGKILL in the middle of tool 'charge_card'" in done.stderr
    assert "charge_card (charge_card-1): in flight: running, attempt 1" in done.stderr
    assert "attempt 2 of 5" in done.stderr
    assert "Nothing is missing and nothing is doubled" in done.stderr
    for text in ("Timeline", "Tool effects", "Snapshots", "Output", "Where to look further"):
        assert text in done.stdout


@pytest.mark.crash
@pytest.mark.timeout(120)
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", "demo", "--data-dir", tmp_path],
        cwd=ROOT,
        env=Perdure({}).environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("Worker "):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        process.wait(60)

    assert process.returncode == 130
    assert "Traceback" not in rest
    assert _processes_with(str(tmp_path)) == []


def _processes_with(text: str) -> list[str]:
    """Command lines and environments of running processes that hold the text."""
    found: list[str] = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes() + (directory / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in command:
            found.append(command.decode(errors="replace"))
    return found
