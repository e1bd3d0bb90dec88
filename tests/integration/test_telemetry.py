"""What a worker in production exports: traces, metrics, health; and that none of it harms a run."""

import asyncio
import json
import re
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pymongo import MongoClient
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.worker import Worker

import telemetry_names as names
from activities.boundaries import BOUNDARIES
from activities.searching import SearchHistoryRequest
from cli.servers import free_port
from client import connect
from converter import close_payloads
from settings import Settings
from stores.mongo.steps import MongoStepStore
from stores.streaming import StreamChunk, StreamItem, StreamTake
from telemetry.providers import begin_telemetry
from tests.helpers.collector import Collector, TakenSpan
from tests.helpers.eventually import eventually
from tests.helpers.planting import PlantWorkflow
from tests.helpers.production_worker import ProductionWorker, perdure_run, variables_of
from tests.helpers.script import echo_steps, script
from tests.helpers.user_agents import SCRIPT_IN_PRODUCTION
from tests.helpers.workers import count_scheduled_activities, replay
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput, AgentRunOutput
from workflows.recorded_commits import LOCAL_ACTIVITY_MARKER

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

WITHIN = timedelta(seconds=60)
CONTENT = "passport-P-4711"


@pytest.fixture
def settings(
    temporal_address: str, mongodb_uri: str, mongodb_database: str, task_queue: str
) -> Settings:
    return Settings(
        temporal_address=temporal_address,
        mongodb_uri=mongodb_uri,
        mongodb_database=mongodb_database,
        task_queue=task_queue,
        agents="tests.helpers.user_agents:SCRIPT_IN_PRODUCTION",
    )


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as opened:
        yield opened


@pytest.fixture
async def client(settings: Settings) -> AsyncGenerator[Client]:
    connected = await connect(settings)
    yield connected
    await close_payloads(connected.data_converter)


async def start(
    client: Client, settings: Settings, prompt: str, run_id: str | None = None
) -> WorkflowHandle[AgentRunWorkflow, AgentRunOutput]:
    return await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="script", prompt=prompt, conversation_id=settings.task_queue),
        id=run_id or f"run-{uuid4().hex}",
        task_queue=settings.task_queue,
        task_timeout=timedelta(seconds=3),  # a task that is lost with an eviction comes again soon
    )


def traced(settings: Settings, endpoint: str, **more: str) -> dict[str, str]:
    return {
        **variables_of(settings),
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        **more,
    }


@pytest.mark.usefixtures("mongo")
async def test_one_trace_leads_from_the_submitter_to_mongodb_and_holds_no_content(
    settings: Settings, collector: Collector
) -> None:
    environment = traced(settings, collector.endpoint, PERDURE_LOG_FORMAT="json")
    run_id = f"run-{uuid4().hex}"
    steps = script([[("echo", {"text": CONTENT})], [("fail", {"text": CONTENT})]], final=CONTENT)
    with ProductionWorker(environment) as worker:
        done = await perdure_run(environment, steps, run_id)
        assert "failed" in done.stderr, done.stderr  # `fail` raises what would be content
        assert await worker.stop() == 0
    submitted = [span for span in collector.spans if span.name == "StartWorkflow:agent_run"]
    assert [span.service for span in submitted] == ["perdure"]
    trace = collector.of_trace(submitted[0].trace_id)
    found = Counter(span.name for span in trace)
    assert found["RunWorkflow:agent_run"] == 1
    assert any(name.startswith("RunActivity:agent__script__") for name in found)
    assert found["RunActivity:commit_boundaries"] > 0
    assert len({span.span_id for span in trace}) == len(trace)
    writes = [
        path for span in trace if span.name == "mongodb insert" and (path := path_of(span, trace))
    ]
    expected = [
        "RunActivity:",
        "StartActivity:",
        "RunWorkflow:agent_run",
        "StartWorkflow:agent_run",
    ]
    assert any(
        path[-1].startswith("StartWorkflow:")
        and all(any(name.startswith(each) for name in path) for each in expected)
        for path in writes
    ), writes
    boundary = next(span for span in trace if span.name == "RunActivity:commit_boundaries")
    assert boundary.attributes["perdure.run_id"] == run_id
    assert {"perdure.boundary.duration", "temporal_workflow_failed"} <= collector.metric_names
    assert not any(CONTENT.encode() in body for body in collector.bodies)
    assert CONTENT not in worker.log
    lines = [json.loads(line) for line in worker.log.splitlines()]
    told = [line for line in lines if line.get("run_id") == run_id]
    assert {line["error"] for line in told} == {"RuntimeError"}


