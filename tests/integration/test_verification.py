"""The store against the histories: exact after every kind of run, and every change is found."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient
from temporalio.client import Client, WorkflowHandle

from cli.verification import RunVerification, Verifier
from stores.faulty import Fault, FaultPlan, with_faults
from stores.mongo.steps import MongoStepStore
from stores.records import ContinuableSnapshot
from stores.retention_policies import RetentionPolicy
from tests.helpers.delegating import AGENTS as DELEGATING
from tests.helpers.delegating import asking
from tests.helpers.eventually import eventually
from tests.helpers.evidence import content_of
from tests.helpers.script import Call, echo_steps, make_agent, script
from tests.helpers.workers import running_worker
from tests.integration.conftest import WITHIN
from tests.integration.test_reset import reset
from workflows import names
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.approvals import DecideApprovalRequest
from workflows.durable_conversation import DurableConversation

pytestmark = pytest.mark.integration

AGENTS = [make_agent()]


async def start(
    client: Client, task_queue: str, prompt: str, **request: Any
) -> WorkflowHandle[Any, Any]:
    given: dict[str, Any] = {"agent": "script", "prompt": prompt, **request}
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(**given),
        id=f"verified-{uuid4().hex}",
        task_queue=task_queue,
    )


async def end(handle: WorkflowHandle[Any, Any]) -> None:
    await asyncio.wait([asyncio.ensure_future(handle.result())], timeout=WITHIN.total_seconds())


@pytest.fixture
def database(mongodb_uri: str, mongodb_database: str) -> Iterator[Any]:
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        yield client[mongodb_database]


@pytest.fixture
def verifier(temporal: Client, mongo: MongoStepStore) -> Verifier:
    return Verifier(temporal, mongo, AGENTS)


async def verified(verifier: Verifier, run_id: str, **options: Any) -> RunVerification:
    (found,) = await verifier.verify(run_id, **options)
    return found


def told(found: RunVerification) -> list[tuple[str, str, str]]:
    return [(each.kind, each.boundary, each.key) for each in found.comparison.differences]


async def test_runs_of_every_end_are_exact(
    temporal: Client, mongo: MongoStepStore, task_queue: str, verifier: Verifier, tmp_path: Path
) -> None:
    retry: list[list[Call]] = [[("retry", {"path": str(tmp_path / "r"), "times": 2})]]
    failing: list[list[Call]] = [[("echo", {"text": "a"})], [("fail", {"text": "no"})]]
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        source = await start(temporal, task_queue, echo_steps(2, parallel=3))
        await end(source)
        others = [
            await start(temporal, task_queue, script(retry)),
            await start(temporal, task_queue, script(failing)),
            await start(temporal, task_queue, script([[("odd", {"kind": "surrogate"})]])),
            await start(temporal, task_queue, echo_steps(1, size=200_000)),
            await start(temporal, task_queue, echo_steps(1), continue_from=source.id),
            cancelled := await start(temporal, task_queue, echo_steps(1, delay=60)),
        ]
        await eventually(lambda: has_effects(mongo, cancelled.id))
        await cancelled.cancel()
        for each in others:
            await end(each)
    for each in (source, *others):
        found = await verified(verifier, each.id)
        assert (found.verdict, found.basis, told(found)) == ("EXACT", "replay", []), each.id
        assert found.comparison.ahead == found.comparison.outside == 0


async def has_effects(store: MongoStepStore, run_id: str) -> bool:
    return bool(await store.list_tool_effects(run_id=run_id))


async def test_an_approved_run_is_exact_while_it_waits_and_after(
    temporal: Client, mongo: MongoStepStore, task_queue: str, verifier: Verifier
) -> None:
    async def waits() -> bool:
        run = await mongo.get_run(run_id=handle.id)
        return run is not None and run.state == "needs_attention"

    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(temporal, task_queue, script([[("ask_first", {"text": "may I"})]]))
        await eventually(waits)
        await eventually(lambda: is_exact(verifier, handle.id))
        (effect,) = await mongo.list_tool_effects(run_id=handle.id)
        decision = DecideApprovalRequest(
            run_id=handle.id,
            call="1/0",
            decision="approved",
            arguments_digest=str(effect.arguments_digest),
            by="ann",
        )
        await handle.execute_update(  # pyright: ignore[reportUnknownMemberType] - the SDK's
            names.APPROVE_UPDATE, decision
        )
        await end(handle)
    assert (await verified(verifier, handle.id)).verdict == "EXACT"


async def is_exact(verifier: Verifier, run_id: str) -> bool:
    return (await verified(verifier, run_id)).verdict == "EXACT"


async def test_a_run_is_verified_over_its_hops_and_behind_a_reset(
    temporal: Client, mongo: MongoStepStore, task_queue: str, verifier: Verifier, database: Any
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue, hop_after_requests=3):
        hopped = await start(temporal, task_queue, echo_steps(7))
        await end(hopped)
        short = await start(temporal, task_queue, echo_steps(1))
        await end(short)
        again = await reset(temporal, short, task=1)
        await end(again)
    found = await verified(verifier, hopped.id)
    assert (found.verdict, found.executions, found.is_whole) == ("EXACT", 3, True)
    assert (await verified(verifier, short.id)).verdict == "EXACT"

    removed = database["events"].find_one_and_delete(
        {"run_id": hopped.id, "step_index": 2, "event": "tool_call_completed"}
    )
    reset_row = database["events"].find_one_and_delete({"run_id": short.id, "branch": again.run_id})
    assert told(await verified(verifier, hopped.id)) == [("gap", "append_event", removed["key"])]
    assert told(await verified(verifier, short.id)) == [("gap", "append_event", reset_row["key"])]


async def test_delegates_are_verified_each_by_itself(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    async with running_worker(temporal, mongo, DELEGATING, task_queue):
        prompt = asking(echo_steps(1), echo_steps(2), after=1)
        handle = await start(temporal, task_queue, prompt, agent="lead")
        await end(handle)
    children = await mongo.list_runs(parent_run_id=handle.id)
    verifier = Verifier(temporal, mongo, DELEGATING)
    assert len(children) == 2
    for run_id in (handle.id, *(each.run_id for each in children)):
        assert told(await verified(verifier, run_id)) == []


async def test_turns_of_a_conversation_are_verified_as_the_runs_that_they_are(
    temporal: Client, mongo: MongoStepStore, task_queue: str, verifier: Verifier
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        conversation = DurableConversation.connect(
            temporal,
            agent="script",
            conversation_id=f"verified-{uuid4().hex}",
            principal="alice",
            task_queue=task_queue,
        )
        await conversation.say(echo_steps(1), message_id="one")
        again = await conversation.regenerate(0, message_id="again")
        await conversation.reply("", again)
        await conversation.say(echo_steps(0), message_id="two")
        await conversation.close()
    runs = await mongo.list_runs(conversation_id=conversation.conversation_id)
    assert len(runs) == 3
    for each in runs:
        found = await verified(verifier, each.run_id)
        assert (found.verdict, found.basis, told(found)) == ("EXACT", "replay", [])
    assert await verifier.verify(conversation.workflow_id) == []


def readable(snapshot: ContinuableSnapshot) -> tuple[int, str | None, list[Any]]:
    return (snapshot.sequence, snapshot.idempotency_key, content_of(snapshot.messages))


Change = Callable[[Any, str], tuple[str, str, str]]
"""Does something to a run's rows; what has to be told of it."""


