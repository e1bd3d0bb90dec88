"""Records histories for the replay tests: `python -m tests.replay.record [--into DIRECTORY]`.

The only way to make one. Each scenario becomes `<workflow>/<scenario>.v<release>.json` with an
outline of its events beside it, which people can read. A recording is made once for a release and
never again: one that exists is left alone.
"""

import argparse
import asyncio
import json
import os
import tempfile
import tomllib
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pymongo import AsyncMongoClient
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError

from cli.servers import LocalServers
from client import connect
from converter import close_payloads
from recordings import scrubbed
from settings import Settings
from stores.faulty import Fault, FaultPlan
from stores.memory_chunks import InMemoryChunkStore
from stores.opening import open_step_store
from stores.payload_store import StoredChunk
from stores.protocols import StepStore
from tests.helpers.delegating import asking
from tests.helpers.eventually import eventually
from tests.helpers.script import Call, echo_steps, script
from tests.helpers.subprocess_worker import WorkerProcess
from workflows import names
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.approvals import DecideApprovalRequest
from workflows.durable_conversation import DurableConversation
from workflows.names import AGENT_RUN, CONVERSATION, RETENTION, SEARCH_ATTRIBUTES
from workflows.outline import outline_of
from workflows.parking import ResolveToolEffectRequest
from workflows.retention import RetentionInput, RetentionWorkflow

HISTORIES = Path(__file__).with_name("histories")
ROOT = Path(__file__).parents[2]

STARTING = timedelta(seconds=60)
"""Of a worker on a busy machine."""

PAYLOADS = ".payloads"
"""Ends the name of the file with a recording's payloads; its name as JSON ends in `.json`."""


@dataclass(frozen=True)
class Bench:
    """What a scenario works with."""

    client: Client
    store: StepStore
    settings: Settings
    worker: WorkerProcess

    async def start(
        self, workflow_id: str, *, agent: str = "script", **request: Any
    ) -> WorkflowHandle[Any, Any]:
        return await self.client.start_workflow(
            AgentRunWorkflow.run,
            AgentRunInput(agent=agent, **request),
            id=workflow_id,
            task_queue=self.settings.task_queue,
        )

    async def is_in_a_tool(self, run_id: str, step_index: int) -> bool:
        effects = await self.store.list_tool_effects(run_id=run_id)
        return any(each.step_index == step_index for each in effects)

    def conversation(self, conversation_id: str, **settings: Any) -> DurableConversation:
        return DurableConversation.connect(
            self.client,
            agent="script",
            conversation_id=conversation_id,
            principal="alice",
            task_queue=self.settings.task_queue,
            **settings,
        )

    async def is_answered(
        self, conversation: DurableConversation, position: int, number: int
    ) -> bool:
        turns = await self.store.conversations.list_turns(conversation.conversation_id)
        variants = turns[position].variants
        return any(each.number == number and each.status == "completed" for each in variants)

    async def ended_conversation(
        self, conversation: DurableConversation
    ) -> WorkflowHandle[Any, Any]:
        handle = self.client.get_workflow_handle(conversation.workflow_id)
        await handle.result()
        return handle

    async def has_begun(self, run_id: str, step_index: int) -> bool:
        gates = await self.store.attempts.list_gates(run_id=run_id)
        return any(each.place.step_index == step_index for each in gates)

    async def needs_attention(self, run_id: str) -> bool:
        run = await self.store.get_run(run_id=run_id)
        return run is not None and run.state == "needs_attention"

    async def has_delegate_in_a_tool(self, run_id: str) -> bool:
        children = await self.store.list_runs(parent_run_id=run_id)
        return any([await self.is_in_a_tool(child.run_id, 1) for child in children])


Scenario = Callable[[Bench], Awaitable[WorkflowHandle[Any, Any]]]


async def completed(bench: Bench) -> WorkflowHandle[Any, Any]:
    handle = await bench.start(
        "completed",
        prompt=echo_steps(2),
        conversation_id="conversation",
        metadata={"team": "blue"},
        principal="alice",
    )
    await handle.result()
    return handle


async def parallel_tools(bench: Bench) -> WorkflowHandle[Any, Any]:
    calls: list[Call] = [
        ("echo", {"text": str(call), "delay": 0.3 - 0.1 * call}) for call in range(4)
    ]
    handle = await bench.start("parallel_tools", prompt=script([calls, calls[:2]]))
    await handle.result()
    return handle


