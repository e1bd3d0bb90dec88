"""Continuing, forking, drawing and comparing runs from the command line."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart

from client import connect
from settings import Settings
from stores.opening import open_step_store
from stores.protocols import StepStore
from tests.cli.test_commands import NOWHERE, Perdure
from tests.helpers.script import echo_steps, make_agent, script
from tests.helpers.workers import running_worker
from tests.stores.records import effect, event, run_record, snapshot
from tests.stores.writer import at, request, response

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

COMMON: list[ModelMessage] = [request("a"), response("b")]
CALL = ModelResponse(parts=[ToolCallPart("pay", {"eur": 3}, tool_call_id="pay-1")], timestamp=at(2))


@pytest.fixture
def settings(
    temporal_address: str, mongodb_uri: str, mongodb_database: str, task_queue: str, tmp_path: Path
) -> Settings:
    return Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=mongodb_database,
        task_queue=task_queue,
        data_dir=tmp_path,
    )


@pytest.fixture
def perdure(settings: Settings) -> Perdure:
    told = settings.model_dump(mode="json", exclude_none=True)
    return Perdure({name: str(value) for name, value in told.items()})


@pytest_asyncio.fixture
async def store(settings: Settings) -> AsyncGenerator[StepStore]:
    opened = open_step_store(
        "mongodb", db_url=settings.mongodb_uri, database=settings.mongodb_database
    )
    await opened.initialise()
    yield opened
    await opened.aclose()


async def save_source(store: StepStore) -> None:
    """Run `source`: complete snapshot 5 of step 1, interrupted 9 of step 2, one open call."""
    await store.register_run(
        run_record("source", agent_name="script", conversation_id="talk", started_at=at(0))
    )
    await store.save_snapshot(snapshot(COMMON, run_id="source", sequence=5))
    values: dict[str, Any] = {"run_id": "source", "sequence": 8, "step_index": 2, "call_index": 0}
    await store.record_tool_effect(effect(tool_name="pay", tool_call_id="pay-1", **values))
    await store.save_snapshot(
        snapshot(
            [*COMMON, request("c"), CALL],
            run_id="source",
            step_index=2,
            sequence=9,
            state="interrupted",
        )
    )


async def save_family(store: StepStore) -> None:
    """What came of `source`: a continuation, a fork elsewhere, and a delegate of the fork."""
    await save_source(store)
    family: list[dict[str, Any]] = [
        {"run_id": "next", "conversation_id": "talk", "continued_from": "source"},
        {"run_id": "fork", "conversation_id": "else", "forked_from": "source"},
        {"run_id": "helper", "conversation_id": "deep", "parent_run_id": "fork"},
        {"run_id": "stranger", "conversation_id": "other"},
    ]
    for index, values in enumerate(family, start=1):
        record = run_record(**values, agent_name="script", from_snapshot=5, started_at=at(index))
        await store.register_run(record)
        await store.append_event(event(kind="run_completed", run_id=record.run_id, step=9))
    await store.save_snapshot(
        snapshot([*COMMON, request("x"), response("y")], run_id="fork", step_index=3)
    )


# --- starting ---


async def test_continue_and_fork_start_runs_and_print_their_output(
    perdure: Perdure, settings: Settings, store: StepStore
) -> None:
    client = await connect(settings)

    async def run(*arguments: str, **options: Any) -> Any:
        done = await asyncio.to_thread(perdure, *arguments, **options)
        assert done.returncode == 0, done.stderr
        return done

    async with running_worker(client, store, [make_agent()], settings.task_queue):
        source = f"source-{uuid4().hex}"
        await run("run", "script", echo_steps(2), "--run-id", source, "--conversation-id", "talk")
        # With no prompt the model is asked again where the fork begins.
        forked = await run("fork", source, "--at-step", "1", "--json")
        continued = await run("continue", source, "-", stdin=script([], final="more"))
        second = await asyncio.to_thread(perdure, "continue", source, script([]))
        unasked = await run("fork", source, "--prompt", script([]), "--no-wait", "--run-id", "own")
    assert json.loads(forked.stdout)["message_count"] == 6
    assert "tool_call_completed  echo" in forked.stderr
    assert continued.stdout == "more\n"
    assert unasked.stdout == "own\n"
    (winner,) = await store.list_runs(continued_from=source)
    assert winner.conversation_id == "talk"
    assert second.returncode == 1
    assert f"continued by run '{winner.run_id}' already" in second.stderr
    assert len(await store.list_runs(conversation_id="talk")) == 2
    page = await run("show", winner.run_id)
    assert f"{source}, from its snapshot" in page.stdout


async def test_dry_run_prints_what_a_run_would_start_from(
    perdure: Perdure, store: StepStore
) -> None:
    await save_source(store)
    document = perdure.document("fork", "source", "--at-snapshot", "5", "--dry-run")
    newest = perdure("continue", "source", "--include-interrupted", "--dry-run")
    interrupted = perdure.document("continue", "source", "--include-interrupted", "--dry-run")

    assert document["snapshot"]["sequence"] == 5
    assert document["snapshot"]["step_index"] == 1
    assert document["snapshot"]["message_count"] == 2
    assert document["input"]["agent"] == "script"
    assert (document["unresolved"], document["refusal"]) == ([], None)
    assert newest.returncode == 0, newest.stderr
    for words in ("snapshot 9 of run source", "2, interrupted", "pay (pay-1)", "Refused"):
        assert words in newest.stdout
    assert [each["tool_call_id"] for each in interrupted["unresolved"]] == ["pay-1"]
    assert interrupted["snapshot"]["pending_calls"] == ["pay (pay-1)"]
    assert "would cross 1 unresolved" in interrupted["refusal"]
    assert len(await store.list_runs()) == 1


async def test_unresolved_effects_are_refused_with_their_list_before_anything_starts(
    perdure: Perdure, store: StepStore
) -> None:
    await save_source(store)
    # Nothing is sent: Temporal would not answer.
    for command in (["continue", "source"], ["fork", "source"]):
        refused = perdure(*command, temporal_address=NOWHERE)
        assert refused.returncode == 1
        assert "pay (call 'pay-1') of step 2, started, since 2026-03-01" in refused.stderr
        accepted = perdure(*command, "--accept-unresolved", temporal_address=NOWHERE)
        assert accepted.returncode == 4
    prompt = perdure(
        *("continue", "source", "x", "--include-interrupted", "--accept-unresolved"),
        temporal_address=NOWHERE,
    )
    assert prompt.returncode == 1
    assert "a prompt cannot follow calls that could still be executed" in prompt.stderr


async def test_a_run_that_is_not_there_is_not_found(perdure: Perdure, store: StepStore) -> None:
    await save_source(store)
    unknown = perdure("continue", "none", "--dry-run")
    elsewhere = perdure("fork", "source", "--workspace", "other")
    assert (unknown.returncode, elsewhere.returncode) == (3, 3)
    here = unknown.stderr.replace("none", "source").replace("'default'", "'other'")
    assert here == elsewhere.stderr


async def test_a_snapshot_that_is_not_there_is_not_found(
    perdure: Perdure, store: StepStore
) -> None:
    await save_source(store)
    place = perdure("fork", "source", "--at-snapshot", "6")
    step = perdure("fork", "source", "--at-step", "2")
    assert (place.returncode, step.returncode) == (3, 3)
    assert "no snapshot 6. It has snapshot 5 (step 1, complete), snapshot 9" in place.stderr
    assert "is interrupted" in step.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fork", "a", "--at-step", "1", "--at-snapshot", "2"], "exclude each other"),
        (["fork", "a", "--conversation-id", " b"], "has white space"),
        (["continue", "a", "--run-id", "b\x07"], "holds a control character"),
        (["continue", "a", "--deps", "{"], "--deps is no JSON"),
    ],
)
def test_bad_input_is_refused_before_a_server_is_asked(
    arguments: list[str], expected: str, tmp_path: Path
) -> None:
    done = Perdure({"data_dir": str(tmp_path)})(*arguments)

    assert done.returncode == 2
    assert expected in done.stderr


# --- reading, with no worker ---


async def test_tree_draws_continuations_forks_and_delegates_in_other_conversations(
    perdure: Perdure, store: StepStore
) -> None:
    await save_family(store)
    document = perdure.document("tree", "talk")
    drawn = perdure("tree", "talk", temporal_address=NOWHERE)

    def shape(node: dict[str, Any]) -> Any:
        return node["run_id"], node["relation"], [shape(each) for each in node["children"]]

    assert [shape(each) for each in document["runs"]] == [
        (
            "source",
            "root",
            [
                ("next", "continuation", []),
                ("fork", "fork", [("helper", "delegate", [])]),
            ],
        )
    ]
    assert document["runs"][0]["state"] == "running"
    assert drawn.returncode == 0, drawn.stderr
    title, root, *below = drawn.stdout.splitlines()
    assert title == "Conversation talk"
    assert root.startswith("└─ source  running  script  2026-03-01 12:00:00.000Z")
    assert below[0].startswith("   ├─ next  completed  script")
    assert below[0].endswith("continues source")
    assert below[1].startswith("   └─ fork  completed")
    assert below[1].endswith("forks at snapshot 5 source  in conversation else")
    assert below[2].startswith("      └─ helper  completed")
    assert "works for fork" in below[2]
    assert "Only what the store knows" in drawn.stderr
    # A delegate whose parent is in another conversation begins a tree of its own.
    assert [each["run_id"] for each in perdure.document("tree", "deep")["runs"]] == ["helper"]


async def test_tree_of_an_unknown_conversation_is_not_found(
    perdure: Perdure, store: StepStore
) -> None:
    await save_source(store)
    unknown = perdure("tree", "none")
    elsewhere = perdure("tree", "talk", "--workspace", "other")

    assert (unknown.returncode, elsewhere.returncode) == (3, 3)
    assert "no conversation 'none'" in unknown.stderr


async def test_diff_shows_where_two_transcripts_part(perdure: Perdure, store: StepStore) -> None:
    await save_family(store)
    document = perdure.document("diff", "source", "fork")
    text = perdure("diff", "source", "fork", temporal_address=NOWHERE)
    same = perdure.document("diff", "fork", "fork")

    assert document["common"] == 2
    assert [len(document[side]["rest"]) for side in "ab"] == [2, 2]
    assert document["a"]["run_id"] == "source"
    assert document["b"]["rest"][0]["parts"][0]["content"] == "x"
    assert text.returncode == 0, text.stderr
    assert "Both begin with the same 2 messages." in text.stdout
    for line in (
        "A  source: 2 more (snapshot 9, step 2, interrupted)",
        "A  --- 3 response",
        'A  tool-call pay (pay-1): {"eur":3}',
        "B  user-prompt: x",
        "B  text: y",
    ):
        assert line in text.stdout.splitlines()
    assert same["common"] == 4
    assert [same[side]["rest"] for side in "ab"] == [[], []]


async def test_diff_with_a_run_that_is_not_there_is_not_found(
    perdure: Perdure, store: StepStore
) -> None:
    await save_family(store)
    unknown = perdure("diff", "source", "none")
    empty = perdure("diff", "source", "stranger")

    assert (unknown.returncode, empty.returncode) == (3, 3)
    assert "'none'" in unknown.stderr
    assert "has saved no history" in empty.stderr