def delete_event(database: Any, run_id: str) -> tuple[str, str, str]:
    row = database["events"].find_one_and_delete({"run_id": run_id, "event": "tool_call_started"})
    return ("gap", "append_event", row["key"])


def delete_snapshot(database: Any, run_id: str) -> tuple[str, str, str]:
    row = database["snapshots"].find_one_and_delete({"run_id": run_id})
    return ("gap", "save_snapshot", row["key"])


def delete_effect(database: Any, run_id: str) -> tuple[str, str, str]:
    database["tool_effects"].delete_one({"run_id": run_id, "effect_key": "1/0"})
    return ("gap", "start_tool_effect", "1/0")


def delete_finish(database: Any, run_id: str) -> tuple[str, str, str]:
    database["tool_effects"].update_one(
        {"run_id": run_id, "effect_key": "2/0"}, {"$pull": {"transitions": {"ordinal": 0}}}
    )
    return ("gap", "finish_tool_effect", "2/0#0")


def delete_position(database: Any, run_id: str) -> tuple[str, str, str]:
    database["positions"].delete_one({"run_id": run_id, "position": 1})
    return ("gap", "message", "1")


def delete_message(database: Any, run_id: str) -> tuple[str, str, str]:
    position = database["positions"].find_one({"run_id": run_id, "position": 2})
    database["messages"].delete_one({"_id": position["message"]})
    return ("gap", "message", "2")


def delete_run(database: Any, run_id: str) -> tuple[str, str, str]:
    database["runs"].delete_one({"_id": run_id})
    return ("gap", "register_run", run_id)


def delete_head(database: Any, run_id: str) -> tuple[str, str, str]:
    branches = database["runs"].find_one({"_id": run_id})["branches"]
    execution_id = branches[-1]["execution_id"]
    database["commit_heads"].delete_one({"_id.execution_id": execution_id})
    return ("gap", "commit_head", execution_id)


def edit_event(database: Any, run_id: str) -> tuple[str, str, str]:
    row = database["events"].find_one_and_update(
        {"run_id": run_id, "event": "tool_call_completed"}, {"$set": {"tool_name": "other"}}
    )
    return ("diverged", "append_event", row["key"])


