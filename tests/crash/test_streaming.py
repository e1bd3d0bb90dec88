"""A worker killed while its model speaks: what readers were shown is what is stored."""

import asyncio
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client

from settings import Settings
from stores.following import follow_run, joined
from stores.protocols import StepStore
from tests.helpers.eventually import eventually
from tests.helpers.speaking import speech, words
from tests.helpers.subprocess_worker import WorkerProcess
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

FINAL = " ".join(f"word-{number}" for number in range(40))


async def test_reader_drops_the_text_of_a_killed_attempt(
    temporal: Client, store: StepStore, settings: Settings, tmp_path: Path
) -> None:
    marker = tmp_path / "spoken"
    prompt = speech(FINAL, pause=0.01, stop_at=20, marker=marker, how="hang")
    request = AgentRunInput(agent="speaker", prompt=prompt, stream=True)
    run_id = f"killed-{uuid4().hex}"
    shown: list[str] = []
    kinds: list[str] = []
    reply = ""

    async def read() -> None:
        nonlocal reply
        async for event in follow_run(store, run_id, appears_within=timedelta(seconds=30)):
            kinds.append(event.kind)
            reply = joined(reply, event)
            shown.append(reply)

    with WorkerProcess(settings, log_path=tmp_path / "worker.log") as worker:
        handle = await temporal.start_workflow(
            AgentRunWorkflow.run, request, id=run_id, task_queue=settings.task_queue
        )
        reading = asyncio.ensure_future(read())
        await eventually(marker.exists, within=timedelta(seconds=30))
        await eventually(lambda: len(shown) == 20, what="all that was said is shown")
        worker.restart()
        async with asyncio.timeout(60):
            assert (await handle.result()).output == FINAL
            await reading
    assert shown[19] == "".join(words(FINAL)[:20])
    assert kinds == ["text"] * 20 + ["retry"] + ["text"] * 40 + ["run_completed"]
    assert shown[20] == ""
    assert reply == FINAL