async def continued(bench: Bench) -> WorkflowHandle[Any, Any]:
    await (await bench.start("continued_source", prompt=echo_steps(1))).result()
    handle = await bench.start("continued", prompt=echo_steps(1), continue_from="continued_source")
    await handle.result()
    return handle


async def failed(bench: Bench) -> WorkflowHandle[Any, Any]:
    steps: list[list[Call]] = [[("echo", {"text": "a"})], [("fail", {"text": "no luck"})]]
    handle = await bench.start("failed", prompt=script(steps))
    await ended(handle)
    return handle


async def refused_result(bench: Bench) -> WorkflowHandle[Any, Any]:
    """A tool in the workflow returns what no payload holds."""
    steps: list[list[Call]] = [[("echo", {"text": "a"}), ("odd_in_workflow", {})]]
    handle = await bench.start("refused_result", prompt=script(steps))
    await ended(handle)
    return handle


async def cancelled(bench: Bench) -> WorkflowHandle[Any, Any]:
    steps: list[list[Call]] = [
        [("echo", {"text": "a"})],
        [("echo", {"text": "b"}), ("echo", {"text": "c", "delay": 60})],
    ]
    handle = await bench.start("cancelled", prompt=script(steps))
    await eventually(lambda: bench.is_in_a_tool("cancelled", 2))
    await handle.cancel()
    await ended(handle)
    return handle


async def recovered(bench: Bench) -> WorkflowHandle[Any, Any]:
    handle = await bench.start("recovered", prompt=echo_steps(2, delay=0.5))
    await eventually(lambda: bench.is_in_a_tool("recovered", 1))
    bench.worker.restart()
    await handle.result()
    return handle


async def fallback(bench: Bench) -> WorkflowHandle[Any, Any]:
    handle = await bench.start("fallback", prompt=echo_steps(2))
    await handle.result()
    return handle


async def delegating(bench: Bench) -> WorkflowHandle[Any, Any]:
    """Two delegates side by side, and a step after them."""
    prompt = asking(echo_steps(1), echo_steps(2), after=1)
    handle = await bench.start("delegating", agent="lead", prompt=prompt, principal="alice")
    await handle.result()
    return handle


async def delegated(bench: Bench) -> WorkflowHandle[Any, Any]:
    """The run of a delegate."""
    parent = await bench.start("delegated_by", agent="lead", prompt=asking(echo_steps(2)))
    await parent.result()
    (child,) = await bench.store.list_runs(parent_run_id=parent.id)
    return bench.client.get_workflow_handle(child.run_id)


async def delegating_failed(bench: Bench) -> WorkflowHandle[Any, Any]:
    prompt = asking(script([[("fail", {"text": "no luck"})]]))
    handle = await bench.start("delegating_failed", agent="lead", prompt=prompt)
    await ended(handle)
    return handle


async def delegating_cancelled(bench: Bench) -> WorkflowHandle[Any, Any]:
    """Cancelled while the delegate is in a tool."""
    prompt = asking(echo_steps(1, delay=60))
    handle = await bench.start("delegating_cancelled", agent="lead", prompt=prompt)
    await eventually(lambda: bench.has_delegate_in_a_tool(handle.id))
    await handle.cancel()
    await ended(handle)
    return handle


async def parked(bench: Bench) -> WorkflowHandle[Any, Any]:
    """A call that ends, and one whose worker dies in the body and that somebody decides on."""
    steps: list[list[Call]] = [
        [("pay", {"path": "/dev/null"})],
        [("pay", {"path": "/dev/null", "delay": 60}), ("echo", {"text": "beside"})],
    ]
    handle = await bench.start("parked", prompt=script(steps))
    await eventually(lambda: bench.has_begun("parked", 2))
    bench.worker.restart()
    await eventually(lambda: bench.needs_attention("parked"), within=timedelta(seconds=30))
    decision = ResolveToolEffectRequest(
        run_id="parked", call="2/0", decision="completed", result="paid", by="alice"
    )
    await handle.execute_update(  # pyright: ignore[reportUnknownMemberType] - the SDK's overloads
        names.RESOLVE_UPDATE, decision
    )
    await handle.result()
    return handle


@asynccontextmanager
async def hopping(bench: Bench) -> AsyncGenerator[Bench]:
    """The same, with a worker whose runs hop every 2 model requests."""
    update = {"task_queue": "hopping", "hop_after_requests": 2}
    settings = bench.settings.model_copy(update=update)
    with WorkerProcess(settings, log_path=Path(os.devnull)) as worker:
        yield replace(bench, settings=settings, worker=worker)


