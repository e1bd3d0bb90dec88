"""Two processes that write to one store at once."""

import json
import subprocess
import sys
from pathlib import Path

from pydantic_ai.messages import UserPromptPart

from tests.architecture.source_tree import ROOT
from tests.stores.local_writer import SHARED, open_store

ROUNDS = 25


def run_two_writers(backend: str, place: Path) -> None:
    """Start both, let them begin together, wait for both."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.stores.local_writer", backend, place, name, str(ROUNDS)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=50)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(json.loads(answer)["is_first"] for answer in answers) == [False, True]


async def check_what_two_writers_wrote(backend: str, place: Path) -> None:
    """Nothing of it is lost, doubled or out of order."""
    store = open_store(backend, place)
    events = await store.list_events(run_id=SHARED)
    assert len(events) == 3 * ROUNDS
    keys = [each.idempotency_key for each in events if each.idempotency_key]
    assert sorted(keys) == sorted(f"once-{number}" for number in range(ROUNDS))
    for name in ("one", "two"):
        written = [each.step_index for each in events if each.tool_name == name]
        assert written == list(range(ROUNDS))
        assert len(await store.list_tool_effects(run_id=f"own-{name}")) == ROUNDS
    sequences = [each.sequence for each in events]
    snapshots = await store.list_snapshots(run_id=SHARED)
    sequences += [each.sequence for each in snapshots]
    assert sorted(sequences) == list(range(1, 5 * ROUNDS + 1))
    parts = [each.messages[0].parts[0] for each in snapshots]
    texts = {each.content for each in parts if isinstance(each, UserPromptPart)}
    assert texts == {f"{name} {number}" for name in ("one", "two") for number in range(ROUNDS)}
    await store.verify()
    await store.aclose()