def path_of(span: TakenSpan, trace: list[TakenSpan]) -> list[str]:
    """Names from a span to its root."""
    by_id = {each.span_id: each for each in trace}
    path: list[str] = []
    at: TakenSpan | None = span
    while at is not None:
        path.append(at.name)
        at = by_id.get(at.parent_id)
    return path


@pytest.mark.usefixtures("mongo")
async def test_content_is_in_spans_by_choice(
    settings: Settings, collector: Collector, client: Client
) -> None:
    environment = traced(settings, collector.endpoint, PERDURE_TELEMETRY_CONTENT="true")
    with ProductionWorker(environment) as worker:
        handle = await start(client, settings, script([], final=CONTENT))
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
        assert await worker.stop() == 0
    assert any(CONTENT.encode() in body for body in collector.bodies)


@pytest.mark.crash
async def test_a_replaced_worker_with_a_tiny_cache_doubles_no_span_and_changes_no_end(
    settings: Settings, collector: Collector, client: Client, mongo: MongoStepStore, tmp_path: Path
) -> None:
    def prompt(name: str) -> str:
        go, begun = tmp_path / f"{name}-go", tmp_path / f"{name}-begun"
        wait = ("wait_for", {"path": str(go), "marker": str(begun)})
        return script([[("echo", {"text": "a"})], [wait], [("echo", {"text": "b"})] * 2])

    (tmp_path / "calm-go").touch()
    environment = traced(settings, collector.endpoint)
    with ProductionWorker(environment) as worker:
        calm = await start(client, settings, prompt("calm"), f"calm-{uuid4().hex}")
        undisturbed = await asyncio.wait_for(calm.result(), WITHIN.total_seconds())
        assert await worker.stop() == 0
    tiny = {**environment, "PERDURE_MAX_CACHED_WORKFLOWS": "1"}
    rough = [f"rough-{number}-{uuid4().hex}" for number in range(4)]
    with ProductionWorker(tiny) as first:
        handles = [
            await start(client, settings, prompt(f"rough-{number}"), run_id)
            for number, run_id in enumerate(rough)
        ]

        def all_wait() -> bool:
            assert first.process.poll() is None, first.process.communicate()
            return all((tmp_path / f"rough-{number}-begun").exists() for number in range(4))

        await eventually(all_wait, within=WITHIN)
        first.process.send_signal(signal.SIGTERM)
        with ProductionWorker(tiny) as second:
            for number in range(4):
                (tmp_path / f"rough-{number}-go").touch()
            assert await first.ended() == 0
            outputs = [
                await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
                for handle in handles
            ]
            assert await second.stop() == 0
        assert [each.output for each in outputs] == [undisturbed.output] * 4
        assert "detach" not in first.log + second.log
    expected = shape_of(collector.names_of_run(calm.id))
    assert expected["RunWorkflow:agent_run"] == 1
    assert expected["execute_tool wait_for"] == 1
    for run_id in rough:
        found = collector.names_of_run(run_id)
        assert shape_of(found) == expected
        # What was recorded under tracing replays without it: a trace changes no command.
        history = await replay(client.get_workflow_handle(run_id), [SCRIPT_IN_PRODUCTION])
        begun = sum(n for name, n in found.items() if name.startswith("StartActivity:"))
        assert begun == count_activities(history)
        assert await end_of(mongo, run_id) == await end_of(mongo, calm.id)
    sent = [span.span_id for span in collector.spans]
    assert len(set(sent)) == len(sent)


def count_activities(history: WorkflowHistory) -> int:
    """How many were started, local ones as well."""
    return sum(count_scheduled_activities(history).values()) + sum(
        event.marker_recorded_event_attributes.marker_name == LOCAL_ACTIVITY_MARKER
        for event in history.events
    )


async def end_of(store: MongoStepStore, run_id: str) -> object:
    """What a run left behind, without ids and times."""
    run, latest = await store.get_run(run_id=run_id), await store.latest_snapshot(run_id=run_id)
    assert run is not None
    assert latest is not None
    return (
        run.state,
        [each.kind for each in await store.list_events(run_id=run_id)],
        [
            (each.step_index, each.tool_name, each.status, each.resolution)
            for each in await store.list_tool_effects(run_id=run_id)
        ],
        [part.part_kind for message in latest.messages for part in message.parts],
    )