async def hop_left(bench: Bench) -> WorkflowHandle[Any, Any]:
    """The first execution of a run, which it leaves."""
    async with hopping(bench) as other:
        handle = await other.start("hop_left", prompt=echo_steps(2))
        await handle.result()
    return bench.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)


async def hop_taken(bench: Bench) -> WorkflowHandle[Any, Any]:
    """An execution that a run comes to and leaves again; parallel calls on both sides."""
    calls: list[Call] = [("echo", {"text": "a"}), ("echo", {"text": "b"})]
    async with hopping(bench) as other:
        handle = await other.start("hop_taken", prompt=script([calls] * 4))
        await handle.result()
    run = await bench.store.get_run(run_id=handle.id)
    middle = run.branches[1].branch if run else None
    return bench.client.get_workflow_handle(handle.id, run_id=middle)


async def moved(bench: Bench) -> WorkflowHandle[Any, Any]:
    """The execution of a run that it left for a newer build of its deployment."""
    queue = "moving"
    other = replace(bench, settings=bench.settings.model_copy(update={"task_queue": queue}))
    one, two = (
        other.settings.model_copy(update={"deployment": "moving", "build_id": build})
        for build in ("one", "two")
    )
    nowhere = Path(os.devnull)
    with WorkerProcess(one, log_path=nowhere), WorkerProcess(two, log_path=nowhere):
        await eventually(lambda: is_current(bench.client, "moving", "one"), within=STARTING)
        handle = await other.start("moved", prompt=echo_steps(2, delay=2.0))
        await eventually(lambda: bench.is_in_a_tool(handle.id, 1), within=STARTING)
        await eventually(lambda: is_current(bench.client, "moving", "two"), within=STARTING)
        await handle.result()
    return bench.client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)