def edit_digest(database: Any, run_id: str) -> tuple[str, str, str]:
    row = database["snapshots"].find_one_and_update({"run_id": run_id}, {"$set": {"digest": "0"}})
    return ("diverged", "save_snapshot", row["key"])


def edit_effect(database: Any, run_id: str) -> tuple[str, str, str]:
    database["tool_effects"].update_one(
        {"run_id": run_id, "effect_key": "1/0"}, {"$set": {"arguments_summary": "other"}}
    )
    return ("diverged", "start_tool_effect", "1/0")


def edit_outcome(database: Any, run_id: str) -> tuple[str, str, str]:
    database["tool_effects"].update_one(
        {"run_id": run_id, "effect_key": "1/0"}, {"$set": {"transitions.1.status": "failed"}}
    )
    return ("diverged", "finish_tool_effect", "1/0#0")


def edit_message(database: Any, run_id: str) -> tuple[str, str, str]:
    position = database["positions"].find_one({"run_id": run_id, "position": 2})
    message = database["messages"].find_one({"_id": position["message"]})
    text = message["text"].replace("0-0", "0-9")
    assert text != message["text"]
    database["messages"].update_one({"_id": message["_id"]}, {"$set": {"text": text}})
    return ("diverged", "message", "2")


def edit_run(database: Any, run_id: str) -> tuple[str, str, str]:
    database["runs"].update_one({"_id": run_id}, {"$set": {"state": "failed"}})
    return ("diverged", "register_run", run_id)


def add_event(database: Any, run_id: str) -> tuple[str, str, str]:
    row = database["events"].find_one({"run_id": run_id, "event": "run_completed"})
    added = {**row, "_id": uuid4().hex, "key": "one more", "sequence": 10_000}
    database["events"].insert_one(added)
    return ("diverged", "append_event", "one more")


CHANGES: list[Change] = [
    *(delete_event, delete_snapshot, delete_effect, delete_finish, delete_position),
    *(delete_message, delete_run, delete_head),
    *(edit_event, edit_digest, edit_effect, edit_outcome, edit_message, edit_run, add_event),
]