def shape_of(found: Counter[str]) -> Counter[str]:
    """Without commits, whose groups depend on what came in together, and what they ask MongoDB."""
    return Counter(
        {
            name: n
            for name, n in found.items()
            if not name.startswith("mongodb") and name.rpartition(":")[2] not in BOUNDARIES
        }
    )


@pytest.mark.crash
async def test_each_metric_moves_under_a_load_with_planted_faults(
    settings: Settings, client: Client, mongo: MongoStepStore, tmp_path: Path
) -> None:
    environment = {
        **variables_of(settings),
        "PERDURE_HEALTH_PORT": str(free_port()),
        "PERDURE_METRICS_STORE_SECONDS": "0.2",
        "PERDURE_HOP_AFTER_REQUESTS": "2",
        "PERDURE_MAX_CONCURRENT_ACTIVITIES": "10",
    }
    paid = tmp_path / "paid"
    with ProductionWorker(environment) as lost:
        parked = await start(
            client, settings, script([[("pay", {"path": str(paid), "delay": 60})]])
        )
        await eventually(paid.exists, within=WITHIN)
        lost.process.kill()
    with ProductionWorker(environment) as worker:
        await worker.ready()
        before = await samples(worker)
        assert before["perdure_commit_conflicts_total"] == 0
        assert before["perdure_commit_stale_total"] == 0
        runs = [await start(client, settings, echo_steps(5, size=20_000)) for _ in range(4)]
        for run in runs:
            await asyncio.wait_for(run.result(), WITHIN.total_seconds())
        assert await plant(client, settings.task_queue) == [
            "apply",
            "apply",
            "suppress suppressed",
            "apply refused",
            "stale",
        ]
        await client.execute_activity(
            "search_conversation_history",
            SearchHistoryRequest(query="zebra", conversation_id=settings.task_queue),
            id=f"search-{uuid4().hex}",
            task_queue=settings.task_queue,
            start_to_close_timeout=WITHIN,
        )
        with MongoClient[dict[str, object]](str(settings.mongodb_uri)) as database:
            snapshots = database[settings.mongodb_database]["snapshots"]
            snapshots.update_one({"run_id": runs[0].id}, {"$set": {"unindexed": True}})

        async def all_moved() -> dict[str, float]:
            now = await samples(worker)
            moved = (
                *("perdure_effects_parked", "perdure_search_lag"),
                "perdure_tool_effects_parked_total",
            )
            is_seen = all(now.get(name) == 1 for name in moved)
            return now if is_seen else {}

        now = await eventually(all_moved, within=WITHIN)
        for name in (
            *("perdure_commit_conflicts_total", "perdure_commit_stale_total"),
            *("perdure_commit_suppressed_total", "perdure_effects_parked"),
            *("perdure_effects_unresolved", "perdure_search_lag"),
        ):
            assert now[name] == 1, name
        for name in (
            *("perdure_effects_parked_age_seconds", "perdure_effects_unresolved_age_seconds"),
            *("perdure_search_lag_age_seconds", "perdure_search_duration_seconds_count"),
            *("perdure_boundary_duration_seconds_sum", "perdure_commit_operations_sum"),
            *("perdure_history_event_headroom_count", "perdure_history_size_headroom_bytes_sum"),
            *("perdure_hops_total", "perdure_payload_saved_bytes_total"),
            *("perdure_payload_given_bytes_total", "perdure_payload_written_bytes_total"),
            *("temporal_worker_task_slots_available", "temporal_num_pollers"),
            "temporal_workflow_completed_total",
        ):
            assert now[name] > before.get(name, 0) or name.startswith("temporal_"), name
            assert now[name] > 0, name
        assert "temporal_sticky_cache_size" in now  # 0 where the run was evicted meanwhile
        assert now["perdure_worker_ready"] == 1
        text = await worker.metrics()
        seen = {
            name.group(1)
            for name in re.finditer(r"^((?:perdure)_\w+?)(?:\{| )", text, re.MULTILINE)
        }
        assert seen <= names.SERIES, "a series that no dashboard may use"
        missing = {each for metric in names.PERDURE for each in metric.series} - seen
        # Of readers there is none here, nothing was refused otherwise, `/healthz` was not asked.
        others = {
            *("perdure_commit_refused_total", "perdure_worker_live"),
            *("perdure_approvals_asked_total", "perdure_stale_attempts_total"),
        }
        assert missing == {*names.STREAM_LAG.series, *others}
        await parked.terminate()
        assert await worker.stop() == 0
    await show_a_lagging_reader(mongo)