async def is_current(client: Client, deployment: str, build: str) -> bool:
    """Make a build the current one; not yet while the server has not heard of its workers."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=deployment, build_id=build
    )
    try:
        await client.workflow_service.set_worker_deployment_current_version(request)
    except RPCError:
        return False
    return True


async def deps_by_reference(bench: Bench) -> WorkflowHandle[Any, Any]:
    steps: list[list[Call]] = [[("greet", {}), ("greet", {})]]
    handle = await bench.start(
        "deps_by_reference", agent="greeter", prompt=script(steps), deps={"name": "Ada"}
    )
    await handle.result()
    return handle


async def turn(bench: Bench) -> WorkflowHandle[Any, Any]:
    """The run of a turn, steered while it is in a tool."""
    conversation = bench.conversation("turn")
    ticket = await conversation.submit(echo_steps(1, delay=1.0))
    await eventually(lambda: bench.is_in_a_tool(ticket.answer.run_id, 1))
    await conversation.steer(script([], final="steered"))
    handle = bench.client.get_workflow_handle(ticket.answer.run_id)
    await handle.result()
    return handle


async def searching(bench: Bench) -> WorkflowHandle[Any, Any]:
    """A run that searches for what another one of its conversation said."""
    said = script([], final="the vault is number 7413")
    await (await bench.start("searching_before", prompt=said, conversation_id="vault")).result()
    query = ("search_conversation_history", {"query": "vault number"})
    steps: list[list[Call]] = [[query], [query, ("echo", {"text": "beside"})]]
    handle = await bench.start(
        "searching", agent="finder", prompt=script(steps), conversation_id="vault"
    )
    await handle.result()
    return handle


async def reading(bench: Bench) -> WorkflowHandle[Any, Any]:
    """Conversations searched and read, one call beside another; its principal may read nothing."""
    search: Call = ("session_search", {"query": "vault"})
    read: Call = ("session_read", {"session_id": "01900000-0000-7000-8000-000000000070"})
    handle = await bench.start(
        "reading", agent="clerk", prompt=script([[search], [read, search]]), principal="ann"
    )
    await handle.result()
    return handle


async def streamed(bench: Bench) -> WorkflowHandle[Any, Any]:
    handle = await bench.start("streamed", prompt=echo_steps(1), stream=True)
    await handle.result()
    return handle


async def approved(bench: Bench) -> WorkflowHandle[Any, Any]:
    """Calls that wait for approval: one is approved, one denied, and one has asked itself.

    `unapproved` beside it is from before runs waited: it ended there. No code makes it any more.
    """
    orders: list[Call] = [("order", {"path": "/dev/null"}), ("order", {"path": "/dev/zero"})]
    calls: list[Call] = [*orders, ("ask_first", {"text": "a"}), ("echo", {"text": "b"})]
    handle = await bench.start("approved", prompt=script([calls]))

    async def are_asked() -> bool:
        effects = await bench.store.list_tool_effects(run_id="approved")
        return [each.awaits_approval for each in effects].count(True) == len(calls) - 1

    await eventually(are_asked)
    for effect in await bench.store.list_unresolved_tool_effects(run_id="approved"):
        decision = DecideApprovalRequest(
            run_id="approved",
            call=effect.tool_call_id,
            decision="denied" if effect.call_index == 1 else "approved",
            arguments_digest=effect.arguments_digest or "",
            by="alice",
        )
        await handle.execute_update(  # pyright: ignore[reportUnknownMemberType] - the SDK's overloads
            names.APPROVE_UPDATE, decision
        )
    await handle.result()
    return handle


async def conversation_ended(bench: Bench) -> WorkflowHandle[Any, Any]:
    """Two turns, another answer, every change of a member, and an end by close."""
    conversation = bench.conversation("conversation_ended")
    await conversation.say(echo_steps(1), message_id="one")
    await conversation.say(echo_steps(0), message_id="two")
    again = await conversation.regenerate(1, message_id="again")
    await conversation.reply("", again)
    await eventually(lambda: bench.is_answered(conversation, 1, 2))
    await conversation.select_variant(1, 2)
    await conversation.hide(0)
    await conversation.conceal(0)
    await conversation.rename("A name")
    await conversation.archive()
    await conversation.fork(1, into="conversation_ended_fork")
    await conversation.close()
    return await bench.ended_conversation(conversation)


async def conversation_idle(bench: Bench) -> WorkflowHandle[Any, Any]:
    conversation = bench.conversation("conversation_idle", idle_seconds=0.3)
    await conversation.say(echo_steps(0), message_id="one")
    return await bench.ended_conversation(conversation)


async def conversation_recycled(bench: Bench) -> WorkflowHandle[Any, Any]:
    """The first execution of one that continued as new, with a message in its queue."""
    conversation = bench.conversation("conversation_recycled", recycle_turns=1)
    first = await conversation.submit(echo_steps(1, delay=0.5), message_id="one")
    second = await conversation.submit(echo_steps(0), message_id="two")
    await conversation.reply("", second)
    handle = bench.client.get_workflow_handle(conversation.workflow_id)
    chain = (await handle.describe()).raw_description.workflow_execution_info.first_run_id
    await conversation.reply("", first)
    return bench.client.get_workflow_handle(handle.id, run_id=chain)


async def conversation_cancelled(bench: Bench) -> WorkflowHandle[Any, Any]:
    """Cancelled while its turn is in a tool, after it was steered and one more was interrupted."""
    conversation = bench.conversation("conversation_cancelled", mid_turn="interrupt")
    first = await conversation.submit(echo_steps(1, delay=60), message_id="one")
    await eventually(lambda: bench.is_in_a_tool(first.answer.run_id, 1))
    await conversation.steer(echo_steps(0), message_id="steer")
    second = await conversation.submit(echo_steps(1, delay=60), message_id="two")
    await eventually(lambda: bench.is_in_a_tool(second.answer.run_id, 1))
    handle = bench.client.get_workflow_handle(conversation.workflow_id)
    await handle.cancel()
    await ended(handle)
    return handle


async def retention_applied(bench: Bench) -> WorkflowHandle[Any, Any]:
    """What a schedule starts; there is no policy, so nothing goes."""
    handle = await bench.client.start_workflow(
        RetentionWorkflow.run,
        RetentionInput(),
        id="recorded-retention",
        task_queue=bench.settings.task_queue,
    )
    await handle.result()
    return handle


async def ended(handle: WorkflowHandle[Any, Any]) -> None:
    try:
        await handle.result()
    except WorkflowFailureError:
        return
    message = f"{handle.id} was to fail and did not"
    raise AssertionError(message)


async def large(servers: Bench) -> WorkflowHandle[Any, Any]:
    """Payloads that are stored beside the history: prompt, results, model requests."""
    handle = await servers.start("recorded-large", prompt=echo_steps(2, size=20_000))
    await handle.result()
    return handle


RUNS: dict[str, Scenario] = {
    each.__name__: each
    for each in (
        *(completed, parallel_tools, continued, failed, cancelled, recovered, fallback),
        refused_result,
        *(delegating, delegated, delegating_failed, delegating_cancelled),
        *(
            parked,
            hop_left,
            hop_taken,
            deps_by_reference,
            streamed,
            approved,
            large,
            searching,
            reading,
            turn,
            moved,
        ),
    )
}
CONVERSATIONS: dict[str, Scenario] = {
    each.__name__: each
    for each in (
        *(conversation_ended, conversation_idle, conversation_recycled),
        conversation_cancelled,
    )
}
RETENTIONS: dict[str, Scenario] = {"retention_applied": retention_applied}
SCENARIOS: dict[str, Scenario] = {**RUNS, **CONVERSATIONS, **RETENTIONS}
FAULTS = (
    Fault(name="late", action="delay", seconds=3, run_id="fallback", holds="tool_call_started"),
)


def release() -> str:
    """The version of this source tree."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


