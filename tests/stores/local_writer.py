"""A process that writes to a store beside others: `python -m tests.stores.local_writer`.

Arguments: backend, place, name of the writer, number of rounds. It says `ready`, waits for a line,
writes, and says in JSON whether it was the one that registered the shared run.
"""

import asyncio
import json
import sys
from pathlib import Path

from stores.errors import RunIdTakenError
from stores.opening import open_step_store
from stores.protocols import StepStore
from tests.stores.records import effect, event, run_record, snapshot
from tests.stores.writer import request

SHARED = "shared"


def open_store(backend: str, place: Path) -> StepStore:
    if backend == "file":
        return open_step_store("file", directory=place)
    return open_step_store("sqlite", database=place)


async def write(store: StepStore, name: str, rounds: int) -> bool:
    try:
        await store.register_run(run_record(SHARED, registration_id=name))
        is_first = True
    except RunIdTakenError:
        is_first = False
    await store.register_run(run_record(f"own-{name}"))
    for number in range(rounds):
        await store.append_event(event(number, run_id=SHARED, tool_name=name))
        await store.append_event(event(number, key=f"once-{number}", run_id=SHARED))
        await store.save_snapshot(snapshot([request(f"{name} {number}")], run_id=SHARED))
        await store.record_tool_effect(effect(run_id=f"own-{name}", tool_call_id=str(number)))
    await store.aclose()
    return is_first


def main(backend: str, place: str, name: str, rounds: str) -> None:
    store = open_store(backend, Path(place))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    is_first = asyncio.run(write(store, name, int(rounds)))
    sys.stdout.write(json.dumps({"is_first": is_first}))


if __name__ == "__main__":
    main(*sys.argv[1:])