@pytest.mark.timeout(180)
async def test_every_change_by_hand_is_told_with_its_place_and_repaired(
    temporal: Client, mongo: MongoStepStore, task_queue: str, verifier: Verifier, database: Any
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handles = [await start(temporal, task_queue, echo_steps(2)) for _ in CHANGES]
        await asyncio.gather(*(end(each) for each in handles))
    for change, handle in zip(CHANGES, handles, strict=True):
        before, began = await mongo.list_snapshots(run_id=handle.id), datetime.now(UTC)
        wanted = change(database, handle.id)
        found = await verified(verifier, handle.id)
        assert told(found) == [wanted], change.__name__
        assert found.verdict == wanted[0].upper()
        (difference,) = found.comparison.differences
        assert difference.sequence is not None or difference.number is not None

        repaired = await verified(verifier, handle.id, is_repairing=True)
        assert (repaired.verdict, repaired.repaired > 0) == ("EXACT", True), change.__name__
        again = await verified(verifier, handle.id, is_repairing=True)
        assert (again.verdict, again.repaired) == ("EXACT", 0)
        after = await mongo.list_snapshots(run_id=handle.id)
        assert [*map(readable, after)] == [*map(readable, before)]
        times = [message.timestamp for each in after for message in each.messages]
        assert max(each for each in times if each) < began


async def test_without_its_code_a_run_is_compared_with_recorded_digests(
    temporal: Client, mongo: MongoStepStore, task_queue: str, database: Any
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        prompts = [echo_steps(2, parallel=3)] * 4
        handles = [await start(temporal, task_queue, each) for each in prompts]
        await asyncio.gather(*(end(each) for each in handles))
    other = Verifier(temporal, mongo, [make_agent("other")])
    exact, lacking, edited, renamed = handles
    place = {"run_id": lacking.id, "event": "tool_call_completed", "step_index": 2}
    removed = database["events"].find_one_and_delete(place)
    database["events"].update_one(
        {"run_id": edited.id, "event": "tool_call_completed"}, {"$set": {"tool_name": "other"}}
    )
    database["events"].update_one(
        {"run_id": renamed.id, "event": "tool_call_completed"}, {"$set": {"key": "other"}}
    )

    found = await verified(other, exact.id)
    assert (found.verdict, found.basis, told(found)) == ("EXACT", "recorded digests", [])
    assert "agent 'script' is not on this code" in str(found.why)
    assert found.comparison.untold == 0
    found = await verified(other, lacking.id)
    assert found.verdict == "GAP"
    (difference,) = found.comparison.differences
    assert (difference.boundary, difference.number) == ("commit_boundaries", removed["number"])
    assert difference.sequence is not None
    assert difference.sequence <= removed["sequence"]
    assert (await verified(other, edited.id)).verdict == "DIVERGED"
    found = await verified(other, renamed.id, is_repairing=True)
    assert (found.verdict, found.repaired) == ("DIVERGED", 0)
    assert told(found)[0][1] == "commit_boundaries"


async def test_of_a_run_whose_history_is_gone_its_rows_are_compared_with_themselves(
    temporal: Client, mongo: MongoStepStore, task_queue: str, verifier: Verifier, database: Any
) -> None:
    plain = AGENTS[0]
    result = await plain.run(echo_steps(1), run_id="gone")
    assert result.output
    assert await verifier.verify("gone") == []

    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(temporal, task_queue, echo_steps(1))
        await end(handle)
    for collection in ("events", "snapshots", "tool_effects", "positions"):
        database[collection].update_many({"run_id": handle.id}, {"$set": {"run_id": "gone"}})
    run = database["runs"].find_one({"_id": handle.id})
    database["runs"].insert_one({**run, "_id": "gone"})

    found = await verified(verifier, "gone")
    assert (found.verdict, found.basis) == ("UNKNOWN", "rows alone")
    assert "history is gone after its retention time" in str(found.why)
    database["events"].update_one({"run_id": "gone"}, {"$set": {"step_index": 7}})
    assert (await verified(verifier, "gone")).verdict == "DIVERGED"


async def test_what_retention_took_and_what_was_annotated_is_no_difference(
    temporal: Client,
    mongodb_uri: str,
    mongo: MongoStepStore,
    mongodb_database: str,
    task_queue: str,
    verifier: Verifier,
    database: Any,
) -> None:
    bounded = MongoStepStore(db_url=mongodb_uri, database=mongodb_database, max_snapshots_per_run=1)
    async with running_worker(temporal, bounded, AGENTS, task_queue):
        handle = await start(temporal, task_queue, echo_steps(3))
        await end(handle)
    await bounded.aclose()
    await mongo.annotate_tool_effect(run_id=handle.id, effect_key="1/0", effect_summary="said")
    found = await verified(verifier, handle.id)
    assert (found.verdict, told(found)) == ("EXACT", [])
    assert found.comparison.pruned > 0

    database["events"].delete_many({"run_id": handle.id, "step_index": 1})
    assert (await verified(verifier, handle.id)).verdict == "GAP"
    database["runs"].update_one({"_id": handle.id}, {"$set": {"details_pruned_at": 1}})
    assert (await verified(verifier, handle.id)).verdict == "EXACT"


async def test_what_a_policy_took_is_no_difference_and_the_run_goes_on(
    temporal: Client, mongo: MongoStepStore, task_queue: str, verifier: Verifier
) -> None:
    async with running_worker(temporal, mongo, AGENTS, task_queue):
        handle = await start(temporal, task_queue, echo_steps(3))
        await end(handle)
        messages = (await mongo.list_snapshots(run_id=handle.id))[-1].messages
        done = await mongo.retain(
            RetentionPolicy(details_days=1, snapshots=1, originals=False),
            temporal_keeps=timedelta(days=1),
            now=datetime.now(UTC) + timedelta(days=30),
            is_dry=False,
        )
        assert (done.detailed, done.rows > 0, done.snapshots > 0) == (1, True, True)
        found = await verified(verifier, handle.id)
        assert (found.verdict, told(found)) == ("EXACT", [])

        request = AgentRunInput(agent="script", prompt=echo_steps(0), continue_from=handle.id)
        after = await temporal.execute_workflow(
            AgentRunWorkflow.run, request, id=f"on-{uuid4().hex}", task_queue=task_queue
        )
        (snapshot, *_) = await mongo.list_snapshots(run_id=after.run_id)
        assert snapshot.messages[: len(messages)] == messages


async def test_an_open_run_may_be_ahead_of_its_history_and_a_superseded_branch_is_no_difference(
    temporal: Client, mongo: MongoStepStore, task_queue: str, verifier: Verifier, tmp_path: Path
) -> None:
    """Held after the write and before its report: the rows are there, the marker is not."""
    go = tmp_path / "go"
    fault = Fault(name="held", action="wait", when="after", until=go, holds="tool_call_completed")
    store = with_faults(mongo, plan := FaultPlan(directory=tmp_path, faults=(fault,)))
    async with running_worker(temporal, store, AGENTS, task_queue):
        handle = await start(temporal, task_queue, echo_steps(1))
        await eventually(lambda: plan.has_fired("held"))
        found = await verified(verifier, handle.id)
        go.touch()
        await end(handle)
    assert (found.verdict, found.comparison.ahead > 0) == ("EXACT", True)
    assert (await verified(verifier, handle.id)).verdict == "EXACT"