async def samples(worker: ProductionWorker) -> dict[str, float]:
    """Each series of a scrape, summed over its labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(await worker.metrics()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


async def plant(client: Client, task_queue: str) -> list[str]:
    queue = f"planting-{uuid4().hex}"
    async with Worker(client, task_queue=queue, workflows=[PlantWorkflow]):
        return await client.execute_workflow(
            PlantWorkflow.run, task_queue, id=f"planted-{uuid4().hex}", task_queue=queue
        )


async def show_a_lagging_reader(mongo: MongoStepStore) -> None:
    """A reader is in another process than the worker: here it is the test's."""
    telemetry = begin_telemetry(Settings(), service="reader", environment={}, is_scraped=True)
    reader = telemetry.reader
    assert reader is not None
    now = (await mongo.page_runs(limit=1)).runs[0].started_at
    take = StreamTake(run_id=f"r-{uuid4().hex}", branch="b", request=0, started_at=now)
    streams, expiry = mongo.streams, now + timedelta(days=1)
    for first in range(2):
        items = (StreamItem(kind="text", text=f"word {first}"),)
        await streams.append(StreamChunk(take=take, first=first, items=items), expires_at=expiry)
    await streams.list_items(take)
    assert "perdure_stream_lag_seconds" not in reader.exposition().decode()
    await asyncio.sleep(0.3)  # the reader's lag itself
    await streams.list_items(take, first=1)
    text = reader.exposition().decode()
    lag = re.search(r"perdure_stream_lag_seconds_sum\S* (\S+)", text)
    assert lag is not None
    assert float(lag[1]) >= 0.3


@pytest.mark.usefixtures("mongo")
async def test_a_collector_that_is_down_changes_no_run(settings: Settings, client: Client) -> None:
    environment = traced(settings, f"http://127.0.0.1:{free_port()}")
    with ProductionWorker(environment) as worker:
        handle = await start(client, settings, echo_steps(2))
        await asyncio.wait_for(handle.result(), WITHIN.total_seconds())
        assert await worker.stop() == 0


@pytest.mark.usefixtures("mongo")
async def test_two_processes_share_the_work_and_stop_together(
    settings: Settings, client: Client
) -> None:
    port = free_port()
    environment = {**variables_of(settings), "PERDURE_HEALTH_PORT": str(port)}
    second = {**environment, "PERDURE_HEALTH_PORT": str(port + 1)}
    with ProductionWorker(environment, "--processes", "2") as workers:
        await workers.ready()
        await ProductionWorker.ready(_at(workers, second))
        runs = [await start(client, settings, echo_steps(2)) for _ in range(4)]
        for run in runs:
            await asyncio.wait_for(run.result(), WITHIN.total_seconds())
        assert await workers.stop() == 0
    assert "[0] " in workers.log
    assert "[1] " in workers.log


def _at(worker: ProductionWorker, environment: dict[str, str]) -> ProductionWorker:
    """The same process, asked at another port."""
    other = ProductionWorker(environment)
    other._process = worker.process  # pyright: ignore[reportPrivateUsage] - a copy
    return other


@pytest.mark.usefixtures("mongo")
async def test_a_taken_port_and_a_strange_protocol_are_told_at_the_start(
    settings: Settings, collector: Collector
) -> None:
    port = collector.endpoint.rpartition(":")[2]
    taken = {
        **variables_of(settings),
        "PERDURE_HEALTH_PORT": port,
        "PERDURE_HEALTH_HOST": "127.0.0.1",
    }
    grpc = traced(settings, collector.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    typo = {**variables_of(settings), "PERDURE_TASK_QEUE": "x"}
    for environment, words in (
        (taken, f"the health port 127.0.0.1:{port} cannot be had: Address already in use"),
        (grpc, "OTLP goes out by http/protobuf alone"),
        (typo, "did you mean PERDURE_TASK_QUEUE?"),
    ):
        with ProductionWorker(environment) as worker:
            assert await worker.ended() == 1
        assert words in worker.log
        assert len(worker.log.splitlines()) == 1
