"""What a plain run leaves behind whose process is killed: no hook fires then."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stores.opening import open_step_store

ROOT = Path(__file__).parents[3]


def run_until_killed(backend: str, place: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.plain_run", backend, str(place)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
        finally:
            process.kill()


@pytest.mark.spec("SP-1", "SP-3", "SP-6", "SP-39", "SP-104", "SP-106", "SP-112", "SP-113")
@pytest.mark.parametrize(("backend", "option"), [("file", "directory"), ("sqlite", "database")])
async def test_a_killed_process_leaves_its_trail_its_frontier_and_what_may_have_happened(
    tmp_path: Path, backend: Any, option: str
) -> None:
    place = tmp_path / "runs"
    run_until_killed(backend, place)
    options: dict[str, Any] = {option: str(place)}
    store = open_step_store(backend, **options)
    run = await store.get_run(run_id="run")
    assert run is not None
    assert run.state == "running"
    kinds = [event.kind for event in await store.list_events(run_id="run")]
    assert kinds.count("tool_call_started") == 3
    assert kinds.count("tool_call_completed") == 2
    (unresolved,) = await store.list_unresolved_tool_effects(run_id="run")
    assert (unresolved.tool_name, unresolved.tool_call_id) == ("slow", "1-slow")
    assert (unresolved.status, unresolved.ended_at) == ("started", None)
    newest = await store.latest_snapshot(run_id="run", include_interrupted=True)
    assert newest is not None
    assert newest.state == "interrupted"
    calls = [(part.part_kind, getattr(part, "args", None)) for part in newest.messages[-1].parts]
    assert calls == [("tool-call", {"turn": 1})] * 2
    settled = await store.latest_snapshot(run_id="run")
    assert settled is not None
    assert (settled.state, len(settled.messages)) == ("complete", 3)
    # The quick call of that batch has completed, and its result is in no history.
    for each in await store.list_snapshots(run_id="run"):
        assert "quick 1" not in repr(each.messages)
    effects = await store.list_tool_effects(run_id="run")
    assert [(each.tool_call_id, each.status) for each in effects] == [
        ("0-quick", "completed"),
        ("1-quick", "completed"),
        ("1-slow", "started"),
    ]
    await store.aclose()