@asynccontextmanager
async def bench(directory: Path) -> AsyncGenerator[Bench]:
    """Servers, a store and a worker, all of their own."""
    plan = FaultPlan(directory=directory, faults=FAULTS)
    async with LocalServers(directory / "servers", search_attributes=SEARCH_ATTRIBUTES) as servers:
        settings = Settings(
            temporal_address=servers.addresses.temporal_address,
            mongodb_uri=servers.addresses.mongodb_uri,
            agents="tests.helpers.delegating:IN_PRODUCTION",
        )
        store = open_step_store(
            "mongodb", db_url=settings.mongodb_uri, database=settings.mongodb_database
        )
        await store.initialise()
        client = await connect(settings)
        log_path = directory / "worker.log"
        with WorkerProcess(settings, log_path=log_path, plan=plan) as worker:
            yield Bench(client, store, settings, worker)
        await close_payloads(client.data_converter)
        await store.aclose()


async def write_payloads(settings: Settings, workflow_id: str, path: Path) -> None:
    """Put what is stored of a history's payloads beside it, if anything is."""
    async with AsyncMongoClient[dict[str, Any]](settings.mongodb_uri) as client:
        database = client[settings.mongodb_database]
        if not await database["payload_manifests"].count_documents(
            {"_id.workflow_id": workflow_id}
        ):
            return
        found = await database["payload_chunks"].find().sort("_id").to_list()
    chunks = {
        bytes(each["_id"]).hex(): [each["kind"], b64encode(each["data"]).decode()] for each in found
    }
    path.with_suffix(PAYLOADS).write_text(json.dumps(chunks, indent=1) + "\n")


def payloads_beside(recording: Path) -> InMemoryChunkStore:
    """What is stored of the payloads of a recorded history."""
    store = InMemoryChunkStore()
    path = recording.with_suffix(PAYLOADS)
    if path.exists():
        for name, (kind, data) in json.loads(path.read_text()).items():
            store.chunks[bytes.fromhex(name)] = StoredChunk(kind=kind, data=b64decode(data))
    return store


async def record(into: Path) -> list[Path]:
    """Record what is missing of this release; the files that were written."""
    for workflow in (AGENT_RUN, CONVERSATION, RETENTION):
        (into / workflow).mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="perdure-record-") as directory:
        async with bench(Path(directory)) as servers:
            for name, scenario in SCENARIOS.items():
                workflow = CONVERSATION if name in CONVERSATIONS else AGENT_RUN
                if name in RETENTIONS:
                    workflow = RETENTION
                path = into / workflow / f"{name}.v{release()}.json"
                if path.exists():
                    continue
                history = await (await scenario(servers)).fetch_history()
                path.write_text(scrubbed(history, also=(str(ROOT),)))
                path.with_suffix(".txt").write_text(outline_of(history))
                await write_payloads(servers.settings, history.workflow_id, path)
                written.append(path)
    return written


def main() -> None:
    """Say what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=HISTORIES, metavar="DIRECTORY")
    written = asyncio.run(record(parser.parse_args().into))
    for path in written:
        print(f"recorded {path}")  # noqa: T201
    if len(written) < len(SCENARIOS):
        print(f"left alone what version {release()} has recorded before")  # noqa: T201


if __name__ == "__main__":
    main()
